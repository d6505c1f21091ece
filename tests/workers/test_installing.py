"""Whole weights in a running engine: full, delta and merged, their names and shapes, and what becomes of the copy they replace."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import torch
from peft.utils import get_peft_model_state_dict
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel, Qwen2Config, Qwen3Config, Qwen3MoeConfig

from tests.workers.engine_rig import NAME, PROMPTS, Gate, adapted, base_model, build, logprobs_of, request, send, spoilt, until
from tests.workers.tiny_model import make_tiny_model
from workers import registry
from workers.axes.transport.base import Link
from workers.axes.transport.leftovers import SEGMENTS
from workers.axes.transport.shared_memory import SharedMemoryTransport
from workers.contract.config import Lora, RunConfig
from workers.contract.errors import DigestMismatch, EngineError
from workers.records import Manifest
from workers.rollout.torch.adapter import EXPERTS
from workers.rollout.torch.adapter import _sizes as module_sizes
from workers.rollout.torch.generator import TorchGenerator
from workers.rollout.torch.install import Installer
from workers.rollout.torch.native import NativeKernels
from workers.rollout.torch.shape import Shape, read_shape
from workers.rollout.torch.update import Served
from workers.rollout.torch.weights import load_weights

BLOCKS = {"lora": {"rank": 4, "alpha": 8.0}, "rollout": {"max_running": 3}}
WHOLE = {"lora": {"kind": "off"}, "transport": {"payload": "full"}}
Start = Callable[..., tuple[TorchGenerator, Gate]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"), seed=4)


@pytest.fixture
async def start(folder: Path, tmp_path: Path) -> AsyncIterator[Start]:
    started: list[TorchGenerator] = []

    def begin(path: Path = folder, **changes: object) -> tuple[TorchGenerator, Gate]:
        generator, gate = build(path, tmp_path, **{**WHOLE, **changes})
        started.append(generator)
        return generator, gate

    yield begin
    for generator in started:
        await generator.stop()


def moved(model: torch.nn.Module, seed: int = 1, share: float = 1.0) -> torch.nn.Module:
    """The same model after a step of learning: `share` of its weights are others."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        change = 0.1 * torch.randn(parameter.shape, generator=generator) * (torch.rand(parameter.shape, generator=generator) < share)
        parameter.data = parameter.data + change
    return model


def weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """By the names of transformers, a tied head once."""
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def packed(payload: object, tensors: dict[str, torch.Tensor], scratch: Path, version: int) -> Manifest:
    """What the trainer publishes of them."""
    parcel = payload.pack(tensors, version, [NAME])
    sent = send(dict(parcel.tensors), scratch, version, parcel.kind)
    return Manifest(**{name: getattr(sent, name) for name in sent.__slots__} | {"base": parcel.base})


async def agrees(generator: TorchGenerator, model: torch.nn.Module, version: int) -> None:
    rollout = await generator.generate(request(PROMPTS[1], 1, 20))
    assert rollout.versions == [version] * 20
    assert torch.allclose(torch.tensor(rollout.logprobs), logprobs_of(model, PROMPTS[1], rollout.token_ids), atol=1e-4)


@pytest.mark.parametrize("kind", ["full", "delta", "merged_adapter"])
async def test_several_versions_in_turn(kind: str, start: Start, folder: Path, tmp_path: Path) -> None:
    lora = {"kind": "merged" if kind == "merged_adapter" else "off"}
    generator, _ = start(lora=lora, transport={"payload": kind})
    payload = registry.resolve("payload", kind)(kind)
    model = base_model(folder)
    kinds = []
    for version in (1, 2, 3):
        manifest = packed(payload, weights(moved(model, version, share=0.05)), tmp_path, version)
        kinds.append(manifest.payload)
        await generator.update(manifest)
        await agrees(generator, model, version)
    assert kinds == ([kind] * 3 if kind != "delta" else ["full", "delta", "delta"])


async def test_in_bfloat16_too(start: Start, folder: Path, tmp_path: Path) -> None:
    """Packed by the engine as those it began with."""
    generator, _ = start(model={"path": str(folder), "dtype": "bfloat16"})
    model = moved(base_model(folder))
    manifest = send({name: tensor.bfloat16() for name, tensor in weights(model).items()}, tmp_path, 1, "full")
    await generator.update(manifest)
    rollout = await generator.generate(request(PROMPTS[3], 3, 60))
    gap = torch.tensor(rollout.logprobs) - logprobs_of(model.bfloat16().float(), PROMPTS[3], rollout.token_ids)
    assert gap.abs().mean() < 0.05


def small(kind: type, **more: object) -> PreTrainedModel:
    sizes = {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2}
    torch.manual_seed(1)
    return AutoModelForCausalLM.from_config(
        kind(vocab_size=96, max_position_embeddings=256, initializer_range=0.1, tie_word_embeddings=False, **sizes, **more)
    ).eval()


FAMILIES = {
    "llama": (LlamaConfig, {}),
    "qwen2": (Qwen2Config, {}),
    "qwen3": (Qwen3Config, {}),
    "qwen3_moe": (Qwen3MoeConfig, {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}),
}


@pytest.fixture
def family(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[PreTrainedModel, Path]:
    kind, more = FAMILIES[request.param]
    model, path = small(kind, **more), tmp_path / request.param
    moved(model, 7)
    model.save_pretrained(path)
    tokens = make_tiny_model(tmp_path / "tokens")
    (path / "tokenizer.json").write_bytes((tokens / "tokenizer.json").read_bytes())
    return model, path


@pytest.mark.parametrize("family", FAMILIES, indirect=True)
async def test_every_family(family: tuple[PreTrainedModel, Path], start: Start, tmp_path: Path) -> None:
    model, path = family
    generator, _ = start(path)
    await generator.update(send(weights(moved(model, 2)), tmp_path, 1, "full"))
    rollout = await generator.generate(request(PROMPTS[3], 3, 40))
    assert torch.allclose(torch.tensor(rollout.logprobs), logprobs_of(model, PROMPTS[3], rollout.token_ids), atol=2e-4)


@pytest.mark.parametrize("family", ["qwen2"], indirect=True)
@pytest.mark.parametrize("lost", ["one", "all"])
async def test_biases_that_went_missing_are_noticed(lost: str, family: tuple[PreTrainedModel, Path], start: Start, tmp_path: Path) -> None:
    model, path = family
    generator, _ = start(path)

    def is_lost(name: str) -> bool:
        return name.endswith("bias") and (lost == "all" or "0.self_attn.k" in name)

    kept = {name: tensor for name, tensor in weights(model).items() if not is_lost(name)}
    with pytest.raises(EngineError, match="biases") as refused:
        await generator.update(send(kept, tmp_path, 1, "full"))
    assert "model.layers.0.self_attn" in str(refused.value.value)


WRONG = {
    "missing": ("model.layers.1.mlp.up_proj.weight", None, "lacks"),
    "shape": ("model.layers.1.self_attn.k_proj.weight", torch.zeros(3, 64), "does not fit"),
    "turned": ("model.layers.0.mlp.down_proj.weight", torch.zeros(128, 64), "does not fit"),
    "stray": ("model.layers.7.mlp.up_proj.weight", torch.zeros(128, 64), "no place for"),
    "head": ("lm_head.weight", torch.zeros(259, 64), "no place for"),
    "inverse": ("model.layers.0.self_attn.rotary_emb.inv_freq", torch.zeros(8), "no place for"),
}


@pytest.mark.parametrize("wrong", WRONG)
async def test_weights_that_do_not_fit_are_named_and_the_old_ones_serve(wrong: str, start: Start, folder: Path, tmp_path: Path) -> None:
    generator, _ = start(interrupt={"kind": "keep", "kv_after": "keep"})
    task = asyncio.create_task(generator.generate(request(PROMPTS[0], 0, 200)))
    await until(lambda: generator.counters["decode_steps"] > 3)
    name, tensor, message = WRONG[wrong]
    tensors = weights(base_model(folder)) | ({} if tensor is None else {name: tensor})
    if tensor is None:
        del tensors[name]
    with pytest.raises(EngineError, match=message) as refused:
        await generator.update(send(tensors, tmp_path, 1, "full"))
    assert (refused.value.field, refused.value.value) == ("transport.payload", name) and refused.value.cure
    assert (await task).versions == [0] * 200
    await agrees(generator, base_model(folder), 0)


async def test_a_delta_on_another_base_or_with_cut_bytes_is_refused(start: Start, folder: Path, tmp_path: Path) -> None:
    generator, _ = start(transport={"payload": "delta"})
    payload, model = registry.resolve("payload", "delta")("delta"), base_model(folder)
    await generator.update(packed(payload, weights(moved(model, 1)), tmp_path, 1))
    before = base_model(folder)
    before.load_state_dict(model.state_dict())
    lost = packed(payload, weights(moved(model, 2, 0.05)), tmp_path, 2)
    with pytest.raises(DigestMismatch):
        await generator.update(spoilt(lost))
    with pytest.raises(EngineError, match="builds on version 2") as refused:
        await generator.update(packed(payload, weights(moved(model, 3, 0.05)), tmp_path, 3))
    assert refused.value.retryable
    await agrees(generator, before, 1)
    await generator.update(packed(payload, weights(model), tmp_path, 3))  # the same version again goes out whole
    await agrees(generator, model, 3)


async def test_an_adapter_that_arrives_damaged_never_serves(folder: Path, tmp_path: Path) -> None:
    """Also where its layout is known, and it takes the short way on both sides."""
    blocks = {**BLOCKS, "model": {"path": str(folder), "dtype": "float32"}, "transport": {"kind": "shared_memory"}}
    config = RunConfig.model_validate(blocks)
    sender, receiver = (SharedMemoryTransport(Link("damagedrun00", tmp_path, name, config.transport)) for name in ("trainer", NAME))
    generator = TorchGenerator(config, NAME, receiver)
    try:
        serving = 0, base_model(folder)
        for version in range(1, 7):
            model = adapted(folder, version)
            manifest = sender.send(get_peft_model_state_dict(model), version, "adapter", [NAME])
            if version == 5:
                with (SEGMENTS / manifest.handle["segment"]).open("r+b") as file:
                    file.seek(manifest.bytes - 2)
                    file.write(b"\x7f\x7f")
                with pytest.raises(DigestMismatch):
                    await generator.update(manifest)
            else:
                await generator.update(manifest)
                serving = version, model
            await agrees(generator, serving[1], serving[0])
    finally:
        await generator.stop()
        sender.close()
        receiver.close()


async def test_weights_change_in_mid_generation(start: Start, folder: Path, tmp_path: Path) -> None:
    """forward_pass with recompute: decoding goes on while whole weights are built, and then under them exactly."""
    generator, gate = start(interrupt={"kind": "forward_pass", "kv_after": "recompute"})
    old, new = base_model(folder), moved(base_model(folder))
    manifest = send(weights(new), tmp_path, 2, "full")
    gate.opened.clear()
    tasks = [asyncio.create_task(generator.generate(request(PROMPTS[index], index, 300))) for index in range(3)]
    update = asyncio.create_task(generator.update(manifest))
    await until(lambda: generator.counters["decode_steps"] > 20)
    gate.opened.set()
    await update
    for rollout in await asyncio.gather(*tasks):
        flip, given, prompt = rollout.versions.count(0), torch.tensor(rollout.logprobs), PROMPTS[rollout.index]
        assert 20 <= flip < 300
        assert torch.allclose(given[:flip], logprobs_of(old, prompt, rollout.token_ids)[:flip], atol=1e-4)
        assert torch.allclose(given[flip:], logprobs_of(new, prompt, rollout.token_ids)[flip:], atol=1e-4)


def memory(served: object) -> set[int]:
    """The addresses of the storages of all tensors in it, but for those in oneDNN's own layout, which has none that can be asked for."""
    found: set[int] = set()
    left, seen = [served], set()
    while left:
        one = left.pop()
        if id(one) in seen or isinstance(one, str | int | float | type | None):
            continue
        seen.add(id(one))
        if isinstance(one, torch.Tensor):
            found |= set() if one.is_mkldnn else {one.untyped_storage().data_ptr()} - {0}
        elif isinstance(one, list | tuple | dict):
            left += one.values() if isinstance(one, dict) else one
        elif type(one).__module__.startswith("workers.rollout.torch.") and not isinstance(one, NativeKernels):
            left += [getattr(one, name) for name in getattr(one, "__slots__", None) or vars(one)]
    return found


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_two_copies_take_turns(dtype: str, start: Start, folder: Path, tmp_path: Path) -> None:
    """The copy that served before is written over, never the one that serves, also where a publish fails when half is written."""
    generator, _ = start(model={"path": str(folder), "dtype": dtype})
    places = [memory(generator._decoder.weights)]

    async def publish(model: torch.nn.Module, version: int, without: str = "") -> None:
        tensors = {name: tensor.to(getattr(torch, dtype)) for name, tensor in weights(model).items() if name != without}
        await generator.update(send(tensors, tmp_path, version, "full"))

    for version in range(1, 6):
        model = moved(base_model(folder), version)
        await publish(model, version)
        places.append(memory(generator._decoder.weights))
        assert not places[-1] & places[-2]
        assert places[1:][-3:-2] in ([], [places[-1]]), "what it began with lies in part in the model's own file"
    with pytest.raises(EngineError, match="lacks"):
        await publish(moved(base_model(folder), 6), 6, without="model.layers.1.mlp.up_proj.weight")
    if dtype == "float32":
        await agrees(generator, model, 5)
    await publish(model, 7)
    assert not places[-1] & memory(generator._decoder.weights)


@pytest.mark.parametrize("family", FAMILIES, indirect=True)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nothing_that_serves_refers_to_what_was_received(family: tuple[PreTrainedModel, Path], dtype: torch.dtype) -> None:
    """What was received may lie in memory that is written over by and by."""
    model, path = family
    shape = read_shape(path)
    received = {name: tensor.to(dtype) for name, tensor in weights(model).items()}
    before = load_weights(path, shape, dtype)
    served = Installer(Lora(kind="off"), shape, dtype).build(received, 1, before)
    assert not memory(served) & memory(received)


def halves(shape: Shape, rank: int, seed: int) -> dict[str, torch.Tensor]:
    """An adapter of every module, by PEFT's names."""
    generator = torch.Generator().manual_seed(seed)
    places = {EXPERTS[0]: "mlp.experts.base_layer", EXPERTS[1]: "mlp.experts"}
    tensors = {}
    for layer in range(shape.layers):
        for module, (inputs, outputs) in module_sizes(shape, layer).items():
            place = places.get(module, f"{'self_attn' if module in 'qkvo' else 'mlp'}.{module}_proj")
            ranks = rank * shape.experts.count if shape.experts and module in EXPERTS else rank
            name = f"base_model.model.model.layers.{layer}.{place}"
            tensors[f"{name}.lora_A.weight"] = torch.randn(ranks, inputs, generator=generator).bfloat16()
            tensors[f"{name}.lora_B.weight"] = torch.randn(outputs, ranks, generator=generator).bfloat16()
    return tensors


@pytest.mark.parametrize("family", ["llama", "qwen3_moe"], indirect=True)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rank", [1, 16])
def test_adapters_take_turns_too(family: tuple[PreTrainedModel, Path], dtype: torch.dtype, rank: int) -> None:
    """In memory that served before, what is built is what is built in fresh memory; what serves is never touched."""
    shape = read_shape(family[1])
    weights = load_weights(family[1], shape, dtype)
    options = Lora(kind="adapter_only", rank=rank)
    installer = Installer(options, shape, dtype)
    served: list[Served] = []
    for version in range(1, 6):
        received = halves(shape, rank, version)
        served.append(installer.build(received, version, weights))
        fresh = Installer(options, shape, dtype).build(received, version, weights)
        assert not memory(served[-1]) & memory(received)
        for ours, theirs in zip(served[-1].adapter.layers, fresh.adapter.layers, strict=True):
            assert ours.keys() == theirs.keys()
            for module, pair in ours.items():
                assert torch.equal(pair.a, theirs[module].a) and torch.equal(pair.b, theirs[module].b)
                if pair.tiled is not None:
                    for half in ("lowering", "raising"):
                        assert torch.equal(getattr(pair.tiled, half).data, getattr(theirs[module].tiled, half).data)
        if len(served) > 1:
            assert not memory(served[-1]) & memory(served[-2])
            installer.take_back(served[-2])
    assert memory(served[4].adapter.room) == memory(served[2].adapter.room) == memory(served[0].adapter.room)
