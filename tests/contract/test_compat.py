"""What cannot work is refused with a cure that cures; what is pointless is said."""

from __future__ import annotations

import pytest

from workers.contract import compat, loading, presets
from workers.contract.bounds import expected_lag
from workers.contract.config import RunConfig

ONE_BATCH = 'staleness.depth_bound={"value": 1, "unit": "batches"}'
STRICT = ["determinism=strict", "model.dtype=float32", "staleness.max_lag=0", ONE_BATCH]
VLLM = "rollout.engine=vllm"


@pytest.mark.parametrize("name", presets.names())
def test_every_preset_passes(name: str) -> None:
    assert compat.check(loading.resolve(preset=name)) == []


def test_the_demo_passes_without_a_warning() -> None:
    """Published designs may hold what is pointless: verl's dual clip is on with one update a batch, too."""
    assert compat.warnings(loading.resolve(preset=presets.DEFAULT)) == []


@pytest.mark.parametrize(
    ("sets", "field"),
    [
        (["buffer.depth=7"], "buffer.depth"),
        (["batch.minibatches=3"], "batch.minibatches"),
        (['partial=["continue","continue"]'], "partial"),
        (["staleness.depth_bound.value=0.5"], "staleness.depth_bound"),
        (['staleness.depth_bound={"value": 63, "unit": "samples"}'], "staleness.depth_bound"),
        (["interrupt.kind=abort", "interrupt.kv_after=flush"], "partial"),
        (["interrupt.kind=retract"], "interrupt.kv_after"),
        (['partial=["continue","cancel_group"]', "staleness.over_limit=count_only"], "staleness.over_limit"),
        (['partial=["cancel_group"]'], "partial"),
        (["lora.kind=off"], "transport.payload"),
        (["transport.payload=delta"], "transport.payload"),
        (["orchestration.kind=asyncio", "transport.kind=object_store"], "transport.kind"),
        (["transport.kind=restart"], "interrupt.kind"),
        (["backend.ranks=2"], "backend.ranks"),
        (["backend.sharded_optimizer=true"], "backend.sharded_optimizer"),
        (["loss.policy=kimi", "loss.anchor=decoupled"], "loss.anchor"),
        (["loss.proximal=loglinear"], "loss.proximal"),
        (["rewards.on_truncated=penalise", "loss.advantage=max_rl"], "loss.advantage"),
        (["rewards.on_truncated=penalise", "rewards.overlong_tokens=24"], "rewards.overlong_tokens"),
        (["rewards.zero_variance=refill", 'loss.distillation={"teacher": "t", "replace_reward": true}'], "rewards.zero_variance"),
        (['loss.corrections=[{"hi": null, "action": "gate"}]'], "loss.corrections.0.hi"),
        (["curriculum.window_low=0.9", "curriculum.window_high=0.5"], "curriculum.window_low"),
        (["buffer.unit=sample", "buffer.depth=63"], "buffer.depth"),
        ([*STRICT[:1], *STRICT[2:]], "model.dtype"),
        (STRICT[:3], "staleness.depth_bound"),
        ([*STRICT[:2], ONE_BATCH], "staleness.max_lag"),
        ([*STRICT, "rollout.engines=2"], "rollout.engines"),
        ([*STRICT, "rollout.threads=2"], "rollout.threads"),
        ([*STRICT, "backend.threads=4"], "backend.threads"),
        ([*STRICT, "budget.wall_s=60"], "budget.wall_s"),
        ([*STRICT, VLLM], "determinism"),
        ([VLLM, "replay.sampling_mask=true", "sampling.top_p=0.9"], "replay.sampling_mask"),
        ([VLLM, "lora.moe_experts=true"], "lora.moe_experts"),
        ([VLLM, "lora.kind=off", "transport.payload=expert_shards"], "transport.payload"),
        ([VLLM, "interrupt.kind=abort", "interrupt.kv_after=flush", 'partial=["save_resume"]'], "partial"),
    ],
)
def test_what_cannot_work_is_refused(sets: list[str], field: str) -> None:
    faults = loading.problems(sets=sets)
    assert [fault.field for fault in faults] == [field]
    assert all(fault.cure for fault in faults)


@pytest.mark.parametrize(
    "sets",
    [
        STRICT,
        ["buffer.depth=8"],
        ["staleness.depth_bound.value=1"],
        ["batch.minibatches=8"],
        [VLLM, "replay.sampling_mask=true", "sampling.top_p=0.9", "sampling.top_k=50"],
        [VLLM, "replay.routing=r2"],
    ],
)
def test_the_cures_cure(sets: list[str]) -> None:
    assert loading.problems(sets=sets) == []


@pytest.mark.parametrize(
    ("sets", "field"),
    [
        (["sampling.top_k=5"], "sampling.top_k"),
        (["sampling.top_p=0.9"], "sampling.top_p"),
        (["sampling.min_p=0.1"], "sampling.min_p"),
        (["sampling.temperature=0.05"], "sampling.temperature"),
        (["environment.size=4"], "environment.size"),
        (["environment.verifier=number"], "environment.verifier"),
        (["evaluation.every_steps=0", "evaluation.at_start=false", "evaluation.at_end=false"], "evaluation.every_steps"),
        (["loss.anchor=rollout"], "loss.corrections"),
        (["loss.policy=dppo"], "loss.corrections"),
        (["replay.sampling_mask=true"], "replay.sampling_mask"),
        (["replay.routing=r2"], "replay.routing"),
        (["lora.kind=off", "transport.payload=full"], "optimizer.learning_rate"),
        (["lora.kind=merged", "transport.payload=merged_adapter"], "lora.kind"),
        (["loss.dual_clip=3"], "loss.dual_clip"),
        (["loss.ratio_cap=3", "loss.policy=cispo"], "loss.ratio_cap"),
        (["loss.cap=3"], "loss.cap"),
        (["loss.policy=kimi"], "loss.anchor"),
        (["loss.policy=gspo"], "loss.aggregation"),
        (['loss.kl={"coefficient": 0.0}'], "loss.kl"),
        (['loss.kl={"estimator": "k1"}'], "loss.kl.estimator"),
        (['loss.kl={"estimator": "k3_weighted", "where": "reward"}'], "loss.kl.estimator"),
        (["loss.policy=reinforce_is", "loss.dual_clip=3"], "loss.dual_clip"),
        (["optimizer.warmup_steps=40", "budget.steps=40"], "optimizer.warmup_steps"),
        (["sampling.max_new_tokens=4000"], "batch.micro_tokens"),
        (["buffer.depth=400", "staleness.depth_bound=null"], "staleness.max_lag"),
        (["rollout.max_running=4"], "rollout.max_running"),
        (["sync.every_steps=40", "budget.steps=40"], "sync.every_steps"),
        (["rollout.engines=2"], "transport.kind"),
        (['rollout.remote={"urls": ["http://127.0.0.1:8000"]}'], "rollout.remote"),
        (["budget.samples=1"], "budget.samples"),
        (["budget.samples=1000000000"], "budget.samples"),
        (["budget.tokens=1000000000000"], "budget.tokens"),
    ],
)
def test_what_is_pointless_is_said_and_not_refused(sets: list[str], field: str) -> None:
    assert field in {warning.field for warning in compat.warnings(loading.resolve(sets=sets))}


def test_the_lag_of_a_balanced_run_follows_from_what_waits() -> None:
    assert expected_lag(RunConfig()) == 3
    assert expected_lag(loading.resolve(sets=[ONE_BATCH])) == 0
    assert expected_lag(loading.resolve(sets=["buffer.kind=stream"])) is None
    assert expected_lag(loading.resolve(sets=["buffer.kind=none"])) == 1
