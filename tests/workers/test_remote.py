"""A server of vLLM or SGLang as an engine: the same door, exact versions, and no answer believed that cannot be true."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import pytest_asyncio
import torch

from tests.workers.engine_rig import (
    PROMPTS,
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
from tests.workers.remote_double import Double, serving
from tests.workers.remote_rig import engine, remote, scaled
from tests.workers.tiny_model import make_tiny_model
from workers.contract.errors import DigestMismatch, EngineError
from workers.rollout.remote import calls

LENGTH = 450
FLAVOURS = ("vllm", "sglang")
CHANGES = [("abort", "flush", "abort_prefix"), ("abort", "flush", "none"), ("retract", "recompute", "continue"), ("drain", "keep", "none")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"), seed=4)


@pytest_asyncio.fixture(params=FLAVOURS)
async def rig(request: pytest.FixtureRequest, folder: Path, tmp_path: Path) -> AsyncIterator[SimpleNamespace]:
    async with serving(Double(request.param, folder, tmp_path / "double")) as double:
        own = await asyncio.to_thread(engine, double.url, folder, tmp_path)
        yield SimpleNamespace(double=double, engine=own, scratch=tmp_path, folder=folder)
        await own.stop()


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Waits between two tries are noted and left out."""
    noted: list[float] = []
    real = asyncio.sleep

    async def sleep(seconds: float) -> None:
        noted.append(seconds)
        await real(0)

    monkeypatch.setattr(calls, "asyncio", SimpleNamespace(sleep=sleep, timeout=asyncio.timeout))
    return noted


async def test_samples_are_the_servers_and_versions_ours(rig) -> None:
    own, _ = build(rig.folder, rig.scratch / "own")
    asked = [request(PROMPTS[index], index, 40, temperature=0.0) for index in range(5)]
    ours, theirs = [await asyncio.gather(*map(one.generate, asked)) for one in (own, rig.engine)]
    assert [one.token_ids for one in theirs] == [one.token_ids for one in ours]
    assert all((one.versions, one.logprobs, one.finish_reason) == ([0] * 40, [0.0] * 40, "length") for one in theirs)
    await own.stop()
    model = base_model(rig.folder)
    for temperature in (1.0, 0.6):
        asked = [request(prompt, index, 12, temperature=temperature) for index, prompt in enumerate(PROMPTS)]
        for done, given in zip(await asyncio.gather(*map(rig.engine.generate, asked)), asked, strict=True):
            with torch.no_grad():
                logits = model(torch.tensor([given.prompt_ids + done.token_ids])).logits[0, len(given.prompt_ids) - 1 : -1]
            wanted = torch.log_softmax(logits / temperature, -1).gather(1, torch.tensor(done.token_ids).view(-1, 1)).view(-1)
            assert torch.allclose(torch.tensor(done.logprobs), wanted, atol=1e-4)
    status = await rig.engine.status()
    assert status.generated_tokens == 320 and status.decode_s > 0 and (status.running, status.waiting) == (0, 0)


@pytest.mark.parametrize(("kind", "kv_after", "partial"), CHANGES)
@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("payload", ["adapter", "full"])
async def test_every_token_is_of_its_version(
    flavour: str, payload: str, kind: str, kv_after: str, partial: str, folder: Path, tmp_path: Path
) -> None:
    lora = "adapter_only" if payload == "adapter" else "off"
    old, new = (adapted(folder, seed=seed) if payload == "adapter" else scaled(folder, factor) for seed, factor in ((1, 1.05), (2, 0.9)))

    def handed(model: torch.nn.Module, version: int):
        if payload == "adapter":
            return publish(model, tmp_path, version)
        return send({name: tensor.detach() for name, tensor in model.named_parameters()}, tmp_path, version, "full")

    blocks = {"interrupt": {"kind": kind, "kv_after": kv_after}, "partial": [partial], "lora": {"kind": lora}}
    async with serving(Double(flavour, folder, tmp_path / "double", lora)) as double:
        own = await asyncio.to_thread(lambda: engine(double.url, folder, tmp_path, transport={"payload": payload}, **blocks))
        await own.update(handed(old, 1))
        caller = Caller(own, partial)
        double.together = asyncio.Barrier(3)
        tasks = [asyncio.create_task(caller.sample(request(PROMPTS[index], index, LENGTH))) for index in range(5)]
        await until(lambda: double.decoding(3))
        double.together = asyncio.Barrier(1)
        report = await own.update(handed(new, 2))
        assert report.version == 2 and report.pause_s >= report.apply_s > 0 and report.transfer_s > 0
        done = await asyncio.gather(*tasks)
        kept = [rollout for rollout in done if rollout is not None]
        mixed = 0
        for rollout in [*kept, *caller.aborted]:
            flip = rollout.versions.count(1)
            assert rollout.versions == [1] * flip + [2] * (len(rollout.token_ids) - flip)
            given = torch.tensor(rollout.logprobs)
            for model, part in ((old, slice(0, flip)), (new, slice(flip, None))):
                assert torch.allclose(given[part], logprobs_of(model, PROMPTS[rollout.index], rollout.token_ids)[part], atol=2e-4)
            mixed += 0 < flip < len(rollout.token_ids)
        assert mixed == (3 if partial in ("continue", "abort_prefix") else 0)
        assert len(kept) == (0 if kind == "abort" and partial == "none" else 5)
        assert all(len(rollout.token_ids) == LENGTH for rollout in kept)
        assert len(caller.aborted) == (5 if kind == "abort" else 0)
        assert (await own.status()).version == 2 and not own.failures
        await own.stop()
        assert not list((tmp_path / "weights").glob("served-*/*")), "what was laid out for the server is gone"


@pytest.mark.parametrize("flavour", FLAVOURS)
async def test_the_next_run_on_a_server_begins_with_the_models_own_weights(flavour: str, folder: Path, tmp_path: Path) -> None:
    model = base_model(folder)
    async with serving(Double(flavour, folder, tmp_path / "double", "off")) as double:

        async def run() -> object:
            return await asyncio.to_thread(
                lambda: engine(double.url, folder, tmp_path, transport={"payload": "full"}, lora={"kind": "off"})
            )

        first = await run()
        await first.update(send({name: tensor.detach() for name, tensor in scaled(folder, 0.9).named_parameters()}, tmp_path, 1, "full"))
        await first.stop()
        second = await run()
        done = await second.generate(request(PROMPTS[1], 0, 12))
        assert done.versions == [0] * 12
        assert torch.allclose(torch.tensor(done.logprobs), logprobs_of(model, PROMPTS[1], done.token_ids), atol=2e-4)
        await second.stop()


@pytest.mark.parametrize("fault", ["500", "429", "cut", "slow"])
async def test_what_may_pass_is_tried_again_and_counted(rig, fault: str, waits: list[float]) -> None:
    if fault == "slow":
        await rig.engine.stop()
        rig.engine = await asyncio.to_thread(
            lambda: engine(rig.double.url, rig.folder, rig.scratch, rollout=remote(rig.double.url, timeout_s=1.2))
        )
    rig.double.faults.extend([fault, fault])
    done = await rig.engine.generate(request(PROMPTS[0], 0, 10))
    assert len(done.token_ids) == 10
    cause = {"cut": "connection", "slow": "timeout"}.get(fault, f"http_{fault}")
    assert rig.engine.failures == {cause: 2} and (await rig.engine.status()).failed_calls == 2
    assert len(waits) == 2 and (waits == [7.0, 7.0] if fault == "429" else 0 < waits[0] < waits[1] <= 0.5)
    rig.double.faults.extend([fault] * 3)
    with pytest.raises(EngineError, match=r"after 3 tries") as failed:
        await rig.engine.generate(request(PROMPTS[0], 0, 10))
    assert failed.value.retryable and failed.value.cure and (await rig.engine.status()).running == 0
    assert len((await rig.engine.generate(request(PROMPTS[0], 0, 10))).token_ids) == 10


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("html", "no_json"),
        ("huge", "too_long"),
        ("401", "http_401"),
        ("count", "bad_count"),
        ("vocabulary", "bad_vocabulary"),
        ("nan", "no_json"),
        ("infinite", "bad_logprob"),
        ("positive", "bad_logprob"),
        ("reason", "bad_reason"),
        ("early", "bad_reason"),
        ("shape", "bad_shape"),
    ],
)
async def test_an_answer_that_cannot_be_true_is_a_counted_failure_and_no_sample(rig, fault: str, cause: str) -> None:
    rig.double.faults.append(fault)
    with pytest.raises(EngineError, match=cause) as failed:
        await rig.engine.generate(request(PROMPTS[0], 0, 10))
    assert failed.value.field == "rollout.remote.urls" and failed.value.value == rig.double.url
    assert sum(rig.engine.failures.values()) == 1, "it is not asked again: the same would come"
    assert (await rig.engine.generate(request(PROMPTS[0], 0, 10))).versions == [0] * 10


async def test_a_prefix_is_gone_on_with_and_stop_ids_end_a_sample(rig) -> None:
    asked = request(PROMPTS[1], 1, 30, temperature=0.0)
    whole = await rig.engine.generate(asked)
    for count in (1, 17, 30):
        lists = {"prefix_ids": whole.token_ids[:count], "prefix_logprobs": [-0.5] * count, "prefix_versions": [0] * count}
        again = await rig.engine.generate(replace(asked, **lists))
        assert again.token_ids == whole.token_ids and again.logprobs == [-0.5] * count + [0.0] * (30 - count)
    stop = whole.token_ids[9]
    ended = await rig.engine.generate(replace(asked, stop_ids=[stop]))
    assert ended.token_ids == whole.token_ids[: whole.token_ids.index(stop) + 1] and ended.finish_reason == "stop"
    with pytest.raises(EngineError) as refused:
        await rig.engine.generate(request([1, 9999]))
    assert refused.value.field == "request.prompt_ids"


async def test_evaluation_goes_first_and_the_server_is_told_who_left(rig) -> None:
    order: list[int] = []

    async def one(index: int, purpose: str) -> None:
        await rig.engine.generate(request(PROMPTS[0], index, 300 if index < 3 else 10, purpose=purpose))
        order.append(index)

    running = [asyncio.create_task(one(index, "train")) for index in range(3)]
    await until(lambda: len(rig.double.samples) == 3)
    waiting = [asyncio.create_task(one(3 + index, purpose)) for index, purpose in enumerate(["train", "evaluation"])]
    await asyncio.sleep(0)
    status = await rig.engine.status()
    assert (status.running, status.waiting, status.slots) == (3, 2, 3)
    running[0].cancel()
    await asyncio.gather(*running, *waiting, return_exceptions=True)
    assert order.index(4) < order.index(3) and 0 not in order and rig.double.given_up == 1


async def test_weights_that_cannot_be_used_leave_the_old_ones_serving(rig) -> None:
    model = adapted(rig.folder, seed=1)
    await rig.engine.update(publish(model, rig.scratch, 1))
    task = asyncio.create_task(rig.engine.generate(request(PROMPTS[0], 0, LENGTH)))
    await until(lambda: len(rig.double.samples) == 1)
    with pytest.raises(DigestMismatch):
        await rig.engine.update(spoilt(publish(adapted(rig.folder, seed=2), rig.scratch, 2)))
    with pytest.raises(EngineError) as refused:
        await rig.engine.update(send({"model.stray": torch.zeros(2)}, rig.scratch, 3, "full"))
    assert refused.value.field == "transport.payload"
    done = await task
    assert done.versions == [1] * LENGTH
    assert torch.allclose(torch.tensor(done.logprobs), logprobs_of(model, PROMPTS[0], done.token_ids), atol=1e-4)
    with pytest.raises(EngineError, match="older version"):
        await rig.engine.update(publish(model, rig.scratch, 0))


async def test_a_server_whose_weights_nobody_knows_is_lost(rig) -> None:
    """After a load that it failed; and after a restart, which brings the first weights back."""
    waiting = [asyncio.create_task(rig.engine.generate(request(PROMPTS[0], index, 200))) for index in range(5)]
    await until(lambda: len(rig.double.samples) == 3)
    rig.double.refuses_weights = True
    with pytest.raises(EngineError):
        await rig.engine.update(publish(adapted(rig.folder, seed=1), rig.scratch, 1))
    assert all(isinstance(answer, EngineError) for answer in await asyncio.gather(*waiting, return_exceptions=True))
    for call in (rig.engine.status(), rig.engine.generate(request(PROMPTS[0]))):
        with pytest.raises(EngineError):
            await call
    rig.double.refuses_weights = False
    other = await asyncio.to_thread(engine, rig.double.url, rig.folder, rig.scratch)
    assert (await other.generate(request(PROMPTS[0], 0, 4))).versions == [0] * 4
    rig.double.label = "default"
    with pytest.raises(EngineError, match=r"not (of )?version 0 of this run"):
        await other.generate(request(PROMPTS[0], 0, 4))
    with pytest.raises(EngineError, match=r"not (of )?version 0 of this run"):
        await other.status()
    await other.stop()


async def test_a_silent_restart_is_found_by_the_look_at_its_health(rig) -> None:
    await rig.engine.status()
    rig.double.label = "default"
    await rig.engine.status()  # not yet time
    rig.engine._looked_at = -1e9
    with pytest.raises(EngineError, match="'default'"):
        await rig.engine.status()


async def test_the_end_gives_samples_back_and_leaves_the_server_free(rig) -> None:
    tasks = [asyncio.create_task(rig.engine.generate(request(PROMPTS[0], index, 300))) for index in range(4)]
    await until(lambda: len(rig.double.samples) == 3)
    await rig.engine.stop()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(answer, EngineError) and answer.retryable for answer in answers)
    await until(lambda: rig.double.given_up == 3)


async def test_the_token_goes_to_the_server_and_nowhere_else(rig, monkeypatch, capfd, tmp_path: Path) -> None:
    (tmp_path / "tokens").mkdir()
    (tmp_path / "tokens" / "east").write_text("s3cret-word\n")
    monkeypatch.setenv("HEADRACE_ENGINE_TOKENS", str(tmp_path / "tokens"))
    own = await asyncio.to_thread(lambda: engine(rig.double.url, rig.folder, tmp_path, rollout=remote(rig.double.url, token="east")))
    rig.double.headers.clear()
    rig.double.faults.append("401")
    with pytest.raises(EngineError) as refused:
        await own.generate(request(PROMPTS[0], 0, 4))
    assert {one["authorization"] for one in rig.double.headers} == {"Bearer s3cret-word"}
    assert "s3cret-word" not in f"{refused.value}{refused.value.as_dict()}{capfd.readouterr()}"
    await own.stop()


async def test_a_server_that_would_do_otherwise_is_refused_at_the_start(rig, tmp_path: Path) -> None:
    def start(**changes: object):
        return asyncio.to_thread(lambda: engine(rig.double.url, rig.folder, tmp_path, **changes))

    rig.double.raw = True
    with pytest.raises(EngineError, match=r"log-probs of"):
        await start(sampling={"top_k": 5})
    if rig.double.flavour == "vllm":
        with pytest.raises(EngineError, match="log-probs of"):
            await start(sampling={"temperature": 0.7})
        rig.double.device = "cpu"
        with pytest.raises(EngineError, match="tied"):
            await start(lora={"kind": "merged"}, transport={"payload": "merged_adapter"})
        rig.double.adapters = False
        with pytest.raises(EngineError, match="without --enable-lora"):
            await start()
    other = "sglang" if rig.double.flavour == "vllm" else "vllm"
    with pytest.raises(EngineError, match="http_404"):
        await start(rollout=remote(rig.double.url, flavour=other))
    rig.double.flavour, rig.double.owner = "vllm", "somebody"
    with pytest.raises(EngineError, match="'somebody'"):
        await start()
