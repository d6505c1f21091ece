"""What a cluster of the driver's own leaves where the driver is killed: Ray's agents, which stay for a minute, and its folder.

Ray's other processes die with the driver or with one another, within seconds. The agents try for 60 seconds to tell the dead cluster.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import sys

import psutil

PATIENCE_S = 10.0


class Cleaner:
    """A process beside the driver that acts when its standard input ends: at `close`, or at the driver's death, whatever it was."""

    def __init__(self, folder: str) -> None:
        command = [sys.executable, "-m", "workers.cluster.cleaner", folder]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True, text=True)

    def watch(self) -> None:
        """Called once, when the cluster is up: what it consists of by now is ended if it is still there at the end."""
        assert self._process.stdin is not None
        for process in psutil.Process().children(recursive=True):
            if process.pid != self._process.pid:
                print(process.pid, file=self._process.stdin)
        self._process.stdin.flush()

    def close(self) -> None:
        """Called once the cluster is shut down. Returns when nothing of it is left."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()


def main(folder: str) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # meant for the driver, whose end is what counts
        signal.signal(number, signal.SIG_IGN)
    watched = []
    for line in sys.stdin:
        with contextlib.suppress(psutil.NoSuchProcess):
            watched.append(psutil.Process(int(line)))
    for process in watched:
        with contextlib.suppress(psutil.NoSuchProcess):  # also where another has its number by now
            process.kill()
    psutil.wait_procs(watched, PATIENCE_S)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1])
