"""What an engine that is not Headrace's own cannot do, told before anything starts."""

from __future__ import annotations

from collections.abc import Iterator

from workers.contract.config import RunConfig
from workers.contract.errors import ConfigError


def vllm(config: RunConfig) -> Iterator[ConfigError]:
    """Each row is something that vLLM, as it is driven here, would do otherwise than the word says."""
    if config.rollout.engine != "vllm":
        return
    replay, lora, sampling = config.replay, config.lora, config.sampling
    rows = (
        ("determinism", config.determinism, config.determinism != "strict", "its arithmetic depends on what else runs", "fast"),
        (
            "replay.sampling_mask",
            True,
            not replay.sampling_mask or sampling.top_k > 0,
            "it tells which tokens truncation left only where top-k bounds their number",
            "false, or sampling.top_k to 50",
        ),
        (
            "lora.moe_experts",
            True,
            not lora.moe_experts or lora.kind != "adapter_only",
            "experts' adapters cannot be merged there",
            "false",
        ),
        (
            "transport.payload",
            "expert_shards",
            config.transport.payload != "expert_shards",
            "it is given whole weights by the checkpoint's names",
            "full",
        ),
    )
    for field, value, holds, why, wanted in rows:
        if not holds:
            yield ConfigError(
                f"vLLM cannot do this: {why}", field=field, value=value, cure=f"set {field} to {wanted}, or rollout.engine to torch"
            )
    if "save_resume" in config.partial:
        yield ConfigError(
            "vLLM cannot park the cache of an aborted sample",
            field="partial",
            value=list(config.partial),
            cure='set partial to ["abort_prefix"], or rollout.engine to torch',
        )
