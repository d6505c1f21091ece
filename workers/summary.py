"""summary.json: what an attempt came to."""

from __future__ import annotations

import math
import statistics
from typing import Any

from workers.contract.config import RunConfig
from workers.ledger import SampleLedger, TimeLedger
from workers.progress import Progress


def percentile(values: list[float], share: float) -> float | None:
    """Nearest rank. None without values: no data is not zero."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def summarise(config: RunConfig, progress: Progress, samples: SampleLedger, time: TimeLedger, outcome: str) -> dict[str, Any]:
    """`reward_first` and `reward_last` are means over the first and last tenth of the steps (at least one)."""
    times = time.as_dict()
    tenth = max(1, len(progress.rewards) // 10)
    startup = max((causes.get("startup", 0.0) for causes in times["lanes"].values()), default=0.0)
    paused = max((causes.get("paused", 0.0) for causes in times["lanes"].values()), default=0.0)
    working = times["wall_s"] - startup - paused
    trained_here = samples.trained - progress.trained_before
    return {
        "outcome": outcome,
        "steps": progress.step,
        "version": progress.version,
        "wall_s": round(times["wall_s"], 3),
        "startup_s": round(startup, 3),
        "samples_trained": samples.trained,
        "tokens_trained": progress.tokens_trained,
        "samples_per_s": round(trained_here / working, 4) if trained_here and working > 0 else None,
        "reward_first": statistics.fmean(progress.rewards[:tenth]) if progress.rewards else None,
        "reward_last": statistics.fmean(progress.rewards[-tenth:]) if progress.rewards else None,
        "rewards": [round(reward, 6) for reward in progress.rewards],
        "sample_ledger": samples.as_dict(),
        "time_ledger": times["lanes"],
        "overlapped_s": times["overlapped_s"],
        "lag": {
            "mean": progress.lag_sum / progress.lag_tokens if progress.lag_tokens else None,
            "max": progress.lag_max if progress.lag_tokens else None,
        },
        "sync": {
            "count": progress.sync_count,
            "pause_s_p50": percentile(progress.pauses, 0.5),
            "pause_s_p95": percentile(progress.pauses, 0.95),
            "bytes": progress.sync_bytes,
        },
        "config_digest": config.digest(),
    }
