"""What the flow holds, each part behind its door."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from workers.axes.buffer.base import Buffer
from workers.axes.orchestration.base import TrainerClient
from workers.axes.partial.base import Partial
from workers.axes.staleness.base import Staleness
from workers.clock import Clock
from workers.contract.config import RunConfig
from workers.emit import Emitter
from workers.environments.base import Environment
from workers.fates import Fates
from workers.ledger import SampleLedger, TimeLedger
from workers.pool import Pool
from workers.progress import Progress
from workers.rates import Rates
from workers.records import Group
from workers.scoring.base import Scorer
from workers.steering import Steering

TRAINER = "trainer"  # its lane in the time ledger


@dataclass
class Parts:
    """Everything the flow needs, each behind its door."""

    config: RunConfig
    clock: Clock
    environment: Environment
    scorer: Scorer
    pool: Pool
    buffer: Buffer
    staleness: Staleness
    partial: list[Partial]
    trainer: TrainerClient
    emit: Emitter
    samples: SampleLedger
    time: TimeLedger
    progress: Progress
    save: Callable[[dict[str, Group]], Awaitable[None]]  # writes a checkpoint of this very state
    stop_requested: Callable[[], bool] = field(default=lambda: False)  # asked between steps, and while a batch is awaited
    save_requested: Callable[[], bool] = field(default=lambda: False)  # asked between steps
    steering: Steering = field(default_factory=Steering)
    fates: Fates = field(default_factory=Fates)
    rates: Rates = field(default_factory=Rates)
    pulse_s: float | None = 1.0  # how often the state is told and a waiting trainer looks around; None: never, nobody is there to ask
    waiting_for_batch: bool = False
    last_fault: str = ""  # why the last sample without a reward has none
    held: bool = False  # paused: nothing is dispatched, trained or published

    def drop(self, group: Group, slots: list[int], reason: str, *, buffered: bool) -> None:
        """Called when slots of a group leave the flow untrained: counted by reason, and kept by name until it is told."""
        self.samples.drop(len(slots), reason, buffered=buffered)
        self.fates.left(group, slots, reason)
