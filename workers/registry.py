"""Kinds by name. Strings only ("module:Class"), resolved on first use: naming a kind imports nothing heavy."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from workers.contract.errors import ConfigError

TABLE: dict[str, dict[str, str]] = {
    "orchestration": {
        "asyncio": "workers.axes.orchestration.children:AsyncioChildren",
        "ray": "workers.cluster.orchestration:RayActors",
        "pubsub": "workers.axes.orchestration.pubsub:ValkeyStreams",
        "http": "workers.axes.orchestration.http:HttpServices",
    },
    "buffer": {
        "none": "workers.axes.buffer.none:NoBuffer",
        "double": "workers.axes.buffer.double:DoubleBuffer",
        "bounded": "workers.axes.buffer.bounded:BoundedBuffer",
        "stream": "workers.axes.buffer.stream:StreamBuffer",
    },
    "transport": {
        "shared_memory": "workers.axes.transport.shared_memory:SharedMemoryTransport",
        "filesystem": "workers.axes.transport.filesystem:FilesystemTransport",
        "collective": "workers.axes.transport.collective:CollectiveTransport",
        "collective_bucketed": "workers.axes.transport.collective_bucketed:BucketedCollectiveTransport",
        "cuda_ipc": "workers.axes.transport.cuda_ipc:CudaIpcTransport",
        "http": "workers.axes.transport.http:HttpTransport",
        "object_store": "workers.cluster.object_store:ObjectStoreTransport",
        "restart": "workers.axes.transport.restart:RestartTransport",
    },
    "payload": {
        "adapter": "workers.axes.payload.whole:Whole",
        "full": "workers.axes.payload.whole:Whole",
        "delta": "workers.axes.payload.delta:Delta",
        "merged_adapter": "workers.axes.payload.whole:Whole",
        "expert_shards": "workers.axes.payload.expert_shards:ExpertShards",
    },
    "interrupt": {
        "forward_pass": "workers.axes.interrupt.forward_pass:ForwardPass",
        "keep": "workers.axes.interrupt.keep:Keep",
        "retract": "workers.axes.interrupt.retract:Retract",
        "abort": "workers.axes.interrupt.abort:Abort",
        "drain": "workers.axes.interrupt.drain:Drain",
        "batch": "workers.axes.interrupt.batch:BetweenBatches",
    },
    "staleness": {
        "drop": "workers.axes.staleness.drop:Drop",
        "wait": "workers.axes.staleness.wait:Wait",
        "recycle": "workers.axes.staleness.recycle:Recycle",
        "count_only": "workers.axes.staleness.count_only:CountOnly",
    },
    "partial": {
        "continue": "workers.axes.partial.keep_going:Continue",
        "abort_prefix": "workers.axes.partial.abort_prefix:AbortPrefix",
        "save_resume": "workers.axes.partial.save_resume:SaveResume",
        "recycle": "workers.axes.partial.recycle:Recycle",
        "cancel_group": "workers.axes.partial.cancel_group:CancelGroup",
        "none": "workers.axes.partial.none:Nothing",
    },
    "lora": {
        "adapter_only": "workers.axes.lora.adapter_only:AdapterOnly",
        "merged": "workers.axes.lora.merged:Merged",
        "off": "workers.axes.lora.off:WholeModel",
    },
    "backend": {
        "single": "workers.axes.backend.single:SingleProcessTrainer",
        "ddp": "workers.axes.backend.ddp:DataParallelTrainer",
        "fsdp2": "workers.axes.backend.fsdp2:FullyShardedTrainer",
        "tp": "workers.axes.backend.tp:TensorParallelTrainer",
    },
    "rollout": {
        "torch": "workers.rollout.torch.generator:TorchGenerator",
        "vllm": "workers.rollout.vllm.generator:VllmGenerator",
        "remote": "workers.rollout.remote.generator:RemoteGenerator",
    },
}


def resolve(axis: str, kind: str) -> Any:
    """The class behind a kind. Raises ConfigError naming the axis and the kinds there are."""
    try:
        module_name, class_name = TABLE[axis][kind].split(":")
    except KeyError:
        known = ", ".join(sorted(TABLE.get(axis, {})))
        raise ConfigError(f"no such kind of {axis}", field=f"{axis}.kind", value=kind, cure=f"choose one of: {known}") from None
    return getattr(import_module(module_name), class_name)
