"""A trainer of several ranks, whatever they share. Every rank runs the same trainer on the same batches; rank 0 leads.

Rank 0 sends each batch to the others and trains it with them; the weights of a publish or a checkpoint come to it tensor by tensor,
when they are read. What all ranks raise alike (a cancel, too many non-finite steps) is raised to the caller, and the pool goes on;
anything else ends the pool with its cause.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from workers.axes.backend.layout import Item, Row, rows_of
from workers.axes.backend.prepare import Prepared
from workers.axes.backend.rank import Follower
from workers.axes.backend.ranks import Leader, Seat
from workers.axes.backend.single import SingleProcessTrainer
from workers.axes.backend.spread import Spread
from workers.axes.backend.together import send_piece, send_pieces, total
from workers.axes.lora.base import local
from workers.axes.transport.base import Transport
from workers.contract.config import RunConfig
from workers.contract.errors import Cancelled, HeadraceError
from workers.records import Batch, StepResult, to_wire

R = TypeVar("R")
BACKWARD = 2  # a backward pass costs as much as so many forward passes


class RankedTrainer(SingleProcessTrainer):
    """See workers.axes.backend.base.Trainer. seat, follower: of a rank above 0; rank 0 takes its seat and starts the others."""

    def __init__(
        self, config: RunConfig, scratch: Path, transport: Transport, seat: Seat | None = None, follower: Follower | None = None
    ) -> None:
        self._follower = follower
        self._leader = Leader(config, scratch) if seat is None else None
        self._seat = seat or self._leader.seat  # type: ignore[union-attr]
        try:
            super().__init__(config, scratch, transport)
            if self._leader is not None:
                self._leader.answers()
        except Exception as error:
            if self._leader is None or isinstance(error, HeadraceError):
                self.close()
                raise
            raise self._leader.failed(error) from error

    def train(self, batch: Batch) -> StepResult:
        """On rank 0 the whole batch's result; elsewhere its metrics are of no interest."""
        return self._with_all("train", {"batch": to_wire(batch)}, lambda: super(RankedTrainer, self).train(batch))

    def checkpoint(self, folder: Path, restore: bool = False) -> dict[str, Any]:
        """Saved by rank 0 in the layout of one process; every rank restores its own pieces from there."""
        if restore:
            return self._with_all("restore", {"folder": str(folder)}, lambda: super(RankedTrainer, self).checkpoint(folder, restore=True))
        return super().checkpoint(folder)

    def interrupt(self) -> None:
        """Told to every rank; they agree where they stop."""
        super().interrupt()
        if self._leader is not None:
            self._leader.interrupt()

    def close(self) -> None:
        """Ends the ranks that this one started."""
        if self._leader is not None:
            self._leader.close()

    def send_pieces(self, kind: str, names: list[str]) -> None:
        """Called on a rank above 0 with the tensors of which rank 0 wants this rank's pieces at once."""
        held = self._adapters.parts() if kind == "part" else self._adapters.masters
        send_pieces([local(held[name].detach()) for name in names])

    def send_piece(self, kind: str, name: str) -> None:
        """Called on a rank above 0 with each tensor of which rank 0 wants this rank's piece."""
        piece: Tensor | None
        if kind == "part":
            piece = self._adapters.parts()[name]
        elif kind == "master":
            piece = self._adapters.masters[name]
        else:
            piece = self._stepper.state(kind, name)
        assert piece is not None
        send_piece(local(piece.detach()))

    # -- what a kind settles -------------------------------------------------------------------------

    def _lay_out(self) -> Spread:
        """Called once on every rank, in the process group: spreads model and adapters."""
        raise NotImplementedError

    # -- together ------------------------------------------------------------------------------------

    def _distribute(self) -> Spread:
        if self._leader is not None:
            self._leader.ready()
        elif self._follower is not None:
            self._follower.send({"result": os.getpid()})
        self._seat.join()
        return self._lay_out()

    def _with_all(self, method: str, args: dict[str, Any], work: Callable[[], R]) -> R:
        """The same work on every rank at the same time."""
        if self._leader is None:
            return work()
        self._leader.tell(method, args)
        try:
            result = work()
        except HeadraceError:
            if self._leader.broken is None:
                self._leader.agreed()
            raise
        except Exception as error:  # mostly a collective operation that lost a rank
            raise self._leader.failed(error) from error
        self._leader.answers()
        return result


class DealingTrainer(RankedTrainer):
    """Ranks share the rows of a batch. An item stays with its rank for the whole batch, and with it all that is known of it."""

    _owner: dict[int, int]

    def _deal(self, prepared: Prepared, plan: list[list[int]]) -> None:
        """Each optimizer step's tokens are dealt evenly, most expensive rows first. All ranks come to the same result."""
        ranks = self._seat.count
        self._owner = {}
        for chosen in plan:
            items = [item for number in chosen for item in prepared.groups[number] if item.index not in self._owner]
            tokens = sum(len(item.prompt) + len(item.tokens) for item in items)
            # Smaller rows than memory asks for, so that a batch of few groups has something for every rank.
            rows = rows_of(items, min(self._config.batch.micro_tokens, -(-tokens // (2 * ranks))))
            loads = [0] * ranks
            for row in sorted(rows, key=_cost, reverse=True):
                rank = loads.index(min(loads))
                loads[rank] += _cost(row)
                self._owner.update({item.index: rank for item in row.items})

    def _mine(self, items: Sequence[Item]) -> Sequence[Item]:
        return [item for item in items if self._owner[item.index] == self._seat.rank]

    def _agree(self, counted: dict[int, int]) -> dict[int, int]:
        counts = torch.zeros(max(self._owner) + 1, dtype=torch.int64)
        for index, count in counted.items():
            counts[index] = count
        return dict(enumerate(self._total(counts).tolist()))

    def _collect(self, tally: Any) -> None:
        """Through rank 0, which hands the whole back: what follows is the same on every rank."""
        self._total(torch.zeros(1))
        mine = _tally_to_wire(tally)
        if self._leader is not None:
            everyone = [mine, *(frame["tally"] for frame in self._leader.hear())]
            whole = {"items": [one for part in everyone for one in part["items"]], "sums": _added([part["sums"] for part in everyone])}
            self._leader.tell("tally", whole)
        else:
            assert self._follower is not None
            self._follower.send({"tally": mine})
            whole = self._follower.next()["args"]
        _tally_from_wire(tally, whole)

    def _total(self, values: Tensor) -> Tensor:
        """The sum over ranks, where none of them is to stop."""
        return total(values)

    def _give_up(self) -> None:
        """Called on every rank when one was told to stop."""
        self._interrupted.set()
        self._stepper.clear()
        raise Cancelled("training was interrupted between two micro-batches")


def _cost(row: Row) -> int:
    return row.length * (1 + BACKWARD if any(item.advantage != 0 for item in row.items) else 1)


def _added(parts: list[dict[str, float]]) -> dict[str, float]:
    return {name: sum(part[name] for part in parts) for name in parts[0]}


def _tally_to_wire(tally: Any) -> dict[str, Any]:
    items = [
        [field, index, str(values.dtype).removeprefix("torch."), values.contiguous().numpy().tobytes()]
        for field in tally.BY_ITEM
        for index, values in getattr(tally, field).items()
    ]
    return {"items": items, "sums": {field: getattr(tally, field) for field in tally.SUMMED}}


def _tally_from_wire(tally: Any, whole: dict[str, Any]) -> None:
    for field, index, dtype, data in whole["items"]:
        getattr(tally, field)[index] = torch.frombuffer(bytearray(data), dtype=getattr(torch, dtype))
    for field, value in whole["sums"].items():
        setattr(tally, field, value)
