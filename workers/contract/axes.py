"""The axes' words: every kind a config may name, with one sentence each. The registry resolves exactly these."""

from __future__ import annotations

from typing import Literal, get_args

OrchestrationKind = Literal["asyncio", "ray", "pubsub", "http"]
BufferKind = Literal["none", "double", "bounded", "stream"]
BufferUnit = Literal["group", "sample"]
BufferOrder = Literal["fifo", "dispatch_order", "oldest_version", "newest_version"]
TransportKind = Literal["shared_memory", "filesystem", "collective", "collective_bucketed", "cuda_ipc", "http", "object_store", "restart"]
PayloadKind = Literal["adapter", "full", "delta", "merged_adapter", "expert_shards"]
InterruptKind = Literal["forward_pass", "keep", "retract", "abort", "drain", "batch"]
KvAfter = Literal["keep", "recompute", "flush"]
OverLimit = Literal["drop", "wait", "recycle", "count_only"]
LagFrom = Literal["oldest_token", "dispatch"]
PartialKind = Literal["continue", "abort_prefix", "save_resume", "recycle", "cancel_group", "none"]
LoraKind = Literal["adapter_only", "merged", "off"]
BackendKind = Literal["single", "ddp", "fsdp2", "tp"]
EngineKind = Literal["torch", "vllm", "remote"]

AXES: dict[str, tuple[str, ...]] = {
    "orchestration": get_args(OrchestrationKind),
    "buffer": get_args(BufferKind),
    "transport": get_args(TransportKind),
    "payload": get_args(PayloadKind),
    "interrupt": get_args(InterruptKind),
    "staleness": get_args(OverLimit),
    "partial": get_args(PartialKind),
    "lora": get_args(LoraKind),
    "backend": get_args(BackendKind),
    "rollout": get_args(EngineKind),
}

# What may run, and which cache policy and fates of half-finished samples go with each interrupt. `cancel_group` goes with any.
INTERRUPTS: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "forward_pass": (frozenset({"keep", "recompute"}), frozenset({"continue"})),
    "keep": (frozenset({"keep", "recompute"}), frozenset({"continue"})),
    "retract": (frozenset({"recompute"}), frozenset({"continue"})),
    "abort": (frozenset({"flush"}), frozenset({"abort_prefix", "save_resume", "recycle", "none"})),
    "drain": (frozenset({"keep", "recompute", "flush"}), frozenset({"none"})),  # no sample is half-finished: there is no cache to treat
    "batch": (frozenset({"keep", "recompute", "flush"}), frozenset({"none"})),
}
# Which payloads go with what learns.
PAYLOADS: dict[str, tuple[str, ...]] = {
    "adapter_only": ("adapter",),
    "merged": ("merged_adapter", "delta"),
    "off": ("full", "delta", "expert_shards"),
}

DESCRIPTIONS: dict[str, dict[str, str]] = {
    "orchestration": {
        "asyncio": "The driver starts generator and trainer as child processes and talks to them over Unix sockets.",
        "ray": "Generator and trainer are Ray actors, placed by the cluster; the driver is a Ray Job.",
        "pubsub": "The pools read work from Valkey streams by consumer groups, acknowledge it, and publish results to streams.",
        "http": "Generator and trainer are HTTP services on loopback, guarded by a token; the driver is their client.",
    },
    "buffer": {
        "none": "Nothing waits: a finished group is handed straight to the trainer, or waits at its door.",
        "double": "Two batches: one fills while the other is trained; they change places when the trainer wants the next.",
        "bounded": "At most `depth` units wait between the pools; a full buffer holds generation back.",
        "stream": "No backpressure: generation never waits. With `ring`, the oldest unit is overwritten and counted.",
    },
    "transport": {
        "shared_memory": "The trainer writes the payload once into POSIX shared memory; engines on the same host read it there.",
        "filesystem": "The payload is a safetensors file, written aside, synced and renamed; engines read it by path.",
        "collective": "Broadcast tensor by tensor in a process group of trainer and engines (gloo on CPU, NCCL on GPU).",
        "collective_bucketed": "Broadcast in packed buckets of `bucket_mb`, so that many small tensors cost few messages.",
        "cuda_ipc": "Engines on the trainer's GPU map its memory through CUDA IPC handles. Needs a GPU.",
        "http": "Engines fetch the payload from the trainer over HTTP, with a token, in one stream.",
        "object_store": "The payload is an object in Ray's store; engines of the same cluster read it there.",
        "restart": "The payload is written as a file; the engine is stopped and a new one starts from it.",
    },
    "payload": {
        "adapter": "The LoRA matrices alone.",
        "full": "Every weight, in the engine's number format.",
        "delta": "Positions whose bits changed since a named base version, and their new values; above 40 % it falls back to full.",
        "merged_adapter": "Every weight, the adapter merged in.",
        "expert_shards": "Mixture-of-experts: shared weights, and each changed expert's weights as a tensor of its own.",
    },
    "interrupt": {
        "forward_pass": "New weights are staged while decoding goes on; the pointer is flipped between two forward passes.",
        "keep": "Decoding stops before the transfer and goes on after it; slots stay as they are.",
        "retract": "Running requests go back to the queue with their tokens; afterwards they are prefilled again.",
        "abort": "Running requests end and go to their caller, who decides what becomes of them.",
        "drain": "Nothing new is admitted; running requests finish, then the weights are swapped.",
        "batch": "Weights are swapped only between whole batches, when nothing runs and nothing waits.",
    },
    "staleness": {
        "drop": "What exceeds `max_lag` is dropped, counted with its reason and replaced.",
        "wait": "A publish waits until everything that it would push over `max_lag` has been trained.",
        "recycle": "What exceeds `max_lag` is generated again from its prompt, under the same ids.",
        "count_only": "Lag is measured and shown; nothing is dropped.",
    },
    "partial": {
        "continue": "A running sample goes on under the new weights; each token keeps the version that produced it.",
        "abort_prefix": "An aborted sample is sent again with its tokens as a prefix, which the engine prefills.",
        "save_resume": "An aborted sample is parked with its cache and taken up again by the same engine.",
        "recycle": "An aborted sample's tokens are thrown away; it begins again under the same id.",
        "cancel_group": "At a publish, groups in flight that would be too old to train are cancelled and counted.",
        "none": "No sample survives half-finished: an aborted one is dropped and counted.",
    },
    "lora": {
        "adapter_only": "Only the adapter travels; the engine applies it un-merged beside its frozen base weights.",
        "merged": "An adapter is trained and merged into the base weights for the engine; whole weights travel.",
        "off": "Every weight is trained and travels.",
    },
    "backend": {
        "single": "One trainer process; micro-batches by token budget.",
        "ddp": "Every rank holds the model and trains its share of a batch; gradients are summed.",
        "fsdp2": "Parameters, gradients and optimizer state are sharded over the ranks (PyTorch fully_shard).",
        "tp": "Each layer's matrices are split over the ranks (PyTorch tensor parallel).",
    },
    "rollout": {
        "torch": "Headrace's own PyTorch engine: continuous batching, a KV cache, one prefill per group.",
        "vllm": "vLLM (`python -m workers install-engine vllm`): paged and prefix caches; an adapter is merged at each publish.",
        "remote": "vLLM or SGLang servers that already run, named by `rollout.remote`: samples by HTTP, weights by path. SGLang: not run.",
    },
}

# Words that are options and no kinds: (title, {word: sentence}).
OPTIONS: dict[str, dict[str, str]] = {
    "buffer.unit": {
        "group": "Depth counts complete groups; a group is admitted or refused as a whole.",
        "sample": "Depth counts samples; a sample that is too old leaves its group alone.",
    },
    "buffer.order": {
        "fifo": "As they were completed.",
        "dispatch_order": "As they were dispatched, among those that wait.",
        "oldest_version": "Those whose oldest token has the oldest version first.",
        "newest_version": "The freshest first; old ones wait, and may grow too old.",
    },
    "interrupt.kv_after": {
        "keep": "Keys and values computed under old weights stay.",
        "recompute": "Running samples are prefilled again under the new weights; their tokens and log-probs stay.",
        "flush": "The cache is emptied; a sample that is sent again is prefilled anew.",
    },
    "staleness.lag_from": {
        "oldest_token": "The version of the oldest token.",
        "dispatch": "The version at dispatch.",
    },
}
