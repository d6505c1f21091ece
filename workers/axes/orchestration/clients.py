"""The driver's side of the two roles: the doors' words turned into `call(method, args)` on whatever carries it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from workers.records import Batch, EngineStatus, Manifest, Rollout, SampleRequest, StepResult, UpdateReport, from_wire, to_wire

Call = Callable[[str, dict[str, Any]], Awaitable[Any]]


class RemoteGenerator:
    """`rollout.base.Generator` over a carrier. `pid` is for messages: the process that answers, where it is known."""

    def __init__(self, call: Call, pid: int | None = None) -> None:
        self._call = call
        self.pid = pid

    async def generate(self, request: SampleRequest) -> Rollout:
        return from_wire(Rollout, await self._call("generate", {"request": to_wire(request)}))

    async def update(self, manifest: Manifest) -> UpdateReport:
        return from_wire(UpdateReport, await self._call("update", {"manifest": to_wire(manifest)}))

    async def status(self) -> EngineStatus:
        return from_wire(EngineStatus, await self._call("status", {}))

    async def stop(self) -> None:
        await self._call("stop", {})


class RemoteTrainer:
    """`orchestration.base.TrainerClient` over a carrier."""

    def __init__(self, call: Call) -> None:
        self._call = call

    async def train(self, batch: Batch) -> StepResult:
        return from_wire(StepResult, await self._call("train", {"batch": to_wire(batch)}))

    async def publish(self, version: int, receivers: list[str]) -> Manifest:
        return from_wire(Manifest, await self._call("publish", {"version": version, "receivers": receivers}))

    async def checkpoint(self, folder: Path, restore: bool = False) -> dict[str, Any]:
        counters: dict[str, Any] = await self._call("checkpoint", {"folder": str(folder), "restore": restore})
        return counters

    async def interrupt(self) -> None:
        await self._call("interrupt", {})

    async def status(self) -> dict[str, int]:
        """Its pid and resident bytes; answered while it trains."""
        facts: dict[str, int] = await self._call("status", {})
        return facts
