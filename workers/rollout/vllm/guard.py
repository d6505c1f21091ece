"""vLLM's processes die with the engine that started them, whatever ends it: each watches that process by a pidfd."""

from __future__ import annotations

import os
import select
import signal
import threading

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
    os.kill(os.getpid(), signal.SIGKILL)
