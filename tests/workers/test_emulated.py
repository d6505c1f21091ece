"""The emulated engine keeps the engine's promises: the table of interrupts, prefixes, versions by token, cancellation, time."""

from __future__ import annotations

import asyncio
from typing import Any, get_args

import pytest

from workers import registry
from workers.clock import VirtualClock, run_virtual
from workers.contract import axes
from workers.contract.errors import EngineError
from workers.records import Manifest, Rollout, SampleRequest
from workers.rollout.emulated import EmulatedEngine
from workers.rollout.leaps import EngineCost

COST = EngineCost(step_s=1.0, prefill_s=0.1)
PROMPT = [1, 2, 3, 4, 5]  # half a second to prefill


def engine(
    kind: str = "forward_pass", kv_after: str = "keep", slots: int = 8, parks: bool = False, transfer_s: float = 2.5
) -> EmulatedEngine:
    interrupt = registry.resolve("interrupt", kind)(kv_after)
    lengths = lambda request: request.max_new_tokens  # noqa: E731
    return EmulatedEngine(VirtualClock(), "generator/0", slots, interrupt, lengths, COST, lambda _: transfer_s, parks)


def request(index: int = 0, tokens: int = 10, group: str = "g1", **changes: Any) -> SampleRequest:
    return SampleRequest(f"{group}/{index}", group, index, PROMPT, index, tokens, 1.0, **changes)


def manifest(version: int) -> Manifest:
    return Manifest(version, f"digest-{version}", 10, "adapter", "shared_memory", {})


async def swapped(made: EmulatedEngine, requests: list[SampleRequest], at: float = 3.2) -> tuple[list[Rollout], Any, float]:
    """Runs the requests with an update announced at `at`. Also returns when the new weights served."""
    work = [asyncio.create_task(made.generate(item)) for item in requests]
    await asyncio.sleep(at)
    report = await made.update(manifest(1))
    served = asyncio.get_running_loop().time()
    return list(await asyncio.gather(*work)), report, served


def test_time_is_prefill_and_decode_steps_and_equal_prompts_share_one_prefill() -> None:
    async def main() -> None:
        made = engine(slots=2)
        first, second, third = await asyncio.gather(*(made.generate(request(index, tokens)) for index, tokens in ((0, 4), (1, 2), (2, 3))))
        # One prefill gives the first tokens; then a step each. The third takes the slot that the second left.
        assert [round(item.seconds, 6) for item in (first, second, third)] == [3.5, 1.5, 2.0]
        assert asyncio.get_running_loop().time() == pytest.approx(3.5)
        status = await made.status()
        assert (status.running, status.waiting, status.generated_tokens, made.prefilled) == (0, 0, 9, 5)

    run_virtual(main())


@pytest.mark.parametrize("kind", get_args(axes.InterruptKind))
def test_versions_of_tokens_and_pauses_by_interrupt(kind: str) -> None:
    """Ten tokens, the first at 0.5 s, one a second; announced at 3.2 s, so between the passes that end at 3.5 s."""

    async def main() -> None:
        made = engine(kind, {"retract": "recompute", "abort": "flush"}.get(kind, "keep"))
        (rollout,), report, served = await swapped(made, [request()])
        spans = [(version, rollout.versions.count(version)) for version in sorted(set(rollout.versions))]
        assert rollout.versions == sorted(rollout.versions) and len(rollout.versions) == len(rollout.token_ids) == len(rollout.logprobs)
        expected = {
            "forward_pass": ([(0, 7), (1, 3)], 0.0, 6.5),  # staged from 3.5 to 6.0 while two, three tokens go on
            "keep": ([(0, 4), (1, 6)], 2.5, 6.0),
            "retract": ([(0, 4), (1, 6)], 2.5, 6.0),
            "abort": ([(0, 4)], 2.5, 6.0),
            "drain": ([(0, 10)], 0.0, 12.0),
            "batch": ([(0, 10)], 0.0, 12.0),
        }[kind]
        assert (spans, round(report.pause_s, 6), round(served, 6)) == expected
        assert rollout.finish_reason == ("abort" if kind == "abort" else "stop")
        assert (await made.status()).version == 1

    run_virtual(main())


def test_recomputed_caches_and_retracted_samples_cost_their_prefill() -> None:
    async def main() -> None:
        for kind, kv_after in (("keep", "recompute"), ("forward_pass", "recompute"), ("retract", "recompute"), ("keep", "keep")):
            made = engine(kind, kv_after)
            _, report, _ = await swapped(made, [request()])
            drawn = {"forward_pass": 7}.get(kind, 4)
            again = 0 if kv_after == "keep" else len(PROMPT) + drawn
            assert made.prefilled == len(PROMPT) + again
            if kind == "forward_pass":
                assert report.pause_s == pytest.approx(1.2), "its pause is nothing but the prefill"

    run_virtual(main())


def test_drain_admits_nothing_until_the_new_weights_serve() -> None:
    async def main() -> None:
        rollouts, report, _ = await swapped(engine("drain", slots=1), [request(0, 4), request(1, 4)], at=1.0)
        assert [set(rollout.versions) for rollout in rollouts] == [{0}, {1}]
        assert report.pause_s == pytest.approx(2.5)

    run_virtual(main())


def test_batch_swaps_when_nothing_runs_and_nothing_waits() -> None:
    async def main() -> None:
        rollouts, _, _ = await swapped(engine("batch", slots=1), [request(0, 4), request(1, 4)], at=1.0)
        assert [set(rollout.versions) for rollout in rollouts] == [{0}, {0}]

    run_virtual(main())


@pytest.mark.parametrize("parks", [False, True])
def test_an_aborted_sample_goes_on_from_its_prefix(parks: bool) -> None:
    async def main() -> None:
        made = engine("abort", "flush", parks=parks)
        (cut,), _, _ = await swapped(made, [request()])
        before = made.prefilled
        rest = request(
            prefix_ids=cut.token_ids, prefix_logprobs=cut.logprobs, prefix_versions=cut.versions, parked_on=cut.engine if parks else ""
        )
        whole = await made.generate(rest)
        assert whole.versions == [0] * 4 + [1] * 6 and whole.finish_reason == "stop"
        assert made.prefilled - before == (0 if parks else len(PROMPT) + 4)

    run_virtual(main())


def test_waiting_and_running_samples_are_aborted_alike_but_no_evaluation() -> None:
    async def main() -> None:
        made = engine("abort", "flush", slots=1)
        held_out = request(5, 3, "p:eval:0", purpose="evaluation")
        rollouts, _, _ = await swapped(made, [request(0), request(1), held_out])
        assert [(item.finish_reason, len(item.token_ids)) for item in rollouts] == [("abort", 4), ("abort", 0), ("stop", 3)]

    run_virtual(main())


def test_a_caller_that_goes_frees_its_slot() -> None:
    async def main() -> None:
        made = engine(slots=1)
        first, second = (asyncio.create_task(made.generate(request(index))) for index in (0, 1))
        await asyncio.sleep(2.2)
        first.cancel()
        await second
        assert asyncio.get_running_loop().time() == pytest.approx(2.5 + 9)  # the pass under way ended first; the prompt was cached

    run_virtual(main())


def test_a_request_that_comes_while_the_last_token_is_drawn_is_not_forgotten() -> None:
    async def main() -> None:
        made = engine()
        first = asyncio.create_task(made.generate(request(0, 1)))
        await asyncio.sleep(0.2)
        assert len((await made.generate(request(1, 2))).token_ids) == 2
        await first

    run_virtual(main())


def test_an_older_version_is_refused_and_a_stopped_engine_answers_everybody() -> None:
    async def main() -> None:
        made = engine()
        await made.update(manifest(3))
        with pytest.raises(EngineError, match="older version"):
            await made.update(manifest(2))
        running, update = asyncio.create_task(made.generate(request())), None
        await asyncio.sleep(2.2)
        update = asyncio.create_task(made.update(manifest(4)))
        await asyncio.sleep(0.1)
        await made.stop()
        assert (await running).finish_reason == "abort"
        for late in (update, made.generate(request(1)), made.update(manifest(5))):
            with pytest.raises(EngineError, match="stopped"):
                await late

    run_virtual(main())
