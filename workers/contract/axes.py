"""The axes' words: every kind a config may name, with one sentence each. The registry resolves exactly these."""

from __future__ import annotations

from typing import Literal, get_args

OrchestrationKind = Literal["asyncio", "ray"]
BufferKind = Literal["bounded"]
BufferUnit = Literal["group"]
TransportKind = Literal["shared_memory", "filesystem"]
PayloadKind = Literal["adapter"]
InterruptKind = Literal["forward_pass"]
KvAfter = Literal["keep", "recompute"]
OverLimit = Literal["drop", "count_only"]
LagFrom = Literal["oldest_token", "dispatch"]
PartialKind = Literal["continue"]
LoraKind = Literal["adapter_only"]
BackendKind = Literal["single"]
EngineKind = Literal["torch"]

AXES: dict[str, tuple[str, ...]] = {
    "orchestration": get_args(OrchestrationKind),
    "buffer": get_args(BufferKind),
    "transport": get_args(TransportKind),
    "interrupt": get_args(InterruptKind),
    "staleness": get_args(OverLimit),
    "partial": get_args(PartialKind),
    "lora": get_args(LoraKind),
    "backend": get_args(BackendKind),
    "rollout": get_args(EngineKind),
}

DESCRIPTIONS: dict[str, dict[str, str]] = {
    "orchestration": {
        "asyncio": "The driver starts generator and trainer as child processes and talks to them over Unix sockets.",
        "ray": "Generator and trainer are Ray actors, placed by the cluster; the driver is a Ray Job.",
    },
    "buffer": {
        "bounded": "At most `depth` complete groups wait between the pools; a full buffer holds generation back.",
    },
    "transport": {
        "shared_memory": "The trainer writes the payload once into POSIX shared memory; engines on the same host read it there.",
        "filesystem": "The payload is a safetensors file, written aside, synced and renamed; engines read it by path.",
    },
    "interrupt": {
        "forward_pass": "New weights are staged while decoding goes on; the pointer is flipped between two forward passes.",
    },
    "staleness": {
        "drop": "A group whose lag exceeds `max_lag` is dropped, counted with its reason and replaced.",
        "count_only": "Lag is measured and shown; nothing is dropped.",
    },
    "partial": {
        "continue": "A running sample goes on under the new weights; each token keeps the version that produced it.",
    },
    "lora": {
        "adapter_only": "Only the adapter travels; the engine applies it un-merged beside its frozen base weights.",
    },
    "backend": {
        "single": "One trainer process: bf16 base, fp32 adapters, micro-batches by token budget.",
    },
    "rollout": {
        "torch": "Headrace's own PyTorch engine: continuous batching, a KV cache, one prefill per group.",
    },
}
