"""The real flow on the virtual clock, killed at any moment and resumed: thousands of deaths a minute, each replayed from its seed.

A death loses what a kill -9 would lose: everything in memory, and of the events those that no group commit had taken yet. A
checkpoint takes time to write, has its name before its event is told, and survives.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.faults.history import History, lives_in
from tests.workers.emulated import rig
from workers import resume
from workers.clock import run_virtual
from workers.contract.config import RunConfig
from workers.emit import GROUP_COMMIT_S
from workers.pipeline import Pipeline
from workers.records import Batch, Group, Manifest, StepResult
from workers.summary import summarise

SAVE_S, NAMED_S = 0.2, 0.02  # a checkpoint is written, and between its name and its event
Plant = Callable[[Any, "Disk | None"], None]


class Disk:
    """What survives: one checkpoint."""

    folder = Path("checkpoint")

    def __init__(self, state: dict[str, Any], weights: str) -> None:
        self.text = json.dumps(state)
        self.weights = weights
        self.step, self.version = state["progress"]["step"], state["progress"]["version"]

    def driver_state(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads(self.text)
        return state


class Spool:
    """Numbers events and makes them durable a group commit later, in virtual time."""

    def __init__(self, last_seq: int) -> None:
        self.step = 0
        self.last_seq = last_seq
        self.events: list[dict[str, Any]] = []
        self.clock: Any = None
        self.dead = False

    def emit(self, kind: str, data: dict[str, Any]) -> None:
        if self.dead:
            return
        self.last_seq += 1
        event = {"seq": self.last_seq, "t": self.clock.now(), "step": self.step, "kind": kind, "data": json.loads(json.dumps(data))}
        self.events.append(event)

    def metrics(self, values: dict[str, float]) -> None:
        """Figures are not what is checked here."""

    def log(self, level: str, message: str, source: str = "driver") -> None:
        self.emit("log", {"level": level, "message": message, "source": source})

    def durable(self) -> list[dict[str, Any]]:
        return [event for event in self.events if event["t"] <= self.clock.now() - GROUP_COMMIT_S]


class Weights:
    """What the emulated trainer has learnt: a chain of hashes over the batches it was given. Two runs agree in them or do not."""

    def __init__(self, parts: Any) -> None:
        self.value = "version 0"
        self._parts, self._train, self._publish = parts, parts.trainer.train, parts.trainer.publish
        parts.trainer.train, parts.trainer.publish = self.train, self.publish

    async def train(self, batch: Batch) -> StepResult:
        result: StepResult = await self._train(batch)
        names = [sample.rollout.id for group in batch.groups for sample in group.samples]
        self.value = hashlib.sha256(f"{self.value}{names}".encode()).hexdigest()
        return result

    async def publish(self, version: int, receivers: list[str]) -> Manifest:
        sent: Manifest = await self._publish(version, receivers)
        return Manifest(sent.version, self.value, sent.bytes, sent.payload, sent.transport, {}, sent.export_s)


@dataclass
class Outcome:
    """One life: what it wrote, what it left on the disk, whether it came to its end."""

    events: list[dict[str, Any]]
    disk: Disk | None
    ended: bool


def lived(settings: RunConfig, kills: list[float], plant: Plant | None = None, **options: Any) -> History:
    """A run killed so many seconds into each of its lives, the last of which is left alone. `plant(parts, disk)` makes a fault."""
    events: list[dict[str, Any]] = []
    disk: Disk | None = None
    ended = False
    for kill in [*kills, None]:
        began = events[-1]["t"] + 1.0 if events else 0.0
        outcome = run_virtual(_life(settings, kill, disk, events, plant, options))
        events += [{**event, "t": event["t"] + began} for event in outcome.events]
        disk, ended = outcome.disk, outcome.ended
        if ended:
            break
    return History(settings, lives_in(events), state="succeeded" if ended else "running", prompts=lambda k: f"p:{k}")


async def _life(
    settings: RunConfig, kill: float | None, disk: Disk | None, before: list[dict[str, Any]], plant: Plant | None, options: dict[str, Any]
) -> Outcome:
    spool = Spool(before[-1]["seq"] if before else 0)
    told = [event["data"]["samples"] for event in before if event["kind"] == "state"]
    ever_trained = told[-1]["trained"] + told[-1]["lost"] if told else 0
    parts = rig(settings, **options)
    parts.emit, spool.clock = spool, parts.clock
    weights = Weights(parts)
    kept = [disk]

    async def save(under_way: dict[str, Group]) -> None:
        state = resume.snapshot(parts, under_way)
        written = Disk(state, weights.value)
        await parts.clock.sleep(SAVE_S)
        while not spool.durable() or spool.durable()[-1]["seq"] < state["told_through"]:
            await parts.clock.sleep(0.01)
        kept[0] = written
        await parts.clock.sleep(NAMED_S)
        parts.emit.emit("checkpoint", {"step": written.step, "version": written.version})

    parts.save = save
    if plant is not None:
        plant(parts, disk)

    async def live() -> None:
        parts.emit.emit("started", {"resumed_from": resume.origin(disk) if disk else None})  # type: ignore[arg-type]
        if disk is not None:
            weights.value = disk.weights
            await resume.restore(parts, disk, ever_trained)  # type: ignore[arg-type]
        await Pipeline(parts).run()
        summary = summarise(settings, parts.progress, parts.samples, parts.time, "succeeded")
        parts.emit.emit("finished", {"outcome": "succeeded", "summary": summary})

    flow = asyncio.create_task(live())
    await asyncio.wait({flow}, timeout=kill)
    if flow.done():
        flow.result()
        return Outcome(spool.events, kept[0], ended=True)
    outcome = Outcome(spool.durable(), kept[0], ended=False)
    spool.dead = True
    flow.cancel()
    with contextlib.suppress(asyncio.CancelledError, ExceptionGroup):
        await flow
    return outcome
