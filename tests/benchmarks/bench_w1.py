"""The reference job W1 on Headrace and, with `--trl`, on TRL, one after the other on the same cores. See trl_w1.py for the job.

    python -m tests.benchmarks.bench_w1 [--trl PYTHON] [--trl-steps 4] [--steps 60] [--in-turn 6] [--seeds 7 8 9] [--out FOLDER]
                                        [--set PATH=VALUE ...]

PYTHON has TRL 1.16 (`pip install 'headrace[engine,bench]'`); each side has both cores, Headrace one for each pool. samples/s leaves
start-up and the first step out; `to 0.8` counts from the start of training, at the first step whose five-step mean reward is 0.8.
overlap: samples/s over those of the slower pool while the other one rests, which a run of `--in-turn` steps tells, where each pool waits
for the other's whole batch; 1 is a trainer that never waits, 0.5 is what taking turns would give two pools of one speed.
both busy: share of the time from the first to the last training in which an engine generated while the trainer trained;
hidden: share of the less busy pool's work that was done while the other worked too, 1 where nothing ever waited in turn.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import reasoning_gym

from tests.benchmarks.bench_run import first_at
from tests.benchmarks.memory import watched
from tests.benchmarks.shown import circumstances, table
from workers import models
from workers.spool import read_spool

SAMPLES = 64  # a step
# W1 has neither evaluations nor checkpoints; the rest of it is the demo's preset.
W1 = ("evaluation.every_steps=0", "evaluation.at_start=false", "checkpoint.every_steps=0", "orchestration.kind=asyncio")
SYSTEM = "Answer with the number only."  # asked of both: another wording makes another job, which is learned at another pace
IN_TURN = ("staleness.max_lag=0", 'staleness.depth_bound={"value": 1, "unit": "batches"}')
Stretch = tuple[float, float]


def questions(folder: Path, seed: int) -> Path:
    """The 512 sums that both sides learn from. Which of them are hard decides how fast they learn, so they must be the same."""
    file = folder / f"questions-{seed}.jsonl"
    tasks = reasoning_gym.create_dataset("chain_sum", size=512, seed=seed, min_terms=2, max_terms=2, min_digits=1, max_digits=1)
    file.write_text("".join(json.dumps({"prompt": task["question"], "answer": task["answer"]}) + "\n" for task in tasks))
    return file


def headrace(out: Path, steps: int, seed: int, sets: list[str]) -> dict[str, Any]:
    """Runs W1 and returns what trl_w1.py returns, with overlap and lag. Raises CalledProcessError where the run failed."""
    # One of the questions is held out, for an evaluation that is not made.
    asked = (f"environment.dataset={questions(out.parent, seed)}", 'environment.options={"held_out_share": 0.001}')
    chosen = [*W1, *asked, f"environment.system_prompt={SYSTEM}", f"budget.steps={steps}", f"seed={seed}", *sets]
    command = [sys.executable, "-m", "workers", "run", "--preset", "demo", "--quiet", "--out", str(out)]
    with watched([*command, *(part for item in chosen for part in ("--set", item))]) as peaks:
        pass
    summary = json.loads((out / "summary.json").read_text())
    events = [event for event, _ in read_spool(out / "spool") if event]
    spans = [span for event in events if event["kind"] == "spans" for span in event["data"]["spans"]]
    train = [(began, ended) for lane, cause, began, ended in spans if lane == "trainer" and cause == "train"]
    generate = [(began, ended) for lane, cause, began, ended in spans if lane != "trainer" and cause in ("generate", "straggler_tail")]
    started = min(began for began, _ in generate)
    ends = [event["t"] - started for event in events if event["kind"] == "metrics" and "reward/mean" in event["data"]["values"]]
    return {
        "name": "Headrace",
        "seed": seed,
        "rewards": summary["rewards"],
        "ends": [round(moment, 3) for moment in ends],
        "startup_s": summary["startup_s"],
        "tokens_a_sample": summary["tokens_trained"] / summary["samples_trained"],
        "peak_mb": peaks,
        "lag_mean": summary["lag"]["mean"],
        "train_rate": alone(train, started + ends[0], len(ends)),
        "generate_rate": alone(generate, started + ends[0], len(ends)),
        **busy(train, generate),
    }


def alone(pool: list[Stretch], first: float, steps: int) -> float:
    """Samples a second of the time in which this pool worked, the first step left out, which ended at `first`."""
    seconds = sum(ended - began for began, ended in pool if began >= first)
    return SAMPLES * (steps - 1) / seconds if seconds else 0.0


def busy(train: list[Stretch], generate: list[Stretch]) -> dict[str, float]:
    """both_busy and hidden, see above, between the beginning of the first and the end of the last of `train`."""
    first, last = train[0][0], train[-1][1]
    generate = [(max(first, began), min(last, ended)) for began, ended in generate if ended > first and began < last]
    together = sum(max(0.0, min(ended, stop) - max(began, start)) for began, ended in train for start, stop in generate)
    worked = [sum(ended - began for began, ended in pool) for pool in (train, generate)]
    return {
        "both_busy": together / (last - first),
        "hidden": together / min(worked) if min(worked) else 0.0,
        "train_busy": worked[0] / (last - first),
        "generate_busy": worked[1] / (last - first),
    }


def trl(python: str, folder: Path, steps: int, seed: int, threads: int = 2) -> dict[str, Any]:
    """Runs W1 on TRL. Raises CalledProcessError where that failed."""
    script = Path(__file__).with_name("trl_w1.py")
    model = models.locate("smollm2-135m-instruct")
    command = [python, str(script), str(model), str(questions(folder, seed)), str(steps), str(seed), str(threads), SYSTEM]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def rate(run: dict[str, Any]) -> float:
    """Samples a second from the end of the first step to the end of the last."""
    ends = run["ends"]
    return float(SAMPLES * (len(ends) - 1) / (ends[-1] - ends[0]))


def cells(run: dict[str, Any]) -> list[str]:
    step = first_at(run["rewards"], 0.8)
    gaps = [later - earlier for earlier, later in pairwise(run["ends"])]
    return [
        run["name"],
        str(run["seed"]),
        str(len(run["rewards"])),
        f"{rate(run):.2f}",
        f"{statistics.median(gaps):.2f} s",
        f"{run['tokens_a_sample']:.1f}",
        f"step {step}, {run['ends'][step - 1]:.0f} s" if step else "not reached",
        f"{statistics.fmean(run['rewards'][-5:]):.2f}",
        f"{run['overlap']:.2f}" if "overlap" in run else "",
        f"{run['both_busy']:.2f} / {run['hidden']:.2f}" if "both_busy" in run else "",
        ", ".join(f"{name} {peak}" for name, peak in run["peak_mb"].items()),
    ]


COLUMNS = [
    "W1 on",
    "seed",
    "steps",
    "samples/s",
    "median step",
    "tokens a sample",
    "to 0.8",
    "last 5",
    "overlap",
    "both busy / hidden",
    "peak MB",
]


def runs(given: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    """The two take turns, seed by seed."""
    slower = None
    if given.in_turn > 1:
        turns = headrace(folder / "in-turn", given.in_turn, given.seeds[0], [*given.sets, *IN_TURN])
        slower = min(turns["train_rate"], turns["generate_rate"])
        yield {**turns, "name": "Headrace, pools in turn", "overlap": rate(turns) / slower}
    for seed in given.seeds:
        run = headrace(folder / f"seed-{seed}", given.steps, seed, given.sets)
        yield {**run, "overlap": rate(run) / slower} if slower else run
        if given.trl:
            yield trl(given.trl, folder, given.trl_steps, seed)


def verdict(done: list[dict[str, Any]]) -> Iterator[str]:
    """What the two sides' runs say beside each other."""
    turns, ours, theirs = ([run for run in done if run["name"].startswith(name)] for name in ("Headrace, pools in turn", "Headrace", "TRL"))
    ours = [run for run in ours if run not in turns]
    for run in turns:
        yield f"one pool at a time: trainer {run['train_rate']:.1f} samples/s, engine {run['generate_rate']:.1f}"
    if not theirs:
        yield "TRL was not run: name a Python that has it with --trl"
        return
    yield f"samples/s, Headrace over TRL: {statistics.fmean(map(rate, ours)) / statistics.fmean(map(rate, theirs)):.1f}x"
    for run in theirs:
        mine = next(one for one in ours if one["seed"] == run["seed"])
        both = [one["ends"][step - 1] for one in (mine, run) if (step := first_at(one["rewards"], 0.8))]
        if len(both) == 2:
            ratio = both[0] / both[1]
            yield f"seed {run['seed']}, seconds to a five-step mean of 0.8: {both[0]:.0f} beside {both[1]:.0f}, {ratio:.2f} of it"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--trl", help="a Python that has TRL")
    options.add_argument("--trl-steps", type=int, default=4)
    options.add_argument("--steps", type=int, default=60)
    options.add_argument("--in-turn", type=int, default=6, help="steps of the run that tells each pool's own speed; 0: none")
    options.add_argument("--seeds", type=int, nargs="+", default=[7])
    options.add_argument("--set", dest="sets", action="append", default=[])
    options.add_argument("--out", type=Path, help="keeps the runs and runs.json here")
    given = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="hr-w1-") as temporary:
        folder = given.out or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        done = []
        for run in runs(given, folder):
            done.append(run)
            (folder / "runs.json").write_text(json.dumps(done, indent=1))
            print(f"{run['name']}, seed {run['seed']}: {len(run['rewards'])} steps, {rate(run):.2f} samples/s", file=sys.stderr, flush=True)
    print(f"{circumstances()}\n\n{table(COLUMNS, [cells(run) for run in done])}\n")
    print("\n".join(verdict(done)))
    for run in done:
        print(f"{run['name']} seed {run['seed']} reward by step:", " ".join(f"{reward:.2f}" for reward in run["rewards"]))


if __name__ == "__main__":
    main()
