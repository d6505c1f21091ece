"""expert_shards: of a mixture-of-experts model, shared weights whole, and each expert's weights as tensors of their own, if they changed.

A batch that routes few tokens to an expert may leave its bits in the engine's number format untouched; it is not sent then. The
sender remembers a digest of each expert, not its weights; the receiver keeps the stacked tensors it put together last.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch

from workers.axes.payload.base import Packed
from workers.axes.transport.digest import hash_of, tensor_bytes
from workers.contract.errors import ConfigError, EngineError
from workers.records import Manifest

MARK = "#expert"  # follows a stacked tensor's name, then the expert's number; no module's name holds a '#'
_STACKED = re.compile(r"(.+\.experts)\.(gate_up_proj|down_proj)")


class ExpertShards:
    """The trainer's object packs, an engine's unpacks."""

    remembers = True

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._version: int | None = None
        self._receivers: set[str] = set()
        self._digests: dict[str, bytes] = {}  # the sender's: of each shard last published
        self._held: dict[str, torch.Tensor] = {}  # the receiver's: stacked tensors

    def pack(self, weights: Mapping[str, torch.Tensor], version: int, receivers: list[str]) -> Packed:
        """Every expert goes out at first, to an engine that was not there last time, and again after a publish that failed.

        What is sent is held until the transport has it. note: experts_sent of `experts`, each counted once a layer. Raises
        ConfigError where the model has no stacked experts.
        """
        base = self._version
        if base is None or version <= base or not set(receivers) <= self._receivers:
            base = None
        self._version, self._receivers = None, set()  # until all is read
        tensors: dict[str, torch.Tensor] = {}
        digests: dict[str, bytes] = {}
        for name in sorted(weights):
            tensor = weights[name]
            if not is_stacked(name, tensor):
                tensors[name] = tensor
                continue
            for expert, shard in enumerate(tensor.detach().cpu()):
                key = f"{name}{MARK}{expert}"
                digests[key] = hash_of(tensor_bytes(shard))
                if base is None or self._digests.get(key) != digests[key]:
                    tensors[key] = shard.clone()  # a slice would keep its whole stack alive
        if not digests:
            raise ConfigError(
                "the model has no experts", field="transport.payload", value=self._kind, cure="choose full or delta, or another model"
            )
        self._version, self._receivers, self._digests = version, set(receivers), digests
        note = {"experts_sent": float(_experts(tensors)), "experts": float(_experts(digests))}
        return Packed(self._kind, tensors, base, note)

    def unpack(self, received: Mapping[str, torch.Tensor], manifest: Manifest) -> dict[str, torch.Tensor]:
        """Whole weights; what served before is never written into. Raises EngineError, retryable, where another version is held than
        the base, or shards do not fit."""
        if manifest.base is not None and manifest.base != self._version:
            raise EngineError(
                f"the payload builds on version {manifest.base}, this engine holds {self._version}",
                field="transport.payload",
                value=manifest.version,
                cure="publish the same version again: every expert is sent",
                retryable=True,
            )
        whole = {name: tensor for name, tensor in received.items() if MARK not in name}
        shards: dict[str, dict[int, torch.Tensor]] = {}
        for key in received:
            name, mark, expert = key.partition(MARK)
            if mark:
                shards.setdefault(name, {})[int(expert)] = received[key]
        stacked = dict(self._held) if manifest.base is not None else {}
        for name, parts in shards.items():
            stacked[name] = _written(stacked[name].clone(), name, parts) if name in stacked else _stacked(name, parts)
        self._held, self._version = stacked, manifest.version
        return {**whole, **stacked}


def is_stacked(name: str, tensor: torch.Tensor) -> bool:
    """Whether this is the weight of all experts of a layer, expert by expert along its first dimension."""
    return tensor.dim() == 3 and _STACKED.fullmatch(name) is not None


def _experts(keys: Mapping[str, object]) -> int:
    """How many experts, layer by layer, the shards among the keys belong to."""
    found = set()
    for key in keys:
        name, mark, expert = key.partition(MARK)
        match = _STACKED.fullmatch(name)
        if mark and match:
            found.add((match[1], expert))
    return len(found)


def _stacked(name: str, parts: Mapping[int, torch.Tensor]) -> torch.Tensor:
    if sorted(parts) != list(range(len(parts))):
        raise _unfitting(name)
    return torch.stack([parts[expert] for expert in range(len(parts))])


def _written(base: torch.Tensor, name: str, parts: Mapping[int, torch.Tensor]) -> torch.Tensor:
    for expert, part in parts.items():
        if not 0 <= expert < len(base) or part.shape != base.shape[1:] or part.dtype != base.dtype:
            raise _unfitting(f"{name}{MARK}{expert}")
        base[expert] = part
    return base


def _unfitting(name: str) -> EngineError:
    message = "the experts sent do not fit those that this engine holds"
    return EngineError(message, field="transport.payload", value=name, cure="publish again", retryable=True)
