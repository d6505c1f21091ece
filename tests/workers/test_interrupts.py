"""Every interrupt, cache policy and fate of half-finished samples, in a real engine, around real weight changes."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import get_args

import pytest
import torch

from tests.workers.engine_rig import PROMPTS, Caller, Gate, adapted, base_model, build, logprobs_of, publish, request, send, spoilt, until
from tests.workers.tiny_model import make_tiny_model, make_tiny_moe_model
from workers.contract.axes import INTERRUPTS, InterruptKind
from workers.contract.errors import DigestMismatch, EngineError
from workers.records import Manifest, Rollout, SampleRequest
from workers.rollout.torch.generator import TorchGenerator

Start = Callable[..., tuple[TorchGenerator, Gate]]
KINDS = get_args(InterruptKind)
CASES = [
    pytest.param(kind, kv_after, partial, id=f"{kind}-{kv_after}-{partial}")
    for kind in KINDS
    for kv_after in sorted(INTERRUPTS[kind][0])
    for partial in sorted(INTERRUPTS[kind][1])
]
PARTIAL = {kind: sorted(INTERRUPTS[kind][1])[0] for kind in KINDS}
LENGTH = 120
STANDS_STILL = ("keep", "retract", "abort")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"), seed=4)


@pytest.fixture(scope="module")
def old(folder: Path) -> torch.nn.Module:
    return base_model(folder)


@pytest.fixture(scope="module")
def new(folder: Path) -> torch.nn.Module:
    return adapted(folder, seed=2)


@pytest.fixture
async def start(folder: Path, tmp_path: Path) -> AsyncIterator[Start]:
    started: list[TorchGenerator] = []

    def begin(kind: str, kv_after: str | None = None, partial: str | None = None, **changes: object) -> tuple[TorchGenerator, Gate]:
        interrupt = {"kind": kind, "kv_after": kv_after or sorted(INTERRUPTS[kind][0])[0]}
        generator, gate = build(folder, tmp_path, interrupt=interrupt, partial=[partial or PARTIAL[kind]], **changes)
        started.append(generator)
        return generator, gate

    yield begin
    for generator in started:
        await generator.stop()


def run(caller: Caller, count: int = 5, new_tokens: int = LENGTH, **changes: object) -> list[asyncio.Task[Rollout | None]]:
    """More samples than the three slots hold, so that some wait."""
    asked = [request(PROMPTS[index], index, new_tokens, **changes) for index in range(count)]
    return [asyncio.create_task(caller.sample(one)) for one in asked]


async def decoding(generator: TorchGenerator, steps: int = 5) -> None:
    target = generator.counters["decode_steps"] + steps
    await until(lambda: generator.counters["decode_steps"] >= target)


@pytest.mark.parametrize(("kind", "kv_after", "partial"), CASES)
async def test_every_sample_comes_through_a_weight_change(
    kind: str, kv_after: str, partial: str, start: Start, old: torch.nn.Module, new: torch.nn.Module, tmp_path: Path
) -> None:
    generator, _ = start(kind, kv_after, partial)
    caller = Caller(generator, partial)
    manifest = publish(new, tmp_path, 3)
    tasks = run(caller)
    await decoding(generator)
    report = await generator.update(manifest)
    drawn = generator.counters["generated_tokens"]
    done = await asyncio.gather(*tasks)
    assert report.version == 3 and (await generator.status()).version == 3
    assert (await generator.generate(request(PROMPTS[0], 9, 6))).versions == [3] * 6
    kept = [rollout for rollout in done if rollout is not None]
    assert len({rollout.id for rollout in kept}) == len(kept)
    for rollout in [*kept, *caller.aborted]:
        prompt = PROMPTS[rollout.index]
        assert rollout.versions == sorted(rollout.versions) and set(rollout.versions) <= {0, 3}
        assert len(rollout.token_ids) == len(rollout.logprobs) == len(rollout.versions)
        flip = rollout.versions.count(0)
        given = torch.tensor(rollout.logprobs)
        if flip:
            assert torch.allclose(given[:flip], logprobs_of(old, prompt, rollout.token_ids)[:flip], atol=1e-4)
        stale_cache = flip and (kv_after == "keep" or partial == "save_resume")
        if flip < len(given) and not stale_cache:
            assert torch.allclose(given[flip:], logprobs_of(new, prompt, rollout.token_ids)[flip:], atol=1e-4)
    mixed = [rollout for rollout in kept if set(rollout.versions) == {0, 3}]
    if partial in ("none", "recycle"):
        assert not mixed, "a sample is of one version"
    else:
        assert len(mixed) >= 3, "samples under way were taken along"
    if kind == "abort":
        assert sorted(rollout.index for rollout in caller.aborted) == [0, 1, 2, 3, 4], "running and waiting ones go back"
        assert [rollout is None for rollout in done] == [partial == "none"] * 5
    else:
        assert not caller.aborted and len(kept) == 5
    assert all(len(rollout.token_ids) == LENGTH for rollout in kept)
    if kind == "batch":
        assert all(rollout.versions == [0] * LENGTH for rollout in kept) and drawn == 5 * LENGTH
    if kind == "drain":
        assert sorted(rollout.versions[0] for rollout in kept) == [0, 0, 0, 3, 3]


@pytest.mark.parametrize(
    ("kind", "kv_after", "partial"),
    [*((kind, "recompute", "continue") for kind in ("forward_pass", "keep", "retract")), ("abort", "flush", "abort_prefix")],
)
@pytest.mark.parametrize("settings", [{"temperature": 0.0}, {"temperature": 1.0}], ids=["greedy", "drawn"])
async def test_a_sample_goes_on_as_if_its_tokens_had_been_its_prompt(
    kind: str, kv_after: str, partial: str, settings: dict, start: Start, new: torch.nn.Module, tmp_path: Path
) -> None:
    """A fresh prefill under the new weights draws the same tokens: neither cache nor random stream remembers the change."""
    generator, _ = start(kind, kv_after, partial)
    caller = Caller(generator, partial)
    manifest = publish(new, tmp_path, 1)
    tasks = run(caller, 3, **settings)
    await decoding(generator)
    await generator.update(manifest)
    done = await asyncio.gather(*tasks)
    fresh, _ = start("forward_pass", "keep", "continue")
    await fresh.update(manifest)
    for rollout in done:
        assert rollout is not None
        flip = rollout.versions.count(0)
        assert 0 < flip < LENGTH
        lists = {"prefix_ids": rollout.token_ids[:flip], "prefix_logprobs": rollout.logprobs[:flip], "prefix_versions": [0] * flip}
        again = await fresh.generate(request(PROMPTS[rollout.index], rollout.index, LENGTH, **lists, **settings))
        assert (again.token_ids, again.versions) == (rollout.token_ids, rollout.versions)
        assert again.logprobs == pytest.approx(rollout.logprobs, abs=1e-4)


async def test_a_parked_sample_goes_on_without_prefill(start: Start, folder: Path, tmp_path: Path) -> None:
    """With unchanged weights, as if nothing had happened."""
    undisturbed, _ = start("forward_pass")
    wanted = await asyncio.gather(*(undisturbed.generate(request(PROMPTS[index], index, LENGTH)) for index in range(3)))
    generator, _ = start("abort", "flush", "save_resume")
    manifest = publish(adapted(folder, 1, scale=0.0), tmp_path, 1)
    tasks = run(Caller(generator, "save_resume"), 3)
    await decoding(generator)
    prefilled = generator.counters["prefill_tokens"]
    await generator.update(manifest)
    done = await asyncio.gather(*tasks)
    assert generator.counters["prefill_tokens"] == prefilled and generator.counters["unparked"] == 3
    for rollout, other in zip(done, wanted, strict=True):
        assert rollout is not None and set(rollout.versions) == {0, 1}
        assert rollout.token_ids == other.token_ids and rollout.logprobs == pytest.approx(other.logprobs, abs=1e-5)
    parked = generator._decoder.parked
    assert parked is not None and len(parked) == 0, "what was taken up is not kept"


@pytest.mark.parametrize("change", ["engine", "tokens"])
async def test_what_was_not_parked_here_is_prefilled(change: str, start: Start, new: torch.nn.Module, tmp_path: Path) -> None:
    generator, _ = start("abort", "flush", "save_resume")
    asked = request(PROMPTS[1], 1, LENGTH)
    manifest = publish(new, tmp_path, 1)
    task = asyncio.create_task(generator.generate(asked))
    await decoding(generator)
    await generator.update(manifest)
    part = await task
    assert part.finish_reason == "abort"
    count = len(part.token_ids) - (2 if change == "tokens" else 0)
    lists = {"prefix_ids": part.token_ids[:count], "prefix_logprobs": part.logprobs[:count], "prefix_versions": part.versions[:count]}
    parked_on = "generator/7" if change == "engine" else part.engine
    whole = await generator.generate(replace(asked, **lists, parked_on=parked_on))
    assert generator.counters["unparked"] == 0 and whole.versions == [0] * count + [1] * (LENGTH - count)
    assert torch.allclose(torch.tensor(whole.logprobs)[count:], logprobs_of(new, PROMPTS[1], whole.token_ids)[count:], atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
async def test_weights_that_cannot_be_used_leave_the_old_ones_serving(
    kind: str, start: Start, new: torch.nn.Module, tmp_path: Path
) -> None:
    generator, _ = start(kind)
    caller = Caller(generator, PARTIAL[kind])
    torn = spoilt(publish(new, tmp_path, 1))
    tasks = run(caller)
    await decoding(generator)
    with pytest.raises(DigestMismatch):
        await generator.update(torn)
    with pytest.raises(EngineError, match="no place for"):
        await generator.update(send({"model.stray": torch.zeros(2)}, tmp_path, 2, "adapter"))
    done = await asyncio.wait_for(asyncio.gather(*tasks), 20)
    kept = [rollout for rollout in done if rollout is not None]
    assert all(rollout.versions == [0] * LENGTH for rollout in kept) and (kept or kind == "abort")
    assert (await generator.status()).version == 0
    assert (await generator.update(publish(new, tmp_path, 3))).version == 3
    assert (await generator.generate(request(PROMPTS[0], 9, 4))).versions == [3] * 4


@pytest.mark.parametrize("kind", KINDS)
async def test_the_pause_is_the_extra_gap_between_two_decode_steps(kind: str, start: Start, new: torch.nn.Module, tmp_path: Path) -> None:
    """The weights take 0.25 s to come."""
    generator, gate = start(kind)
    manifest = publish(new, tmp_path, 1)
    tasks = run(Caller(generator, PARTIAL[kind]), 3, 400 if kind == "forward_pass" else LENGTH)
    await decoding(generator)
    gate.opened.clear()
    update = asyncio.create_task(generator.update(manifest))
    await until(gate.entered.is_set)
    if kind != "forward_pass":
        before = generator.counters["decode_steps"]
        await asyncio.sleep(0.25)
        assert generator.counters["decode_steps"] == before, "nothing is decoded under weights known to be old"
    else:
        await decoding(generator, 20)
    gate.opened.set()
    report = await update
    await asyncio.gather(*tasks)
    assert report.pause_s <= report.transfer_s + report.apply_s + 0.1
    assert report.pause_s >= 0.25 if kind != "forward_pass" else 0 < report.pause_s < 0.1


@pytest.mark.parametrize("kind", KINDS)
async def test_an_engine_without_work_does_not_pause_until_some_comes(
    kind: str, start: Start, new: torch.nn.Module, tmp_path: Path
) -> None:
    generator, gate = start(kind)
    assert (await generator.update(publish(new, tmp_path, 1))).pause_s == 0
    gate.opened.clear()
    gate.entered.clear()
    update = asyncio.create_task(generator.update(publish(new, tmp_path, 2)))
    await until(gate.entered.is_set)
    await asyncio.sleep(0.15)
    task = asyncio.create_task(generator.generate(request(PROMPTS[0], 0, 8)))
    await asyncio.sleep(0.05)
    assert task.done() == (kind == "forward_pass")
    gate.opened.set()
    report, rollout = await asyncio.gather(update, task)
    assert rollout.versions == [1 if kind == "forward_pass" else 2] * 8
    assert report.pause_s == 0 if kind == "forward_pass" else 0.04 < report.pause_s < report.transfer_s - 0.1


@pytest.mark.parametrize("kind", STANDS_STILL)
async def test_who_is_cancelled_while_decoding_stands_still_leaves_at_once(
    kind: str, start: Start, new: torch.nn.Module, tmp_path: Path
) -> None:
    generator, gate = start(kind)
    manifest = publish(new, tmp_path, 1)
    tasks = run(Caller(generator, "abort_prefix"))
    await decoding(generator)
    gate.opened.clear()
    update = asyncio.create_task(generator.update(manifest))
    await until(gate.entered.is_set)
    await until(lambda: generator._loop.running + generator._loop.waiting == 5)
    for task in (tasks[1], tasks[4]):
        task.cancel()
    await until(lambda: generator._loop.running + generator._loop.waiting == 3)
    assert not update.done()
    gate.opened.set()
    await update
    assert [type(answer) for answer in await asyncio.gather(*tasks, return_exceptions=True)] == [
        asyncio.CancelledError if index in (1, 4) else Rollout for index in range(5)
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("end", ["stop", "failure"])
async def test_an_engine_that_ends_during_an_update_answers_everyone(
    kind: str, end: str, start: Start, new: torch.nn.Module, tmp_path: Path
) -> None:
    generator, gate = start(kind)
    manifest = publish(new, tmp_path, 1)
    tasks = [asyncio.create_task(generator.generate(request(PROMPTS[index], index, 400))) for index in range(5)]
    await decoding(generator)
    gate.opened.clear()
    update = asyncio.create_task(generator.update(manifest))
    await asyncio.sleep(0.02)
    if end == "failure":
        generator._decoder.weights.norm = torch.ones(3)  # breaks the next forward pass
        if kind in STANDS_STILL:  # it comes after the flip
            gate.opened.set()
            await asyncio.sleep(0.1)
            tasks.append(asyncio.create_task(generator.generate(request(PROMPTS[0], 9, 4))))
    else:
        await generator.stop()
    answers = await asyncio.wait_for(asyncio.gather(*tasks, update, return_exceptions=True), 5)
    gate.opened.set()
    assert all(isinstance(answer, EngineError | Rollout) or kind in STANDS_STILL for answer in answers)
    assert end == "failure" or isinstance(answers[-1], EngineError)
    with pytest.raises(EngineError):
        await generator.update(publish(new, tmp_path, 2))


@pytest.mark.parametrize("kind", KINDS)
async def test_an_update_given_up_by_its_caller_releases_the_engine(kind: str, start: Start, new: torch.nn.Module, tmp_path: Path) -> None:
    generator, gate = start(kind)
    manifest = publish(new, tmp_path, 1)
    tasks = run(Caller(generator, PARTIAL[kind]))
    await decoding(generator)
    gate.opened.clear()
    update = asyncio.create_task(generator.update(manifest))
    await asyncio.sleep(0.02)
    update.cancel()
    await asyncio.wait_for(asyncio.gather(*tasks), 10)
    gate.opened.set()
    assert (await generator.status()).version == 0
    assert (await asyncio.wait_for(generator.update(publish(new, tmp_path, 2)), 10)).version == 2


@pytest.mark.parametrize("kind", KINDS)
async def test_updates_follow_one_another(kind: str, start: Start, new: torch.nn.Module, tmp_path: Path) -> None:
    generator, _ = start(kind)
    caller = Caller(generator, PARTIAL[kind])
    manifests: list[Manifest] = [publish(new, tmp_path, version) for version in (1, 2, 3)]
    tasks = run(caller)
    await decoding(generator)
    reports = await asyncio.gather(*map(generator.update, manifests))
    assert [report.version for report in reports] == [1, 2, 3]
    for rollout in await asyncio.gather(*tasks):
        assert rollout is None or all(first <= second for first, second in pairwise(rollout.versions))


def prefixed(asked: SampleRequest, rollout: Rollout, count: int) -> SampleRequest:
    lists = (rollout.token_ids[:count], rollout.logprobs[:count], rollout.versions[:count])
    return replace(asked, prefix_ids=lists[0], prefix_logprobs=lists[1], prefix_versions=lists[2])


@pytest.mark.parametrize("determinism", ["fast", "strict"])
async def test_a_prefix_is_gone_on_with(determinism: str, start: Start) -> None:
    generator, _ = start("forward_pass", determinism=determinism)
    asked = request(PROMPTS[1], 1, 30)
    whole = await generator.generate(asked)
    for count in (1, 17, 29):
        again = await generator.generate(prefixed(asked, whole, count))
        assert (again.token_ids, again.versions, again.finish_reason) == (whole.token_ids, whole.versions, "length")
        assert again.logprobs[:count] == whole.logprobs[:count] and again.logprobs == pytest.approx(whole.logprobs, abs=1e-4)


async def test_a_complete_prefix_returns_at_once_and_a_wrong_one_is_refused(start: Start) -> None:
    generator, _ = start("forward_pass")
    asked = request(PROMPTS[1], 1, 30)
    whole = await generator.generate(asked)
    steps = generator.counters["generated_tokens"]
    for one, reason in ((asked, "length"), (replace(asked, max_new_tokens=99, stop_ids=whole.token_ids[-1:]), "stop")):
        done = await generator.generate(prefixed(one, whole, 30))
        assert (done.token_ids, done.logprobs, done.finish_reason, done.seconds) == (whole.token_ids, whole.logprobs, reason, 0)
    assert generator.counters["generated_tokens"] == steps
    wrong = (
        prefixed(replace(asked, max_new_tokens=20), whole, 30),
        replace(prefixed(asked, whole, 9), prefix_versions=[0]),
        replace(prefixed(asked, whole, 1), prefix_ids=[99999]),
    )
    for one in wrong:
        with pytest.raises(EngineError) as refused:
            await generator.generate(one)
        assert refused.value.field == "request.prefix_ids" and refused.value.cure


async def test_an_engine_that_stands_still_uses_no_processor(start: Start, new: torch.nn.Module, tmp_path: Path) -> None:
    generator, gate = start("keep")
    manifest = publish(new, tmp_path, 1)
    tasks = run(Caller(generator, "continue"))
    await decoding(generator)
    gate.opened.clear()
    update = asyncio.create_task(generator.update(manifest))
    await until(gate.entered.is_set)
    used = time.process_time_ns()
    await asyncio.sleep(0.3)
    assert time.process_time_ns() - used < 0.1e9
    gate.opened.set()
    await asyncio.gather(update, *tasks)


@pytest.mark.parametrize(("kind", "kv_after", "partial"), [case for case in CASES if case.values[2] != "none"])
async def test_what_training_replays_is_whole_after_a_weight_change(
    kind: str, kv_after: str, partial: str, start: Start, tmp_path: Path
) -> None:
    """A mixture of experts with truncated sampling: ids left by token, experts chosen by position, without a hole."""
    sparse = make_tiny_moe_model(tmp_path / "sparse", seed=3)
    replay = {"routing": "r3", "sampling_mask": True}
    generator, _ = start(
        kind, kv_after, partial, model={"path": str(sparse)}, replay=replay, lora={"kind": "off"}, transport={"payload": "full"}
    )
    model = base_model(sparse)
    layers, chosen = model.config.num_hidden_layers, model.config.num_experts_per_tok
    manifest = send({name: 1.1 * parameter.detach() for name, parameter in model.named_parameters()}, tmp_path, 1, "full")
    tasks = run(Caller(generator, partial), new_tokens=80, top_k=5)
    await decoding(generator)
    await generator.update(manifest)
    versions = set()
    for rollout in await asyncio.gather(*tasks):
        assert rollout is not None and rollout.support is not None and rollout.routing is not None
        assert len(rollout.support) == len(rollout.token_ids) == 80
        assert all(token in left and len(left) == 5 for token, left in zip(rollout.token_ids, rollout.support, strict=True))
        assert len(base64.b64decode(rollout.routing)) == (len(PROMPTS[rollout.index]) + 79) * layers * chosen
        versions |= set(rollout.versions)
    assert 1 in versions
