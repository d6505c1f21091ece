"""The demo job as a user runs it: samples a second, pause of each sync, steps until it has learnt.

    python -m tests.benchmarks.bench_run [--steps 60] [--orchestration asyncio|ray]

Prints one JSON line. `samples_per_s` leaves start-up out, `wall_s` holds it; both are of this very run. `step_to_0.8` is the
first step at which the mean reward of five steps is at least 0.8, null if it never was.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path


def first_at(rewards: list[float], level: float, width: int = 5) -> int | None:
    """The step at which the mean of the last `width` rewards first reaches `level`."""
    means = ((end, sum(rewards[end - width : end]) / width) for end in range(width, len(rewards) + 1))
    return next((end for end, mean in means if mean >= level), None)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--steps", type=int, default=60)
    options.add_argument("--orchestration", default="asyncio")
    options.add_argument("--set", dest="sets", action="append", default=[])
    arguments = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="hr-bench-") as folder:
        out = Path(folder) / "run"
        sets = [f"budget.steps={arguments.steps}", f"orchestration.kind={arguments.orchestration}", *arguments.sets]
        command = [sys.executable, "-m", "workers", "run", "--preset", "demo", "--quiet", "--out", str(out)]
        subprocess.run([*command, *(part for item in sets for part in ("--set", item))], check=True, stdout=subprocess.DEVNULL)
        summary = json.loads((out / "summary.json").read_text())
        times = {}
        for segment in sorted((out / "spool").glob("*.spool")):
            for line in segment.read_text().splitlines():
                event = json.loads(line.partition(" ")[2])
                times.setdefault("first", event["t"])
                if event["kind"] == "metrics" and "reward/mean" in event["data"]["values"]:
                    times[event["step"]] = event["t"]
    reached = first_at(summary["rewards"], 0.8)
    report = {
        "steps": summary["steps"],
        "samples_per_s": summary["samples_per_s"],
        "wall_s": summary["wall_s"],
        "startup_s": summary["startup_s"],
        "step_to_0.8": reached,
        "seconds_to_0.8": round(times[reached] - times["first"], 1) if reached else None,
        "reward_first": summary["reward_first"],
        "reward_last": summary["reward_last"],
        "evaluations": summary["evaluations"],
        "lag": summary["lag"],
        "sync": summary["sync"],
        "time_ledger": summary["time_ledger"],
        "load_average": os.getloadavg(),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
