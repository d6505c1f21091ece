"""From groups to the engine's requests. Every slot's random stream hangs on (seed, prompt, index), never on the order of events."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from workers.contract.config import RunConfig
from workers.records import Group, Prompt, SampleRequest


def stream_key(seed: int, *names: object) -> int:
    """A named child stream of the root seed: 63 bits of sha256."""
    text = "/".join(map(str, (seed, *names)))
    return _first_63_bits(hashlib.sha256(text.encode()).digest())


def stream_keys(seed: int, *names: object, last: Iterable[int]) -> list[int]:
    """`stream_key(seed, *names, one)` for each one of `last`, in a quarter of the time."""
    stem = hashlib.sha256("".join(f"{name}/" for name in (seed, *names)).encode())
    keys = []
    for one in last:
        whole = stem.copy()
        whole.update(b"%d" % one)
        keys.append(_first_63_bits(whole.digest()))
    return keys


def _first_63_bits(digest: bytes) -> int:
    return int.from_bytes(digest[:8], "big") >> 1


def training_requests(config: RunConfig, group: Group, stop_ids: list[int]) -> list[SampleRequest]:
    """One request for each completion slot of the group that is to be filled."""
    sampling, slots = config.sampling, group.slots or range(config.batch.group_size)
    keys = stream_keys(config.seed, "sample", group.id, group.prompt.id, last=slots)
    return [
        SampleRequest(
            id=f"{group.id}/{index}",
            group_id=group.id,
            index=index,
            prompt_ids=group.prompt.token_ids,
            key=key,
            max_new_tokens=sampling.max_new_tokens,
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
            stop_ids=stop_ids,
        )
        for index, key in zip(slots, keys, strict=True)
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
