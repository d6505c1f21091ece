"""How many CPU threads a pool's process takes. Called at start, before the first tensor operation."""

from __future__ import annotations

import os

from workers.contract.config import RunConfig


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def share(config: RunConfig, given: int) -> int:
    """`given` where the config names a number; 1 in strict mode; else the cores shared out over engines and the trainer's ranks.

    Never more threads than cores in all: OpenMP's threads wait for one another by spinning, and a two-thread trainer beside
    other work on two cores was seen to be several times slower than with one thread.
    """
    if config.determinism == "strict":
        return 1
    return given or max(1, cores() // (config.backend.ranks + config.rollout.engines))
