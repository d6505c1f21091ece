"""delta: the positions whose bits, in the engine's number format, changed since the last publish, and their new values.

Both sides keep the last published weights. The sender compares bit patterns, not numbers, so that the receiver ends with the
very bits (a NaN's, and a zero's sign, too). Per tensor it sends positions or a bit mask, whichever is smaller.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from workers.axes.payload.base import Packed
from workers.contract.errors import EngineError
from workers.records import Manifest

FULL_ABOVE = 0.40  # share of positions changed from which whole weights are sent
AT, MASK, NEW, SAME = "#at", "#mask", "#new", "#same"  # what follows a tensor's name; no module's name holds a '#'
_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_BITS = torch.tensor([128, 64, 32, 16, 8, 4, 2, 1], dtype=torch.uint8)


class Delta:
    """The trainer's object packs, an engine's unpacks; each holds one copy of the weights."""

    remembers = True

    def __init__(self, kind: str) -> None:
        self._held: dict[str, torch.Tensor] = {}
        self._version: int | None = None
        self._receivers: set[str] = set()

    def pack(self, weights: Mapping[str, torch.Tensor], version: int, receivers: list[str]) -> Packed:
        """Each tensor is read once, in sorted order. Whole weights go out at first, again after a publish that failed (the same
        version once more), to an engine that was not there last time, when shapes changed, and above 40 %."""
        base, held = self._version, self._held
        same_names = held.keys() == set(weights)
        comparable = base is not None and version > base and set(receivers) <= self._receivers and same_names
        total = sum(tensor.numel() for tensor in held.values())
        self._version, self._receivers = None, set()  # until all is read: what is half updated is nobody's base
        parts: dict[str, torch.Tensor] = {}
        changed = 0
        for name in sorted(weights):
            small = comparable and changed <= FULL_ABOVE * total
            count = _advance(held, name, weights[name], parts if small else None)
            comparable = comparable and count is not None
            changed += count or 0
        for name in held.keys() - set(weights):
            del held[name]
        self._version, self._receivers = version, set(receivers)
        if not comparable:
            return Packed("full", dict(held))
        share = changed / total if total else 0.0
        if share > FULL_ABOVE:
            return Packed("full", dict(held), note={"changed_share": share})
        return Packed("delta", parts or {SAME: torch.zeros(0, dtype=torch.uint8)}, base, {"changed_share": share})

    def unpack(self, received: Mapping[str, torch.Tensor], manifest: Manifest) -> dict[str, torch.Tensor]:
        """Whole weights; what served before is never written into.

        Raises EngineError, retryable, where another version is held than the base.
        """
        if manifest.payload == "full":
            whole = dict(received)
        else:
            if manifest.base is None or manifest.base != self._version:
                raise EngineError(
                    f"the delta builds on version {manifest.base}, this engine holds {self._version}",
                    field="transport.payload",
                    value=manifest.version,
                    cure="publish the same version again: it is sent in full",
                    retryable=True,
                )
            whole = dict(self._held)
            for key in received:
                name, mark, word = key.rpartition("#")
                if mark and word == NEW[1:]:
                    whole[name] = _applied(self._base_of(name), name, received)
        self._held, self._version = whole, manifest.version
        return dict(whole)

    def _base_of(self, name: str) -> torch.Tensor:
        if name not in self._held:
            raise _unfitting(name)
        return self._held[name]


def _advance(held: dict[str, torch.Tensor], name: str, new: torch.Tensor, parts: dict[str, torch.Tensor] | None) -> int | None:
    """Makes `held[name]` the new tensor. Returns how many positions changed, their values in `parts`; None: not comparable."""
    old = held.get(name)
    if old is None or old.shape != new.shape or old.dtype != new.dtype:
        held[name] = new.detach().clone(memory_format=torch.contiguous_format)
        return None
    fresh = new.detach().to(old.device).contiguous()
    differs = words(fresh) != words(old)
    count = int(differs.sum())
    if count and parts is not None:
        flat = fresh.reshape(-1)
        wide = torch.int32 if flat.numel() <= 2**31 else torch.int64
        if count * wide.itemsize <= -(-flat.numel() // 8):
            parts[name + AT] = differs.nonzero().reshape(-1).to(wide)
        else:
            parts[name + MASK] = packed_bits(differs)
        parts[name + NEW] = flat[differs]
    if count:
        old.copy_(fresh)
    return count


def _applied(base: torch.Tensor, name: str, received: Mapping[str, torch.Tensor]) -> torch.Tensor:
    values = received[name + NEW].to(base.device)
    result = base.clone()
    if name + AT in received:
        where = received[name + AT].to(base.device).long()
        if where.numel() and not 0 <= int(where.min()) <= int(where.max()) < base.numel():
            raise _unfitting(name)
    elif name + MASK in received:
        where = unpacked_bits(received[name + MASK].to(base.device), base.numel())
        if int(where.sum()) != values.numel():
            raise _unfitting(name)
    else:
        raise _unfitting(name)
    if values.dtype != base.dtype or (where.dtype == torch.long and where.numel() != values.numel()):
        raise _unfitting(name)
    words(result)[where] = words(values)
    return result


def words(tensor: torch.Tensor) -> torch.Tensor:
    """The bit patterns of a contiguous tensor, flat, as integers of the same width."""
    return tensor.reshape(-1).view(_WORDS[tensor.element_size()])


def packed_bits(mask: torch.Tensor) -> torch.Tensor:
    """One bit a position, the first one highest; (ceil(n / 8),) uint8."""
    padded = torch.zeros(-(-mask.numel() // 8) * 8, dtype=torch.uint8, device=mask.device)
    padded[: mask.numel()] = mask
    return (padded.view(-1, 8) * _BITS.to(mask.device)).sum(1, dtype=torch.uint8)


def unpacked_bits(packed: torch.Tensor, count: int) -> torch.Tensor:
    """(count,) bool, back from `packed_bits`."""
    bits = (packed.unsqueeze(1) & _BITS.to(packed.device)) != 0
    if bits.numel() < count:
        return torch.zeros(count, dtype=torch.bool, device=packed.device)
    return bits.reshape(-1)[:count]


def _unfitting(name: str) -> EngineError:
    return EngineError("the delta does not fit the weights that this engine holds", field="transport.payload", value=name, retryable=True)
