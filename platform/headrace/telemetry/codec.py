"""Bytes in, events out, events at rest: strict JSON, bounded decompression, and the stored form of a batch.

The stored body is canonical JSON of the columns (keys sorted, no spaces, ASCII), so equal content has equal bytes and one hash.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from headrace.telemetry.problems import BadBody, IngestProblem, TooLarge
from workers.contract.events import MAX_BATCH_BYTES, MAX_BATCH_EVENTS, EventBatch

CODEC = "json+zlib"
_ZLIB_LEVEL = 1  # level 6 is four times slower for a tenth fewer bytes
_LATEST_T = 4_102_444_800.0  # 2100: beyond it are milliseconds taken for seconds, and years that dates cannot hold
_LARGEST_INT = 2**63 - 1  # what a bigint column and a numpy int64 hold


@dataclass(frozen=True, slots=True)
class Event:
    """One event of one attempt, as stored."""

    seq: int
    t: float
    step: int
    kind: str
    data: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """The form that pages and sockets read."""
        return {"seq": self.seq, "t": self.t, "step": self.step, "kind": self.kind, "data": self.data}


@dataclass(frozen=True, slots=True)
class Columns:
    """A run of consecutive events, in columns of equal length."""

    first_seq: int
    t: list[float]
    step: list[int]
    kind: list[str]
    data: list[dict[str, Any]]

    def __len__(self) -> int:
        return len(self.t)

    @property
    def last_seq(self) -> int:
        """The seq of the last event held."""
        return self.first_seq + len(self.t) - 1

    def between(self, first: int, last: int) -> Columns:
        """The events first..last of those held."""
        lo, hi = first - self.first_seq, last - self.first_seq + 1
        return Columns(first, self.t[lo:hi], self.step[lo:hi], self.kind[lo:hi], self.data[lo:hi])

    def events(self) -> Iterator[Event]:
        """One event after the other, in order."""
        rows = zip(self.t, self.step, self.kind, self.data, strict=True)
        for seq, (t, step, kind, data) in enumerate(rows, start=self.first_seq):
            yield Event(seq, t, step, kind, data)


def read_body(raw: bytes, encoding: str = "", limit: int = MAX_BATCH_BYTES) -> bytes:
    """The plain bytes of a request body; called before anything is parsed. Raises TooLarge and BadBody."""
    if len(raw) > limit:
        raise TooLarge("the body is too large", field="body", value=len(raw), cure=f"at most {limit} bytes a batch; send fewer events")
    encoding = encoding.strip().lower()
    if encoding in ("", "identity"):
        return raw
    if encoding != "gzip":
        raise BadBody("unknown Content-Encoding", field="Content-Encoding", value=encoding, cure="send gzip or plain JSON")
    inflater = zlib.decompressobj(wbits=31)
    try:
        plain = inflater.decompress(raw, limit + 1)
    except zlib.error as error:
        raise BadBody("not gzip", field="body", value=str(error), cure="compress with gzip, or drop Content-Encoding") from error
    if len(plain) > limit:
        raise TooLarge("the body is too large when decompressed", field="body", cure=f"at most {limit} bytes a batch; send fewer events")
    if not inflater.eof:
        raise BadBody("the gzip stream is cut short", field="body", value=len(raw), cure="send the whole body", retryable=True)
    return plain


def parse_batch(plain: bytes) -> tuple[int, Columns]:
    """(fence, columns) of a POSTed batch. Raises IngestProblem with the field at fault."""
    try:
        document = json.loads(plain, parse_constant=_refuse_constant)
    except IngestProblem:
        raise
    except (ValueError, RecursionError) as error:
        raise BadBody("the body is not JSON", field="body", value=str(error)[:120], cure="send an EventBatch as JSON") from error
    try:
        batch = EventBatch.model_validate(document)
    except ValidationError as error:
        raise _named(error) from error
    _check_numbers(batch)
    return batch.fence, Columns(batch.first_seq, batch.t, batch.step, list(batch.kind), batch.data)


def pack(columns: Columns) -> tuple[bytes, str]:
    """(body, sha256 of the canonical JSON) of the events, as EventBatch keeps them."""
    plain = canonical(columns)
    return zlib.compress(plain, _ZLIB_LEVEL), hashlib.sha256(plain).hexdigest()


def digest(columns: Columns) -> str:
    """The hash `pack` would store, without compressing."""
    return hashlib.sha256(canonical(columns)).hexdigest()


def unpack(body: bytes | memoryview, first_seq: int, codec: str = CODEC) -> Columns:
    """The inverse of `pack`."""
    if codec != CODEC:
        raise ValueError(f"EventBatch.codec: {codec!r} is not known; this version reads {CODEC!r}")
    document = json.loads(zlib.decompress(bytes(body)))
    return Columns(first_seq, document["t"], document["step"], document["kind"], document["data"])


def canonical(columns: Columns) -> bytes:
    """Equal events, equal bytes."""
    document = {"t": columns.t, "step": columns.step, "kind": columns.kind, "data": columns.data}
    try:
        return json.dumps(document, separators=(",", ":"), sort_keys=True, allow_nan=False).encode("ascii")
    except ValueError as error:
        raise BadBody(
            "a number is out of range", field="data", value=str(error)[:120], cure='send "NaN", "Infinity" or "-Infinity" as strings'
        ) from error


def canonical_event(event: Event) -> bytes:
    """Equal events, equal bytes: how two versions of one seq are compared."""
    return json.dumps([event.t, event.step, event.kind, event.data], separators=(",", ":"), sort_keys=True).encode("ascii")


def clean_text(value: Any, limit: int) -> str:
    """Text that every database takes: no NUL, no lone surrogate, at most `limit` characters."""
    text = value if isinstance(value, str) else ("" if value is None else str(value))
    return text[:limit].encode("utf-8", "replace").decode("utf-8").replace("\x00", "\ufffd")


def _refuse_constant(name: str) -> float:
    raise BadBody("bare NaN and Infinity are not JSON", field="body", value=name, cure=f'send it as the string "{name}"')


def _named(error: ValidationError) -> IngestProblem:
    first = error.errors(include_url=False, include_context=False)[0]
    field = ".".join(str(part) for part in first["loc"]) or "body"
    too_many = first["type"] == "too_long"
    kind = TooLarge if too_many else IngestProblem
    cure = f"at most {MAX_BATCH_EVENTS} events a batch" if too_many else "see EventBatch in workers/contract/events.py"
    value = None if isinstance(first["input"], dict | list) else first["input"]
    return kind(first["msg"], field=field, value=value, cure=cure)


def _check_numbers(batch: EventBatch) -> None:
    if batch.first_seq + len(batch.t) > _LARGEST_INT:
        raise IngestProblem("too large", field="first_seq", value=batch.first_seq, cure="seq counts from 1 without gaps")
    for index, t in enumerate(batch.t):
        if not 0 <= t < _LATEST_T:  # NaN is neither
            raise IngestProblem("not a time of this century", field=f"t.{index}", value=t, cure="send Unix seconds")
    for index, step in enumerate(batch.step):
        if not 0 <= step <= _LARGEST_INT:
            raise IngestProblem("out of range", field=f"step.{index}", value=step, cure="steps count from 0")
