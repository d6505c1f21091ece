"""`python -m workers selftest`: proves on this machine that the carriers change no bit and that engine and trainer agree.

On a tiny random model, in strict mode at lag 0, a plain synchronous loop in one process is the measure: every orchestration and
every transport must end with the same adapter, bit for bit.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

from workers.axes.transport.base import Link
from workers.contract import axes
from workers.contract.config import RunConfig
from workers.contract.errors import HeadraceError
from workers.environments.build import build
from workers.records import Batch, Group, Sample
from workers.registry import resolve
from workers.requests import training_requests

STEPS = 3
LOGPROB_GAP = 1e-4
PATIENCE_S = 180.0
ENGINE = "generator/0"


@dataclass(frozen=True)
class Check:
    """One line of the report. passed None: not run, for the reason in `detail`."""

    name: str
    passed: bool | None
    detail: str


def config_of(model: Path, **blocks: Any) -> RunConfig:
    """Strict, on-policy, small: a few seconds a run."""
    base: dict[str, Any] = {
        "determinism": "strict",
        "model": {"path": str(model), "dtype": "float32"},
        "environment": {"dataset": "chain_sum", "options": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}, "size": 32},
        "batch": {"prompts": 2, "group_size": 4},
        "sampling": {"max_new_tokens": 8},
        "optimizer": {"learning_rate": 0.01},
        "lora": {"rank": 4},
        "rollout": {"max_running": 8, "threads": 1},
        "backend": {"threads": 1},
        "buffer": {"depth": 4},
        "staleness": {"max_lag": 0, "depth_bound": {"value": 1, "unit": "batches"}},
        "evaluation": {"every_steps": 0, "at_start": False, "at_end": False, "prompts": 2},
        "checkpoint": {"every_steps": 0},
        "budget": {"steps": STEPS},
    }
    return RunConfig.model_validate({**base, **blocks})


def run(tell: Callable[[Check], None] = lambda _check: None) -> list[Check]:
    """All checks, each told as soon as it is known. What cannot run on this machine is said to be not run."""
    from workers.tiny import make_tiny_model

    checks: list[Check] = []

    def add(check: Check) -> None:
        checks.append(check)
        tell(check)

    with tempfile.TemporaryDirectory(prefix="headrace-selftest-") as name:
        folder = Path(name)
        model = make_tiny_model(folder / "model")
        wanted, gap = asyncio.run(synchronous(config_of(model), folder / "plain"))
        add(Check("log-probs of engine and trainer", gap <= LOGPROB_GAP, f"largest gap {gap:.2e}, at most {LOGPROB_GAP:g} allowed"))
        for orchestration in get_args(axes.OrchestrationKind):
            add(_same(f"orchestration {orchestration}", wanted, model, folder, orchestration, "shared_memory"))
        for transport in get_args(axes.TransportKind):
            if transport == "shared_memory":
                continue  # the road of every orchestration above
            orchestration = "ray" if transport == "object_store" else "asyncio"
            add(_same(f"transport {transport}", wanted, model, folder, orchestration, transport))
    return checks


async def synchronous(config: RunConfig, folder: Path) -> tuple[str, float]:
    """Generate, score, train, publish, in turn and in one process. Returns the digest of what learned and the largest log-prob gap."""
    folder.mkdir(parents=True)
    environment = build(config, config.model.path)
    options = config.transport.model_copy(update={"kind": "filesystem"})
    road = resolve("transport", "filesystem")
    trainer_end, engine_end = (road(Link("selftest", folder, name, options)) for name in ("trainer", ENGINE))
    trainer = resolve("backend", config.backend.kind)(config, folder, trainer_end)
    engine = resolve("rollout", config.rollout.engine)(config, ENGINE, engine_end)
    gap, count = 0.0, 0
    try:
        for step in range(1, config.budget.steps + 1):
            groups = []
            for _ in range(config.batch.prompts):
                count += 1
                groups.append(Group(f"g{count}", environment.source.next(), step - 1))
            for group in groups:
                requests = training_requests(config, group, environment.stop_ids)
                rollouts = await asyncio.gather(*(engine.generate(request) for request in requests))
                for rollout in rollouts:
                    text = environment.decode(rollout.token_ids)
                    reward, answer = environment.verify(group.prompt, text)
                    group.samples.append(Sample(rollout, text, answer, reward))
            result = trainer.train(Batch(step, step - 1, groups))
            for sample in (sample for group in groups for sample in group.samples):
                mine, theirs = result.logprobs[sample.rollout.id], sample.rollout.logprobs
                gap = max(gap, *(abs(one - other) for one, other in zip(mine, theirs, strict=True)))
            await engine.update(trainer.publish(step, [ENGINE]))
        trainer.checkpoint(folder)
    finally:
        await engine.stop()
        trainer.close()
        trainer_end.close()
        engine_end.close()
    return _digest(folder), gap


def _same(name: str, wanted: str, model: Path, folder: Path, orchestration: str, transport: str) -> Check:
    """One run of the whole engine by its own command, as a user starts it."""
    reason = _unusable(orchestration, transport)
    if reason is not None:
        return Check(name, None, reason)
    blocks: dict[str, Any] = {"orchestration": {"kind": orchestration}, "transport": {"kind": transport}}
    if transport == "restart":  # nothing may run while the engine is started anew
        blocks |= {"interrupt": {"kind": "drain"}, "partial": ["none"]}
    out = folder / name.replace(" ", "-")
    spec = folder / f"{out.name}.json"
    spec.write_text(json.dumps(config_of(model, **blocks).as_json()))
    command = [sys.executable, "-m", "workers", "run", str(spec), "--out", str(out), "--quiet"]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HEADRACE_ATTEMPT")}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    except subprocess.TimeoutExpired:
        return Check(name, False, f"not done within {PATIENCE_S:g} s")
    if done.returncode:
        return Check(name, False, f"exit code {done.returncode}: {(done.stderr or done.stdout).strip()[-400:]}")
    found = _digest(out / "checkpoints" / f"step-{STEPS:06d}")
    same = found == wanted
    return Check(name, same, f"adapter {found[:16]}" + (", bit for bit" if same else f", the synchronous loop's is {wanted[:16]}"))


def _unusable(orchestration: str, transport: str) -> str | None:
    """Why this machine cannot run it, None where it can."""
    if transport == "cuda_ipc":
        import torch

        if not torch.cuda.is_available():
            return "needs a GPU, and there is none"
    try:
        resolve("orchestration", orchestration)
        resolve("transport", transport)
    except (ImportError, HeadraceError) as error:
        return f"a package is missing: {error}"
    return None


def _digest(folder: Path) -> str:
    whole, adapter = folder / "model.safetensors", folder / "adapter_model.safetensors"
    return hashlib.sha256((adapter if adapter.exists() else whole).read_bytes()).hexdigest()


def as_json(checks: list[Check]) -> str:
    passed = all(check.passed is not False for check in checks)
    return json.dumps({"passed": passed, "checks": [asdict(check) for check in checks]}, indent=1)
