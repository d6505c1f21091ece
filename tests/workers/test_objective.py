"""The loss block on a micro-batch: the order of its terms, what they read, and what stays out of them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.workers.learn_rig import F64, row, tensor
from workers.axes.backend.layout import Item, MicroBatch, build, rows_of
from workers.axes.backend.objective import Known, Objective, Share
from workers.axes.backend.prepare import prepare
from workers.contract.config import RunConfig
from workers.contract.errors import EngineError
from workers.learn.aggregation import token_weights
from workers.records import Batch, Group, Prompt, Rollout, Sample


def config(**loss: Any) -> RunConfig:
    return RunConfig.model_validate({"loss": {"corrections": [], "aggregation": "token_sum", **loss}})


def micro_of(rollout: list[list[float]], advantages: list[float]) -> MicroBatch:
    items = [Item(str(k), k, [7, 8], [9] * len(some), some, advantages[k]) for k, some in enumerate(rollout)]
    return build(rows_of(items, 1000), 0)


def share_of(loss: dict[str, Any], new: Tensor, rollout: list[list[float]], advantages: list[float], **known: Any) -> Share:
    micro = micro_of(rollout, advantages)
    settings = config(**loss)
    lengths = micro.mask.sum(1)
    weights = token_weights(lengths, torch.zeros_like(lengths), settings.loss.aggregation, 24)
    divergence = known.pop("divergence", None)
    given = Known(**{"old": new.detach(), **known})
    return Objective(settings).loss(micro, new, given, weights, divergence)


def test_corrections_multiply_the_policy_s_loss_in_order_and_nothing_else() -> None:
    # w = 3, 0.4; ratio 1, A = 2: the policy's loss is -2 a token. TIS cuts 3 to 2; the gate then takes out 0.4.
    new = row(0.0, 0.0).requires_grad_()
    rollout = [[-math.log(3), -math.log(0.4)]]
    gate = {"lo": 0.5, "hi": None, "action": "gate"}
    share = share_of({"corrections": [{}, gate], "log_ratio_penalty": 0.1}, new, rollout, [2.0])
    penalty = 0.1 * (math.log(3) ** 2 + math.log(0.4) ** 2)  # on the rejected token, too
    assert float(share.loss.detach()) == pytest.approx(-2 * 2 + penalty)
    assert (share.rejected, share.clipped) == (1, 0)
    share.loss.backward()
    torch.testing.assert_close(new.grad, row(-4 + 0.2 * math.log(3), 0.2 * math.log(0.4)))


@pytest.mark.parametrize(
    ("denominator", "expected"), [("original", -3 / 3 + 0.5 * (1 + 4 + 9) / 3), ("survivors", -3 / 2 + 0.5 * (1 + 4) / 2)]
)
def test_who_leaves_the_denominator_leaves_every_term(denominator: str, expected: float) -> None:
    """Weights 1, 2 and 50, the last one rejected; KL k2 with coefficient 1 of log-ratios 1, 2, 3 to the reference."""
    new = row(-1.0, -1.0, -1.0)
    rollout = [[-1.0, -1 - math.log(2), -1 - math.log(50)]]
    loss = {
        "aggregation": "token_mean",
        "corrections": [{"hi": 5.0, "action": "mask", "denominator": denominator}],
        "kl": {"estimator": "k2", "coefficient": 1.0},
    }
    settings, micro = config(**loss), micro_of(rollout, [1.0])
    objective = Objective(settings)
    known = Known(old=new, reference=row(-2.0, -3.0, -4.0))
    assert objective.counts_survivors == (denominator == "survivors")
    counted = objective.survivors(micro, new, known)
    assert counted.tolist() == ([2] if denominator == "survivors" else [3])
    weights = token_weights(counted, torch.tensor([0]), "token_mean", 24)
    assert float(objective.loss(micro, new, known, weights).loss) == pytest.approx(expected)


def test_new_over_rollout_reads_today_s_policy() -> None:
    new, old = row(math.log(3)), row(0.0)
    gate = {"ratio": "new_over_rollout", "hi": 2.0, "action": "gate"}
    assert share_of({"corrections": [gate]}, new, [[0.0]], [1.0], old=old).rejected == 1
    assert share_of({"corrections": [{**gate, "ratio": "old_over_rollout"}]}, new, [[0.0]], [1.0], old=old).rejected == 0


def test_anchors_by_hand() -> None:
    """new = log 3, old = log 2, rollout = 0: r = 1.5 or 3; decoupled weighs 1.5 by w = 2. A = -1, where the clip is silent."""
    new, old = row(math.log(3)), row(math.log(2))
    values = {anchor: float(share_of({"anchor": anchor}, new, [[0.0]], [-1.0], old=old).loss) for anchor in ("old", "rollout", "decoupled")}
    assert values == pytest.approx({"old": 1.5, "rollout": 3.0, "decoupled": 3.0})
    # A = 1: the clip is on theta over proximal, then the weight.
    assert float(share_of({"anchor": "decoupled"}, new, [[0.0]], [1.0], old=old).loss) == pytest.approx(-1.2 * 2)


def test_the_interpolated_proximal_policy_needs_versions_and_no_recompute() -> None:
    """new = log 4, rollout = 0, lag 1: alpha 1/2, so prox = log 2, r = 2, w = 2."""
    loss = {"anchor": "decoupled", "proximal": "loglinear"}
    share = share_of(loss, row(math.log(4)), [[0.0]], [-1.0], old=row(99.0), versions=torch.tensor([[4]]), current=5)
    assert float(share.loss.detach()) == pytest.approx(4)
    assert Objective(config(**loss)).interpolates and not Objective(config(proximal="loglinear")).interpolates


def test_kl_in_the_reward_is_an_advantage_by_token_without_gradient_of_its_own() -> None:
    new = row(-1.0, -1.0).requires_grad_()
    loss = {"kl": {"estimator": "k1", "coefficient": 0.5, "where": "reward"}}
    share = share_of(loss, new, [[-1.0, -1.0]], [1.0], reference=row(-3.0, -1.0))
    share.loss.backward()
    torch.testing.assert_close(new.grad, row(-(1 - 0.5 * 2), -1.0))  # -A by token
    assert Objective(config(**loss)).always_teaches


def test_the_teacher_is_added_to_the_advantage_or_takes_its_place() -> None:
    for alone, reward in ((False, 3.0), (True, 0.0)):
        new = row(-1.0, -2.0).requires_grad_()
        loss = {"distillation": {"teacher": "any", "coefficient": 2.0, "replace_reward": alone}}
        share = share_of(loss, new, [[-1.0, -2.0]], [3.0], teacher=row(-0.5, -3.0))
        share.loss.backward()
        torch.testing.assert_close(new.grad, row(-(reward + 2 * 0.5), -(reward - 2 * 1)))
        assert share.from_teacher == pytest.approx(-0.5 + 1)


def test_a_divergence_is_a_term_of_the_loss() -> None:
    divergence = row(0.3, 0.5).requires_grad_()
    loss = {"distillation": {"teacher": "any", "kind": "jsd", "coefficient": 2.0, "replace_reward": True}}
    share = share_of(loss, row(-1.0, -2.0), [[-1.0, -2.0]], [3.0], divergence=divergence)
    assert float(share.loss.detach()) == pytest.approx(1.6)
    assert share.from_teacher == pytest.approx(0.8)
    share.loss.backward()
    torch.testing.assert_close(divergence.grad, row(2.0, 2.0))


@pytest.mark.parametrize(
    ("policy", "options", "expected"),
    [
        ("ppo", {"clip_high": 0.5}, 1.5),
        ("ppo", {"clip_high": 9.0, "ratio_cap": 1.7}, 1.7),
        ("gspo", {"clip_high": 0.5}, 1.5),
        ("cispo", {"clip_high": 0.5}, 1.5 * math.log(2)),
        ("cispo", {"cap": 1.25}, 1.25 * math.log(2)),
        ("topr", {}, math.log(2)),
        ("kimi", {"tau": 2.0}, math.log(2) - math.log(2) ** 2),
        ("dppo", {"drop_high": 9.0}, 2.0),
        ("dppo", {"drop_high": 0.5}, 0.0),
        ("ipo", {"drop_high": 1.5}, 2.0),
        ("ipo", {"drop_high": 0.5}, 0.0),
        ("sapo", {"tau": 2.0}, 2 / (1 + math.exp(-2))),
        ("reinforce_is", {}, 2 * math.log(2)),
        ("reinforce_is", {"cap": 1.5}, 1.5 * math.log(2)),
    ],
)
def test_every_policy_takes_its_options_from_the_config(policy: str, options: dict[str, Any], expected: float) -> None:
    """One token, A = 1, new = log 2 against 0 everywhere: r = rho = 2. (p = 2 is no probability, but a difference of 1.)"""
    share = share_of({"policy": policy, **options}, row(math.log(2)), [[0.0]], [1.0], old=row(0.0))
    assert float(share.loss.detach()) == pytest.approx(-expected)


def test_negative_advantages_have_options_of_their_own() -> None:
    def loss(policy: str, **options: Any) -> float:
        return float(share_of({"policy": policy, **options}, row(math.log(2)), [[0.0]], [-1.0], old=row(0.0)).loss)

    assert loss("ppo", dual_clip=1.25) == pytest.approx(1.25)
    assert loss("topr", cap=1.5) == pytest.approx(1.5 * math.log(2))
    assert loss("sapo", tau_negative=4.0) == pytest.approx(1 / (1 + math.exp(-4)))


@pytest.mark.parametrize(
    ("loss", "teaches"),
    [
        ({}, False),
        ({"kl": {"coefficient": 0.0}}, False),
        ({"kl": {}}, True),
        ({"log_ratio_penalty": 0.1}, True),
        ({"policy": "kimi"}, True),
        ({"distillation": {"teacher": "any"}}, True),
    ],
)
def test_what_gives_a_sample_of_advantage_zero_a_gradient(loss: dict[str, Any], teaches: bool) -> None:
    objective = Objective(config(**loss))
    assert objective.always_teaches == teaches
    if not teaches:
        new = row(-1.0, -2.0).requires_grad_()
        share_of(loss, new, [[-1.5, -1.5]], [0.0]).loss.backward()
        assert new.grad is not None and not new.grad.any()


# -- prepare --------------------------------------------------------------------------------------


def sample(identity: str, tokens: int, reward: float | None, finish: Any = "stop") -> Sample:
    return Sample(Rollout(identity, "g", 0, [5] * tokens, [-1.0] * tokens, [2] * tokens, finish), reward=reward)


def batch(*samples: Sample) -> Batch:
    return Batch(1, 3, [Group("g", Prompt("p", 0, "", [1, 2]), 2, list(samples))])


def test_overlong_shaping_comes_before_the_comparison_and_leaves_the_reward_alone() -> None:
    settings = RunConfig.model_validate(
        {
            "loss": {"advantage": "dr_grpo"},
            "sampling": {"max_new_tokens": 10},
            "rewards": {"on_truncated": "penalise", "overlong_tokens": 4},
        }
    )
    given = batch(sample("a", 6, 1.0), sample("b", 8, 1.0), sample("c", 10, 0.0, "length"))
    found = prepare(given, settings)
    # 1, 1 - 0.5, 0 - 1: mean 1/6.
    assert found.advantages == pytest.approx({"a": 5 / 6, "b": 1 / 3, "c": -7 / 6})
    assert [one.reward for one in given.groups[0].samples] == [1.0, 1.0, 0.0]
    assert len(found.groups[0]) == 3


def test_masked_samples_count_where_empty_samples_do() -> None:
    given = batch(sample("a", 2, 1.0), sample("b", 4, 0.0, "length"), sample("c", 6, None))
    for empty, expected in (("skip", 1 / 2), ("count", 1 / 4)):
        settings = RunConfig.model_validate(
            {"loss": {"aggregation": "sequence_mean", "empty_samples": empty}, "rewards": {"on_truncated": "mask"}}
        )
        found = prepare(given, settings)
        assert found.weights([0], settings.loss, 24) == {0: pytest.approx(expected)}
        assert set(found.advantages) == {"a", "b"} and found.tokens([0]) == 2
        assert (found.versions, found.version) == ({0: [2, 2]}, 3)
    # Where corrections took a token out, the rest weighs more.
    assert found.weights([0], settings.loss.model_copy(update={"aggregation": "token_mean"}), 24, {0: 1}) == {0: 1.0}


def test_singletons_and_lengths_reach_the_formula() -> None:
    lonely = batch(sample("a", 2, 0.7), sample("b", 4, None))
    for kind, expected in (("zero", 0.0), ("raw", 0.7)):
        assert prepare(lonely, config(singletons=kind)).advantages == {"a": expected}
    pair = batch(sample("a", 1, 1.0), sample("b", 3, 0.0, "length"))
    masking = {"rewards": {"on_truncated": "mask"}}
    by_length = RunConfig.model_validate({"loss": {"advantage": "opo"}, **masking})
    assert prepare(pair, by_length).advantages == pytest.approx({"a": 0.75, "b": -0.25})  # completion lengths, masked or not
    whitened = RunConfig.model_validate({"loss": {"advantage": "reinforce_pp"}, **masking})
    assert set(prepare(pair, whitened).advantages.values()) == {0.0}  # one sample's tokens are all there is in the loss


def test_a_rollout_whose_lists_disagree_is_refused() -> None:
    broken = sample("a", 3, 1.0)
    broken.rollout.versions.pop()
    with pytest.raises(EngineError, match="3 tokens, 3 log-probs and 2 versions"):
        prepare(batch(broken, sample("b", 2, 0.0)), config())


def test_the_float_type_of_the_log_probs_does_not_matter_to_the_rest() -> None:
    values = [float(share_of({}, row(-1.0, -2.0).to(kind), [[-1.5, -1.5]], [1.0]).loss) for kind in (F64, torch.float32)]
    assert values[0] == pytest.approx(values[1], rel=1e-6)
    assert tensor(1).dtype == F64
