"""`python -m workers`, as a user's script calls it: real processes, a real (tiny) model, both orchestrations."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.workers.tiny_model import make_tiny_model
from workers.contract.errors import ExitCode
from workers.spool import read_spool

SHAPE = {
    "environment": {"dataset": "chain_sum", "options": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}, "size": 32},
    "model": {"dtype": "float32"},
    "batch": {"prompts": 2, "group_size": 4},
    "sampling": {"max_new_tokens": 6},
    "rollout": {"max_running": 8, "threads": 1},
    "backend": {"threads": 1},
    "buffer": {"depth": 4},
    "lora": {"rank": 2, "alpha": 4.0},
    "evaluation": {"every_steps": 0, "prompts": 4},
    "checkpoint": {"every_steps": 2},
    "budget": {"steps": 4},
}


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def spec(tiny: Path, tmp_path: Path) -> Path:
    path = tmp_path / "spec.json"
    path.write_text(json.dumps({**SHAPE, "model": {"path": str(tiny), "dtype": "float32"}}))
    return path


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "workers", *map(str, arguments)]


def workers(*arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command(*arguments), capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def processes_of(run_id: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("HEADRACE_RUN_ID") == run_id:
                found.append(process)
        except psutil.Error:
            continue
    return found


def events(out: Path, kind: str) -> list[dict[str, Any]]:
    return [event["data"] for event, bad in read_spool(out / "spool") if event and event["kind"] == kind]


def wait_for(out: Path, kind: str, patience_s: float = 60) -> None:
    limit = time.monotonic() + patience_s
    while not events(out, kind):
        assert time.monotonic() < limit, f"no {kind} event within {patience_s} s"
        time.sleep(0.1)


@pytest.mark.parametrize("orchestration", ["asyncio", "ray"])
def test_a_run_from_a_spec_to_its_summary(spec: Path, tmp_path: Path, orchestration: str) -> None:
    out, before = tmp_path / "out", set(Path("/dev/shm").glob("hr-*"))
    done = workers("run", spec, "--set", f"orchestration.kind={orchestration}", "--out", out)
    summary = json.loads((out / "summary.json").read_text())
    ledger = summary["sample_ledger"]
    assert "step 4/4" in done.stdout
    assert summary["outcome"] == "succeeded"
    assert (summary["steps"], summary["samples_trained"]) == (4, 32)
    assert (
        ledger["dispatched"]
        == ledger["trained"] + ledger["buffered"] + ledger["in_flight"] + sum(ledger["dropped"].values()) + ledger["lost"]
    )
    assert set(summary["time_ledger"]) == {"generator/0", "trainer"}
    for causes in summary["time_ledger"].values():
        assert sum(causes.values()) == pytest.approx(summary["wall_s"], rel=0.01)
    assert summary["sync"]["count"] == 4
    assert summary["sync"]["bytes"] > 0
    assert summary["lag"]["max"] is not None
    assert [evaluation["step"] for evaluation in summary["evaluations"]] == [0, 4]
    assert json.loads((out / "config.json").read_text())["orchestration"]["kind"] == orchestration
    assert sorted(path.name for path in (out / "checkpoints").iterdir()) == ["step-000002", "step-000004"]
    numbers = [event["seq"] for event, bad in read_spool(out / "spool") if event]
    assert numbers == list(range(1, len(numbers) + 1))
    samples = events(out, "sample")
    assert all(len(sample["tokens"]["ids"]) == len(sample["tokens"]["versions"]) == len(sample["tokens"]["logprobs"]) for sample in samples)
    gaps = [
        abs(mine - theirs)
        for sample in samples
        if sample["outcome"] == "trained"
        for mine, theirs in zip(sample["tokens"]["trainer_logprobs"], sample["tokens"]["logprobs"], strict=True)
    ]
    assert min(gaps) < 1e-4  # tokens of the trained version itself: both sides compute the same in float32
    assert set(Path("/dev/shm").glob("hr-*")) <= before


def test_a_resume_goes_on_from_the_checkpoint(spec: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    workers("run", spec, "--set", "orchestration.kind=asyncio", "--out", out, "--quiet")
    workers("resume", out, "--set", "budget.steps=6", "--quiet")
    summary = json.loads((out / "summary.json").read_text())
    told = json.loads((out / "checkpoints/step-000004/driver.json").read_text())["told_through"]
    assert summary["steps"] == 6
    assert summary["samples_trained"] == 48
    assert [data["resumed_from"] for data in events(out, "started")] == [None, {"step": 4, "version": 4, "told_through": told}]
    trained = [sample for sample in events(out, "sample") if sample["outcome"] == "trained"]
    assert len({(sample["group"], sample["index"]) for sample in trained}) == len(trained)  # nothing is trained twice


def test_a_checkpoint_of_another_run_is_passed_over_and_said(spec: Path, tmp_path: Path) -> None:
    for name, steps in (("one", 2), ("other", 4)):
        common = ["--set", "orchestration.kind=asyncio", "--set", f"budget.steps={steps}", "--set", "evaluation.at_end=false", "--quiet"]
        workers("run", spec, *common, "--out", tmp_path / name)
    shutil.copytree(tmp_path / "other/checkpoints/step-000004", tmp_path / "one/checkpoints/step-000004")
    workers("resume", tmp_path / "one", "--set", "budget.steps=3", "--quiet")
    assert events(tmp_path / "one", "started")[-1]["resumed_from"]["step"] == 2
    assert any("another run's" in line["message"] for line in events(tmp_path / "one", "log"))


def test_a_resume_on_another_config_is_refused(spec: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    workers("run", spec, "--set", "orchestration.kind=asyncio", "--set", "budget.steps=2", "--out", out, "--quiet")
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    changes = ["--set", "optimizer.learning_rate=0.5", "--set", "batch.group_size=8"]
    done = workers("resume", out, *changes, code=ExitCode.FAILED)
    assert "optimizer.learning_rate 0.0002 -> 0.5" in done.stderr and "batch.group_size 4 -> 8" in done.stderr
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before, "a refused resume changes nothing"


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (["--set", "batch.group_size=1"], ExitCode.USAGE, "batch.group_size"),
        (["--set", "environment.dataset=chain_summ"], ExitCode.USAGE, "environment.dataset"),
        (["--set", "model.path=/nowhere"], ExitCode.ENVIRONMENT, "model.path"),
        (["--preset", "nothing"], ExitCode.USAGE, "preset"),
    ],
)
def test_errors_name_the_field_and_have_their_exit_code(tmp_path: Path, arguments: list[str], code: ExitCode, named: str) -> None:
    done = workers("run", *arguments, "--set", "orchestration.kind=asyncio", "--out", tmp_path / "out", code=code)
    assert named in done.stderr


def test_a_folder_in_use_is_refused(spec: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    workers("run", spec, "--set", "orchestration.kind=asyncio", "--set", "budget.steps=1", "--out", out, "--quiet")
    done = workers("run", spec, "--out", out, code=ExitCode.USAGE)
    assert "--out" in done.stderr
