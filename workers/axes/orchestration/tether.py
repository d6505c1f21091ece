"""Runs another program that dies with the process that started it.

Called as `python -m workers.axes.orchestration.tether PARENT PROGRAM ARGUMENT...`: the kernel's signal at the parent's death is asked
for, then the program takes this process over. It keeps the environment, so it carries the run's identity.
"""

from __future__ import annotations

import os
import sys

from workers.axes.orchestration.child import settle_in


def command(program: list[str]) -> list[str]:
    """Called by the parent: what to start for `program`."""
    return [sys.executable, "-m", "workers.axes.orchestration.tether", str(os.getpid()), *program]


if __name__ == "__main__":
    settle_in()
    if os.getppid() != int(sys.argv[1]):  # it died before the kernel could be asked
        sys.exit(1)
    os.execv(sys.argv[2], sys.argv[2:])
