"""A scenario fitted on runs: what decoding, training and publishing cost where they ran.

What a run's events do not say is not fitted: the number of prompt tokens (prefill is fitted for a prompt, and spread over a nominal
number of tokens), the seconds of a judgement (they are part of what the trainer waits for), and speeds at batch sizes that never ran.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from workers.contract.errors import ConfigError
from workers.parts import TRAINER
from workers.planner import scenarios
from workers.planner.measure import BUSY, GENERATORS
from workers.planner.runs import Run, read

PROMPT_TOKENS = 64  # nominal
MOST_LENGTHS = 2000
LEAST_STEPS = 2  # decode steps between two pulses that say something
SPREAD = 0.05  # of tokens a batch, relative, beneath which per token and per batch cannot be told apart


def calibrate(folders: Sequence[Path], name: str = "calibrated") -> dict[str, Any]:
    """{"scenario": as data, "fit": lines that say what was fitted on how much}. Called by the command line and the API.

    Runs are of one model on one machine; their batches and designs may differ. Batch, engines and slots are those of the first.
    Raises DataError for a folder without a run, ConfigError where the runs do not belong together.
    """
    runs = [read(folder) for folder in folders]
    if len({run.config.model.path for run in runs}) > 1:
        paths = sorted({run.config.model.path for run in runs})
        raise ConfigError("the runs are of different models", field="model.path", value=paths, cure="calibrate each model by itself")
    config = runs[0].config
    token_s, batch_s = training(runs)
    speed, prefill_s = decoding(runs)
    lengths = shown_lengths(runs)
    if not lengths:
        raise ConfigError("no completion was shown", field="runs", value=[str(folder) for folder in folders], cure="give longer runs")
    syncs = [sync for run in runs for sync in run.syncs]
    steps = sum(len(run.steps) for run in runs)
    scenario: dict[str, Any] = {
        "name": name,
        "title": f"Fitted on {len(runs)} run{'s' if len(runs) > 1 else ''} of {config.model.path}",
        "notes": [f"{steps} steps, {len(lengths)} completions, {len(syncs)} publishes."],
        "seed": config.seed,
        "prompt_tokens": PROMPT_TOKENS,
        "max_new_tokens": config.sampling.max_new_tokens,
        "batch": {"prompts": config.batch.prompts, "group_size": config.batch.group_size},
        "lengths": {"kind": "empirical", "values": thinned(lengths)},
        "generation": {
            "replicas": config.rollout.engines,
            "slots": config.rollout.max_running,
            "prefill_s": prefill_s,
            "message_s": message_s(runs),
            "speed": speed,
        },
        "training": {"token_s": token_s, "batch_s": batch_s},
        "sync": publishing(syncs),
        "failures": {"scoring": failed(runs)},
    }
    scenarios.validated(scenario)
    return {"scenario": scenario, "fit": _told(scenario, steps, len(lengths), len(syncs))}


def shown_lengths(runs: Sequence[Run]) -> list[float]:
    """Ascending. Only some completions are shown, but the mean of all that were trained is known: the shown ones are stretched to it."""
    shown = sorted(length for run in runs for length in run.lengths)
    if not shown:
        return []
    every = [step for run in runs for step in run.steps]
    stretch = sum(step.tokens for step in every) / sum(step.samples for step in every) / statistics.fmean(shown)
    most = max(run.config.sampling.max_new_tokens for run in runs)
    return [min(float(most), max(1.0, length * stretch)) for length in shown]


def training(runs: Sequence[Run]) -> tuple[float, float]:
    """Seconds a token and seconds a batch, by least squares over the steps; the driver's own time between them is the batch's.

    Where batches are all of one size, or the fit has a negative part, all is the tokens': the scenario is then good for batches of
    about this size.
    """
    steps = [(step.tokens * run.config.batch.epochs, step.train_s) for run in runs for step in run.steps]
    tokens, seconds = [token for token, _ in steps], [second for _, second in steps]
    idle = statistics.median(step.causes[TRAINER].get("idle", 0.0) for run in runs for step in run.steps)
    mean = statistics.fmean(tokens)
    if len(steps) > 2 and statistics.pstdev(tokens) > SPREAD * mean:
        slope, offset = statistics.linear_regression(tokens, seconds)
        if slope > 0 and offset >= 0:
            return slope, offset + idle
    return sum(seconds) / sum(tokens), idle


def decoding(runs: Sequence[Run]) -> tuple[dict[str, Any], float]:
    """The table of decode speeds, and the prefill's seconds for a token.

    Between two pulses an engine's decode steps took so long, with so many samples in them. Over all of these, seconds are fitted as a
    line over samples, and the table holds its ends: one sample, and all slots. Without a spread it holds the mean. What engines were
    busy for beyond decoding is prefill: of one prompt, for the samples of a group share it.
    """
    slots = runs[0].config.rollout.max_running
    points = [point for run in runs for point in _points(run)]
    prefills = []
    for run in runs:
        busy = sum(step.causes[GENERATORS].get(cause, 0.0) for step in run.steps for cause in BUSY[GENERATORS])
        tokens = sum(step.tokens for step in run.steps)
        if not run.pulses or not run.pulses[-1].tokens:
            points.append((float(slots), slots * busy / tokens, 1.0))
            continue
        decode_s = tokens * run.pulses[-1].decode_s / run.pulses[-1].tokens
        groups = sum(step.samples for step in run.steps) / run.config.batch.group_size
        prefills.append(max(0.0, busy - decode_s) / groups / PROMPT_TOKENS)
    return _table(points, slots), statistics.fmean(prefills) if prefills else 0.0


def _points(run: Run) -> list[tuple[float, float, float]]:
    """(running samples, seconds of a decode step, decode steps) between each two pulses."""
    found = []
    for before, after in pairwise(run.pulses):
        steps = after.steps - before.steps
        if steps >= LEAST_STEPS and after.tokens > before.tokens and after.decode_s > before.decode_s:
            found.append(((after.tokens - before.tokens) / steps, (after.decode_s - before.decode_s) / steps, steps))
    return found


def _table(points: Sequence[tuple[float, float, float]], slots: int) -> dict[str, Any]:
    weight = sum(steps for _, _, steps in points)
    middle = sum(running * steps for running, _, steps in points) / weight
    mean_s = sum(step_s * steps for _, step_s, steps in points) / weight
    spread = sum(steps * (running - middle) ** 2 for running, _, steps in points)
    if spread > weight * (SPREAD * middle) ** 2 and slots > 1:
        slope = sum(steps * (running - middle) * (step_s - mean_s) for running, step_s, steps in points) / spread
        one, full = mean_s + slope * (1 - middle), mean_s + slope * (slots - middle)
        if slope >= 0 and one > 0:
            return {"kind": "table", "running": [1.0, float(slots)], "tokens_per_s": [1 / one, slots / full]}
    return {"kind": "table", "running": [middle], "tokens_per_s": [middle / mean_s]}


def publishing(syncs: Sequence[dict[str, float]]) -> dict[str, Any]:
    """Medians: one publish that met a busy disk says little of the others."""
    if not syncs:
        return {"seconds": {"any": 0.0}, "export_s": 0.0}
    middle = {phase: statistics.median(sync[phase] for sync in syncs) for phase in ("export_s", "transfer_s", "apply_s")}
    return {"seconds": {"any": middle["transfer_s"]}, "export_s": middle["export_s"], "apply_s": middle["apply_s"]}


def message_s(runs: Sequence[Run]) -> float:
    """One way: what a training call took beyond the training itself, halved."""
    beyond = [step.causes[TRAINER].get("train", 0.0) - step.train_s for run in runs for step in run.steps]
    return max(0.0, statistics.median(beyond) / 2)


def failed(runs: Sequence[Run]) -> float:
    """Share of judged samples without a reward."""
    judged = sum(run.judged for run in runs)
    return sum(run.scoring_failed for run in runs) / judged if judged else 0.0


def thinned(values: Sequence[float]) -> list[float]:
    """At most `MOST_LENGTHS` of ascending values, evenly picked."""
    if len(values) <= MOST_LENGTHS:
        return list(values)
    return [values[place * len(values) // MOST_LENGTHS] for place in range(MOST_LENGTHS)]


def _told(scenario: dict[str, Any], steps: int, lengths: int, syncs: int) -> list[str]:
    speed, training, sync = scenario["generation"]["speed"], scenario["training"], scenario["sync"]
    rows = ", ".join(f"{rate:.4g} at {running:g}" for running, rate in zip(speed["running"], speed["tokens_per_s"], strict=True))
    return [
        f"decoding: tokens a second at so many running samples: {rows}",
        f"training: {training['token_s']:.4g} s a token + {training['batch_s']:.4g} s a batch, over {steps} steps",
        f"lengths: {lengths} completions",
        f"publishing: {sync.get('export_s', 0.0):.4g} s export, {sync['seconds']['any']:.4g} s transfer, over {syncs} publishes",
    ]
