"""Calls that can be taken back from outside, all of one kind at once."""

from __future__ import annotations

import asyncio
from types import TracebackType


class TakenBackError(Exception):
    """The call was taken back."""


class Call:
    """What its task awaits while this is entered, and `among` the others of its kind meanwhile. Taken back, it raises TakenBackError.

    It is to a task what `asyncio.timeout` is, without a deadline and at less than half the cost: a cancellation from elsewhere stays one.
    """

    def __init__(self, among: set[Call]) -> None:
        self._among = among
        self._taken = False

    def __enter__(self) -> Call:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("only a task can have its call taken back")
        self._task, self._cancelling = task, task.cancelling()
        self._among.add(self)
        return self

    def take_back(self) -> None:
        """Called from outside its task. Nothing happens once the call is over."""
        if self in self._among:
            self._taken = True
            self._task.cancel()

    def __exit__(self, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None) -> None:
        self._among.discard(self)
        if self._taken and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TakenBackError from None
