"""What it costs a training run that the server is away: step time with and without it, and how long it takes to catch up.

    python -m tests.benchmarks.bench_outage [--away 60] [--steps 12]

The reference job's run, told to a real server; after `--steps` steps the server is killed, is away for `--away` seconds and comes
back. away / there: step time while it was away over step time while it was there, in the same run; 1 is no cost. Each event has to
be there exactly once.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from tests.benchmarks.bench_w1 import W1
from tests.benchmarks.shown import circumstances, table
from tests.e2e.web_rig import WebServer
from tests.faults.checker import check
from tests.faults.history import History, lives_of
from tests.faults.served import driver_command, make, stored
from workers.contract import loading


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--away", type=float, default=60.0)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--set", dest="sets", action="append", default=[], metavar="PATH=VALUE")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-outage-") as folder:
        found = measure(Path(folder), arguments.away, arguments.steps, arguments.sets)
    print(circumstances())
    print(table(["", "seconds, or a count, or a ratio"], list(found.items())))


def measure(folder: Path, away_s: float, steps: int, sets: list[str]) -> dict[str, float]:
    """Seconds, and the ratio. Raises AssertionError where an event was lost or doubled."""
    (folder / "server").mkdir()
    server = WebServer(folder / "server")
    server.manage("migrate", "--verbosity", "0")
    still = ["optimizer.learning_rate=1e-12"]  # what learns writes shorter samples, and its steps grow quicker by themselves
    config = loading.resolve(None, "demo", [*W1, *still, "budget.steps=100000", *sets])
    facts = make(server, "run", config.model_dump_json())
    server.start()
    out, spec = folder / "out", folder / "spec.json"
    spec.write_text(config.model_dump_json())
    with subprocess.Popen(driver_command(server, facts, spec, out)) as driver:
        try:
            until(lambda: len(step_times(out)) > steps, driver)
            left = time.time()
            server.stop()
            time.sleep(away_s)
            back = time.time()
            server.start()
            up_again = time.monotonic()
            behind = lives_of(out)[0].events[-1]["seq"]
            until(lambda: through(server, facts) >= behind, driver)
            caught_up = time.monotonic() - up_again
            until(lambda: step_times(out)[-1][0] > back + 5, driver)
        finally:
            driver.terminate()
            driver.wait(60)
    (life,) = lives_of(out)
    life.stored = stored(server.url, facts["run"], 1, facts["api"])
    server.stop()
    wrong = [str(broken) for broken in check(History(config, [life]))]
    assert not wrong and len(life.stored) == len(life.events), wrong
    there = [seconds for t, seconds in step_times(out)[2:] if t < left]
    away = [seconds for t, seconds in step_times(out) if left + 2 < t < back]
    return {
        "step, server there": statistics.median(there),
        "step, server away": statistics.median(away),
        "away / there": statistics.median(away) / statistics.median(there),
        "away for": back - left,
        "events told meanwhile": float(sum(left < event["t"] < back for event in life.events)),
        "caught up after": caught_up,
    }


def step_times(out: Path) -> list[tuple[float, float]]:
    """(Unix seconds, step_s) of every step so far."""
    values = [(event["t"], event["data"]["values"]) for life in lives_of(out) for event in life.of("metrics")]
    return [(t, given["time/step_s"]) for t, given in values if "time/step_s" in given]


def through(server: WebServer, facts: dict[str, str]) -> int:
    return len(stored(server.url, facts["run"], 1, facts["api"]))


def until(condition, driver: subprocess.Popen[bytes]) -> None:  # type: ignore[no-untyped-def]
    while not condition():
        assert driver.poll() is None, "the driver ended"
        time.sleep(1.0)


if __name__ == "__main__":
    main()
