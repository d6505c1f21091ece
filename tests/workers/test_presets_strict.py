"""Every preset trains one strict step on a small random model: engine and trainer agree, and the weights move.

In every suite one of each backend, carrier, payload and transport; the others and the variants in the full one.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.workers.tiny_model import make_tiny_model
from workers.contract import loading, presets
from workers.selftest import synchronous

STRICT = (
    "determinism=strict",
    "model.dtype=float32",
    "environment.answer=whole",
    "environment.verifier=contains",
    "sampling.max_new_tokens=12",
    "rollout.threads=1",
    "backend.threads=1",
    "staleness.max_lag=0",
    'staleness.depth_bound={"value": 1, "unit": "batches"}',
    "sync.every_steps=1",
    "evaluation.prompts=2",
    "optimizer.learning_rate=0.01",
    "batch.prompts=4",
    "buffer.depth=32",
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"), heads=6, kv_heads=6, hidden=96)


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "vowels.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": f"Say e, {number}.", "answer": "e"}) for number in range(64)))
    return path


IN_EVERY_SUITE = ("slime", "areal", "roll", "nemo-rl", "prime-rl", "atropos", "oat", "torchforge", "pipelinerl")
ALONE = ("backend.kind=single", "backend.ranks=1", "backend.sharded_optimizer=false", "optimizer.learning_rate=1e-30", "budget.steps=1")
_untouched: dict[str, str] = {}


async def untouched(name: str, sets: tuple[str, ...], folder: Path) -> str:
    """The digest of what learns before it has learnt; the same for all presets that train the same kind of LoRA."""
    config = loading.resolve(preset=name, sets=[*sets, *ALONE])
    key = config.lora.model_dump_json()
    if key not in _untouched:
        _untouched[key], _ = await synchronous(config, folder)
    return _untouched[key]


@pytest.mark.parametrize(
    "name",
    [name if name in IN_EVERY_SUITE else pytest.param(name, marks=pytest.mark.full) for name in presets.names() if name != presets.DEFAULT],
)
async def test_one_strict_step(name: str, tiny: Path, questions: Path, tmp_path: Path) -> None:
    sets = (f"model.path={tiny}", f"environment.dataset={questions}", *STRICT)
    moved, gap = await synchronous(loading.resolve(preset=name, sets=[*sets, "budget.steps=1"]), tmp_path / "run")
    assert gap < 1e-4
    assert moved != await untouched(name, sets, tmp_path / "untouched")
