"""The library styles side by side: each preset trains the real model on its workload, one after another, and makes one row.

    python -m tests.benchmarks.bench_presets [--steps 20] [--out FOLDER] [preset ...]

Prints a Markdown table; rows.json in the folder holds the same numbers. A preset whose run is complete in the folder is not run
again, so a long table can be made in pieces. Run it on an otherwise idle machine: the pools share its cores.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from workers.contract import presets
from workers.spool import read_spool

COLUMNS = (
    ("preset", "{preset}"),
    ("samples/s", "{samples_per_s:.1f}"),
    ("trainer busy", "{trainer_busy:.0%}"),
    ("engine busy", "{engine_busy:.0%}"),
    ("lag mean / max", "{lag_mean:.2f} / {lag_max}"),
    ("versions a sample", "{versions_per_sample:.2f}"),
    ("sync latency", "{sync_latency_s:.2f} s"),
    ("pause p95", "{pause_p95_ms:.1f} ms"),
    ("payload", "{payload} {megabytes:.0f} MB"),
    ("dropped", "{dropped_share:.0%}"),
    ("reward first -> last", "{reward_first:.2f} -> {reward_last:.2f}"),
    ("held-out", "{held_out_first:.2f} -> {held_out_last:.2f}"),
)


def run(preset: str, out: Path, steps: int, sets: tuple[str, ...] = ()) -> dict[str, Any]:
    """Trains one preset and returns its row. Raises subprocess.CalledProcessError where the run failed."""
    if not (out / "summary.json").exists():
        overrides = [f"budget.steps={steps}", "evaluation.every_steps=0", "checkpoint.every_steps=0", *sets]
        command = [sys.executable, "-m", "workers", "run", "--preset", preset, "--quiet", "--out", str(out)]
        subprocess.run([*command, *(part for item in overrides for part in ("--set", item))], check=True, stdout=subprocess.DEVNULL)
    return row(preset, out)


def row(preset: str, out: Path) -> dict[str, Any]:
    summary = json.loads((out / "summary.json").read_text())
    events = [event for event, _ in read_spool(out / "spool") if event]
    syncs = [event["data"] for event in events if event["kind"] == "sync"]
    spans = [
        event["data"]["values"]["lag/versions_per_sample"]
        for event in events
        if event["kind"] == "metrics" and "lag/versions_per_sample" in event["data"]["values"]
    ]
    ledger, lanes = summary["sample_ledger"], summary["time_ledger"]
    engines = [lane for name, lane in lanes.items() if name != "trainer"]
    working = summary["wall_s"] - summary["startup_s"]
    ended = ledger["dropped"].get("run_ended", 0)
    return {
        "preset": preset,
        "outcome": summary["outcome"],
        "steps": summary["steps"],
        "samples_per_s": summary["samples_per_s"],
        "trainer_busy": lanes["trainer"].get("train", 0.0) / working,
        "engine_busy": sum(lane.get("generate", 0.0) + lane.get("straggler_tail", 0.0) for lane in engines) / working / len(engines),
        "lag_mean": summary["lag"]["mean"],
        "lag_max": summary["lag"]["max"],
        "versions_per_sample": sum(spans) / len(spans),
        "sync_latency_s": sum(sync["latency_s"] for sync in syncs) / len(syncs),
        "pause_p95_ms": 1000 * summary["sync"]["pause_s_p95"],
        "payload": syncs[-1]["payload"],
        "megabytes": syncs[-1]["bytes"] / 1e6,
        "dropped_share": (sum(ledger["dropped"].values()) - ended) / max(1, ledger["dispatched"] - ended),
        "effects": ledger["effects"],
        "reward_first": summary["reward_first"],
        "reward_last": summary["reward_last"],
        "held_out_first": summary["evaluations"][0]["mean"],
        "held_out_last": summary["evaluations"][-1]["mean"],
        "startup_s": summary["startup_s"],
        "wall_s": summary["wall_s"],
    }


def table(rows: list[dict[str, Any]]) -> str:
    head = "| " + " | ".join(title for title, _ in COLUMNS) + " |"
    lines = ["| " + " | ".join(form.format(**values) for _, form in COLUMNS) + " |" for values in rows]
    return "\n".join([head, "|" + "---|" * len(COLUMNS), *lines])


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("presets", nargs="*", help="default: every library's")
    options.add_argument("--steps", type=int, default=20)
    options.add_argument("--out", type=Path, help="keeps the runs; default: a temporary folder")
    options.add_argument("--set", dest="sets", action="append", default=[])
    arguments = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="hr-presets-") as temporary:
        folder = arguments.out or Path(temporary)
        rows = []
        for name in arguments.presets or presets.LIBRARIES:
            rows.append(run(name, folder / name, arguments.steps, tuple(arguments.sets)))
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
            (folder / "rows.json").write_text(json.dumps(rows, indent=1))
    print(table(rows))


if __name__ == "__main__":
    main()
