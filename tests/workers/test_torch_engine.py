"""The torch engine against Hugging Face's own arithmetic, on a tiny model in float32."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.utils import get_peft_model_state_dict
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen3Config

from tests.workers.tiny_model import make_tiny_model
from workers.axes.transport.base import Link
from workers.axes.transport.filesystem import FilesystemTransport
from workers.contract.config import RunConfig, Transport
from workers.contract.errors import DigestMismatch, EngineError
from workers.models import BUILT_IN, locate
from workers.records import Manifest, Rollout, SampleRequest
from workers.rollout.torch.generator import TorchGenerator

PROMPTS = [[5, 9, 33], [7, 7, 100, 3, 60, 61, 62, 80], [9], list(range(20, 60)), [5, 9, 33, 4]]
RUN = "enginetest000"


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"), seed=4)


def config(folder: Path, dtype: str, **changes: dict) -> RunConfig:
    blocks: dict = {"model": {"path": str(folder), "dtype": dtype}, "lora": {"rank": 4, "alpha": 8.0}, "rollout": {"max_running": 4}}
    for name, value in changes.items():
        blocks[name] = {**blocks.get(name, {}), **value} if isinstance(value, dict) else value
    return RunConfig.model_validate(blocks)


@pytest.fixture
async def engine(folder: Path, tmp_path: Path) -> AsyncIterator[Callable[..., TorchGenerator]]:
    started: list[TorchGenerator] = []

    def start(path: Path = folder, dtype: str = "float32", **changes: dict) -> TorchGenerator:
        settings = config(path, dtype, **changes)
        transport = FilesystemTransport(Link(RUN, tmp_path, "generator/0", settings.transport))
        started.append(TorchGenerator(settings, "generator/0", transport))
        return started[-1]

    yield start
    for generator in started:
        await generator.stop()


def request(prompt: list[int], index: int = 0, new: int = 12, **changes: object) -> SampleRequest:
    values: dict = {"temperature": 1.0, "key": 1000 + index, **changes}
    return SampleRequest(f"g{index}/{index}", f"g{index}", index, prompt, max_new_tokens=new, **values)


def greedy(model: LlamaForCausalLM, prompt: list[int], new: int) -> list[int]:
    with torch.no_grad():
        out = model.generate(
            torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)), do_sample=False, max_new_tokens=new, eos_token_id=-1
        )
    return out[0, len(prompt) :].tolist()


def logprobs_of(model: torch.nn.Module, prompt: list[int], tokens: list[int], temperature: float = 1.0) -> torch.Tensor:
    with torch.no_grad():
        logits = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits / temperature, -1).gather(1, torch.tensor(tokens).view(-1, 1)).view(-1)


def trainer_end(tmp_path: Path) -> FilesystemTransport:
    return FilesystemTransport(Link(RUN, tmp_path, "trainer", Transport()))


def publish(model: torch.nn.Module, tmp_path: Path, version: int) -> Manifest:
    return trainer_end(tmp_path).send(get_peft_model_state_dict(model), version, "adapter", ["generator/0"])


def adapted(folder: Path, seed: int, scale: float = 0.3) -> torch.nn.Module:
    """A PEFT model whose adapters do something."""
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    model = get_peft_model(base, LoraConfig(r=4, lora_alpha=8, target_modules=targets, lora_dropout=0.0)).eval()
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data = torch.randn(parameter.shape, generator=generator) * scale
    return model


async def test_greedy_equals_transformers_while_requests_join_and_leave(folder: Path, engine: Callable[..., TorchGenerator]) -> None:
    """Twelve ragged requests through four slots, so that they join and leave all the time."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    generator = engine()
    wanted = [(PROMPTS[index % 5], 3 + 5 * (index % 4)) for index in range(12)]
    answers = await asyncio.gather(*(generator.generate(request(p, i, n, top_k=1)) for i, (p, n) in enumerate(wanted)))
    for (prompt, new), rollout in zip(wanted, answers, strict=True):
        assert rollout.token_ids == greedy(model, prompt, new)
        assert rollout.finish_reason == "length" and rollout.versions == [0] * new and rollout.engine == "generator/0"
    status = await generator.status()
    assert (status.running, status.waiting, status.slots) == (0, 0, 4)
    assert status.generated_tokens == sum(new for _, new in wanted) and status.decode_s > 0 and status.rss > 0


def small(kind: type) -> object:
    sizes = {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2}
    return kind(vocab_size=96, max_position_embeddings=256, initializer_range=0.1, **sizes)


def llama3() -> LlamaConfig:
    given = small(LlamaConfig)
    rope = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    given.rope_parameters = {**rope, "original_max_position_embeddings": 32}
    return given


@pytest.mark.parametrize("make", [lambda: small(Qwen2Config), lambda: small(Qwen3Config), llama3], ids=["qwen2", "qwen3", "llama3"])
async def test_other_families_equal_transformers(make: Callable, tmp_path: Path, engine: Callable[..., TorchGenerator]) -> None:
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(make()).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias") or "norm" in name:
            parameter.data = parameter.data + 0.3 * torch.randn_like(parameter)
    model.save_pretrained(tmp_path / "other")
    make_tiny_model(tmp_path / "tokens")
    (tmp_path / "other" / "tokenizer.json").write_bytes((tmp_path / "tokens" / "tokenizer.json").read_bytes())
    rollout = await engine(tmp_path / "other").generate(request(PROMPTS[3], new=40))
    assert torch.allclose(torch.tensor(rollout.logprobs), logprobs_of(model, PROMPTS[3], rollout.token_ids), atol=1e-4)


async def test_other_architectures_are_refused(folder: Path, tmp_path: Path, engine: Callable[..., TorchGenerator]) -> None:
    other = tmp_path / "gpt"
    other.mkdir()
    for item in folder.iterdir():
        (other / item.name).write_bytes(item.read_bytes())
    raw = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**raw, "architectures": ["GPT2LMHeadModel"]}))
    with pytest.raises(EngineError) as refused:
        engine(other)
    assert refused.value.field == "model.path" and "GPT2LMHeadModel" in str(refused.value) and "LlamaForCausalLM" in str(refused.value.cure)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
async def test_logprobs_equal_transformers(folder: Path, engine: Callable[..., TorchGenerator], temperature: float) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    generator = engine()
    asked = [request(prompt, index, 24, temperature=temperature) for index, prompt in enumerate(PROMPTS * 2)]
    for rollout, given in zip(await asyncio.gather(*map(generator.generate, asked)), asked, strict=True):
        wanted = logprobs_of(model, given.prompt_ids, rollout.token_ids, temperature)
        assert torch.allclose(torch.tensor(rollout.logprobs), wanted, atol=1e-4)


async def test_adapters_equal_peft(folder: Path, tmp_path: Path, engine: Callable[..., TorchGenerator]) -> None:
    model = adapted(folder, seed=1)
    generator = engine()
    base = await generator.generate(request(PROMPTS[1], new=20))
    manifest = publish(model, tmp_path, 1)
    report = await generator.update(manifest)
    assert (report.version, report.digest, report.pause_s) == (1, manifest.digest, 0.0) and report.transfer_s > 0 and report.apply_s >= 0
    rollout = await generator.generate(request(PROMPTS[1], new=20))
    assert rollout.versions == [1] * 20
    assert torch.allclose(torch.tensor(rollout.logprobs), logprobs_of(model, PROMPTS[1], rollout.token_ids), atol=1e-4)
    gap = torch.tensor(base.logprobs) - logprobs_of(model, PROMPTS[1], base.token_ids)
    assert gap.abs().max() > 0.05, "the adapter must change something, or this test shows nothing"


async def start_and_swap(generator: TorchGenerator, manifest: Manifest, prompts: list[list[int]], new: int) -> list[Rollout]:
    """Requests under way, then an update in their midst."""
    tasks = [asyncio.create_task(generator.generate(request(prompt, index, new))) for index, prompt in enumerate(prompts)]
    while generator.counters["decode_steps"] < 5:
        await asyncio.sleep(0.001)
    report = await generator.update(manifest)
    assert report.pause_s > 0
    return list(await asyncio.gather(*tasks))


@pytest.mark.parametrize("kv_after", ["keep", "recompute"])
async def test_a_swap_in_mid_generation(folder: Path, tmp_path: Path, engine: Callable[..., TorchGenerator], kv_after: str) -> None:
    """Every token carries the version that made it; with recompute the later ones equal the new policy's log-probs exactly."""
    old = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    new = adapted(folder, seed=2)
    generator = engine(interrupt={"kv_after": kv_after})
    for index, rollout in enumerate(await start_and_swap(generator, publish(new, tmp_path, 3), PROMPTS[:4], 400)):
        assert rollout.versions == sorted(rollout.versions) and set(rollout.versions) == {0, 3}
        flip = rollout.versions.index(3)
        given = torch.tensor(rollout.logprobs)
        before = logprobs_of(old, PROMPTS[index], rollout.token_ids)
        after = logprobs_of(new, PROMPTS[index], rollout.token_ids)
        assert torch.allclose(given[:flip], before[:flip], atol=1e-4)
        exact = bool(torch.allclose(given[flip:], after[flip:], atol=2e-4))
        assert exact == (kv_after == "recompute")
        assert (given[flip:] - after[flip:]).abs().mean() < (before[flip:] - after[flip:]).abs().mean()


async def test_a_prompt_computed_under_old_weights_is_not_reused(
    folder: Path, tmp_path: Path, engine: Callable[..., TorchGenerator]
) -> None:
    generator, model = engine(), adapted(folder, seed=5)
    await asyncio.gather(*(generator.generate(request(PROMPTS[3], index, 4)) for index in range(6)))
    assert generator.counters["prefill_tokens"] == len(PROMPTS[3]), "one prefill serves the whole group, across admission waves"
    await generator.update(publish(model, tmp_path, 1))
    rollout = await generator.generate(request(PROMPTS[3], 9, 8))
    assert torch.allclose(torch.tensor(rollout.logprobs), logprobs_of(model, PROMPTS[3], rollout.token_ids), atol=1e-4)


async def test_bad_payloads_leave_the_old_version_serving(folder: Path, tmp_path: Path, engine: Callable[..., TorchGenerator]) -> None:
    generator = engine()
    sender = trainer_end(tmp_path)
    manifest = publish(adapted(folder, seed=1), tmp_path, 1)
    path = Path(manifest.handle["path"])
    path.write_bytes(path.read_bytes()[:-4] + b"\x01\x02\x03\x04")
    with pytest.raises(DigestMismatch):
        await generator.update(manifest)
    stray = {"base_model.model.model.layers.9.self_attn.q_proj.lora_A.weight": torch.zeros(4, 64)}
    with pytest.raises(EngineError, match="no place for"):
        await generator.update(sender.send(stray, 2, "adapter", ["generator/0"]))
    half = {"base_model.model.model.layers.0.mlp.up_proj.lora_A.weight": torch.zeros(4, 64)}
    with pytest.raises(EngineError, match="does not fit"):
        await generator.update(sender.send(half, 3, "adapter", ["generator/0"]))
    assert (await generator.status()).version == 0
    assert (await generator.generate(request(PROMPTS[0], new=2))).versions == [0, 0]
    await generator.update(publish(adapted(folder, seed=1), tmp_path, 5))
    with pytest.raises(EngineError, match="older version"):
        await generator.update(publish(adapted(folder, seed=1), tmp_path, 4))


async def test_stop_ids_end_a_sample_and_are_kept(engine: Callable[..., TorchGenerator]) -> None:
    generator = engine()
    free = await generator.generate(request(PROMPTS[0], new=30))
    stop = free.token_ids[7]
    ended = await generator.generate(request(PROMPTS[0], new=30, stop_ids=[stop]))
    first = free.token_ids.index(stop)
    assert ended.token_ids == free.token_ids[: first + 1] and ended.finish_reason == "stop"
    assert len(ended.logprobs) == len(ended.versions) == first + 1
    one = await generator.generate(request(PROMPTS[0], new=1))
    assert one.finish_reason == "length" and one.token_ids == free.token_ids[:1]


@pytest.mark.parametrize("determinism", ["fast", "strict"])
async def test_a_samples_tokens_do_not_depend_on_what_else_runs(engine: Callable[..., TorchGenerator], determinism: str) -> None:
    asked = [request(PROMPTS[index % 5], index, 10 + index) for index in range(10)]
    crowded_engine, lonely_engine = engine(determinism=determinism), engine(determinism=determinism, rollout={"max_running": 1})
    crowded = await asyncio.gather(*map(crowded_engine.generate, asked))
    lonely = [await lonely_engine.generate(one) for one in reversed(asked)][::-1]
    for one, other in zip(crowded, lonely, strict=True):
        assert one.token_ids == other.token_ids
        if determinism == "strict":
            assert one.logprobs == other.logprobs, "strict: bit for bit"
        else:
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
    assert len({tuple(one.token_ids[:10]) for one in crowded}) > 5, "different keys draw differently"


async def test_evaluation_goes_before_training(engine: Callable[..., TorchGenerator]) -> None:
    generator = engine(rollout={"max_running": 1})
    order: list[int] = []

    async def one(index: int, purpose: str) -> None:
        await generator.generate(request(PROMPTS[0], index, 40 if index else 400, purpose=purpose))  # the first outlasts the queueing
        order.append(index)

    await asyncio.gather(one(0, "train"), one(1, "train"), one(2, "train"), one(3, "evaluation"), one(4, "evaluation"))
    assert order.index(3) < order.index(1) and order.index(4) < order.index(1)
    assert order.index(1) < order.index(2) and order.index(3) < order.index(4)


async def test_stop_aborts_between_two_steps(engine: Callable[..., TorchGenerator]) -> None:
    generator = engine(rollout={"max_running": 2})
    tasks = [asyncio.create_task(generator.generate(request(PROMPTS[0], index, 450))) for index in range(4)]
    while generator.counters["decode_steps"] < 3:
        await asyncio.sleep(0.001)
    started = time.perf_counter()
    await generator.stop()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert time.perf_counter() - started < 5
    assert [answer.finish_reason for answer in answers[:2] if isinstance(answer, Rollout)] == ["abort", "abort"]
    assert all(answer.token_ids and len(answer.token_ids) == len(answer.logprobs) for answer in answers[:2] if isinstance(answer, Rollout))
    assert all(isinstance(answer, EngineError) and answer.retryable for answer in answers[2:])
    with pytest.raises(EngineError, match="has stopped"):
        await generator.generate(request(PROMPTS[0]))


async def test_a_cancelled_caller_frees_its_slot(engine: Callable[..., TorchGenerator]) -> None:
    generator = engine(rollout={"max_running": 1})
    first = asyncio.create_task(generator.generate(request(PROMPTS[0], 0, 490)))
    while generator.counters["decode_steps"] < 3:
        await asyncio.sleep(0.001)
    first.cancel()
    rollout = await asyncio.wait_for(generator.generate(request(PROMPTS[1], 1, 5)), 10)
    assert len(rollout.token_ids) == 5 and (await generator.status()).generated_tokens < 450


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        ({"prompt": []}, "request.prompt_ids"),
        ({"prompt": [1, 9999]}, "request.prompt_ids"),
        ({"prompt": [1], "new": 512}, "sampling.max_new_tokens"),
        ({"prompt": [1], "top_p": 0.0}, "sampling"),
    ],
)
async def test_requests_that_cannot_be_served_are_errors(engine: Callable[..., TorchGenerator], bad: dict, field: str) -> None:
    with pytest.raises(EngineError) as refused:
        await engine().generate(request(**bad))
    assert refused.value.field == field and refused.value.cure


async def test_a_fault_in_the_loop_reaches_every_caller(engine: Callable[..., TorchGenerator]) -> None:
    generator = engine(rollout={"max_running": 2})
    tasks = [asyncio.create_task(generator.generate(request(PROMPTS[0], index, 400))) for index in range(5)]
    while generator.counters["decode_steps"] < 2:
        await asyncio.sleep(0.001)
    generator._decoder.weights.norm = torch.ones(3)  # breaks the next forward pass
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert len(answers) == 5 and all(isinstance(answer, EngineError) for answer in answers)
    with pytest.raises(EngineError, match="decode loop failed"):
        await generator.generate(request(PROMPTS[0]))


async def test_an_idle_engine_uses_no_processor(engine: Callable[..., TorchGenerator]) -> None:
    generator = engine()
    await generator.generate(request(PROMPTS[0], new=2))
    used = time.process_time_ns()
    await asyncio.sleep(0.4)
    assert time.process_time_ns() - used < 0.1e9


async def test_bfloat16_stays_near_float32(folder: Path, tmp_path: Path, engine: Callable[..., TorchGenerator]) -> None:
    """Packed weights, fused additions and adapters in the fast path: within bf16 noise of the exact log-probs."""
    model = adapted(folder, seed=3, scale=0.05)
    generator = engine(dtype="bfloat16", rollout={"max_running": 8})
    await generator.update(publish(model, tmp_path, 1))
    asked = [request(PROMPTS[index % 5], index, 60) for index in range(8)]
    gaps = []
    for rollout, given in zip(await asyncio.gather(*map(generator.generate, asked)), asked, strict=True):
        gaps.append(torch.tensor(rollout.logprobs) - logprobs_of(model, given.prompt_ids, rollout.token_ids))
    gap = torch.cat(gaps)
    assert gap.abs().mean() < 0.05 and abs(gap.mean()) < 0.01


@pytest.mark.model
async def test_the_built_in_model_speaks_and_agrees_with_transformers(engine: Callable[..., TorchGenerator]) -> None:
    """SmolLM2 in bf16 through packed weights and C kernels against transformers in float32, ragged prompts."""
    folder = locate(BUILT_IN)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    asked = []
    for index, question in enumerate(["What is 3 + 4?", "Name the capital of France, please.", "Hi!", "Count from one to nine in words."]):
        text = tokenizer.apply_chat_template([{"role": "user", "content": question}], tokenize=False, add_generation_prompt=True)
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        asked += [request(ids, 2 * index + copy, 20, stop_ids=[tokenizer.eos_token_id]) for copy in range(2)]
    rollouts = await asyncio.gather(*map(engine(folder, "bfloat16", rollout={"max_running": 6}).generate, asked))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    pairs = zip(rollouts, asked, strict=True)
    gap = torch.cat([torch.tensor(done.logprobs) - logprobs_of(model, given.prompt_ids, done.token_ids) for done, given in pairs])
    assert gap.abs().mean() < 0.08 and abs(gap.mean()) < 0.03
    assert any("Paris" in tokenizer.decode(done.token_ids) for done in rollouts[2:4])
