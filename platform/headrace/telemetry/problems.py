"""What ingest answers when it refuses: an HTTP status and a body that names the field, the value and the cure."""

from __future__ import annotations

from typing import Any

from workers.contract.errors import HeadraceError


class IngestProblem(HeadraceError):
    """A batch that is not stored. Nothing of it is: a refusal leaves the attempt as it was."""

    status = 422
    code = "invalid"

    def body(self) -> dict[str, Any]:
        """The JSON answer: `code` for machines, the named error for people."""
        return {"code": self.code, **self.as_dict()}


class BadBody(IngestProblem):
    """The bytes are not a JSON batch at all."""

    status = 400
    code = "bad_body"


class TooLarge(IngestProblem):
    """More bytes than one batch may hold, before or after decompression."""

    status = 413
    code = "too_large"


class QuotaExceeded(IngestProblem):
    """The run has used up its distinct series names."""

    status = 422
    code = "quota"


class Gap(IngestProblem):
    """Events are missing between what is stored and what came; the sender goes back to `expected`."""

    status = 409
    code = "gap"

    def __init__(self, expected: int, first_seq: int) -> None:
        super().__init__(
            f"events {expected} to {first_seq - 1} are missing",
            field="first_seq",
            value=first_seq,
            cure=f"send again from seq {expected}",
            retryable=True,
        )
        self.expected = expected

    def body(self) -> dict[str, Any]:
        return {**super().body(), "expected": self.expected}


class Conflict(IngestProblem):
    """An event that is already stored came again with other content."""

    status = 409
    code = "conflict"

    def __init__(self, seq: int) -> None:
        super().__init__(
            "this seq is stored with other content",
            field="seq",
            value=seq,
            cure="one writer per attempt; start a new attempt instead of renumbering",
        )
        self.seq = seq

    def body(self) -> dict[str, Any]:
        return {**super().body(), "seq": self.seq}


class FencedOut(IngestProblem):
    """A newer attempt of the run exists, or the batch carries another attempt's fence."""

    status = 409
    code = "fenced"

    def __init__(self, fence: int, current: int) -> None:
        super().__init__(
            f"a newer attempt holds fence {current}",
            field="fence",
            value=fence,
            cure="this attempt must stop; its spool can still be uploaded with `ship`",
        )
        self.current = current


class EventsGone(HeadraceError):
    """Derived rows cannot be made again: retention has taken events they come from."""
