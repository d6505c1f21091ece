"""What an engine does next, and when: one thing at a time, called by timers. No task is woken for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

Act = Callable[[], None]


class Rhythm:
    """Every act ends by naming the next one: `then`, `rest` or `leap`. failed(error) is called where one raises."""

    def __init__(self, failed: Callable[[Exception], None]) -> None:
        self._failed = failed
        self._when_rung: Act | None = None  # None: an act is under way that nothing disturbs
        self._rung = False  # meanwhile
        self._timer: asyncio.TimerHandle | None = None  # of a leap

    def ring(self) -> None:
        """Something has happened: who rests gets up, and a leap is cut short. One that comes meanwhile is kept."""
        if self._when_rung is None:
            self._rung = True
            return
        if self._timer is not None:
            self._timer.cancel()
        self.then(0.0, self._when_rung)

    def then(self, seconds: float, act: Act) -> None:
        """Undisturbed."""
        self._when_rung = self._timer = None
        loop = asyncio.get_running_loop()
        if seconds > 0:
            loop.call_later(seconds, self._do, act)
        else:
            loop.call_soon(self._do, act)

    def rest(self, act: Act) -> None:
        """Until it rings."""
        if self._rung:
            self._rung = False
            act()
        else:
            self._when_rung = act

    def leap(self, seconds: float, land: Act, cut: Act) -> None:
        """Lands after so many seconds, unless it rings before: then it is cut."""
        if self._rung:
            self._rung = False
            cut()
        else:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._do, land)
            self._when_rung = cut

    def _do(self, act: Act) -> None:
        self._when_rung = self._timer = None
        try:
            act()
        except Exception as error:
            self._failed(error)
            raise
