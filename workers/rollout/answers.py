"""What every engine does alike at its door: a caller's future is settled once, and weights never go back."""

from __future__ import annotations

import asyncio
from typing import Any

from workers.contract.errors import EngineError
from workers.records import Manifest


def settle(future: asyncio.Future[Any], answer: Any) -> None:
    """An exception is raised, all else is the result; a future whose caller has gone stays as it is."""
    if future.done():
        return
    if isinstance(answer, BaseException):
        future.set_exception(answer)
    else:
        future.set_result(answer)


def refuse_older(manifest: Manifest, serving: int) -> None:
    """Called before an update begins. Raises EngineError where the version that serves is newer."""
    if manifest.version < serving:
        raise EngineError(
            "an older version than the one that serves", field="version", value=manifest.version, cure=f"publish above {serving}"
        )
