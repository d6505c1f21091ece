"""Slow calls beside the event loop, in threads that never hold up the end of the process."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


async def in_background(function: Callable[..., T], *arguments: Any) -> T:
    """Like `asyncio.to_thread`, but a call that is still running at cancel is abandoned, not waited for."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(result)  # type: ignore[arg-type]

    def work() -> None:
        try:
            result, error = function(*arguments), None
        except BaseException as caught:  # handed to whoever awaits
            result, error = None, caught
        with contextlib.suppress(RuntimeError):  # the loop has closed: nobody waits any more
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=work, name=getattr(function, "__name__", "background"), daemon=True).start()
    return await answer
