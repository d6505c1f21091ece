"""What learns, spread over ranks: how each tensor is cut, and how its whole comes to rank 0, one tensor at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from workers.axes.backend.optimizer import STATE
from workers.axes.backend.ranks import Leader, Seat
from workers.axes.backend.spread import Alone
from workers.axes.lora.base import local

BUCKET_BYTES = 32 * 1024 * 1024  # of what is reduced or broadcast in one operation
BLOCKS = 32  # pieces of a tensor that is not contiguous where it arrives: the extra memory is one of them


@dataclass(frozen=True)
class Split:
    """A tensor cut along `dim` over `ranks`, as torch.chunk cuts: all pieces of the first's size, the last ones shorter or empty."""

    shape: tuple[int, ...]
    dim: int
    ranks: int

    def of(self, whole: Tensor, rank: int) -> Tensor:
        """A view of the piece of `rank`."""
        length = self.shape[self.dim]
        step = -(-length // self.ranks)
        start = min(rank * step, length)
        return whole.narrow(self.dim, start, min(step, length - start))


def split_of(parameter: Tensor) -> Split | None:
    """How a distributed tensor lies over the ranks; None where each of them has all of it."""
    for placement in getattr(parameter, "placements", ()):
        if placement.is_shard():
            return Split(tuple(parameter.shape), placement.dim, dist.get_world_size())
    return None


def cut_like(parameter: Tensor, whole: Tensor) -> Tensor:
    """This rank's piece of a whole tensor that is to lie as `parameter` does."""
    split = split_of(parameter)
    return whole if split is None else split.of(whole, dist.get_rank())


def buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Neighbours of one type together, up to BUCKET_BYTES."""
    some: list[Tensor] = []
    size = 0
    for tensor in tensors:
        if some and (size + tensor.nbytes > BUCKET_BYTES or tensor.dtype != some[0].dtype):
            yield some
            some, size = [], 0
        some.append(tensor)
        size += tensor.nbytes
    if some:
        yield some


def in_buckets(tensors: Sequence[Tensor], operation: Callable[[Tensor], None]) -> None:
    """`operation` changes a flat tensor in place, on every rank alike; many small tensors cost few messages."""
    with torch.no_grad():
        for some in buckets(tensors):
            flat = torch.cat([tensor.reshape(-1) for tensor in some])
            operation(flat)
            for tensor, part in zip(some, torch.split(flat, [tensor.numel() for tensor in some]), strict=True):
                tensor.copy_(part.view(tensor.shape))


def owners_of(masters: Mapping[str, Tensor], ranks: int) -> dict[str, int]:
    """Who keeps the optimizer's state of which tensor (ZeRO-1, Rajbhandari et al. 2020, arXiv:1910.02054): largest first, each to the
    rank that has least. Whole tensors, so that the step is that of one process to the bit."""
    loads = [0] * ranks
    owners: dict[str, int] = {}
    for name, master in sorted(masters.items(), key=lambda item: (-item[1].numel(), item[0])):
        owners[name] = loads.index(min(loads))
        loads[owners[name]] += master.numel()
    return owners


class Together(Alone):
    """See `Spread`. splits: tensors that are cut, by name; the others every rank has. owners: with a sharded optimizer, who steps what."""

    def __init__(
        self,
        seat: Seat,
        leader: Leader | None,
        masters: Mapping[str, Tensor],
        splits: Mapping[str, Split],
        owners: Mapping[str, int] | None = None,
        parts: Callable[[], Mapping[str, Tensor]] = dict,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        self._seat = seat
        self._leader = leader
        self._masters = masters
        self._splits = splits
        self.cuts = bool(splits)
        self._owners = owners
        self._held: dict[str, Callable[[], Mapping[str, Tensor]]] = {"part": parts, "master": lambda: masters}
        self._bucket_bytes = bucket_bytes
        self._ready: dict[tuple[str, str], Tensor] = {}  # gathered with an earlier one, and not asked for yet

    def mine(self, name: str) -> bool:
        return self._owners is None or self._owners[name] == self._seat.rank

    def norm(self, masters: Mapping[str, Tensor]) -> float:
        """The root of the sum of squares; a tensor that every rank has counts once, on rank 0."""
        if not any(name in self._splits for name in masters):
            return super().norm(masters)
        counted = [
            master.grad for name, master in masters.items() if master.grad is not None and (name in self._splits or self._seat.rank == 0)
        ]
        squares = torch.stack([*torch._foreach_norm(counted)]).double().square().sum() if counted else torch.zeros((), dtype=torch.float64)
        total(squares)
        return float(squares.sqrt())

    def stepped(self, masters: Mapping[str, Tensor]) -> None:
        self._ready.clear()
        if self._owners is None:
            return
        for rank in range(self._seat.count):
            theirs = [master.detach() for name, master in masters.items() if self._owners[name] == rank]
            in_buckets(theirs, lambda flat, source=rank: _broadcast(flat, source))  # type: ignore[misc]

    def shape(self, name: str, piece: Tensor) -> tuple[int, ...]:
        return self._splits[name].shape if name in self._splits else tuple(piece.shape)

    def cut(self, name: str, whole: Tensor) -> Tensor:
        self._ready.clear()
        return self._splits[name].of(whole, self._seat.rank) if name in self._splits else whole

    def whole(self, kind: str, name: str, piece: Tensor | None) -> Tensor:
        """Raises EngineError where a rank is gone."""
        if kind in STATE and self._owners is not None and self._owners[name] != 0:
            master = self._masters[name]
            state = torch.empty((), dtype=torch.float32) if kind == "step" else torch.empty_like(master)
            self.fetch(self._owners[name], kind, name, state)
            return state
        split = None if kind == "step" else self._splits.get(name)
        assert piece is not None
        if split is None:
            return piece
        if (kind, name) in self._ready:
            return self._ready.pop((kind, name))
        names = self._bucket(kind, name, piece)
        if len(names) > 1:
            self._gather(kind, names)
            return self._ready.pop((kind, name))
        whole = torch.empty(split.shape, dtype=piece.dtype, device=piece.device)
        split.of(whole, 0).copy_(piece)
        for rank in range(1, self._seat.count):
            self.fetch(rank, kind, name, split.of(whole, rank))
        return whole

    def _bucket(self, kind: str, name: str, piece: Tensor) -> list[str]:
        """The tensor asked for and those that will be asked for next, as many as fit the bucket. The optimizer's state comes singly."""
        held = self._held[kind]() if kind in self._held else {}
        names: list[str] = []
        size = 0
        for following in sorted(other for other in held if other >= name and other in self._splits):
            size += math.prod(self._splits[following].shape) * piece.itemsize
            # Two may be open at a time, of weights and of the adapters merged into them; and while one is put together there is
            # a second copy of a rank's share of it.
            if held[following].dtype != piece.dtype or 2 * size * (1 + 1 / self._seat.count) > self._bucket_bytes:
                break
            names.append(following)
        return names or [name]

    def _gather(self, kind: str, names: list[str]) -> None:
        """Many small tensors cost one message a rank."""
        assert self._leader is not None
        held = self._held[kind]()
        wholes = {name: torch.empty(self._splits[name].shape, dtype=held[name].dtype) for name in names}
        for name, whole in wholes.items():
            self._splits[name].of(whole, 0).copy_(local(held[name].detach()))
        for rank in range(1, self._seat.count):
            targets = [self._splits[name].of(whole, rank) for name, whole in wholes.items()]
            flat = torch.empty(sum(target.numel() for target in targets), dtype=targets[0].dtype)
            self._leader.tell("pieces", {"kind": kind, "names": names}, rank)
            try:
                if flat.numel():
                    dist.recv(flat, src=rank)
                self._leader.done()
            except RuntimeError as error:
                raise self._leader.failed(error) from error
            for target, part in zip(targets, torch.split(flat, [target.numel() for target in targets]), strict=True):
                target.copy_(part.view(target.shape))
        self._ready.update({(kind, name): whole for name, whole in wholes.items()})

    def fetch(self, rank: int, kind: str, name: str, into: Tensor) -> None:
        """Called on rank 0: asks one rank for what it has, and receives it in place."""
        assert self._leader is not None
        self._leader.tell("piece", {"kind": kind, "name": name}, rank)
        try:
            for block in _blocks(into):
                target = block if block.is_contiguous() else torch.empty_like(block, memory_format=torch.contiguous_format)
                dist.recv(target, src=rank)
                if target is not block:
                    block.copy_(target)
            self._leader.done()
        except RuntimeError as error:
            raise self._leader.failed(error) from error


def send_piece(piece: Tensor) -> None:
    """Called on a rank above 0: the other end of `fetch`."""
    for block in _blocks(piece.detach()):
        dist.send(block.contiguous(), dst=0)


def send_pieces(pieces: Sequence[Tensor]) -> None:
    """Called on a rank above 0: what `Together` gathers in one message."""
    flat = torch.cat([piece.detach().reshape(-1) for piece in pieces])
    if flat.numel():
        dist.send(flat, dst=0)


def _blocks(tensor: Tensor) -> Iterator[Tensor]:
    """Along the first dimension; both ends cut alike, for both know the shape. Nothing of an empty tensor travels."""
    if tensor.numel():
        yield from (tensor.view(1),) if tensor.dim() == 0 else torch.split(tensor, max(1, -(-len(tensor) // BLOCKS)))


def total(values: Tensor) -> Tensor:
    """The sum over ranks, in place."""
    dist.all_reduce(values)
    return values


def _broadcast(flat: Tensor, source: int) -> None:
    dist.broadcast(flat, src=source)
