"""Every preset trains for real on a small random model, and its own events show the design it stands for."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.workers import signature as sign
from tests.workers.tiny_model import make_tiny_model
from workers.contract import loading, presets
from workers.spool import read_spool

pytestmark = pytest.mark.alone
PUBLISHES = 3  # at the least: whether something is running at one of them is a matter of moments
LETTERS = "aeiou"
# The random model is asked for a vowel: about half of its completions hold one, so that groups can teach.
OVERRIDES = (
    "model.dtype=float32",
    "environment.answer=whole",
    "environment.verifier=contains",
    "environment.system_prompt=",
    "sampling.max_new_tokens=96",
    "rollout.max_running=4",  # so that the engine is slower than the trainer, and something is running at every publish
    "rollout.threads=1",
    "backend.threads=1",
    "evaluation.at_start=false",
    "evaluation.at_end=false",
    "evaluation.every_steps=0",
    "checkpoint.every_steps=0",
)
NAMED: dict[str, tuple[Callable[[sign.Story], None], ...]] = {
    "verl": (sign.publishes_every(4), sign.goes_on_from_its_prefix),
    "art": (sign.overlaps,),
    "slime": (sign.drains_first,),
    "areal": (sign.goes_on_from_its_prefix,),
    "verifiers-rl": (sign.overlaps,),
    "open-instruct": (sign.several_versions_in_a_sample,),
    "roll": (sign.loses_what_was_running,),
    "tunix": (sign.drains_first,),
    "skyrl": (sign.several_versions_in_a_sample,),
    "nemo-rl": (sign.drains_first,),
    "prime-rl": (sign.several_versions_in_a_sample,),
    "miles": (sign.several_versions_in_a_sample,),
    "atropos": (sign.publishes_every(3), sign.restarts_its_engine),
    "oat": (sign.drains_first,),
    "torchforge": (sign.drains_first,),
    "pipelinerl": (sign.several_versions_in_a_sample, sign.no_pause_longer_than_a_decode_step),
    "trl-sync": (sign.never_overlaps,),
    "trl-async": (sign.several_versions_in_a_sample,),
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose every token ends a completion with a chance of about one in 25: lengths spread as they do in earnest."""
    folder = make_tiny_model(tmp_path_factory.mktemp("tiny"))
    path = folder / "generation_config.json"
    settings = json.loads(path.read_text())
    path.write_text(json.dumps({**settings, "eos_token_id": [2, *range(200, 210)]}))
    return folder


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "vowels.jsonl"
    lines = [{"prompt": f"Say {LETTERS[number % 5]}, {number}.", "answer": LETTERS[number % 5]} for number in range(400)]
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return path


def story(preset: str, tiny: Path, questions: Path, out: Path) -> sign.Story:
    sets = (f"model.path={tiny}", f"environment.dataset={questions}", *OVERRIDES)
    every = loading.resolve(preset=preset, sets=sets).sync.every_steps
    sets += (f"budget.steps={max(7, PUBLISHES * every + 1)}",)
    command = [sys.executable, "-m", "workers", "run", "--preset", preset, "--quiet", "--out", str(out)]
    done = subprocess.run([*command, *(part for item in sets for part in ("--set", item))], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    events = [event for event, fault in read_spool(out / "spool") if event]
    return sign.Story(loading.resolve(preset=preset, sets=sets), events, json.loads((out / "summary.json").read_text()))


def test_every_library_has_a_signature() -> None:
    assert sorted(NAMED) == sorted(presets.LIBRARIES)


# In every suite one by each carrier; `test_signatures_on_the_clock` looks at all of them in each.
IN_EVERY_SUITE = ("pipelinerl", "trl-sync")


@pytest.mark.parametrize(
    "preset", [name if name in IN_EVERY_SUITE else pytest.param(name, marks=pytest.mark.full) for name in sorted(NAMED)]
)
def test_a_run_shows_its_design(preset: str, tiny: Path, questions: Path, tmp_path: Path) -> None:
    told = story(preset, tiny, questions, tmp_path / "run")
    assert told.summary["outcome"] == "succeeded" and told.summary["steps"] == told.config.budget.steps
    for check in (*sign.CHECKS, *NAMED[preset]):
        check(told)
