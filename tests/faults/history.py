"""The history of one run: what its clients were told, what its drivers wrote, what the server holds. Read by `checker`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workers.contract.config import RunConfig
from workers.spool import read_spool

Event = dict[str, Any]  # seq, t, step, kind, data


@dataclass
class Life:
    """One attempt as its events tell it, in order of seq."""

    events: list[Event]
    number: int = 1
    fence: int = 1
    spool: str = "spool"  # attempts that went on in the same folder share one, and its numbers
    origin: str = ""  # the spool whose checkpoint it goes on from; "": its own
    acked: int = 0  # the highest seq whose sender was told that the server keeps it
    stored: list[Event] | None = None  # what the server holds; None: there was no server

    def of(self, kind: str) -> list[Event]:
        return [event for event in self.events if event["kind"] == kind]

    @property
    def resumed_from(self) -> dict[str, Any] | None:
        started = self.of("started")
        return started[0]["data"].get("resumed_from") if started else None


@dataclass
class History:
    """`state` is the run's as people see it in the end, "" where nobody was asked. `prompts(k)`: id of the k-th prompt, from 0."""

    config: RunConfig
    lives: list[Life]
    state: str = ""
    accepted: bool = True  # a client was told that the run exists
    cause: str = ""
    stopped_early: bool = False  # somebody asked it to end after the step it was in
    left: list[str] = field(default_factory=list)  # processes, segments, ports, files that outlived the run
    prompts: Callable[[int], str] | None = None
    reference: dict[int, str] | None = None  # digest of each version of the run that nothing interrupted

    def counted(self) -> list[tuple[Life, Event]]:
        """What still counts in the end: of each attempt what it told before the checkpoint that the next one went on from."""
        kept: list[tuple[Life, Event]] = []
        for life in self.lives:
            if life.of("started"):  # one that died before has undone nothing
                kept = _cut(kept, life)
            kept += [(life, event) for event in life.events]
        return kept


def _cut(kept: list[tuple[Life, Event]], life: Life) -> list[tuple[Life, Event]]:
    """Up to the place of the checkpoint that this attempt goes on from; what older spools told before stays."""
    origin, spool = life.resumed_from, life.origin or life.spool
    if origin is None:
        return []
    first = next((place for place, (earlier, _) in enumerate(kept) if earlier.spool == spool), len(kept))
    return kept[:first] + [(one, event) for one, event in kept[first:] if one.spool == spool and event["seq"] <= origin["told_through"]]


def lives_of(folder: Path, number: int = 1) -> list[Life]:
    """The attempts that one folder's spool tells of: each resume in place begins with `started`."""
    return lives_in((event for event, bad in read_spool(folder / "spool") if event is not None), str(folder), number)


def lives_in(events: Iterable[Event], spool: str = "spool", number: int = 1) -> list[Life]:
    lives: list[Life] = []
    before: list[Event] = []  # told before the first `started`
    for event in events:
        if event["kind"] == "started":
            lives.append(Life(before, number + len(lives), number + len(lives), spool))
            before = []
        (lives[-1].events if lives else before).append(event)
    return lives or ([Life(before, number, number, spool)] if before else [])


def digests(history: History) -> dict[int, str]:
    """Of each version that counts in the end."""
    return {event["data"]["version"]: event["data"]["digest"] for _, event in history.counted() if event["kind"] == "sync"}
