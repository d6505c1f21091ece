"""vLLM's processes die with the engine that started them, whatever ends it, and leave no shared memory: each watches it by a pidfd."""

from __future__ import annotations

import os
import select
import signal
import threading
from pathlib import Path

PARENT = "HEADRACE_VLLM_PARENT"  # set by the engine around the start; its children and theirs inherit it


def watch() -> None:
    """Called in each process of vLLM, as early as its import of this package. Without effect in any other.

    Python's own pidfd needs Linux; elsewhere vLLM's processes end by themselves once they miss their parent, which takes seconds.
    """
    parent = int(os.environ.pop(PARENT, "0"))
    if parent == 0 or not hasattr(os, "pidfd_open"):
        return
    os.environ[PARENT] = str(parent)  # for processes that this one starts
    if parent == os.getpid() or any(thread.name == PARENT for thread in threading.enumerate()):
        return
    try:
        handle = os.pidfd_open(parent)
    except ProcessLookupError:  # it died before we could look
        os.kill(os.getpid(), signal.SIGKILL)
        return
    threading.Thread(target=_wait, args=(handle,), name=PARENT, daemon=True).start()


def _wait(handle: int) -> None:
    poll = select.poll()
    poll.register(handle, select.POLLIN)  # readable once the process has ended
    poll.poll()
    try:
        for item in shared():
            item.unlink(missing_ok=True)
    finally:
        os.kill(os.getpid(), signal.SIGKILL)


def shared() -> list[Path]:
    """Shared memory and semaphores that this process has mapped, of those that multiprocessing names. What it keeps to remove them
    after a crash is a process of its own, which Ray kills with its actor. A semaphore is mapped under another name by who made it."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    mapped = {int(line.split(maxsplit=5)[4]) for line in lines if "/dev/shm/" in line}
    files = os.scandir("/dev/shm")
    return [Path(file.path) for file in files if file.name.startswith(("psm_", "sem.mp-")) and file.inode() in mapped]
