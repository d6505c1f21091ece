"""The trainer on a tiny model: what a batch does, what is left out, how it saves, resumes, stops and gives up."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tests.workers.tiny_model import make_tiny_model
from tests.workers.trainer_rig import build_trainer, change, make_batch, road, weights
from workers.axes.backend.single import SingleProcessTrainer
from workers.contract.config import RunConfig
from workers.contract.errors import Cancelled, CheckpointError, NonFinite
from workers.contract.metrics import CATALOGUE
from workers.records import Rollout


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def make(model: Path, tmp_path: Path) -> Any:
    return lambda **blocks: build_trainer(model, tmp_path, **blocks)


def test_a_batch_steps_once_and_says_what_it_did(make: Any) -> None:
    trainer = make()
    batch = make_batch()
    result = trainer.train(batch)
    assert not result.skipped and result.seconds > 0
    assert set(result.metrics) <= set(CATALOGUE)
    assert {"loss/policy", "loss/grad_norm", "loss/entropy", "loss/kl_mismatch", "loss/ess", "loss/clip_share"} <= set(result.metrics)
    assert result.metrics["loss/learning_rate"] == 1e-2
    ids = {sample.rollout.id for group in batch.groups for sample in group.samples}
    assert set(result.advantages) == set(result.logprobs) == ids
    assert all(len(result.logprobs[s.rollout.id]) == len(s.rollout.token_ids) for g in batch.groups for s in g.samples)
    # At the first step B is zero, so these are the base model's own log-probs.
    sample, prompt = batch.groups[1].samples[2].rollout, batch.groups[1].prompt.token_ids
    base = AutoModelForCausalLM.from_pretrained(trainer._config.model.path, dtype=torch.float32).eval()
    logits = base(torch.tensor([prompt + sample.token_ids])).logits[0, len(prompt) - 1 : -1]
    plain = logits.log_softmax(-1).gather(1, torch.tensor(sample.token_ids)[:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(result.logprobs[sample.id]), plain, rtol=1e-4, atol=1e-5)


def test_training_raises_what_is_rewarded(make: Any) -> None:
    trainer = make()
    batch = make_batch(groups=1)
    logprobs = [trainer.train(batch).logprobs for _ in range(6)]
    for sample in batch.groups[0].samples:
        gain = sum(logprobs[-1][sample.rollout.id]) - sum(logprobs[0][sample.rollout.id])
        assert (gain > 0) == (sample.reward == 1.0)


@pytest.mark.parametrize(
    "loss",
    [
        {},
        {"aggregation": "sequence_mean"},
        {"aggregation": "sequence_sum_constant", "policy": "reinforce_is", "corrections": []},
    ],
)
def test_micro_tokens_do_not_change_the_gradient(make: Any, monkeypatch: pytest.MonkeyPatch, loss: dict[str, Any]) -> None:
    found: list[torch.Tensor] = []
    values: list[float] = []
    for micro_tokens in (4096, 64):
        trainer = make(batch={"micro_tokens": micro_tokens}, loss=loss)
        with torch.no_grad():
            for name, master in trainer._adapters.masters.items():
                if ".lora_B." in name:  # A as it begins, B as large as some hundred steps make it
                    master.copy_(torch.randn(master.shape, generator=torch.Generator().manual_seed(len(name))) * 0.02)
        trainer._stepper.options = trainer._config.optimizer.model_copy(update={"max_grad_norm": 1e6})
        kept: list[torch.Tensor] = []
        inner = trainer._stepper.adamw.step

        def keep(kept: list[torch.Tensor] = kept, trainer: Any = trainer, inner: Any = inner) -> None:
            kept.extend(master.grad.flatten().clone() for master in trainer._adapters.masters.values())
            inner()

        monkeypatch.setattr(trainer._stepper.adamw, "step", keep)
        values.append(trainer.train(make_batch(groups=5, size=6)).metrics["loss/policy"])
        found.append(torch.cat(kept))
    assert values[0] == pytest.approx(values[1], rel=1e-6, abs=1e-7)
    assert float((found[0] - found[1]).norm() / found[0].norm()) < 1e-6


def test_the_prompt_tokens_and_failed_samples_teach_nothing(make: Any) -> None:
    with_failed, without = make_batch(), make_batch()
    with_failed.groups[0].samples[2].reward = None
    del without.groups[0].samples[2]
    one, other = make(), make()
    result = one.train(with_failed)
    other.train(without)
    assert torch.equal(weights(one), weights(other))
    assert "g0/2" not in result.advantages and "g0/2" not in result.logprobs


def test_groups_of_equal_rewards_count_but_teach_nothing(make: Any) -> None:
    batch = make_batch()
    for sample in batch.groups[0].samples + batch.groups[1].samples + batch.groups[2].samples:
        sample.reward = 0.1
    trainer = make()
    result = trainer.train(batch)
    assert set(result.advantages.values()) == {0.0}
    assert len(result.logprobs) == 12
    assert (result.metrics["loss/policy"], result.metrics["loss/grad_norm"], result.skipped) == (0, 0, False)
    assert {fate for mask in result.masks.values() for fate in mask} == {1}
    assert not change(trainer, batch).any()


def test_truncated_samples_are_compared_but_masked_on_request(make: Any) -> None:
    batch = make_batch(groups=1)
    first = batch.groups[0].samples[1]
    rollout = first.rollout
    first.rollout = Rollout(rollout.id, "g0", 1, rollout.token_ids, rollout.logprobs, rollout.versions, "length")
    result = make(rewards={"on_truncated": "mask"}).train(batch)
    assert rollout.id in result.advantages and rollout.id not in result.logprobs and rollout.id not in result.masks
    assert rollout.id in make().train(batch).logprobs


def test_a_batch_without_a_reward_is_skipped_and_measures_nothing(make: Any) -> None:
    batch = make_batch()
    for group in batch.groups:
        for sample in group.samples:
            sample.reward = None
    trainer = make()
    result = trainer.train(batch)
    assert result.skipped and result.metrics == {"loss/skipped_steps": 0.0}


def test_weights_of_the_correction_reach_the_gradient(make: Any) -> None:
    plain, cut = (make(loss={"corrections": corrections}) for corrections in ([], [{"lo": 0.0, "hi": 1.0}]))
    assert not torch.equal(change(plain, make_batch()), change(cut, make_batch()))
    anchored = make(loss={"anchor": "rollout"}).train(make_batch()).metrics["loss/clip_share"]
    assert anchored > 0  # ratios to the engine's policy are far from 1 here; to the trainer's own they are exactly 1
    assert make().train(make_batch()).metrics["loss/clip_share"] == 0


def test_minibatches_and_epochs_take_more_steps_from_the_old_policy(make: Any) -> None:
    trainer = make(batch={"minibatches": 3, "epochs": 2})
    first = make().train(make_batch())
    result = trainer.train(make_batch())
    assert trainer._stepper.attempts == 6
    assert result.logprobs.keys() == first.logprobs.keys()
    for identity, values in result.logprobs.items():
        assert values == pytest.approx(first.logprobs[identity], abs=1e-5)
    assert result.metrics["loss/clip_share"] > 0


def test_resume_goes_on_bit_for_bit(make: Any, tmp_path: Path) -> None:
    batches = [make_batch(step) for step in range(1, 5)]
    straight, before, after = make(), make(), make(lora={"rank": 4})
    change(straight, *batches)
    change(before, *batches[:2])
    saved = before.checkpoint(tmp_path / "saved")
    change(after, make_batch(9, seed=5))  # its own past must leave no trace
    assert after.checkpoint(tmp_path / "saved", restore=True) == saved
    change(after, *batches[2:])
    assert torch.equal(weights(straight), weights(after))
    assert after._steps == 4
    assert straight.publish(4, []).digest == after.publish(4, []).digest


def test_a_checkpoint_is_safetensors_json_and_loads_with_peft(make: Any, tmp_path: Path, model: Path) -> None:
    trainer = make()
    change(trainer, make_batch())
    folder = tmp_path / "saved"
    trainer.checkpoint(folder)
    assert {item.name for item in folder.iterdir()} >= {
        "adapter_model.safetensors",
        "adapter_config.json",
        "optimizer.safetensors",
        "trainer.json",
    }
    assert all(item.suffix in (".safetensors", ".json", ".md") for item in folder.iterdir())
    json.loads((folder / "trainer.json").read_text())
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    loaded = PeftModel.from_pretrained(base, str(folder)).eval()
    ids = torch.tensor([[5, 6, 7, 8]])
    torch.testing.assert_close(loaded(ids).logits, trainer._model(ids).logits)
    with loaded.disable_adapter():
        assert not torch.allclose(loaded(ids).logits, trainer._model(ids).logits)  # the adapter had something to say


def test_a_foreign_or_torn_checkpoint_is_refused(make: Any, tmp_path: Path) -> None:
    make().checkpoint(tmp_path / "saved")
    with pytest.raises(CheckpointError, match="do not fit"):
        make(lora={"rank": 8}).checkpoint(tmp_path / "saved", restore=True)
    (tmp_path / "saved" / "optimizer.safetensors").write_bytes(b"torn")
    with pytest.raises(CheckpointError, match="not readable"):
        make().checkpoint(tmp_path / "saved", restore=True)


def test_what_is_published_is_what_trains_next(make: Any, tmp_path: Path) -> None:
    trainer = make(model={"dtype": "bfloat16"})
    receiver = road(tmp_path)
    trainer.train(make_batch())
    received = receiver.receive(trainer.publish(1, []))
    assert set(received) == set(trainer._adapters.working)
    assert "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight" in received
    for name, value in received.items():
        assert torch.equal(value, trainer._adapters.working[name])
    trainer.checkpoint(tmp_path / "saved")
    assert received.keys() == load_file(tmp_path / "saved" / "adapter_model.safetensors").keys()


def test_bfloat16_models_keep_float32_masters(model: Path, tmp_path: Path) -> None:
    config = RunConfig.model_validate({"model": {"path": str(model)}, "lora": {"rank": 4}, "backend": {"threads": 1}})
    trainer = SingleProcessTrainer(config, tmp_path, road(tmp_path))
    assert not trainer.train(make_batch()).skipped
    payload = trainer._adapters.payload()
    for name, master in trainer._adapters.masters.items():
        assert master.dtype == torch.float32
        assert payload[name].dtype == torch.bfloat16
        assert torch.equal(payload[name], master.to(torch.bfloat16))


def test_adapters_begin_alike_for_a_seed_whatever_torch_drew_before(make: Any) -> None:
    one = make()
    torch.rand(7)
    assert torch.equal(weights(one), weights(make()))
    config = one._config.model_copy(update={"seed": 8})
    assert not torch.equal(weights(one), weights(SingleProcessTrainer(config, Path("."), one._transport)))


def test_non_finite_batches_are_skipped_counted_and_stop_the_run(make: Any) -> None:
    trainer = make(optimizer={"stop_after_non_finite": 2})
    poisoned = make_batch()
    poisoned.groups[0].samples[0].rollout.logprobs[0] = math.nan
    before = weights(trainer)
    result = trainer.train(poisoned)
    assert result.skipped and result.metrics["loss/skipped_steps"] == 1 and "loss/policy" not in result.metrics
    assert torch.equal(before, weights(trainer))
    assert not trainer.train(make_batch()).skipped  # a good one in between starts the count anew
    trainer.train(poisoned)
    with pytest.raises(NonFinite, match="2 times in a row"):
        trainer.train(poisoned)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_weights_that_overflow_end_the_run_before_anybody_sees_them(make: Any, value: float) -> None:
    trainer = make()
    trainer.train(make_batch())
    step = trainer._stepper.adamw.step

    def overflow() -> None:
        step()
        with torch.no_grad():
            next(reversed(trainer._stepper.masters.values())).view(-1)[-1] = value

    trainer._stepper.adamw.step = overflow
    with pytest.raises(NonFinite, match="not finite after an optimizer step") as error:
        trainer.train(make_batch())
    assert error.value.field == "optimizer.learning_rate" and "checkpoint" in str(error.value.cure)


def test_interrupt_leaves_the_last_step_standing(make: Any) -> None:
    trainer = make(batch={"micro_tokens": 64})
    trainer.train(make_batch())
    before = weights(trainer)
    forward_passes: list[int] = []
    inner = trainer._objective.loss

    def counting(*args: Any) -> Any:
        forward_passes.append(1)
        trainer.interrupt()
        return inner(*args)

    trainer._objective.loss = counting
    with pytest.raises(Cancelled):
        trainer.train(make_batch(2))
    assert len(forward_passes) == 1
    assert torch.equal(before, weights(trainer))
    assert all(master.grad is None for master in trainer._adapters.masters.values())


def test_schedules(make: Any) -> None:
    def rates(**options: Any) -> list[float]:
        stepper = make(optimizer={"learning_rate": 1.0, **options}, budget={"steps": 6})._stepper
        return [round(stepper.learning_rate(step), 6) for step in range(6)]

    assert rates() == [1, 1, 1, 1, 1, 1]
    assert rates(warmup_steps=2) == [0.5, 1, 1, 1, 1, 1]
    assert rates(warmup_steps=2, schedule="linear") == [0.5, 1, 1, 0.75, 0.5, 0.25]
    assert rates(schedule="cosine")[::3] == [1, 0.5]
