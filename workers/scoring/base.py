"""The door of the scoring stage."""

from __future__ import annotations

from typing import Protocol

from workers.records import Prompt, Rollout, Sample


class Judge(Protocol):
    """What a scorer needs from an environment."""

    def decode(self, ids: list[int]) -> str: ...

    def verify(self, prompt: Prompt, text: str) -> tuple[float, str | None]: ...


def unjudged(rollout: Rollout) -> str | None:
    """Why there is nothing to judge in it; None: there is. No verifier is asked then, which would call nothing a wrong answer."""
    if rollout.finish_reason == "abort":
        return "the rollout was aborted"
    if rollout.finish_reason == "deadline":
        return f"no engine returned it within {rollout.seconds:g} s (rollout.deadline_s)"
    if rollout.finish_reason == "failed":
        return f"the engine failed it: {rollout.error}"
    return None if rollout.token_ids else "the engine returned no token"


class Scorer(Protocol):
    """A stage of its own, between generation and the buffer: samples may come back in any order."""

    async def score(self, prompt: Prompt, rollout: Rollout) -> Sample:
        """The judged sample. A verifier that fails gives reward None and says why in `error`; it never gives 0."""
        ...
