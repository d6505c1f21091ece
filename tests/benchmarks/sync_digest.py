"""Takes the digest out of this process, to tell what it costs. Nothing but bench_sync may."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workers.axes.transport import digest, payload


def without_digest() -> Callable[[], None]:
    """No bytes are hashed from now on, only names, types and shapes. Returns what puts it back."""
    kept = digest.leaves
    modules: tuple[Any, ...] = (digest, payload)

    def put(function: Callable[[memoryview], bytes]) -> None:
        for module in modules:
            module.leaves = function

    put(lambda data: b"")
    return lambda: put(kept)
