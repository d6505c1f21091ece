"""The loss block in the trainer: every policy learns, other models are read and never learn, cuts of the batch change nothing."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from tests.workers.tiny_model import make_tiny_model
from tests.workers.trainer_rig import build_trainer, change, make_batch, weights
from workers.axes.backend import logprobs as logprobs_module
from workers.axes.backend.single import SingleProcessTrainer
from workers.contract.errors import EngineError, EnvironmentMissing
from workers.contract.formulas import FORMULAS
from workers.contract.learning import Loss
from workers.contract.metrics import CATALOGUE
from workers.learn.distillation import jsd

POLICIES = get_args(Loss.model_fields["policy"].annotation)
# What goes with each policy: those whose weight is already of the engine's policy take gates only.
CORRECTIONS = {
    **{policy: ["tis", "icepop", "seq_mask", "opsm"] for policy in ("ppo", "gspo", "cispo", "sapo", "kimi")},
    **{policy: ["opsm", "veto"] for policy in ("topr", "dppo", "ipo", "reinforce_is")},
}
EXACT = {"optimizer": {"max_grad_norm": 1e6, "learning_rate": 1e-2}}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another model, of another size, with the same vocabulary."""
    return make_tiny_model(tmp_path_factory.mktemp("teacher"), seed=5, layers=1, hidden=32)


@pytest.fixture
def make(model: Path, tmp_path: Path) -> Any:
    return lambda **blocks: build_trainer(model, tmp_path, **blocks)


def gradient_of(trainer: SingleProcessTrainer, monkeypatch: pytest.MonkeyPatch, **batch: Any) -> tuple[float, Tensor]:
    """Policy loss and last gradient of one batch, from adapters that have something to say."""
    with torch.no_grad():
        for name, master in trainer._adapters.masters.items():
            if ".lora_B." in name:
                master.copy_(torch.randn(master.shape, generator=torch.Generator().manual_seed(len(name))) * 0.02)
    kept: list[Tensor] = []
    inner = trainer._stepper.adamw.step

    def keep() -> None:
        kept[:] = [torch.cat([master.grad.flatten() for master in trainer._adapters.masters.values() if master.grad is not None])]
        inner()

    monkeypatch.setattr(trainer._stepper.adamw, "step", keep)
    return trainer.train(make_batch(**batch)).metrics["loss/policy"], kept[0].clone()


@pytest.mark.parametrize(("policy", "recipe"), [(policy, recipe) for policy in POLICIES for recipe in [None, *CORRECTIONS[policy]]])
def test_every_policy_learns_with_the_corrections_that_suit_it(make: Any, policy: str, recipe: str | None) -> None:
    corrections = FORMULAS["corrections"][recipe]["corrections"] if recipe else []
    trainer = make(loss={"policy": policy, "corrections": corrections})
    before = weights(trainer)
    result = trainer.train(make_batch())
    assert not result.skipped and set(result.metrics) <= set(CATALOGUE)
    assert not torch.equal(before, weights(trainer))
    assert 0 <= result.metrics["loss/rejected_share"] < 1


@pytest.mark.parametrize("advantage", get_args(Loss.model_fields["advantage"].annotation))
@pytest.mark.parametrize("aggregation", ["token_mean", "prompt_mean"])
def test_every_advantage_learns(make: Any, advantage: str, aggregation: str) -> None:
    assert change(make(loss={"advantage": advantage, "aggregation": aggregation}), make_batch()).any()


@pytest.mark.parametrize(
    "loss",
    [
        {"aggregation": "prompt_mean", "policy": "gspo", "kl": {"coefficient": 0.5, "estimator": "k3_weighted"}},
        {"corrections": [{"hi": 1.0, "action": "gate", "denominator": "survivors"}], "log_ratio_penalty": 0.1},
        {"policy": "kimi", "aggregation": "sequence_sum", "anchor": "rollout", "corrections": []},
        {"distillation": {"teacher": "TEACHER", "kind": "jsd", "coefficient": 3.0}},
        {"distillation": {"teacher": "TEACHER"}, "kl": {"where": "reward", "coefficient": 0.3}},
        {"anchor": "decoupled", "proximal": "loglinear", "corrections": []},
        {"policy": "topr", "aggregation": "sequence_sum_constant", "corrections": []},
    ],
)
def test_micro_tokens_do_not_change_the_gradient(make: Any, teacher: Path, monkeypatch: pytest.MonkeyPatch, loss: dict[str, Any]) -> None:
    if "distillation" in loss:
        loss = {**loss, "distillation": {**loss["distillation"], "teacher": str(teacher)}}
    found = [gradient_of(make(batch={"micro_tokens": size}, loss=loss, **EXACT), monkeypatch, groups=5, size=6) for size in (4096, 64)]
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-6, abs=1e-6)
    assert float((found[0][1] - found[1][1]).norm() / found[0][1].norm()) < 2e-6


@pytest.mark.parametrize("kind", ["adapter_only", "off"])
@pytest.mark.parametrize("minibatches", [1, 3])
def test_at_the_first_step_the_reference_is_the_policy_itself(make: Any, kind: str, minibatches: int) -> None:
    payload = {"adapter_only": "adapter", "off": "full"}[kind]
    trainer = make(
        lora={"kind": kind}, transport={"payload": payload}, loss={"kl": {"coefficient": 1.0}}, batch={"minibatches": minibatches}
    )
    first = trainer.train(make_batch())
    if minibatches == 1:
        assert first.metrics["loss/kl_reference"] == 0
    second = trainer.train(make_batch(2))
    assert second.metrics["loss/kl_reference"] > 1e-6
    # What the reference said of the second batch is what the untrained model says.
    untrained = make().train(make_batch(2)).logprobs
    tally: list[Any] = []
    inner = trainer._optimizer_step

    def watching(prepared: Any, chosen: Any, gathered: Any, first: bool) -> None:
        tally.append(gathered)
        inner(prepared, chosen, gathered, first)

    trainer._optimizer_step = watching
    trainer.train(make_batch(2))
    items = {item: index for index, item in enumerate(untrained)}
    for identity, values in untrained.items():
        assert tally[0].others["reference"][items[identity]].tolist() == pytest.approx(values, abs=1e-5)


def test_a_strong_pull_holds_the_policy_near_its_reference(make: Any) -> None:
    gaps = []
    for coefficient in (1e-6, 30.0):
        trainer = make(loss={"kl": {"coefficient": coefficient, "estimator": "k2"}})
        gaps.append([trainer.train(make_batch(step)).metrics["loss/kl_reference"] for step in range(1, 7)][-1])
    assert gaps[1] < gaps[0] / 3


@pytest.mark.parametrize("kind", ["reverse_kl", "jsd"])
def test_a_student_comes_nearer_to_its_teacher(make: Any, teacher: Path, kind: str) -> None:
    loss = {"distillation": {"teacher": str(teacher), "kind": kind, "replace_reward": True}, "corrections": []}
    trainer = make(loss=loss)
    gaps = [trainer.train(make_batch(1)).metrics["loss/teacher_gap"] for _ in range(6)]
    if kind == "jsd":
        assert all(later < earlier for earlier, later in pairwise(gaps))
    else:  # the tokens are fixed here: what the teacher likes rises, what it dislikes falls
        assert gaps[-1] != gaps[0]
        batch, result = make_batch(1), trainer.train(make_batch(1))
        start, scores = make().train(batch).logprobs, make(model={"path": str(teacher)}).train(batch).logprobs
        gain = torch.tensor([b - a for one in start for a, b in zip(start[one], result.logprobs[one], strict=True)])
        wish = torch.tensor([t - a for one in start for a, t in zip(start[one], scores[one], strict=True)])
        assert float(torch.corrcoef(torch.stack((gain, wish)))[0, 1]) > 0.2


def test_the_divergence_is_that_of_whole_rows(make: Any, teacher: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against plain rows and full logits: the trainer's value, and the adapters' gradient, by pieces of three tokens."""
    monkeypatch.setattr(logprobs_module, "CHUNK_BYTES", 3 * 4 * 259)
    distillation = {"teacher": str(teacher), "kind": "jsd", "beta": 0.3, "replace_reward": True}
    trainer = make(loss={"distillation": distillation, "corrections": []}, sampling={"temperature": 0.7}, **EXACT)
    value, gradient = gradient_of(trainer, monkeypatch)
    again = make(loss={"corrections": []}, **EXACT)
    with torch.no_grad():
        for name, master in again._adapters.masters.items():
            if ".lora_B." in name:
                master.copy_(torch.randn(master.shape, generator=torch.Generator().manual_seed(len(name))) * 0.02)
    judge = AutoModelForCausalLM.from_pretrained(teacher, dtype=torch.float32).eval()
    terms = []
    for group in make_batch().groups:
        for sample in group.samples:
            ids = torch.tensor([group.prompt.token_ids + sample.rollout.token_ids])
            ours, theirs = (one(ids).logits[0, len(group.prompt.token_ids) - 1 : -1] / 0.7 for one in (again._model, judge))
            terms.append(jsd(ours.log_softmax(-1), theirs.log_softmax(-1), 0.3))
    plain = torch.cat(terms).mean()
    plain.backward()
    expected = torch.cat([master.grad.flatten() for master in again._adapters.masters.values() if master.grad is not None])
    assert value == pytest.approx(float(plain.detach()), rel=1e-5)
    assert float((gradient - expected).norm() / expected.norm()) < 1e-4


def test_a_divergence_reaches_a_head_that_learns(make: Any, teacher: Path) -> None:
    distillation = {"teacher": str(teacher), "kind": "jsd", "replace_reward": True}
    trainer = make(lora={"kind": "off"}, transport={"payload": "full"}, loss={"distillation": distillation, "corrections": []})
    gaps = [trainer.train(make_batch(1)).metrics["loss/teacher_gap"] for _ in range(3)]
    assert gaps[2] < gaps[1] < gaps[0]


def test_a_teacher_of_another_vocabulary_or_of_none_is_refused(make: Any, teacher: Path, tmp_path: Path) -> None:
    config = AutoConfig.from_pretrained(teacher)
    config.vocab_size += 8
    other = tmp_path / "other"
    AutoModelForCausalLM.from_config(config).save_pretrained(other)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (other / name).write_bytes((teacher / name).read_bytes())
    with pytest.raises(EngineError, match="267 tokens, the model 259") as refused:
        make(loss={"distillation": {"teacher": str(other)}})
    assert refused.value.field == "loss.distillation.teacher"
    with pytest.raises(EnvironmentMissing) as missing:
        make(loss={"distillation": {"teacher": str(tmp_path / "nowhere")}})
    assert missing.value.field == "loss.distillation.teacher"


def passes(trainer: SingleProcessTrainer) -> list[bool]:
    """Counts the trainer's own forward passes; True for those with gradient."""
    seen: list[bool] = []
    inner = trainer._pass

    def counting(micro: Any) -> Any:
        seen.append(torch.is_grad_enabled())
        return inner(micro)

    trainer._pass = counting  # type: ignore[method-assign]
    return seen


@pytest.mark.parametrize(
    ("loss", "batch", "expected"),
    [
        ({}, {}, "L"),
        ({}, {"epochs": 2}, "RLL"),
        # Two log-probs are enough for the interpolated proximal policy.
        ({"anchor": "decoupled", "proximal": "loglinear", "corrections": []}, {"epochs": 2}, "LL"),
        ({"anchor": "decoupled", "corrections": []}, {"epochs": 2}, "RLL"),
        # Denominators of survivors are counted before the step, and anew where they hang on today's policy.
        ({"corrections": [{"hi": 1.0, "action": "gate", "denominator": "survivors"}]}, {}, "RL"),
        ({"corrections": [{"hi": 1.0, "action": "gate", "denominator": "survivors"}]}, {"epochs": 2}, "RLL"),
        (
            {"corrections": [{"ratio": "new_over_rollout", "hi": 1.0, "action": "gate", "denominator": "survivors"}]},
            {"epochs": 2},
            "RLRL",
        ),
        # The reference's pass is one more, once for the batch.
        ({"kl": {}}, {"epochs": 2}, "RRLL"),
        ({"kl": {"coefficient": 0.0}}, {}, "L"),
    ],
)
def test_no_pass_more_than_the_loss_asks_for(make: Any, loss: dict[str, Any], batch: dict[str, Any], expected: str) -> None:
    trainer = make(loss=loss, batch={"micro_tokens": 100_000, **batch})
    seen = passes(trainer)
    trainer.train(make_batch())
    assert "".join("L" if learns else "R" for learns in seen) == expected


def test_survivors_weigh_more_than_they_would(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = {"hi": 1.0, "action": "gate"}
    found = {}
    for denominator in ("original", "survivors"):
        trainer = make(loss={"corrections": [{**gate, "denominator": denominator}]}, **EXACT)
        found[denominator] = gradient_of(trainer, monkeypatch)[1]
    share = make(loss={"corrections": [gate]}).train(make_batch()).metrics["loss/rejected_share"]
    scale = float(found["survivors"].norm() / found["original"].norm())
    assert 0.1 < share < 0.9 and scale > 1.05
    torch.testing.assert_close(found["survivors"], found["original"] * scale, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(
    ("loss", "share", "fate"),
    [
        ({"corrections": [{"hi": 1.0, "action": "gate"}]}, "loss/rejected_share", 3),
        ({"anchor": "rollout", "clip_high": 0.01, "clip_low": 0.01}, "loss/clip_share", 2),
    ],
)
def test_every_token_tells_what_became_of_it(make: Any, loss: dict[str, Any], share: str, fate: int) -> None:
    batch = make_batch()
    result = make(loss=loss, **EXACT).train(batch)
    lengths = {sample.rollout.id: len(sample.rollout.token_ids) for group in batch.groups for sample in group.samples}
    assert {name: len(mask) for name, mask in result.masks.items()} == lengths
    told = [one for mask in result.masks.values() for one in mask]
    assert set(told) <= {1, 2, 3} and 0 < result.metrics[share] == pytest.approx(told.count(fate) / len(told))


def test_groups_of_equal_rewards_are_pulled_too(make: Any) -> None:
    batch = make_batch()
    for group in batch.groups:
        for sample in group.samples:
            sample.reward = 0.5
    for loss in ({"log_ratio_penalty": 0.5}, {"policy": "kimi", "anchor": "rollout", "corrections": []}):
        assert change(make(loss=loss), batch).any()
    assert not change(make(loss={"corrections": []}), batch).any()
