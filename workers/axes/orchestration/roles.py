"""What runs inside a pool's process, whoever started it: an engine or a trainer, called by name with JSON-like values.

Every carrier (child process, Ray actor) hosts these two classes, so their behaviour cannot differ between kinds.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import psutil

from workers import registry
from workers.axes.transport.base import Link
from workers.contract.config import RunConfig
from workers.contract.errors import HeadraceError
from workers.contract.failpoints import reached
from workers.records import Batch, Manifest, SampleRequest, from_wire, to_wire


def resident_bytes() -> int:
    return int(psutil.Process(os.getpid()).memory_info().rss)


class GeneratorRole:
    """One inference engine of the pool."""

    def __init__(self, config: dict[str, Any], name: str, run_id: str, scratch: str) -> None:
        parsed = RunConfig.model_validate(config)
        transport = registry.resolve("transport", parsed.transport.kind)(Link(run_id, Path(scratch), name, parsed.transport))
        self._engine = registry.resolve("rollout", parsed.rollout.engine)(parsed, name, transport)

    async def call(self, method: str, args: dict[str, Any]) -> Any:
        if method == "generate":
            return to_wire(await self._engine.generate(from_wire(SampleRequest, args["request"])))
        if method == "update":
            reached("receive.begun")
            report = await self._engine.update(from_wire(Manifest, args["manifest"]))
            reached("receive.served")
            return to_wire(report)
        if method == "status":
            return to_wire(await self._engine.status())
        if method == "ping":
            return os.getpid()
        if method == "stop":
            return await self._engine.stop()
        raise HeadraceError("a generator has no such method", field="method", value=method)


class TrainerRole:
    """The training pool's first process."""

    def __init__(self, config: dict[str, Any], run_id: str, scratch: str) -> None:
        parsed = RunConfig.model_validate(config)
        self._transport = registry.resolve("transport", parsed.transport.kind)(Link(run_id, Path(scratch), "trainer", parsed.transport))
        self._trainer = registry.resolve("backend", parsed.backend.kind)(parsed, Path(scratch), self._transport)

    async def call(self, method: str, args: dict[str, Any]) -> Any:
        if method == "train":
            result = await asyncio.to_thread(self._trainer.train, from_wire(Batch, args["batch"]))
            reached("train.stepped")
            result.metrics["system/trainer_rss"] = float(resident_bytes())
            return to_wire(result)
        if method == "publish":
            manifest = await asyncio.to_thread(self._trainer.publish, args["version"], args["receivers"])
            reached("publish.written")
            return to_wire(manifest)
        if method == "checkpoint":
            return await asyncio.to_thread(self._trainer.checkpoint, Path(args["folder"]), args["restore"])
        if method == "interrupt":
            return self._trainer.interrupt()
        if method == "status":
            return {"pid": os.getpid(), "rss": resident_bytes()}
        if method == "ping":  # answered beside a train step, which runs in a thread
            return os.getpid()
        if method == "stop":
            self._trainer.interrupt()
            self._trainer.close()
            return self._transport.close()
        raise HeadraceError("a trainer has no such method", field="method", value=method)
