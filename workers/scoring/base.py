"""The door of the scoring stage."""

from __future__ import annotations

from typing import Protocol

from workers.records import Prompt, Rollout, Sample


class Judge(Protocol):
    """What a scorer needs from an environment."""

    def decode(self, ids: list[int]) -> str: ...

    def verify(self, prompt: Prompt, text: str) -> tuple[float, str | None]: ...


class Scorer(Protocol):
    """A stage of its own, between generation and the buffer: samples may come back in any order."""

    async def score(self, prompt: Prompt, rollout: Rollout) -> Sample:
        """The judged sample. A verifier that fails gives reward None and says why in `error`; it never gives 0."""
        ...
