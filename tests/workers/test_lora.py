"""What learns and what travels: adapters alone, adapters merged into whole weights, or every weight."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import PeftModel
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.workers.test_backends import make
from tests.workers.test_trainer import make_batch
from tests.workers.tiny_model import make_tiny_model
from workers.axes.backend.tensorfile import Entry, write
from workers.axes.lora.merged import Merged
from workers.contract.axes import LoraKind
from workers.contract.errors import CheckpointError


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("lora") / "model")


def trainer_of(model: Path, lora: str, dtype: str = "float32", **blocks: dict[str, Any]) -> Any:
    return make(model, "single", lora, dtype=dtype, **blocks)


def plain(model: Path, dtype: torch.dtype = torch.float32) -> Any:
    return AutoModelForCausalLM.from_pretrained(model, dtype=dtype).eval()


def whole_names(model: Path) -> set[str]:
    return {name for name in plain(model).state_dict() if name != "lm_head.weight"}


IDS = torch.tensor([[5, 6, 7, 8, 9]])


@pytest.mark.parametrize("lora", get_args(LoraKind))
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_masters_are_float32_and_what_travels_is_what_trains(model: Path, lora: str, dtype: str) -> None:
    trainer = trainer_of(model, lora, dtype)
    assert not trainer.train(make_batch()).skipped
    adapters = trainer._adapters
    payload = dict(adapters.payload())
    assert list(payload) == sorted(payload)
    assert {value.dtype for value in payload.values()} == {getattr(torch, dtype)}
    assert {master.dtype for master in adapters.masters.values()} == {torch.float32}
    for name, master in adapters.masters.items():
        assert torch.equal(adapters.working[name], master.to(getattr(torch, dtype)))
    if lora == "adapter_only":
        assert all(".lora_" in name for name in payload)
    else:
        assert set(payload) == whole_names(model)
    if lora == "off":
        assert all(torch.equal(payload[name], adapters.working[name]) for name in payload)
        start = plain(model, getattr(torch, dtype)).state_dict()
        assert sum(not torch.equal(payload[name], start[name]) for name in payload) > len(payload) / 2
        embedding = "model.embed_tokens.weight"
        assert not torch.equal(payload[embedding], start[embedding])  # the tied head learns, too


@pytest.mark.parametrize("lora", get_args(LoraKind))
def test_resume_goes_on_bit_for_bit(model: Path, tmp_path: Path, lora: str) -> None:
    batches = [make_batch(step) for step in range(1, 5)]
    straight, before, after = (trainer_of(model, lora, "bfloat16") for _ in range(3))
    for batch in batches:
        straight.train(batch)
    for batch in batches[:2]:
        before.train(batch)
    saved = before.checkpoint(tmp_path / "saved")
    after.train(make_batch(9, seed=5))  # its own past must leave no trace
    assert after.checkpoint(tmp_path / "saved", restore=True) == saved
    for batch in batches[2:]:
        after.train(batch)
    assert straight.publish(4, []).digest == after.publish(4, []).digest
    for name, master in straight._adapters.masters.items():
        assert torch.equal(master, after._adapters.masters[name])


def test_a_checkpoint_of_the_whole_model_loads_with_transformers(model: Path, tmp_path: Path) -> None:
    trainer = trainer_of(model, "off")
    trainer.train(make_batch())
    trainer.checkpoint(tmp_path)
    assert {"model.safetensors", "config.json", "tokenizer.json", "optimizer.safetensors", "trainer.json"} <= {
        item.name for item in tmp_path.iterdir()
    }
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert type(loaded).__name__ == "LlamaForCausalLM" and loaded.dtype == torch.float32
    torch.testing.assert_close(loaded(IDS).logits, trainer._model(IDS).logits)
    assert not torch.allclose(loaded(IDS).logits, plain(model)(IDS).logits)
    text = "3 + 4 = "
    assert AutoTokenizer.from_pretrained(tmp_path)(text)["input_ids"] == AutoTokenizer.from_pretrained(model)(text)["input_ids"]


def test_kinds_do_not_resume_one_another(model: Path, tmp_path: Path) -> None:
    trainer_of(model, "off").checkpoint(tmp_path / "off")
    trainer_of(model, "merged").checkpoint(tmp_path / "merged")
    with pytest.raises(CheckpointError):
        trainer_of(model, "merged").checkpoint(tmp_path / "off", restore=True)
    with pytest.raises(CheckpointError):
        trainer_of(model, "off").checkpoint(tmp_path / "merged", restore=True)
    trainer_of(model, "adapter_only").checkpoint(tmp_path / "merged", restore=True)  # both are the same adapters


def test_merged_weights_are_those_that_peft_would_merge(model: Path, tmp_path: Path) -> None:
    trainer = trainer_of(model, "merged")
    trainer.train(make_batch())
    trainer.checkpoint(tmp_path)
    reference = PeftModel.from_pretrained(plain(model), str(tmp_path)).merge_and_unload().state_dict()
    payload = trainer._adapters.payload()
    assert set(payload) == whole_names(model)
    for name in payload:
        torch.testing.assert_close(payload[name], reference[name], rtol=1e-6, atol=1e-7)
    manifest = trainer.publish(1, [])
    assert manifest.note["merge_survived_share"] == pytest.approx(1.0, abs=1e-4)
    assert manifest.payload == "merged_adapter"


def test_merging_is_rounded_once_and_says_what_was_lost(model: Path) -> None:
    trainer = trainer_of(model, "merged", "bfloat16", optimizer={"learning_rate": 1e-4})
    assert "merge_survived_share" not in trainer.publish(0, []).note  # B is zero: there was nothing to lose
    trainer.train(make_batch())
    note = trainer.publish(1, []).note
    adapters = trainer._adapters
    start = plain(model, torch.bfloat16).state_dict()
    wanted = survived = 0.0
    payload = adapters.payload()
    for name in payload:
        stem = f"base_model.model.{name.removesuffix('.weight')}"
        if f"{stem}.lora_A.weight" not in adapters.working:
            assert torch.equal(payload[name], start[name])
            continue
        down, up = (adapters.working[f"{stem}.lora_{half}.weight"].detach().float() for half in "AB")
        change = (up @ down) * (trainer._config.lora.alpha / 4)
        merged = (start[name].float() + change).to(torch.bfloat16)
        assert torch.equal(payload[name], merged)
        moved = (merged.float() - start[name].float()).abs()
        wanted += float(change.abs().double().sum())
        survived += float(torch.minimum(moved, change.abs()).double().sum())
    assert note["merge_survived_share"] == pytest.approx(survived / wanted, rel=1e-6)
    assert 0.0 < note["merge_survived_share"] < 0.5


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 70),
    st.integers(1, 9),
    st.integers(1, 3),
    st.sampled_from([torch.float32, torch.bfloat16]),
    st.integers(0, 9),
    st.booleans(),
)
def test_the_surviving_share_is_a_share(rows: int, columns: int, rank: int, dtype: torch.dtype, power: int, in_place: bool) -> None:
    source = torch.Generator().manual_seed(rows * 100 + columns)
    weight = torch.randn(rows, columns, generator=source).to(dtype)
    down, up = torch.randn(rank, columns, generator=source), torch.randn(rows, rank, generator=source) * 10.0**-power
    merging = object.__new__(Merged)
    merging._scale, merging._wanted, merging._survived = 2.0, 0.0, 0.0
    expected = (weight.float() + 2.0 * (up @ down)).to(dtype)
    found = merging._merge(weight, down, up, weight if in_place else torch.empty_like(weight))
    torch.testing.assert_close(found, expected, rtol=1e-6 if dtype == torch.float32 else 0.01, atol=1e-6)
    assert 0.0 <= merging.note()["merge_survived_share"] <= 1.0


@pytest.mark.parametrize("lora", ["adapter_only", "merged"])
def test_the_reference_is_the_model_before_training(model: Path, lora: str) -> None:
    trainer = trainer_of(model, lora)
    trainer.train(make_batch())
    base = plain(model)(IDS).logits
    adapters = trainer._adapters
    learning = {name for name, value in adapters.working.items() if value.requires_grad}
    with torch.no_grad():
        assert not torch.allclose(trainer._model(IDS).logits, base)
        with adapters.reference():
            torch.testing.assert_close(trainer._model(IDS).logits, base)
            assert {name for name, value in adapters.working.items() if value.requires_grad} == learning
        assert not torch.allclose(trainer._model(IDS).logits, base)
    assert not trainer.train(make_batch(2)).skipped
    assert trainer_of(model, "off")._adapters.reference() is None


def test_every_weight_has_the_gradient_of_the_definition(model: Path) -> None:
    """Through the head, which is the embedding as well, and through the trainer's layout: against transformers' own logits."""
    trainer = trainer_of(model, "off", loss={"policy": "reinforce_is", "corrections": []}, optimizer={"max_grad_norm": 1e6})
    kept: dict[str, Tensor] = {}

    def keep(masters: dict[str, Tensor]) -> float:
        kept.update({name: master.grad.clone() for name, master in masters.items() if master.grad is not None})
        return 1.0

    trainer._spread.norm = keep
    trainer._objective = Plain()
    batch = make_batch(groups=2)
    trainer.train(batch)
    reference = plain(model)
    items = [sample.rollout for group in batch.groups for sample in group.samples]
    prompts = {group.id: group.prompt.token_ids for group in batch.groups}
    total = torch.zeros(())
    for rollout in items:
        prompt = prompts[rollout.group_id]
        logits = reference(torch.tensor([prompt + rollout.token_ids])).logits[0, len(prompt) - 1 : -1]
        total = total + logits.log_softmax(-1).gather(1, torch.tensor(rollout.token_ids)[:, None]).sum()
    total.backward()
    for name, parameter in reference.named_parameters():
        torch.testing.assert_close(kept[name], parameter.grad, rtol=1e-3, atol=1e-4 * float(parameter.grad.abs().max()))


class Plain:
    """An objective whose loss is the sum of the log-probs."""

    counts_survivors = interpolates = counts_anew = False
    always_teaches = True

    def loss(self, micro: Any, new: Tensor, *rest: Any) -> Any:
        from workers.axes.backend.objective import Share

        values = dict.fromkeys(Share.__dataclass_fields__, 0)
        return Share(**{**values, "loss": new.sum(), "fate": None})


@settings(max_examples=30, deadline=None)
@given(
    st.dictionaries(
        st.text("abc./_", min_size=1, max_size=8),
        st.tuples(st.sampled_from([torch.float32, torch.bfloat16, torch.float64, torch.int64]), st.lists(st.integers(0, 4), max_size=3)),
        max_size=5,
    )
)
def test_tensor_files_are_what_the_library_reads(tmp_path_factory: pytest.TempPathFactory, shapes: dict[str, Any]) -> None:
    path = tmp_path_factory.mktemp("file") / "t.safetensors"
    tensors = {name: torch.ones(shape).to(dtype) * 3 for name, (dtype, shape) in shapes.items()}
    order: list[str] = []

    def read(name: str) -> Tensor:
        order.append(name)
        return tensors[name]

    write(path, {name: Entry(value.dtype, tuple(value.shape)) for name, value in tensors.items()}, read)
    loaded = load_file(path)
    assert order == sorted(tensors)
    assert loaded.keys() == tensors.keys()
    assert all(torch.equal(loaded[name], value) and loaded[name].dtype == value.dtype for name, value in tensors.items())
    with pytest.raises(ValueError, match="promised"):
        write(path, {"a": Entry(torch.float32, (2,))}, lambda name: torch.zeros(3))


def test_a_torn_tensor_file_is_refused(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(100)}, tmp_path / "whole")
    write(tmp_path / "ours", {"a": Entry(torch.float32, (100,))}, lambda name: torch.zeros(100))
    (tmp_path / "ours").write_bytes((tmp_path / "ours").read_bytes()[:-4])
    with pytest.raises(SafetensorError):
        load_file(tmp_path / "ours")
