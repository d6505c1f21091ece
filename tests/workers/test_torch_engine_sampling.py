"""Sampling: the frequencies, log-probs and supports are those that plain formulas give."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.rollout.torch.sampling import Plan, draw, truncates, uniforms


def plan(count: int, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0, key: int = 11) -> Plan:
    return Plan(
        keys=[key] * count,
        positions=list(range(count)),
        temperatures=[temperature] * count,
        top_ks=[top_k] * count,
        top_ps=[top_p] * count,
        min_ps=[min_p] * count,
    )


def reference(logits: torch.Tensor, temperature: float, top_k: int, top_p: float, min_p: float) -> torch.Tensor:
    """The distribution written out plainly for one row: top-k, then top-p over the rest, then min-p, then renormalised."""
    probabilities = torch.softmax(logits.double() / temperature, -1)
    order = probabilities.argsort(descending=True, stable=True)
    kept = order[:top_k] if top_k else order
    share = probabilities[kept] / probabilities[kept].sum()
    if top_p < 1:
        kept = kept[(share.cumsum(0) - share) < top_p]
    kept = kept[probabilities[kept] >= min_p * probabilities.max()]
    out = torch.zeros_like(probabilities)
    out[kept] = probabilities[kept] / probabilities[kept].sum()
    return out


@pytest.mark.parametrize("vocabulary", [1, 7, 259, 512, 49152])
@pytest.mark.parametrize("temperature", [1.0, 0.7, 3.0])
def test_logprob_is_the_log_softmax_at_the_token(vocabulary: int, temperature: float) -> None:
    logits = torch.randn(19, vocabulary, generator=torch.Generator().manual_seed(3)) * 4
    tokens, logprobs = draw(logits, plan(19, temperature))
    wanted = torch.log_softmax(logits / temperature, -1).gather(1, tokens.view(-1, 1)).view(-1)
    assert torch.allclose(logprobs, wanted, atol=2e-5)
    assert logprobs.dtype == torch.float32 and tokens.dtype == torch.int64


@pytest.mark.parametrize(
    "settings_",
    [
        {},
        {"temperature": 0.6},
        {"top_k": 5},
        {"top_p": 0.8},
        {"min_p": 0.1},
        {"temperature": 1.4, "top_k": 12, "top_p": 0.9, "min_p": 0.02},
    ],
)
def test_frequencies_match_the_distribution(settings_: dict) -> None:
    """Chi-square with fixed keys; the bound is the 99.9 % quantile, by Wilson and Hilferty."""
    draws = 40_000
    logits = torch.randn(48, generator=torch.Generator().manual_seed(5)) * 1.5
    wanted = reference(logits, **{"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, **settings_})
    tokens, logprobs = draw(logits.expand(draws, -1), plan(draws, **settings_))
    counts = torch.bincount(tokens, minlength=48).double()
    support = wanted > 0
    assert counts[~support].sum() == 0, "a token outside the support was drawn"
    expected = wanted[support] * draws
    statistic = float(((counts[support] - expected) ** 2 / expected).sum())
    freedom = int(support.sum()) - 1
    bound = freedom * (1 - 2 / (9 * freedom) + 3.09 * (2 / (9 * freedom)) ** 0.5) ** 3
    assert statistic < bound
    assert torch.allclose(logprobs.double(), wanted[tokens].log(), atol=1e-5)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    vocabulary=st.sampled_from([3, 32, 700, 5000]),
    temperature=st.sampled_from([0.3, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 3, 40, 600, 10_000]),
    top_p=st.sampled_from([1.0, 0.99, 0.5, 0.01]),
    min_p=st.sampled_from([0.0, 0.001, 0.2, 1.0]),
)
def test_supports_equal_a_plain_reference(seed: int, vocabulary: int, temperature: float, top_k: int, top_p: float, min_p: float) -> None:
    """By drawing with log-probs: every drawn token lies in the reference's support with exactly its probability there."""
    logits = torch.randn(vocabulary, generator=torch.Generator().manual_seed(seed)) * 2
    wanted = reference(logits, temperature, top_k, top_p, min_p)
    tokens, logprobs = draw(logits.expand(24, -1), plan(24, temperature, top_k, top_p, min_p, key=seed))
    assert (wanted[tokens] > 0).all()
    assert torch.allclose(logprobs.double(), wanted[tokens].log(), atol=2e-4)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    vocabulary=st.sampled_from([3, 32, 700, 5000]),
    top_k=st.sampled_from([0, 3, 600]),
    top_p=st.sampled_from([1.0, 0.9]),
    min_p=st.sampled_from([0.0, 0.01]),
)
def test_recorded_supports_are_what_was_drawn_from(seed: int, vocabulary: int, top_k: int, top_p: float, min_p: float) -> None:
    logits = torch.randn(vocabulary, generator=torch.Generator().manual_seed(seed)) * 2
    supports: list[list[int]] = [[] for _ in range(3)]
    tokens, logprobs = draw(logits.expand(3, -1), plan(3, 1.0, top_k, top_p, min_p, key=seed), supports)
    if not truncates(1.0, top_k, top_p, min_p):
        assert supports == [[], [], []], "nothing was left out"
        return
    wanted = reference(logits, 1.0, top_k, top_p, min_p)
    for token, logprob, ids in zip(tokens.tolist(), logprobs.tolist(), supports, strict=True):
        assert token in ids and len(set(ids)) == len(ids)
        # On the edge of the nucleus, the last bit of a running sum decides.
        assert len(set(ids) ^ set(wanted.nonzero().view(-1).tolist())) <= 1
        assert logprob == pytest.approx(float(logits[token] - logits[ids].logsumexp(0)), abs=1e-5)


def test_nearly_flat_rows_sort_as_far_as_they_must() -> None:
    """A support far wider than the first candidates."""
    logits = torch.linspace(0, 0.01, 6000)
    tokens, logprobs = draw(logits.expand(400, -1), plan(400, top_p=0.95))
    wanted = reference(logits, 1.0, 0, 0.95, 0.0)
    assert (wanted[tokens] > 0).all() and len(set(tokens.tolist())) > 300
    assert torch.allclose(logprobs.double(), wanted[tokens].log(), atol=1e-4)


def test_tokens_without_probability_are_never_drawn() -> None:
    logits = torch.full((4000, 1024), float("-inf"))
    logits[:, 1023] = 0.0
    logits[:, 300] = 0.0
    tokens, _ = draw(logits, plan(4000))
    assert set(tokens.tolist()) == {300, 1023}


def test_greedy_is_certain() -> None:
    logits = torch.randn(9, 300, generator=torch.Generator().manual_seed(1))
    for greedy in (plan(9, temperature=0.0), plan(9, top_k=1)):
        tokens, logprobs = draw(logits, greedy)
        assert torch.equal(tokens, logits.argmax(-1)) and not logprobs.any()


def test_a_rows_draw_does_not_depend_on_its_neighbours() -> None:
    logits = torch.randn(6, 512, generator=torch.Generator().manual_seed(2))
    top_ps = [1, 1, 1, 0.7, 1, 1]
    mixed = Plan([1, 2, 3, 4, 5, 6], [0, 5, 9, 2, 0, 7], [1.0, 0.5, 1.0, 2.0, 0.0, 1.0], [0, 0, 4, 0, 0, 0], top_ps, [0.0] * 6)
    together = draw(logits, mixed)
    for row in range(6):
        one = slice(row, row + 1)
        alone = Plan(
            mixed.keys[one], mixed.positions[one], mixed.temperatures[one], mixed.top_ks[one], mixed.top_ps[one], mixed.min_ps[one]
        )
        tokens, logprobs = draw(logits[one], alone)
        assert tokens.item() == together[0][row].item() and logprobs.item() == pytest.approx(together[1][row].item(), abs=1e-6)


def test_random_numbers_are_uniform_and_independent_of_order() -> None:
    keys = list(range(100)) * 100
    positions = [position for position in range(100) for _ in range(100)]
    numbers = uniforms(keys, positions)
    assert float(numbers.min()) > 0 and float(numbers.max()) < 1 and len(set(numbers.tolist())) == 10_000
    counts = torch.histc(numbers.float(), bins=50, min=0, max=1)
    assert float(((counts - 200) ** 2 / 200).sum()) < 86  # 99.9 % of chi-square with 49 degrees of freedom
    shuffled = torch.randperm(10_000, generator=torch.Generator().manual_seed(0)).tolist()
    again = uniforms([keys[i] for i in shuffled], [positions[i] for i in shuffled])
    assert torch.equal(again, numbers[shuffled])
    assert uniforms([2**64 + 5, -1], [0, 0]).tolist() == uniforms([5, 2**64 - 1], [0, 0]).tolist()
