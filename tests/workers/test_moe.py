"""Mixture of experts: the engine against transformers, adapters on experts against PEFT, experts as a payload."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from tests.workers.tiny_model import make_tiny_model, make_tiny_moe_model
from workers.axes.backend.tp import check_shares
from workers.axes.lora.adapter_only import AdapterOnly
from workers.axes.lora.merged import Merged
from workers.axes.payload.expert_shards import ExpertShards
from workers.contract.config import Lora
from workers.contract.errors import ConfigError, EngineError, EnvironmentMissing
from workers.records import Manifest
from workers.rollout.torch.adapter import Adapter, build_adapter, no_adapter
from workers.rollout.torch.cache import SlotCache
from workers.rollout.torch.kernels import PlainKernels
from workers.rollout.torch.model import Model
from workers.rollout.torch.native import kernels_for
from workers.rollout.torch.shape import read_shape
from workers.rollout.torch.weights import load_weights

torch.set_num_threads(1)
PROMPTS = [[5, 9, 33], [7, 7, 100, 3, 60, 61, 62, 80], [9]]
LORA = Lora(rank=3, alpha=6.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_moe_model(tmp_path_factory.mktemp("moe"), seed=2)


def load(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa").eval()


def engine(folder: Path, dtype: torch.dtype = torch.float32) -> Model:
    shape = read_shape(folder)
    kernels = PlainKernels() if dtype == torch.float32 else kernels_for(shape, dtype)
    return Model(shape, load_weights(folder, shape, dtype), dtype, kernels)


def gap(model: Model, adapter: Adapter, reference: Any, steps: int = 5) -> Tensor:
    """Engine minus transformers, (prompts, steps, vocabulary) log-probs: one joint prefill, then decode steps of all slots."""
    sequences = [[*prompt] for prompt in PROMPTS]
    cache = SlotCache(model.shape, model.dtype)
    cache.reserve(len(sequences), 32)
    found = []
    with torch.inference_mode():
        kept, hidden = model.prefill(sequences, adapter)
        for slot, keys_values in enumerate(kept):
            cache.load(slot, keys_values)
        for step in range(steps):
            if step:
                positions = torch.tensor([len(sequence) - 1 for sequence in sequences])
                hidden = model.decode(torch.tensor([sequence[-1] for sequence in sequences]), positions, 0, cache, adapter)
            ours = model.logits(hidden).float().log_softmax(-1)
            theirs = torch.stack([reference(input_ids=torch.tensor([one]), use_cache=False).logits[0, -1] for one in sequences])
            found.append(ours - theirs.float().log_softmax(-1))
            for slot, sequence in enumerate(sequences):
                sequence.append((17 * step + 31 * slot) % 200 + 3)
    return torch.stack(found, dim=1)


def adapted(folder: Path, options: Lora, kind: type[AdapterOnly] = AdapterOnly, dtype: torch.dtype = torch.float32) -> AdapterOnly:
    """Adapters that do something, experts' included where there are any."""
    adapters = kind(load(folder, dtype), options, 3)
    with torch.no_grad():
        for name, master in adapters.masters.items():
            if ".lora_B." in name:
                master.copy_(torch.randn(master.shape, generator=torch.Generator().manual_seed(len(name))) * 0.3)
    adapters.refresh()
    return adapters


# -- the engine --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [{}, {"norm_topk_prob": False}, {"layers": 3, "mlp_only_layers": [1]}, {"layers": 4, "decoder_sparse_step": 2}, {"chosen": 1}],
    ids=["normalised", "raw gates", "a dense layer", "every second", "top-1"],
)
def test_the_engine_equals_transformers(tmp_path: Path, changes: dict[str, Any]) -> None:
    folder = make_tiny_moe_model(tmp_path, seed=5, **changes)
    model = engine(folder)
    assert model.shape.experts is not None and model.shape.experts.count == 4
    assert float(gap(model, no_adapter(model.shape), load(folder)).abs().max()) < 1e-4


def test_stacked_weights_and_older_configs_are_the_same_model(folder: Path, tmp_path: Path) -> None:
    """Files hold a tensor an expert; a state dictionary holds them stacked. Before transformers 5, `num_experts` counted them."""
    for name in ("tokenizer.json", "config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    raw = json.loads((folder / "config.json").read_text())
    raw["num_experts"] = raw.pop("num_local_experts", None) or raw["num_experts"]
    (tmp_path / "config.json").write_text(json.dumps(raw))
    save_file({name: value.contiguous() for name, value in load(folder).state_dict().items()}, tmp_path / "model.safetensors")
    one, other = engine(folder), engine(tmp_path)
    assert one.shape == other.shape
    with torch.inference_mode():
        first, second = (model.prefill(PROMPTS, no_adapter(model.shape))[1] for model in (one, other))
    assert torch.equal(first, second)


def test_a_samples_bits_do_not_depend_on_its_neighbours_experts(folder: Path) -> None:
    """Near enough for the fast mode; strict runs prefill and decode each sample alone."""
    model = engine(folder)
    with torch.inference_mode():
        together = model.prefill(PROMPTS, no_adapter(model.shape))[1]
        alone = torch.cat([model.prefill([prompt], no_adapter(model.shape))[1] for prompt in PROMPTS])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


def test_bfloat16_stays_near_float32(tmp_path: Path) -> None:
    """Packed experts and the C kernels. A choice of experts may flip, so the mean is bounded and not the largest gap."""
    folder = make_tiny_moe_model(tmp_path, seed=2, hidden=64)
    model = engine(folder, torch.bfloat16)
    assert not isinstance(kernels_for(model.shape, torch.bfloat16), PlainKernels)
    assert float(gap(model, no_adapter(model.shape), load(folder)).abs().mean()) < 0.1


def test_more_experts_than_a_byte_can_name_are_refused(folder: Path, tmp_path: Path) -> None:
    raw = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**raw, "num_local_experts": 300}))
    with pytest.raises(EngineError, match="300 experts"):
        read_shape(tmp_path)


# -- adapters ----------------------------------------------------------------------------------------------------


def test_adapters_are_on_attention_alone_unless_experts_are_asked_for(folder: Path, tmp_path: Path) -> None:
    attention = {name.split(".")[6] for name in AdapterOnly(load(folder), LORA, 0).masters}
    assert attention == {"q_proj", "k_proj", "v_proj", "o_proj"}
    names = set(AdapterOnly(load(folder), LORA.model_copy(update={"moe_experts": True}), 0).masters)
    assert {name.split(".")[5] for name in names} == {"self_attn", "mlp"} and not any(".gate." in name for name in names)
    dense = load(make_tiny_model(tmp_path, hidden=32))
    with pytest.raises(ConfigError, match="no experts"):
        AdapterOnly(dense, LORA.model_copy(update={"moe_experts": True}), 0)


@pytest.mark.parametrize("experts", [False, True])
def test_engine_and_trainer_apply_the_same_adapters(folder: Path, experts: bool) -> None:
    adapters = adapted(folder, LORA.model_copy(update={"moe_experts": experts}))
    model = engine(folder)
    adapter = build_adapter(dict(adapters.payload()), model.shape, LORA.alpha / LORA.rank, 1, torch.float32)
    assert float(gap(model, adapter, adapters.model).abs().max()) < 1e-4
    with adapters.reference():
        assert float(gap(model, no_adapter(model.shape), adapters.model).abs().max()) < 1e-4
    assert float(gap(model, no_adapter(model.shape), adapters.model).abs().max()) > 0.1, "the adapter must do something"


def test_experts_adapters_are_kept_apart_from_the_weights(folder: Path) -> None:
    """In float32 what PEFT computes, gradients too; in bfloat16 updates far below the weights' last bits still count."""
    options = LORA.model_copy(update={"moe_experts": True})
    ours, theirs = adapted(folder, options), adapted(folder, options)
    for module in theirs.model.modules():
        vars(module).pop("forward", None)
    ids = torch.tensor([[5, 9, 33, 80, 7, 100]])
    outcomes = []
    for one in (ours, theirs):
        logits = one.model(input_ids=ids, use_cache=False).logits
        logits.log_softmax(-1)[..., 11].sum().backward()
        outcomes.append([logits, *(one.working[name].grad for name in sorted(one.working))])
    for mine, peft in zip(*outcomes, strict=True):
        torch.testing.assert_close(mine, peft, rtol=1e-3, atol=1e-4)

    def change(dtype: torch.dtype) -> Tensor:
        """Weights of 1 and updates of about 0.001, on rows that the weights map to exactly 0."""
        adapters = adapted(folder, options, dtype=dtype)
        layer = adapters.model.base_model.model.model.layers[0].mlp.experts
        with torch.no_grad():
            for name, master in adapters.masters.items():
                master.mul_(0.005 if ".lora_B." in name else 1.0)
            adapters.refresh()
            for weight in (layer.get_base_layer().gate_up_proj, layer.get_base_layer().down_proj):
                weight.fill_(1.0)
            half = torch.randn(8, 16, generator=torch.Generator().manual_seed(0)).bfloat16()
            rows = torch.stack((half, -half), dim=-1).view(8, 32).to(dtype)
            given = rows, torch.zeros(8, 1, dtype=torch.int64), torch.ones(8, 1, dtype=dtype)
            with adapters.reference():
                assert not layer(*given).any()
            found: Tensor = layer(*given)
            return found.float()

    exact, rounded = change(torch.float32), change(torch.bfloat16)
    assert bool(exact.any()) and float((exact - rounded).norm() / exact.norm()) < 0.05


def test_tensor_parallelism_says_that_it_does_not_cut_experts(folder: Path) -> None:
    with pytest.raises(EnvironmentMissing, match="Llama-like layers") as refused:
        check_shares(load(folder), 2)
    assert refused.value.field == "backend.kind" and "fsdp2" in str(refused.value.cure)


def test_an_adapter_that_does_not_fit_is_refused(folder: Path) -> None:
    shape = read_shape(folder)
    stem = "base_model.model.model.layers.0.mlp."
    for name in (f"{stem}up_proj.lora_A.weight", f"{stem}gate.lora_A.weight"):
        with pytest.raises(EngineError, match="no place"):
            build_adapter({name: torch.zeros(3, 32)}, shape, 1.0, 1, torch.float32)
    halves = {f"{stem}experts.lora_A.weight": torch.zeros(6, 16), f"{stem}experts.lora_B.weight": torch.zeros(32, 6)}
    with pytest.raises(EngineError, match="does not fit"):
        build_adapter(halves, shape, 1.0, 1, torch.float32)


def test_merged_experts_are_those_that_peft_merges(folder: Path) -> None:
    options = LORA.model_copy(update={"moe_experts": True})
    adapters = adapted(folder, options, Merged)
    ours = dict(adapters.payload())
    theirs = adapted(folder, options).model.merge_and_unload().state_dict()
    assert set(ours) == set(theirs), "every weight travels"
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-5, atol=1e-6)
    base = load(folder).state_dict()
    changed = {
        name.rsplit(".", 1)[-1] if "experts" in name else name.split(".")[4] for name in base if not torch.equal(base[name], ours[name])
    }
    assert changed == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_up_proj", "down_proj"}


# -- payload expert_shards ---------------------------------------------------------------------------------------


def weights(seed: int = 0, layers: int = 2, experts: int = 4) -> dict[str, Tensor]:
    source = torch.Generator().manual_seed(seed)
    found = {"model.embed_tokens.weight": torch.randn(6, 4, generator=source).bfloat16()}
    for layer in range(layers):
        stem = f"model.layers.{layer}.mlp"
        found[f"{stem}.gate.weight"] = torch.randn(experts, 4, generator=source).bfloat16()
        found[f"{stem}.experts.gate_up_proj"] = torch.randn(experts, 6, 4, generator=source).bfloat16()
        found[f"{stem}.experts.down_proj"] = torch.randn(experts, 4, 3, generator=source).bfloat16()
    return found


def manifest(version: int, base: int | None, note: Mapping[str, float]) -> Manifest:
    return Manifest(version, "", 0, "expert_shards", "filesystem", {}, base=base, note=dict(note))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 3), st.booleans()), max_size=4), min_size=1, max_size=5))
def test_only_changed_experts_travel_and_the_whole_arrives(publishes: list[list[tuple[int, int, bool]]]) -> None:
    sender, receiver, now = ExpertShards("expert_shards"), ExpertShards("expert_shards"), weights()
    served: dict[str, Tensor] = {}
    for version, changes in enumerate(publishes):
        now = {name: value.clone() for name, value in now.items()}
        for layer, expert, down in changes:
            now[f"model.layers.{layer}.mlp.experts.{'down_proj' if down else 'gate_up_proj'}"][expert, 0, 0] += 1
        packed = sender.pack(now, version, ["a"])
        touched = len({(layer, expert) for layer, expert, _ in changes}) if version else 8
        assert packed.note == {"experts_sent": touched, "experts": 8} and packed.base == (version - 1 if version else None)
        before = {name: value.clone() for name, value in served.items()}
        fresh = receiver.unpack(packed.tensors, manifest(version, packed.base, packed.note))
        assert fresh.keys() == now.keys() and all(torch.equal(fresh[name], now[name]) for name in now)
        assert all(torch.equal(served[name], before[name]) for name in before), "what served is never written into"
        served = fresh


def test_engines_that_missed_something_get_every_expert() -> None:
    sender, receiver, late = (ExpertShards("expert_shards") for _ in range(3))
    first = sender.pack(weights(), 1, ["a"])
    receiver.unpack(first.tensors, manifest(1, first.base, {}))
    small = sender.pack(weights(), 2, ["a"])
    assert small.note["experts_sent"] == 0 and set(small.tensors) == {name for name in weights() if "experts" not in name}
    with pytest.raises(EngineError) as refused:
        late.unpack(small.tensors, manifest(2, small.base, {}))
    assert refused.value.retryable and "builds on version 1" in str(refused.value)
    again = sender.pack(weights(), 2, ["a"])  # the publish failed: the same version once more
    assert again.base is None and again.note["experts_sent"] == 8
    joined = sender.pack(weights(), 3, ["a", "b"])
    assert joined.base is None and joined.note["experts_sent"] == 8
    assert late.unpack(joined.tensors, manifest(3, joined.base, {})).keys() == weights().keys()


def test_experts_that_do_not_fit_and_models_without_any_are_refused() -> None:
    sender, receiver = ExpertShards("expert_shards"), ExpertShards("expert_shards")
    packed = sender.pack(weights(), 1, ["a"])
    receiver.unpack(packed.tensors, manifest(1, None, {}))
    key = "model.layers.0.mlp.experts.down_proj#expert9"
    with pytest.raises(EngineError, match="do not fit"):
        receiver.unpack({key: torch.zeros(4, 3).bfloat16()}, manifest(2, 1, {}))
    with pytest.raises(EngineError, match="do not fit"):
        ExpertShards("expert_shards").unpack({key: torch.zeros(4, 3).bfloat16()}, manifest(2, None, {}))
    with pytest.raises(ConfigError, match="no experts"):
        ExpertShards("expert_shards").pack({"model.norm.weight": torch.ones(4)}, 1, ["a"])


def test_what_the_trainer_publishes_is_what_the_engine_reads(folder: Path, tmp_path: Path) -> None:
    """Names and shapes of a learning model's payload, through shards, as the engine's weights."""
    model = load(folder)
    sender, receiver = ExpertShards("expert_shards"), ExpertShards("expert_shards")
    packed = sender.pack(dict(model.named_parameters()), 1, ["a"])
    whole = receiver.unpack(packed.tensors, manifest(1, packed.base, {}))
    for name in ("tokenizer.json", "config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    save_file({name: value.detach().contiguous() for name, value in whole.items()}, tmp_path / "model.safetensors")
    assert any(name.endswith("experts.gate_up_proj") for name in load_file(tmp_path / "model.safetensors"))
    fresh = engine(tmp_path)
    assert float(gap(fresh, no_adapter(fresh.shape), model).abs().max()) < 1e-4
