"""The release tier: many seeded trials of each kind, in pieces that stop and go on, on real processes and a tiny model.

    python -m tests.faults.release [--pieces simulated kills resumes cancels soak] [--minutes M] [--out FOLDER] [--report]

Every trial has its number for a seed and is a line of FOLDER/results.jsonl; what is done is not done again, so a stop costs one trial.
`--report` prints the table of what FOLDER holds and runs nothing. deploy/RELIABILITY.md holds the last results.
"""

from __future__ import annotations

import argparse
import importlib
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.faults.checker import check
from tests.faults.history import History, digests
from tests.faults.real_runs import ASYNCIO, DIED, NEVER, STRICT, history_of, live, living, member, spec_of
from tests.workers.tiny_model import make_tiny_model
from workers.contract import failpoints

ROOT = Path(__file__).resolve().parents[2]
WANTED = {"simulated": 30_000, "kills": 3_000, "resumes": 500, "cancels": 1_000, "soak": 150}  # soak: minutes
HERE = ("train.", "step.", "group.", "batch.", "publish.", "receive.", "save.", "spool.")  # points that a run without a server reaches


class Bench:
    """What trials share: a folder for each, one model, and the strict run that nothing interrupted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = make_tiny_model(folder / "model")
        self._reference: dict[int, str] = {}

    def simulated(self, trial: int) -> dict[str, Any]:
        """A run on the virtual clock, with other policies each time, killed one to four times."""
        from tests.faults.simulated import lived
        from tests.faults.test_deaths_simulated import FAILING, ORDINARY, sampled
        from tests.workers.test_flow_policies import config

        rng = random.Random(trial)
        kills = [rng.uniform(0.05, 8.0) for _ in range(rng.randint(1, 4))]
        history = lived(config(**sampled(rng)), kills, **ORDINARY, failing=rng.choice([FAILING, None]))
        _hold(history)
        return {"kills": len(history.lives) - 1}

    def kills(self, trial: int) -> dict[str, Any]:
        """A run of which one process dies: at a point, or at some moment; then it is resumed, dies again, and comes to its end."""
        rng = random.Random(trial)
        folder = self._fresh("kill")
        steps = rng.randint(8, 14)
        spec = spec_of(
            folder, self.model, **ASYNCIO, checkpoint={"every_steps": rng.randint(1, 3)}, budget={"steps": steps}, evaluation=NEVER
        )
        out, deaths = folder / "out", 0
        for _ in range(2):
            if rng.random() < 0.7:
                point = rng.choice([name for name in failpoints.POINTS if name.startswith(HERE)])
                deaths += live(spec, out, f"{point}=kill@{rng.randint(1, 6)}")[0] in DIED
            else:
                deaths += self._at_some_moment(spec, out, rng)
        assert live(spec, out)[0] == 0
        _hold(history_of(out, state="succeeded"))
        return {"kills": deaths}

    def _at_some_moment(self, spec: Path, out: Path, rng: random.Random) -> bool:
        with living(spec, out) as process:
            time.sleep(rng.uniform(0.2, 6.0))
            try:
                victim: Any = process if rng.random() < 0.5 else member(process, rng.choice(["generator", "trainer"]))
                victim.kill()
            except Exception:
                process.kill()  # no member yet, or none any more
            return process.wait(timeout=60) in DIED

    def resumes(self, trial: int) -> dict[str, Any]:
        """A strict run cut at a point: its versions have the digests of the run that nothing interrupted."""
        rng = random.Random(trial)
        blocks = {**ASYNCIO, **STRICT, "checkpoint": {"every_steps": 1}, "budget": {"steps": 8}, "evaluation": NEVER}
        if not self._reference:
            folder = self._fresh("reference")
            assert live(spec_of(folder, self.model, **blocks), folder / "out")[0] == 0
            self._reference = digests(history_of(folder / "out"))
        folder = self._fresh("resume")
        spec, out = spec_of(folder, self.model, **blocks), folder / "out"
        point = rng.choice([name for name in failpoints.POINTS if name.startswith(HERE)])
        cut = live(spec, out, f"{point}=kill@{rng.randint(1, 7)}")[0] in DIED
        if cut:
            assert live(spec, out)[0] == 0
        _hold(history_of(out, state="succeeded", reference=self._reference))
        return {"kills": int(cut), "point": point}

    def cancels(self, trial: int) -> dict[str, Any]:
        """A run that is cancelled at some moment: nothing of it is left ten seconds later."""
        from tests.faults.test_cancels import cancelled

        rng = random.Random(trial)
        return {"gone_s": round(cancelled(self._fresh("cancel") / "run", self.model, "", rng.uniform(0.0, 10.0)), 2)}

    def soak(self, trial: int) -> dict[str, Any]:
        """Runs one after the other on the whole product, and a part killed every minute. One trial is the whole of it."""
        importlib.import_module("tests.conftest")  # sets Django up, in a data folder of its own
        from tests.faults.soak import soak

        return soak(self._fresh("soak"), self.model, WANTED["soak"], seed=trial)

    def _fresh(self, name: str) -> Path:
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.folder))


def _hold(history: History) -> None:
    found = [str(broken) for broken in check(replace(history))]
    assert found == [], found


def run(pieces: list[str], out: Path, minutes: float | None) -> bool:
    """True: every trial that was made held."""
    out.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + minutes * 60 if minutes is not None else float("inf")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    good = True
    with tempfile.TemporaryDirectory(prefix="headrace-release-") as folder:
        bench = Bench(Path(folder))
        for piece in pieces:
            done = {row["trial"] for row in rows(out) if row["piece"] == piece}
            trials = range(1 if piece == "soak" else WANTED[piece])
            for trial in (number for number in trials if number not in done):
                if time.monotonic() > deadline:
                    break
                row = one(getattr(bench, piece), piece, trial) | {"commit": commit, "date": time.strftime("%Y-%m-%d")}
                good = good and bool(row["ok"])
                with (out / "results.jsonl").open("a") as file:
                    file.write(json.dumps(row) + "\n")
                if not row["ok"] or trial % 50 == 0:
                    sys.stderr.write(f"{piece} {trial}: {row}\n")
    return good


def one(make: Callable[[int], dict[str, Any]], piece: str, trial: int) -> dict[str, Any]:
    began = time.monotonic()
    try:
        facts, error = make(trial), None
    except Exception as fault:  # a trial that fails is a result, and the next one has its turn
        facts, error = {}, f"{type(fault).__name__}: {fault}"[:1000]
    return {"piece": piece, "trial": trial, "ok": error is None, "seconds": round(time.monotonic() - began, 2), "error": error, **facts}


def rows(out: Path) -> list[dict[str, Any]]:
    path = out / "results.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def report(out: Path) -> str:
    """A table in Markdown: what was run, of what, and how often it failed; 0 of n means at most 3/n at 95 %."""
    lines = ["| piece | trials of | deaths | failed | median, longest | commits |", "|---|---|---|---|---|---|"]
    for piece, wanted in WANTED.items():
        found = [row for row in rows(out) if row["piece"] == piece]
        if not found:
            lines.append(f"| {piece} | 0 of {wanted} | | not run | | |")
            continue
        seconds = sorted(row["seconds"] for row in found)
        failed = sum(not row["ok"] for row in found)
        took = f"{statistics.median(seconds):.1f} s, {seconds[-1]:.1f} s"
        deaths = sum(row.get("kills", 0) for row in found)
        commits = ", ".join(sorted({row["commit"] for row in found}))
        lines.append(f"| {piece} | {len(found)} of {wanted} | {deaths} | {failed} | {took} | {commits} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pieces", nargs="+", choices=list(WANTED), default=list(WANTED))
    parser.add_argument("--minutes", type=float, help="stop after so long; the next call goes on (default: until all is done)")
    parser.add_argument("--out", type=Path, default=Path.home() / ".cache" / "headrace" / "release")
    parser.add_argument("--report", action="store_true")
    arguments = parser.parse_args()
    good = True if arguments.report else run(arguments.pieces, arguments.out, arguments.minutes)
    print(report(arguments.out))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
