"""From groups to the engine's requests. Every slot's random stream hangs on (seed, prompt, index), never on the order of events."""

from __future__ import annotations

import hashlib

from workers.contract.config import RunConfig
from workers.records import Group, Prompt, SampleRequest


def stream_key(seed: int, *names: object) -> int:
    """A named child stream of the root seed: 63 bits of sha256."""
    text = "/".join(map(str, (seed, *names)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def training_requests(config: RunConfig, group: Group, stop_ids: list[int]) -> list[SampleRequest]:
    """One request for each completion slot of the group that is to be filled."""
    sampling = config.sampling
    return [
        SampleRequest(
            id=f"{group.id}/{index}",
            group_id=group.id,
            index=index,
            prompt_ids=group.prompt.token_ids,
            key=stream_key(config.seed, "sample", group.id, group.prompt.id, index),
            max_new_tokens=sampling.max_new_tokens,
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
            stop_ids=stop_ids,
        )
        for index in group.slots or range(config.batch.group_size)
    ]


def evaluation_request(config: RunConfig, prompt: Prompt, stop_ids: list[int]) -> SampleRequest:
    """One request a held-out prompt: the same random numbers at every evaluation, so that only the weights differ."""
    return SampleRequest(
        id=f"{prompt.id}/0",
        group_id=prompt.id,
        index=0,
        prompt_ids=prompt.token_ids,
        key=stream_key(config.seed, "evaluation", prompt.id),
        max_new_tokens=config.sampling.max_new_tokens,
        temperature=config.evaluation.temperature,
        stop_ids=stop_ids,
        purpose="evaluation",
    )
