"""A run that starts from another run's checkpoint: its weights are version 0 everywhere, and what does not fit is refused at once."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.workers.test_backends import PAYLOADS, Road
from tests.workers.test_run import SHAPE, events, workers
from tests.workers.tiny_model import make_tiny_model
from tests.workers.trainer_rig import make_batch
from workers import models, registry, starting
from workers.contract import compat, loading
from workers.contract.config import RunConfig
from workers.contract.errors import ConfigError, EngineError, ExitCode

WHOLE = {"lora.kind": "off", "transport.payload": "full", "optimizer.learning_rate": 0.001}
STILL = {"optimizer.learning_rate": 1e-30, "budget.steps": 1, "evaluation.at_end": False}


def sets(values: dict[str, Any]) -> list[str]:
    return [word for override in overrides(values) for word in ("--set", override)]


def overrides(values: dict[str, Any]) -> list[str]:
    return [f"{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in values.items()]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two runs of two steps: one trained an adapter, one every weight."""
    base = tmp_path_factory.mktemp("starting")
    model = make_tiny_model(base / "model")
    spec = base / "spec.json"
    config = {**SHAPE, "model": {"path": str(model), "dtype": "float32"}, "orchestration": {"kind": "asyncio"}}
    spec.write_text(
        json.dumps({**config, "budget": {"steps": 2}, "loss": {"kl": {"coefficient": 0.5}}, "optimizer": {"learning_rate": 0.05}})
    )
    for name, more in (("adapter", {}), ("whole", WHOLE)):
        workers("run", spec, *sets(more), "--out", base / name, "--quiet")
    return {
        "model": model,
        "spec": spec,
        "adapter": base / "adapter/checkpoints/step-000002",
        "whole": base / "whole/checkpoints/step-000002",
    }


def disturb(folder: Path, target: Path, file: str) -> Path:
    """A copy of a checkpoint with weights far from where training begins, and a manifest that says so."""
    shutil.copytree(folder, target)
    stream = torch.Generator().manual_seed(1)
    weights = {name: value + 0.05 * torch.randn(value.shape, generator=stream) for name, value in load_file(target / file).items()}
    save_file(weights, target / file)
    manifest = json.loads((target / "MANIFEST.json").read_text())
    data = (target / file).read_bytes()
    manifest["files"][file] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (target / "MANIFEST.json").write_text(json.dumps(manifest))
    return target


@pytest.mark.parametrize(("kind", "file"), [("adapter", "adapter_model.safetensors"), ("whole", "model.safetensors")])
def test_its_weights_are_version_0_of_trainer_and_engine(made: dict[str, Path], tmp_path: Path, kind: str, file: str) -> None:
    origin = disturb(made[kind], tmp_path / "step-000002", file)
    out = tmp_path / "out"
    more = {**(WHOLE if kind == "whole" else {}), **STILL, "model.init_from": str(origin)}
    workers("run", made["spec"], *sets(more), "--out", out, "--quiet")
    before, after = load_file(origin / file), load_file(out / "checkpoints/step-000001" / file)
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    started = events(out, "started")[0]
    assert started["provenance"]["init_from"]["path"] == str(origin) and started["provenance"]["init_from"]["step"] == 2
    assert started["resumed_from"] is None and [sync["version"] for sync in events(out, "sync")] == [1]
    trained = [sample["tokens"] for sample in events(out, "sample") if sample["outcome"] == "trained"]
    assert {version for tokens in trained for version in tokens["versions"]} == {0}
    gaps = [abs(a - b) for tokens in trained for a, b in zip(tokens["trainer_logprobs"], tokens["logprobs"], strict=True)]
    assert max(gaps) < 1e-3, "the engine samples from the weights that the trainer begins with"
    if kind == "adapter":
        shutil.rmtree(origin)  # a resume needs it no more
        workers("resume", out, "--set", "budget.steps=2", "--quiet")
        assert json.loads((out / "summary.json").read_text())["steps"] == 2


def trainer(model: Path, kind: str, lora: str, init_from: Path | None = None, rank: int = 4) -> Any:
    config = RunConfig.model_validate(
        {
            "model": {"path": str(model), "dtype": "float32", "init_from": None if init_from is None else str(init_from)},
            "determinism": "strict",
            "lora": {"kind": lora, "rank": rank},
            "transport": {"kind": "filesystem", "payload": PAYLOADS[lora]},
            "optimizer": {"learning_rate": 1e-2},
            "backend": {"kind": kind, "ranks": 1 if kind == "single" else 2, "threads": 1},
        }
    )
    return registry.resolve("backend", kind)(config, model.parent / "scratch", Road())


@pytest.mark.parametrize(("kind", "lora"), [("fsdp2", "off"), ("tp", "adapter_only"), ("ddp", "merged")])
def test_every_rank_begins_with_its_piece(tmp_path: Path, kind: str, lora: str) -> None:
    model, saved = make_tiny_model(tmp_path / "model"), tmp_path / "saved"
    one = trainer(model, "single", lora)
    one.train(make_batch(1))
    one.checkpoint(saved)
    one.publish(1, [])
    several = trainer(model, kind, lora, saved)
    try:
        several.publish(0, [])
        before, after = one._transport.values, several._transport.values
        assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
        assert several._stepper.counters() != one._stepper.counters(), "a fresh optimizer"
    finally:
        several.close()
    if lora != "off":
        with pytest.raises(EngineError) as refused:
            trainer(model, "single", lora, saved, rank=2)
        assert refused.value.field == "model.init_from"


def test_what_does_not_fit_is_refused_before_anything_starts(made: dict[str, Path], tmp_path: Path) -> None:
    digest = models.digest(made["model"])

    def refused(model_digest: str = digest, **values: Any) -> ConfigError:
        given = {"model.init_from": str(made["adapter"]), **{name.replace("__", "."): value for name, value in values.items()}}
        config = loading.resolve(loading.read(made["spec"]), None, overrides(given))
        with pytest.raises(ConfigError) as caught:
            starting.check(config, model_digest)
        assert caught.value.cure
        return caught.value

    assert refused(lora__rank=3, lora__alpha=6.0).field == "lora.rank"
    assert refused(lora__alpha=1.0).field == "lora.alpha"
    assert refused("another").field == "model.path"
    assert "set lora.kind to adapter_only" in str(refused(lora__kind="off", transport__payload="full"))
    assert "set model.path to" in str(refused(model__init_from=str(made["whole"])))
    assert refused(model__init_from="/nowhere").field == "model.init_from"
    assert "no complete checkpoint" in str(refused(model__init_from=str(made["model"])))
    torn = tmp_path / "step-000002"
    shutil.copytree(made["adapter"], torn)
    with (torn / "adapter_model.safetensors").open("ab") as file:
        file.write(b"x")
    assert "no complete checkpoint" in str(refused(model__init_from=str(torn)))
    done = workers("run", made["spec"], *sets({"model.init_from": str(torn)}), "--out", tmp_path / "out", "--quiet", code=ExitCode.USAGE)
    assert "model.init_from" in done.stderr


@pytest.mark.parametrize("path", ["checkpoints/step-000002", "/data/../etc", "~/x"])
def test_only_an_absolute_path_names_a_checkpoint(path: str) -> None:
    config = RunConfig.model_validate({"model": {"init_from": path}})
    assert "model.init_from" in {problem.field for problem in compat.check(config)}
