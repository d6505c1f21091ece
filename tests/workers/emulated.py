"""The flow's test rig: the planner's twins on the virtual clock, with events kept in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workers.axes.interrupt.forward_pass import ForwardPass
from workers.clock import Clock, VirtualClock
from workers.contract.config import RunConfig
from workers.parts import Parts
from workers.planner.assembly import assemble
from workers.planner.costs import Costs
from workers.planner.twins import coin
from workers.records import Group, Rollout
from workers.rollout.emulated import EmulatedEngine
from workers.rollout.leaps import EngineCost


class MemoryEmitter:
    """Collects events instead of spooling them."""

    def __init__(self) -> None:
        self.step = 0
        self.events: list[tuple[str, dict[str, Any]]] = []

    @property
    def last_seq(self) -> int:
        return len(self.events)

    def emit(self, kind: str, data: dict[str, Any]) -> None:
        self.events.append((kind, data))

    def metrics(self, values: dict[str, float]) -> None:
        self.emit("metrics", {"values": values})

    def log(self, level: str, message: str, source: str = "driver") -> None:
        self.emit("log", {"level": level, "message": message, "source": source})

    def phase(self, name: str, detail: str = "", done: float | None = None) -> None:
        self.emit("phase", {"name": name})

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [data for name, data in self.events if name == kind]


class EmulatedGenerator(EmulatedEngine):
    """An engine for tests of what holds one: every token takes `token_s`, weights are swapped between two tokens."""

    def __init__(self, clock: Clock, *, slots: int = 64, token_s: float = 0.05, lengths: Callable[[str], int] = lambda _: 10) -> None:
        cost = EngineCost(step_s=token_s)
        super().__init__(clock, "generator/0", slots, ForwardPass("keep"), lambda request: lengths(request.id), cost)


def rig(
    config: RunConfig,
    *,
    generators: int = 1,
    token_s: float = 0.05,
    train_s: float = 1.0,
    lengths: Callable[[str], int] = lambda _: 10,
    failing: set[str] | None = None,
    constant: float | None = None,
    engine_cost: EngineCost | None = None,
    costs: Costs | None = None,
) -> Any:
    """Parts for one pipeline on the running (virtual) loop. Rewards by a coin, or `constant`; ids in `failing` cannot be scored."""

    def reward(rollout: Rollout) -> float | None:
        if failing and rollout.id in failing:
            return None
        return coin(rollout) if constant is None else constant

    saved: list[dict[str, Group]] = []
    parts: Parts = assemble(
        config,
        VirtualClock(),
        MemoryEmitter(),  # type: ignore[arg-type]
        lengths=lambda request: lengths(request.id),
        engine_cost=engine_cost or EngineCost(step_s=token_s),
        costs=costs or Costs(batch_s=train_s),
        reward=reward,
        engines=generators,
        remembers=True,
    )

    async def save(under_way: dict[str, Group]) -> None:
        saved.append(dict(under_way))

    parts.save = save
    return parts
