"""The planner on 1,024 GPUs: seconds for 100 steps of 1,024 completions, and the memory that it takes.

    python -m tests.benchmarks.bench_planner [--presets prime-rl trl-sync pipelinerl] [--quick]

The scenario is `cluster-1024`: 128 replicas. simulate: the flow alone; plan: with the ceilings it is compared with; peak: of the whole
process, in MB, after the steps. Each preset in a process of its own. Start it when nothing else runs.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time

from tests.benchmarks.shown import circumstances, table
from workers.planner import design, scenarios
from workers.planner.plan import plan, simulate


def one(preset: str, steps: int) -> dict[str, float]:
    scenario = scenarios.load("cluster-1024", [f"steps={steps - 2}", "warmup_steps=2"])
    config = design.configured(preset, scenario)
    began = time.perf_counter()
    ear = simulate(config, scenario)
    simulated = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    assert ear.end is not None and ear.parts is not None
    began = time.perf_counter()
    told = plan(preset, scenario)
    return {
        "simulate_s": simulated,
        "plan_s": time.perf_counter() - began,
        "peak_mb": peak,
        "completions": ear.parts.samples.dispatched,
        "simulated_hours": told["wall_s"] / 3600,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presets", nargs="+", default=["prime-rl", "trl-sync", "pipelinerl"])
    parser.add_argument("--steps", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    steps = [3] if options.quick else options.steps
    if options.one:
        print(json.dumps(one(options.one, steps[0])))
        return
    print(circumstances())
    rows = [["preset", "steps", "simulate", "plan", "peak MB", "completions", "simulated hours"]]
    for preset in options.presets[:1] if options.quick else options.presets:
        for count in steps:
            command = [sys.executable, "-m", "tests.benchmarks.bench_planner", "--one", preset, "--steps", str(count)]
            found = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
            figures = [f"{found['simulate_s']:.2f} s", f"{found['plan_s']:.2f} s", f"{found['peak_mb']:.0f}"]
            rows.append([preset, str(count), *figures, f"{found['completions']:.0f}", f"{found['simulated_hours']:.1f}"])
    print(table(rows[0], rows[1:]))


if __name__ == "__main__":
    main()
