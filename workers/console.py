"""The live line of the command: what a run says of itself, on a terminal or in a log."""

from __future__ import annotations

from typing import Any, TextIO


class LiveLine:
    """A listener of the emitter. On a terminal the line is rewritten in place; elsewhere it is printed once a step."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._terminal = stream.isatty()
        self._facts: dict[str, Any] = {}
        self._step = -1

    def __call__(self, events: list[dict[str, Any]]) -> None:
        for event in events:
            self._take(event["kind"], event["data"])

    def _take(self, kind: str, data: dict[str, Any]) -> None:
        if kind == "phase":
            self._write(f"{data['name']}: {data['detail']}", final=True)
        elif kind == "log" and data["level"] in ("warning", "error"):
            self._write(f"{data['level']}: {data['message']}", final=True)
        elif kind == "evaluation":
            score = f"{_number(data['mean'], '.3f')} ± {_number(data['stderr'], '.3f')}"
            self._write(f"held-out reward {score} at version {data['version']} (n={data['n']})", final=True)
        elif kind == "metrics":
            self._facts.update(data["values"])
        elif kind == "state":
            self._write(self._line(data), final=data["step"] != self._step, only_terminal=data["step"] == self._step)
            self._step = data["step"]

    def _line(self, state: dict[str, Any]) -> str:
        rate, lag = state["flow"]["train_samples_per_s"], self._facts.get("lag/mean")
        pause = self._facts.get("sync/latency_s")
        parts = [
            *(["paused"] if state["status"] == "paused" else []),
            f"step {state['step']}/{state['steps_total']}",
            f"reward {_number(self._facts.get('reward/mean'), '.3f')}",
            f"buffer {state['buffer']['depth']}/{state['buffer']['capacity']}",
            f"lag {_number(lag, '.2f')}",
            f"sync {_number(None if pause is None else pause * 1000, '.0f')} ms",
            f"{_number(rate, '.1f')} samples/s",
        ]
        return "  ".join(parts)

    def _write(self, text: str, *, final: bool, only_terminal: bool = False) -> None:
        text = _printable(text, self._stream.encoding or "utf-8")
        if self._terminal:
            self._stream.write(f"\r\x1b[K{text}" + ("\n" if final else ""))
        elif not only_terminal:
            self._stream.write(f"{text}\n")
        self._stream.flush()


def _printable(text: str, encoding: str) -> str:
    """What the stream can show: no control characters of a log line, and stand-ins for what its encoding lacks."""
    text = "".join(sign if sign.isprintable() or sign in "\n\t" else "?" for sign in text)
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = text.replace("–", "-").replace("±", "+/-")
        return text.encode(encoding, "replace").decode(encoding)
    return text


def _number(value: float | str | None, form: str) -> str:
    return "–" if value is None or isinstance(value, str) else format(value, form)
