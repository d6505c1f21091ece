"""Failpoints: named places at which a test breaks a running product. All are off unless HEADRACE_FAILPOINTS is set.

    HEADRACE_FAILPOINTS="save.manifest=kill@3; spool.sync=enospc@5x20; ingest.stored=kill%0.1"

`NAME=ACTION[@N][xTIMES][%SHARE]`: from the N-th time on that this process reaches the point (default 1), so many times (default 1;
with a share: without end), each time with that probability. The draws of a point hang on HEADRACE_FAILPOINTS_SEED and its name alone.

Actions: kill (SIGKILL to itself: nothing is flushed, nothing tidied), stop (SIGSTOP: it hangs until somebody sends SIGCONT),
enospc and eio (OSError), raise (FailpointError), hang:SECONDS.
"""

from __future__ import annotations

import errno
import os
import random
import re
import signal
import sys
import time
from dataclasses import dataclass, field

from workers.contract.errors import ConfigError

VARIABLE, SEED_VARIABLE = "HEADRACE_FAILPOINTS", "HEADRACE_FAILPOINTS_SEED"

# Every save, publish, ingest and hand-over. When each is reached:
POINTS: dict[str, str] = {
    "train.stepped": "trainer: the optimizer has stepped; the driver has no answer",
    "step.trained": "driver: the trainer has stepped, the flow has not counted it",
    "step.counted": "driver: the step is counted and told; nothing published, nothing saved",
    "group.admitted": "driver: a group's samples are all back and judged; it is not in the buffer",
    "batch.gathered": "driver: a batch has been taken from the buffer and is about to be trained",
    "publish.sent": "driver: the trainer has sent a payload; no engine has been told",
    "publish.served": "driver: every engine serves the new version; the flow has not advanced to it",
    "publish.told": "driver: the version has advanced and is told",
    "publish.written": "trainer: the payload is written; the driver has no answer",
    "receive.begun": "engine: it is told of a version and has read nothing",
    "receive.served": "engine: it serves the new version; the driver has no answer",
    "save.begun": "driver: its own state is taken; the trainer has written nothing",
    "save.trainer": "trainer: weights are written, the optimizer is not",
    "save.files": "driver: the trainer's files are written, the manifest is not",
    "save.manifest": "driver: the manifest is synced; the folder still has its working name",
    "save.replaced": "driver: the former checkpoint of the same step has been set aside, the new one is not named yet",
    "save.named": "driver: the checkpoint has its name; old ones are not removed",
    "save.told": "driver: its event is told",
    "spool.write": "driver: events are about to be written to the spool",
    "spool.sync": "driver: events are written and not synced",
    "ship.sent": "driver: the server has answered a batch; the driver has not noted it",
    "end.summary": "driver: the flow is over; summary.json is not written",
    "end.told": "driver: the last word is on disk; what is left is not sent",
    "submit.accepted": "web: a run and its attempt are committed; nobody has been woken",
    "launch.claimed": "launcher: the attempt is claimed; Ray has not been asked",
    "launch.taken": "launcher: Ray has taken the job; the database does not know",
    "ingest.stored": "web: a batch is stored and not committed",
    "ingest.committed": "web: a batch is committed; its sender has no answer",
    "cancel.marked": "web: a cancel is committed; nobody has been woken",
}
_ITEM = re.compile(
    r"(?P<point>[a-z.]+)=(?P<action>kill|stop|enospc|eio|raise|hang:[0-9.]+)(?:@(?P<nth>\d+))?(?:x(?P<times>\d+))?(?:%(?P<share>[0-9.]+))?"
)


class FailpointError(RuntimeError):
    """Raised by a failpoint that was told to raise."""


@dataclass
class Armed:
    """What is to happen at one point of this process."""

    point: str
    action: str
    nth: int = 1
    times: int | None = 1  # None: without end
    share: float = 1.0
    seed: str = "0"
    reached: int = 0
    _random: random.Random = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._random = random.Random(f"{self.seed}/{self.point}")

    def due(self) -> bool:
        """Counts this time; whether something is to happen."""
        self.reached += 1
        if self.reached < self.nth or self.times == 0 or self._random.random() >= self.share:
            return False
        if self.times is not None:
            self.times -= 1
        return True


def parse(text: str, seed: str = "0") -> dict[str, Armed]:
    """Raises ConfigError on anything but the form above."""
    found: dict[str, Armed] = {}
    for item in filter(None, (part.strip() for part in text.split(";"))):
        match = _ITEM.fullmatch(item)
        if match is None or match["point"] not in POINTS:
            cure = "NAME=ACTION[@N][xTIMES][%SHARE], NAME one of " + ", ".join(POINTS)
            raise ConfigError("is no failpoint", field=VARIABLE, value=item, cure=cure)
        share = float(match["share"] or 1)
        times = int(match["times"]) if match["times"] else None if match["share"] else 1
        found[match["point"]] = Armed(match["point"], match["action"], int(match["nth"] or 1), times, share, seed)
    return found


def reached(point: str) -> None:
    """Called by the product at each of POINTS. Does nothing unless the point is armed in this process."""
    if not _armed:
        return
    armed = _armed.get(point)
    if armed is not None and armed.due():
        _act(armed)


def arm(text: str, seed: str = "0") -> None:
    """Replaces what is armed in this process; "" disarms. The environment arms at import."""
    global _armed
    _armed = parse(text, seed)
    if _armed:
        sys.stderr.write(f"warning: failpoints are armed in process {os.getpid()}: {text}\n")


def _act(armed: Armed) -> None:
    action, _, seconds = armed.action.partition(":")
    sys.stderr.write(f"failpoint {armed.point}: {armed.action} (time {armed.reached})\n")
    sys.stderr.flush()
    match action:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "hang":
            time.sleep(float(seconds))
        case "raise":
            raise FailpointError(f"failpoint {armed.point}")
        case _:
            number = errno.ENOSPC if action == "enospc" else errno.EIO
            raise OSError(number, f"{os.strerror(number)} (failpoint {armed.point})")


_armed: dict[str, Armed] = {}
if os.environ.get(VARIABLE):
    arm(os.environ[VARIABLE], os.environ.get(SEED_VARIABLE, "0"))
