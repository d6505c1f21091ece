"""Scoring in threads with a deadline: a slow or broken verifier costs its own sample and nothing else."""

from __future__ import annotations

import asyncio
import math
import threading
from typing import Any

from workers.contract.errors import EngineError
from workers.records import Prompt, Rollout, Sample
from workers.scoring.base import Judge, unjudged

# Threads cannot be stopped. This many abandoned ones mean that the verifier hangs as a rule.
MAX_ABANDONED = 64


class ThreadScorer:
    """At most `width` samples are judged at the same time, each in a daemon thread: a hung one holds up no exit."""

    def __init__(self, judge: Judge, deadline_s: float = 10.0, width: int = 4) -> None:
        self._judge = judge
        self._deadline_s = deadline_s
        self._room = asyncio.Semaphore(width)
        self._abandoned = 0

    async def score(self, prompt: Prompt, rollout: Rollout) -> Sample:
        """Called for every rollout, evaluation included. Raises EngineError only when verifiers hang as a rule."""
        nothing = unjudged(rollout)
        if nothing is not None:
            return Sample(rollout=rollout, error=nothing)
        async with self._room:
            judged = self._start(prompt, rollout)
            try:
                return await asyncio.wait_for(asyncio.shield(judged), self._deadline_s)
            except TimeoutError:
                self._abandoned += 1
                judged.add_done_callback(self._came_back)
        if self._abandoned >= MAX_ABANDONED:
            raise EngineError(
                f"the verifier exceeded its deadline and {self._abandoned} calls of it still run",
                field="environment.dataset",
                value=prompt.id,
                cure=f"mend the verifier, or allow it more than {self._deadline_s:g} s",
            )
        return Sample(rollout=rollout, error=f"the verifier took longer than {self._deadline_s:g} s")

    def _start(self, prompt: Prompt, rollout: Rollout) -> asyncio.Future[Sample]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Sample] = loop.create_future()

        def deliver(sample: Sample) -> None:
            if not future.done():
                future.set_result(sample)

        def work() -> None:
            sample = judge(self._judge, prompt, rollout)
            try:
                loop.call_soon_threadsafe(deliver, sample)
            except RuntimeError:  # the loop has closed: the run ended while this verifier was still busy
                return

        threading.Thread(target=work, name=f"score-{rollout.id}", daemon=True).start()
        return future

    def _came_back(self, _: Any) -> None:
        self._abandoned -= 1


def judge(environment: Judge, prompt: Prompt, rollout: Rollout) -> Sample:
    """One sample, here and now. What the verifier raises, and a reward that is no finite number, is a failure, not a 0."""
    sample = Sample(rollout=rollout)
    try:
        sample.text = environment.decode(rollout.token_ids)
        reward, sample.answer = environment.verify(prompt, sample.text)
        sample.reward, sample.error = checked(reward)
    except Exception as error:  # verifiers are foreign code: whatever they raise is theirs, and fails this sample alone
        sample.error = f"the verifier raised {type(error).__name__}: {error}"[:500]
    return sample


def checked(reward: Any) -> tuple[float | None, str | None]:
    """(reward, None), or (None, why it is none)."""
    if reward is None:
        return None, "the verifier gave no reward"
    try:
        value = float(reward)
    except (TypeError, ValueError, OverflowError):
        return None, f"the verifier gave {type(reward).__name__}, not a number"
    if not math.isfinite(value):
        return None, f"the verifier gave {value}"
    return value, None
