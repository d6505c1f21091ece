"""A batch is gathered: groups are taken from the buffer, and those too old are dropped, recycled or left out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from workers.fates import indices
from workers.parts import TRAINER, Parts
from workers.records import Group, Sample


class Gather:
    """moved(): room has been made in the buffer. refuse(group, reason, buffered=True) drops a group; recycle(group) dispatches it again.
    leave(): whether a trainer that waits is to stop waiting, for the run ends or is to pause.
    """

    def __init__(
        self,
        parts: Parts,
        moved: Callable[[], None],
        refuse: Callable[..., None],
        recycle: Callable[[Group], None],
        leave: Callable[[], bool],
    ) -> None:
        self.parts = parts
        self._leave = leave
        self._moved = moved
        self._refuse = refuse
        self._recycle = recycle
        self._holed = asyncio.get_running_loop().create_future()

    def hole(self) -> None:
        """Called when a place of the next batch has become one that stays empty: what is gathered may be a batch now."""
        if not self._holed.done():
            self._holed.set_result(None)

    async def batch(self) -> list[Group]:
        """Takes admitted groups until they make a batch; what the staleness policy refuses is counted.

        Empty when a stop or a pause was requested meanwhile; what was taken stays in `progress.batch`.
        """
        parts, gathered = self.parts, self.parts.progress.batch
        parts.waiting_for_batch = True
        # After a stop the last weights were published all the same: what a resume finds gathered may have grown too old.
        gathered[:] = [group for group in list(gathered) if self._fresh(group)]
        with parts.time.during(TRAINER, "wait_buffer_empty"):
            while not self._whole():
                group = await self._take()
                if group is not None:
                    self._moved()
                    if self._fresh(group):
                        gathered.append(group)
                elif not self._whole():
                    return []
        parts.waiting_for_batch = False
        parts.progress.holes = max(0, parts.progress.holes - (parts.config.batch.prompts - len(gathered)))
        return sorted(gathered, key=lambda group: (len(group.id), group.id))

    def _fresh(self, group: Group) -> bool:
        """Whether the group is trained now. What is too old is dropped or generated again: the group, or its samples one by one."""
        parts = self.parts
        fates = [parts.staleness.judge(group, parts.progress.version)]
        if fates == ["train"]:  # a group is as old as its oldest sample
            return True
        pieces = [group]
        if parts.config.buffer.unit == "sample":
            pieces = [replace(group, samples=[sample]) for sample in group.samples]
            fates = [parts.staleness.judge(piece, parts.progress.version) for piece in pieces]
        old, kept = _samples(pieces, fates, young=False), _samples(pieces, fates, young=True)
        if "recycle" in fates:
            parts.samples.recycle(len(group.samples))
            parts.samples.effects["recycled"] += len(old)
            parts.samples.effects["tokens_discarded"] += sum(len(sample.rollout.token_ids) for sample in old)
            slots = [sample.rollout.index for sample in old]
            self._recycle(replace(group, dispatched_version=parts.progress.version, samples=kept, slots=slots))
        elif len(kept) < 2:
            self._refuse(group, "stale", buffered=True)
        else:
            parts.drop(group, indices(old), "stale", buffered=True)
            group.samples = kept
            return True
        return False

    def _whole(self) -> bool:
        """Whether what is gathered makes a batch: every place is taken or stays empty, and at least one is taken."""
        gathered = len(self.parts.progress.batch)
        return gathered > 0 and gathered + self.parts.progress.holes >= self.parts.config.batch.prompts

    async def _take(self) -> Group | None:
        """The next group of the buffer. None when a stop or a pause was requested first, or what is gathered became a batch without it."""
        taking = asyncio.create_task(self.parts.buffer.take())
        try:
            while not taking.done():
                await asyncio.wait((taking, self._holed), timeout=self.parts.pulse_s, return_when=asyncio.FIRST_COMPLETED)
                if not taking.done() and (self._whole() or self._leave()):
                    return None
                if self._holed.done():
                    self._holed = asyncio.get_running_loop().create_future()
            return taking.result()
        finally:
            taking.cancel()


def _samples(pieces: Sequence[Group], fates: Sequence[str], *, young: bool) -> list[Sample]:
    return [sample for piece, fate in zip(pieces, fates, strict=True) if (fate == "train") is young for sample in piece.samples]
