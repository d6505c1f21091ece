"""Kinds by name. Strings only ("module:Class"), resolved on first use: naming a kind imports nothing heavy."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from workers.contract.errors import ConfigError

TABLE: dict[str, dict[str, str]] = {
    "orchestration": {
        "asyncio": "workers.axes.orchestration.children:AsyncioChildren",
        "ray": "workers.cluster.orchestration:RayActors",
    },
    "buffer": {
        "bounded": "workers.axes.buffer.bounded:BoundedBuffer",
    },
    "transport": {
        "shared_memory": "workers.axes.transport.shared_memory:SharedMemoryTransport",
        "filesystem": "workers.axes.transport.filesystem:FilesystemTransport",
    },
    "interrupt": {
        "forward_pass": "workers.axes.interrupt.forward_pass:ForwardPass",
    },
    "staleness": {
        "drop": "workers.axes.staleness.drop:Drop",
        "count_only": "workers.axes.staleness.count_only:CountOnly",
    },
    "partial": {
        "continue": "workers.axes.partial.keep_going:Continue",
    },
    "lora": {
        "adapter_only": "workers.axes.lora.adapter_only:AdapterOnly",
    },
    "backend": {
        "single": "workers.axes.backend.single:SingleProcessTrainer",
    },
    "rollout": {
        "torch": "workers.rollout.torch.generator:TorchGenerator",
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
