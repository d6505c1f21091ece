"""vLLM as an engine, on CPU, against Headrace's own engine and transformers: the same door, the same numbers."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
import torch
from safetensors.torch import load_file

from tests.workers.engine_rig import (
    NAME,
    PROMPTS,
    RUN,
    Caller,
    adapted,
    base_model,
    build,
    logprobs_of,
    publish,
    request,
    send,
    spoilt,
    until,
)
from tests.workers.tiny_model import make_tiny_model, make_tiny_moe_model
from workers import registry
from workers.axes.backend.routing import recorded
from workers.axes.transport.base import Link
from workers.axes.transport.filesystem import FilesystemTransport
from workers.contract.axes import INTERRUPTS
from workers.contract.config import Lora, Replay, RunConfig
from workers.contract.errors import DigestMismatch, EngineError
from workers.records import Manifest
from workers.rollout.vllm import install
from workers.rollout.vllm.weights import Staging

LENGTH = 300
CASES = [
    pytest.param(kind, kv_after, partial, id=f"{kind}-{kv_after}-{partial}")
    for kind, (caches, partials) in INTERRUPTS.items()
    for kv_after in sorted(caches)
    for partial in sorted(partials - {"save_resume"})
    if kv_after == "keep" or kind not in ("drain", "batch")  # nothing runs there whose cache could be treated
]
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"), seed=4, hidden=128)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator:
    install.require()
    settings = RunConfig.model_validate(
        {
            "model": {"path": str(folder), "dtype": "float32"},
            "lora": {"rank": 4, "alpha": 8.0},
            "rollout": {"engine": "vllm", "max_running": 3, "threads": 1},
            "sampling": {"top_k": 3},
        }
    )
    road = FilesystemTransport(Link(RUN, tmp_path_factory.mktemp("scratch"), NAME, settings.transport))
    generator = registry.resolve("rollout", "vllm")(settings, NAME, road)
    yield generator
    await generator.stop()


async def test_greedy_tokens_equal_the_torch_engines(engine, folder: Path, tmp_path: Path) -> None:
    own, _ = build(folder, tmp_path)
    asked = [request(PROMPTS[index], index, 40, temperature=0.0) for index in range(5)]
    for ours, theirs in zip(*[await asyncio.gather(*map(one.generate, asked)) for one in (own, engine)], strict=True):
        assert (theirs.token_ids, theirs.logprobs, theirs.versions, theirs.finish_reason) == (
            ours.token_ids,
            ours.logprobs,
            ours.versions,
            ours.finish_reason,
        )
    await own.stop()


@pytest.mark.parametrize("temperature", [1.0, 0.6])
async def test_logprobs_equal_transformers(engine, folder: Path, temperature: float) -> None:
    model = base_model(folder)
    asked = [request(prompt, index, 24, temperature=temperature) for index, prompt in enumerate(PROMPTS * 2)]
    for done, given in zip(await asyncio.gather(*map(engine.generate, asked)), asked, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([given.prompt_ids + done.token_ids])).logits[0, len(given.prompt_ids) - 1 : -1]
        wanted = torch.log_softmax(logits / temperature, -1).gather(1, torch.tensor(done.token_ids).view(-1, 1)).view(-1)
        assert torch.allclose(torch.tensor(done.logprobs), wanted, atol=1e-4)


async def put(engine, model: torch.nn.Module, scratch: Path) -> int:
    """The next version, of this model's adapters."""
    version = engine._version + 1
    report = await engine.update(publish(model, scratch, version))
    assert report.version == version and report.transfer_s > 0 and report.apply_s > 0
    return version


def interrupted_by(engine, kind: str, kv_after: str) -> None:
    engine._interrupt = registry.resolve("interrupt", kind)(kv_after)


async def decoding(engine, steps: int = 5) -> None:
    target = engine._meter.steps + steps
    await until(lambda: engine._meter.steps >= target)


async def test_after_a_publish_the_new_weights_serve(engine, folder: Path, tmp_path: Path) -> None:
    """An adapter, then every weight, then the adapter again; a long prompt is in the prefix cache each time."""
    long = [7 + index % 60 for index in range(300)]
    first, second = adapted(folder, seed=1), adapted(folder, seed=2)
    whole = {name: 1.05 * tensor.detach() for name, tensor in base_model(folder).named_parameters()}
    scaled = base_model(folder)
    scaled.load_state_dict(whole, strict=False)
    for step in (first, scaled, second):
        version = engine._version + 1
        if step is scaled:
            kept, engine._staging = engine._staging, Staging(folder, Lora(kind="off"), torch.float32)
            await engine.update(send(whole, tmp_path, version, "full"))
            engine._staging = kept
            scaled.tie_weights()
        else:
            await put(engine, step, tmp_path)
        for prompt in (long, PROMPTS[1]):
            for _ in range(2):
                done = await engine.generate(request(prompt, version, 12))
                assert done.versions == [version] * 12
                assert torch.allclose(torch.tensor(done.logprobs), logprobs_of(step, prompt, done.token_ids), atol=1e-4)
    assert (await engine.status()).version == version


@pytest.mark.parametrize(("kind", "kv_after", "partial"), CASES)
async def test_every_sample_comes_through_a_weight_change(
    engine, kind: str, kv_after: str, partial: str, folder: Path, tmp_path: Path
) -> None:
    interrupted_by(engine, "forward_pass", "keep")
    old, new = adapted(folder, seed=1), adapted(folder, seed=2)
    before = await put(engine, old, tmp_path)
    interrupted_by(engine, kind, kv_after)
    caller, after = Caller(engine, partial), before + 1
    manifest = publish(new, tmp_path, after)
    tasks = [asyncio.create_task(caller.sample(request(PROMPTS[index], index, LENGTH))) for index in range(5)]
    await decoding(engine)
    await engine.update(manifest)
    done = await asyncio.gather(*tasks)
    kept = [rollout for rollout in done if rollout is not None]
    mixed = 0
    for rollout in [*kept, *caller.aborted]:
        prompt, flip = PROMPTS[rollout.index], rollout.versions.count(before)
        assert rollout.versions == [before] * flip + [after] * (len(rollout.token_ids) - flip)
        given = torch.tensor(rollout.logprobs)
        assert torch.allclose(given[:flip], logprobs_of(old, prompt, rollout.token_ids)[:flip], atol=1e-4)
        if flip == 0 or kv_after != "keep":
            assert torch.allclose(given[flip:], logprobs_of(new, prompt, rollout.token_ids)[flip:], atol=2e-4)
        mixed += 0 < flip < len(rollout.token_ids)
    assert mixed == (3 if partial in ("continue", "abort_prefix") else 0)
    assert len(kept) == (0 if partial == "none" and kind == "abort" else 5)
    assert all(len(rollout.token_ids) == LENGTH for rollout in kept)
    assert len(caller.aborted) == (5 if kind == "abort" else 0)
    if kind == "drain":
        assert sorted(rollout.versions[0] for rollout in kept) == [before] * 3 + [after] * 2


async def test_weights_that_cannot_be_used_leave_the_old_ones_serving(engine, folder: Path, tmp_path: Path) -> None:
    interrupted_by(engine, "keep", "keep")
    model = adapted(folder, seed=1)
    serving = await put(engine, model, tmp_path)
    task = asyncio.create_task(engine.generate(request(PROMPTS[0], 0, LENGTH)))
    await decoding(engine)
    with pytest.raises(DigestMismatch):
        await engine.update(spoilt(publish(adapted(folder, seed=2), tmp_path, serving + 1)))
    for tensors in ({"model.stray": torch.zeros(2)}, {"base_model.model.model.layers.0.mlp.up_proj.lora_A.weight": torch.zeros(4, 128)}):
        with pytest.raises(EngineError) as refused:
            await engine.update(send(tensors, tmp_path, serving + 2, "adapter"))
        assert refused.value.field == "transport.payload" and refused.value.cure
    done = await task
    assert done.versions == [serving] * LENGTH
    assert torch.allclose(torch.tensor(done.logprobs), logprobs_of(model, PROMPTS[0], done.token_ids), atol=1e-4)
    with pytest.raises(EngineError, match="older version"):
        await engine.update(publish(model, tmp_path, serving - 1))
    assert not list(Path("/dev/shm").glob("hr-*vllm*")), "what was loaded or refused is unlinked"


async def test_an_update_given_up_by_its_caller_releases_the_engine(engine, folder: Path, tmp_path: Path) -> None:
    interrupted_by(engine, "batch", "keep")
    serving = engine._version
    task = asyncio.create_task(engine.generate(request(PROMPTS[0], 0, LENGTH)))
    await decoding(engine)
    update = asyncio.create_task(engine.update(Manifest(serving + 1, "", 0, "adapter", "filesystem", {})))
    await asyncio.sleep(0.02)
    update.cancel()
    assert (await asyncio.wait_for(task, 20)).versions == [serving] * LENGTH
    assert (await engine.generate(request(PROMPTS[1], 1, 4))).versions == [serving] * 4


async def test_a_prefix_is_gone_on_with_and_stop_ids_end_a_sample(engine) -> None:
    asked = request(PROMPTS[1], 1, 30, temperature=0.0)
    whole = await engine.generate(asked)
    for count in (1, 17, 30):
        lists = {"prefix_ids": whole.token_ids[:count], "prefix_logprobs": [-0.5] * count, "prefix_versions": [0] * count}
        again = await engine.generate(replace(asked, **lists))
        assert (again.token_ids, again.finish_reason) == (whole.token_ids, "length")
        assert again.logprobs == [-0.5] * count + [0.0] * (30 - count) and again.versions[:count] == [0] * count
    stop = whole.token_ids[9]
    ended = await engine.generate(replace(asked, stop_ids=[stop]))
    assert ended.token_ids == whole.token_ids[: whole.token_ids.index(stop) + 1] and ended.finish_reason == "stop"
    drawn = request(PROMPTS[1], 1, 30)
    first, second, other = await asyncio.gather(*(engine.generate(one) for one in (drawn, drawn, replace(drawn, key=7))))
    assert first.token_ids == second.token_ids != other.token_ids, "a request's key seeds its stream"
    with pytest.raises(EngineError) as refused:
        await engine.generate(request([1, 9999]))
    assert refused.value.field == "request.prompt_ids"


async def test_truncated_draws_carry_the_truncated_log_probs(engine, folder: Path, tmp_path: Path) -> None:
    model = adapted(folder, seed=1)
    await put(engine, model, tmp_path)
    done = await engine.generate(request(PROMPTS[3], 0, 40, top_k=3))
    with torch.no_grad():
        logits = model(torch.tensor([PROMPTS[3] + done.token_ids])).logits[0, len(PROMPTS[3]) - 1 : -1]
    values, ids = logits.topk(3, -1)
    kept = ids == torch.tensor(done.token_ids).view(-1, 1)
    assert bool(kept.any(-1).all())
    assert torch.allclose(torch.tensor(done.logprobs), torch.log_softmax(values, -1)[kept], atol=1e-4)


async def test_a_sample_tells_which_tokens_truncation_left(engine, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its log-probs are the model's, renormalised over these: what the trainer computes. Also where an abort cuts it in two."""
    monkeypatch.setattr(engine, "_replay", Replay(sampling_mask=True))
    interrupted_by(engine, "abort", "flush")
    model = adapted(folder, seed=1)
    manifest = publish(model, tmp_path, await put(engine, model, tmp_path) + 1)  # ready before the samples start, which are short
    cuts: list[dict] = [{"top_k": 3}, {"top_k": 3, "top_p": 0.6}, {"top_k": 3, "min_p": 0.7}]
    caller = Caller(engine, "abort_prefix")
    asked = [request(PROMPTS[3], index, LENGTH, temperature=0.7, **cut) for index, cut in enumerate(cuts)]
    tasks = [asyncio.create_task(caller.sample(one)) for one in asked]
    await decoding(engine)
    await engine.update(manifest)
    done = await asyncio.gather(*tasks)
    assert len(caller.aborted) == 3
    sizes = []
    for rollout in done:
        assert rollout is not None and rollout.support is not None and len(rollout.support) == len(rollout.token_ids) == LENGTH
        with torch.no_grad():
            logits = model(torch.tensor([PROMPTS[3] + rollout.token_ids])).logits[0, len(PROMPTS[3]) - 1 : -1] / 0.7
        sizes.append({len(ids) for ids in rollout.support})
        for row, ids, token, logprob in zip(logits, rollout.support, rollout.token_ids, rollout.logprobs, strict=True):
            assert set(ids) == set(row.topk(len(ids)).indices.tolist())
            assert logprob == pytest.approx(float(torch.log_softmax(row[ids], -1)[ids.index(token)]), abs=1e-4)
    assert sizes[0] == {3} and all(min(several) < 3 and max(several) <= 3 for several in sizes[1:])
    evaluated = await engine.generate(request(PROMPTS[0], 0, 4, top_k=3, purpose="evaluation"))
    assert evaluated.support is None, "nothing of an evaluation is recorded"


async def test_evaluation_goes_first_and_a_cancelled_caller_frees_its_slot(engine) -> None:
    order: list[int] = []

    async def one(index: int, purpose: str) -> None:
        await engine.generate(request(PROMPTS[0], index, 300 if index < 3 else 10, purpose=purpose))
        order.append(index)

    running = [asyncio.create_task(one(index, "train")) for index in range(3)]
    await decoding(engine)
    waiting = [asyncio.create_task(one(3 + index, purpose)) for index, purpose in enumerate(["train", "train", "evaluation"])]
    await asyncio.sleep(0.05)
    status = await engine.status()
    assert (status.running, status.waiting, status.slots) == (3, 3, 3) and status.kv_tokens and status.rss and status.decode_steps
    waiting[0].cancel()
    running[0].cancel()
    await asyncio.gather(*running, *waiting, return_exceptions=True)
    assert order.index(5) < order.index(4) and 0 not in order and 3 not in order
    assert (await engine.status()).running == 0


def experts_of(model, ids: list[int]) -> torch.Tensor:
    """Whom transformers chooses for each of these input tokens: (positions, layers, k), sorted."""
    with torch.no_grad(), recorded(model) as seen:
        model(input_ids=torch.tensor([ids]), use_cache=False)
    return torch.stack(seen, dim=1).sort(dim=2).values


@pytest.mark.full  # a second engine, for one more family
async def test_experts_are_loaded_again_and_told(tmp_path: Path) -> None:
    """A mixture of experts, published twice; last in this file, as it starts an engine of its own beside the first."""
    folder = make_tiny_moe_model(tmp_path / "model", seed=2, hidden=128)
    blocks = {
        "model": {"path": str(folder), "dtype": "float32"},
        "lora": {"kind": "off"},
        "transport": {"payload": "full"},
        "rollout": {"engine": "vllm", "max_running": 3, "threads": 1},
        "replay": {"routing": "r3"},
    }
    settings = RunConfig.model_validate(blocks)
    generator = registry.resolve("rollout", "vllm")(settings, NAME, FilesystemTransport(Link(RUN, tmp_path, NAME, settings.transport)))
    weights, reference = load_file(folder / "model.safetensors"), base_model(folder)
    experts = [(parameter, parameter.detach().clone()) for name, parameter in reference.named_parameters() if "experts" in name]
    try:
        for version, scale in enumerate((1.0, 1.1, 0.9)):
            changed = {name: tensor * scale if "experts" in name else tensor for name, tensor in weights.items()}
            for parameter, first in experts:
                parameter.data = first * scale
            if version:
                await generator.update(send(changed, tmp_path, version, "full"))
            done = await generator.generate(request(PROMPTS[1], version, 12))
            assert done.versions == [version] * 12
            assert torch.allclose(torch.tensor(done.logprobs), logprobs_of(reference, PROMPTS[1], done.token_ids), atol=1e-4)
            several = await asyncio.gather(*(generator.generate(request(PROMPTS[index], 10 + index, 9 - 2 * index)) for index in range(4)))
            for prompt, told in ((PROMPTS[1], done), *zip(PROMPTS, several, strict=False)):
                chosen = experts_of(reference, prompt + told.token_ids[:-1])
                assert told.routing is not None
                record = torch.frombuffer(bytearray(base64.b64decode(told.routing)), dtype=torch.uint8).view(chosen.shape)
                assert torch.equal(record.sort(dim=2).values.long(), chosen)
        width = chosen.shape[1] * chosen.shape[2]
        begun = base64.b64decode(done.routing)[: (len(PROMPTS[1]) + 4) * width]
        prefix = {"prefix_ids": done.token_ids[:5], "prefix_logprobs": done.logprobs[:5], "prefix_versions": done.versions[:5]}
        longer = await generator.generate(replace(request(PROMPTS[1], 3, 12), **prefix, prefix_routing=base64.b64encode(begun).decode()))
        whole = base64.b64decode(longer.routing)
        assert whole.startswith(begun) and len(whole) == (len(PROMPTS[1]) + len(longer.token_ids) - 1) * width
    finally:
        await generator.stop()
