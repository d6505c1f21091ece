"""The run as it was at a second of the last two hours: how long the answer takes, over random seconds.

    python -m tests.benchmarks.bench_travel [--looks 200] [--database sqlite|postgres]

Two hours of events as `tests/platform_tests/test_travel.py` tells them. Prints one JSON line. Start it when nothing else runs.
"""

from __future__ import annotations

import argparse
import json
import random
import time

from tests.benchmarks.server_rig import served


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--looks", type=int, default=200)
    parser.add_argument("--database", choices=["sqlite", "postgres"], default="sqlite")
    options = parser.parse_args()
    with served(options.database) as server:
        from headrace.telemetry import travel
        from tests.platform_tests.telemetry_rig import T0
        from tests.platform_tests.test_travel import two_hours

        two_hours(server.rig.attempt)
        chance, took = random.Random(1), []
        for _ in range(options.looks):
            second = T0 + chance.uniform(1, 7199)
            began = time.perf_counter()
            travel.at(server.rig.run, second)
            took.append(1000 * (time.perf_counter() - began))
        began = time.perf_counter()
        travel.axis(server.rig.run)
        axis = 1000 * (time.perf_counter() - began)
    took.sort()
    figures = {"p50_ms": took[len(took) // 2], "p95_ms": took[int(0.95 * len(took))], "axis_ms": axis}
    print(json.dumps({name: round(value, 1) for name, value in figures.items()} | {"looks": options.looks, "database": options.database}))


if __name__ == "__main__":
    main()
