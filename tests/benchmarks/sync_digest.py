"""Takes the digest out of this process, to tell what it costs. Nothing but bench_sync may."""

from __future__ import annotations

from collections.abc import Callable

from workers.axes.transport import digest


class _Nothing:
    """In the place of BLAKE3: whatever is hashed, the digest is empty."""

    def __init__(self, data: bytes = b"", max_threads: int = 1) -> None:
        pass

    def update(self, data: memoryview) -> None:
        pass

    def digest(self) -> bytes:
        return b""

    def hexdigest(self) -> str:
        return ""


def without_digest() -> Callable[[], None]:
    """Nothing is hashed from now on. Returns what puts it back."""
    kept = digest.blake3
    setattr(digest, "blake3", _Nothing)  # noqa: B010, a type is replaced

    def back() -> None:
        setattr(digest, "blake3", kept)  # noqa: B010

    return back
