"""Held-out evaluation: prompts that are never trained on, at one pinned version."""

from __future__ import annotations

import asyncio

from workers import report
from workers.contract.errors import EngineError
from workers.parts import TRAINER, Parts
from workers.records import Prompt, Sample
from workers.requests import evaluation_request


async def evaluate(parts: Parts) -> None:
    """Called by the train loop, which publishes nothing while it waits: that pins the version.

    Its samples never enter the sample ledger. Raises EngineError where a completion mixed versions all the same.
    """
    began = parts.clock.now()
    prompts = parts.environment.evaluation_prompts

    async def one(prompt: Prompt) -> Sample:
        rollout = await parts.pool.generate(evaluation_request(parts.config, prompt, parts.environment.stop_ids))
        return await parts.scorer.score(prompt, rollout)

    with parts.time.during(TRAINER, "evaluation"):
        scored = await asyncio.gather(*(one(prompt) for prompt in prompts))
    if any(set(sample.rollout.versions) - {parts.progress.version} for sample in scored):
        raise EngineError("an evaluation mixed policy versions", field="evaluation", value=parts.progress.version)
    report.evaluation(parts, prompts, scored, parts.clock.now() - began)
