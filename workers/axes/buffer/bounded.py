"""A bounded queue of complete groups."""

from __future__ import annotations

import asyncio
from collections import deque

from workers.contract import config
from workers.contract.errors import EngineError
from workers.records import Group


class BoundedBuffer:
    """At most `depth` groups, first in, first out. Both ends wait on one condition."""

    def __init__(self, options: config.Buffer) -> None:
        self._depth = options.depth
        self._groups: deque[Group] = deque()
        self._changed = asyncio.Condition()

    async def put(self, group: Group) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: len(self._groups) < self._depth)
            self._groups.append(group)
            self._changed.notify_all()

    async def take(self) -> Group:
        async with self._changed:
            await self._changed.wait_for(lambda: bool(self._groups))
            group = self._groups.popleft()
            self._changed.notify_all()
            return group

    def contents(self) -> list[Group]:
        return list(self._groups)

    def restore(self, groups: list[Group]) -> None:
        if len(groups) > self._depth:
            raise EngineError(
                "the saved buffer is larger than its bound", field="buffer.depth", value=self._depth, cure=f"at least {len(groups)}"
            )
        self._groups = deque(groups)
