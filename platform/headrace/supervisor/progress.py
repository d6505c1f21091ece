"""What the terminal shows: phases of set-up with their time, then a run's live line. Works without a terminal too: a line a step."""

from __future__ import annotations

import shutil
import sys
import time
from dataclasses import dataclass
from typing import Any, TextIO


class Console:
    """Writes to standard output. On a terminal the live line is redrawn in place; elsewhere every new step is a line."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stdout
        self.live = self.stream.isatty()
        self.began = time.monotonic()
        self._drawn = False

    def say(self, text: str) -> None:
        """One lasting line, with the seconds since the start."""
        self._clear()
        self._write(f"[{time.monotonic() - self.began:6.1f} s] {text}\n")

    def plain(self, text: str = "") -> None:
        self._clear()
        self._write(f"{text}\n")

    def line(self, text: str, lasting: bool) -> None:
        """The live line. Without a terminal only the lasting ones are written."""
        if self.live and not lasting:
            width = shutil.get_terminal_size().columns - 1
            self._clear()
            self._write(text[:width])
            self._drawn = True
        elif lasting:
            self.plain(text)

    def _clear(self) -> None:
        if self._drawn:
            self._write("\r\x1b[K")
            self._drawn = False

    def _write(self, text: str) -> None:
        try:
            self.stream.write(text)
            self.stream.flush()
        except BrokenPipeError:
            self.live = False  # whoever read our output has gone; the work goes on


@dataclass(frozen=True)
class Reading:
    """What one look at a run found. None: nothing known yet, which is never shown as zero."""

    state: str
    step: int | None = None
    steps: int | None = None
    reward: float | None = None
    depth: int | None = None
    capacity: int | None = None
    lag: float | None = None
    sync_ms: float | None = None
    samples_per_s: float | None = None
    phase: str | None = None
    cause: dict[str, Any] | None = None


def describe(reading: Reading) -> str:
    """The live line: step, reward, buffer depth, lag, sync milliseconds, samples/s."""
    if reading.step is None or (reading.step == 0 and reading.reward is None):
        return f"{reading.state}: {reading.phase or 'waiting for the first step'}"
    of = f"/{reading.steps}" if reading.steps else ""
    buffer = _number(reading.depth, "d") + (f"/{reading.capacity}" if reading.capacity else "")
    return (
        f"step {reading.step}{of}  reward {_number(reading.reward, '.3f')}  buffer {buffer}  lag {_number(reading.lag, '.2f')}"
        f"  sync {_number(reading.sync_ms, '.0f')} ms  {_number(reading.samples_per_s, '.2f')} samples/s"
    )


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
