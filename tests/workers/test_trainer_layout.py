"""The shared-prefix layout computes what separate rows would: log-probs, entropies and every adapter's gradient."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from tests.workers.tiny_model import make_tiny_model
from workers.axes.backend import logprobs as logprobs_module
from workers.axes.backend.layout import Item, build, micro_batches, rows_of
from workers.axes.backend.logprobs import Support, token_logprobs
from workers.axes.backend.passes import check_layout, forward
from workers.axes.lora.adapter_only import AdapterOnly
from workers.contract.config import Lora
from workers.contract.errors import EnvironmentMissing

TEMPERATURE = 0.7


def make_items(seed: int = 0) -> list[Item]:
    """Three groups with ragged prompts and completions, one of a single token."""
    source = torch.Generator().manual_seed(seed)

    def draw(count: int) -> list[int]:
        return torch.randint(3, 259, (count,), generator=source).tolist()

    items: list[Item] = []
    for prompt_length, lengths in ((9, (5, 1, 7)), (4, (3, 3)), (12, (6,))):
        prompt = draw(prompt_length)
        items += [Item(f"{prompt_length}/{n}", len(items) + k, prompt, draw(n), [-1.0] * n, 1.0) for k, n in enumerate(lengths)]
    return items


def load(folder: Path, dtype: torch.dtype) -> tuple[Any, AdapterOnly]:
    """A model with adapters that are not zero, so that every one of them has a gradient."""
    model = AutoModelForCausalLM.from_pretrained(make_tiny_model(folder), dtype=dtype, attn_implementation="sdpa").eval()
    adapters = AdapterOnly(model, Lora(rank=4, alpha=8.0), 3)
    with torch.no_grad():
        for name, master in adapters.masters.items():
            if ".lora_B." in name:
                master.copy_(torch.randn(master.shape, generator=torch.Generator().manual_seed(len(name))) * 0.3)
    adapters.refresh()
    return model, adapters


def gradients(adapters: AdapterOnly) -> Tensor:
    found = torch.cat([parameter.grad.flatten() for parameter in adapters.working.values() if parameter.grad is not None])
    for parameter in adapters.working.values():
        parameter.grad = None
    return found


def plain(model: Any, items: list[Item]) -> tuple[Tensor, Tensor]:
    """One row a completion, the model's own causal mask and full logits: the definition."""
    values, entropies = [], []
    for item in items:
        ids = torch.tensor([[*item.prompt, *item.tokens]])
        logits = model(input_ids=ids, use_cache=False).logits[0, len(item.prompt) - 1 : -1] / TEMPERATURE
        table = logits.log_softmax(-1)
        values.append(table.gather(1, torch.tensor(item.tokens)[:, None])[:, 0])
        entropies.append(-(table.exp() * table).sum(-1))
    return torch.cat(values), torch.cat(entropies)


def shared(model: Any, items: list[Item], budget: int) -> tuple[Tensor, Tensor]:
    """Through the trainer's layout, put back into the items' order. Calls backward, micro-batch by micro-batch."""
    values: dict[int, Tensor] = {}
    entropies: dict[int, Tensor] = {}
    for rows in micro_batches(rows_of(items, budget), budget):
        micro = build(rows, 0)
        flat, entropy = forward(model, micro, TEMPERATURE)
        weights = [weight_of(item) for item in micro.items]
        (flat * torch.cat(weights).to(flat.dtype)).sum().backward()
        lengths = [len(item.tokens) for item in micro.items]
        for item, one, other in zip(micro.items, flat.split(lengths), entropy.split(lengths), strict=True):
            values[item.index], entropies[item.index] = one.detach(), other
    return torch.cat([values[item.index] for item in items]), torch.cat([entropies[item.index] for item in items])


def weight_of(item: Item) -> Tensor:
    return torch.randn(len(item.tokens), generator=torch.Generator().manual_seed(item.index), dtype=torch.float64)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@pytest.mark.parametrize("budget", [1000, 40, 16, 1])
def test_shared_prefix_equals_separate_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, bound: float, budget: int
) -> None:
    if dtype == torch.float64:  # the library's norm falls back to float32, which would hide what is measured here

        def norm(self: Any, hidden: Tensor) -> Tensor:
            return self.weight * hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)

        monkeypatch.setattr(LlamaRMSNorm, "forward", norm)
    model, adapters = load(tmp_path, dtype)
    items = make_items()
    expected, expected_entropy = plain(model, items)
    (expected * torch.cat([weight_of(item) for item in items]).to(dtype)).sum().backward()
    expected_gradient = gradients(adapters)
    found, entropy = shared(model, items, budget)
    gradient = gradients(adapters)
    assert found.dtype == dtype
    assert float((found - expected).abs().max()) < bound * 10
    assert float((entropy - expected_entropy).abs().max()) < bound * 10
    assert float((gradient - expected_gradient).norm() / expected_gradient.norm()) < bound
    assert len(gradient) == sum(parameter.numel() for parameter in adapters.working.values())


def test_rows_keep_to_the_budget_and_lose_nothing() -> None:
    items = make_items()
    for budget in (1000, 40, 20, 1):
        batches = micro_batches(rows_of(items, budget), budget)
        assert sorted(item.index for rows in batches for row in rows for item in row.items) == list(range(len(items)))
        for rows in batches:
            size = len(rows) * max(row.length for row in rows)
            assert size <= budget or (len(rows) == 1 and len(rows[0].items) == 1)
    assert [len(row.items) for row in rows_of(items, 1000)] == [3, 2, 1]


def test_logprobs_in_chunks_have_exact_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logprobs_module, "CHUNK_BYTES", 3 * 11 * 8)  # three rows at a time
    torch.manual_seed(0)
    head = torch.nn.Linear(5, 11, bias=True, dtype=torch.float64)
    hidden = torch.randn(8, 5, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(0, 11, (8,))
    table = (head(hidden) / TEMPERATURE).log_softmax(-1)
    found, entropy = token_logprobs(hidden, head, targets, TEMPERATURE)
    torch.testing.assert_close(found, table.gather(1, targets[:, None])[:, 0])
    torch.testing.assert_close(entropy, -(table.exp() * table).sum(-1))
    assert not entropy.requires_grad
    assert torch.autograd.gradcheck(lambda x: token_logprobs(x, head, targets, TEMPERATURE)[0], (hidden,))


@pytest.mark.parametrize("learns", [False, True])
def test_logprobs_over_a_support_have_exact_gradients(monkeypatch: pytest.MonkeyPatch, learns: bool) -> None:
    """Inside S one-hot minus softmax over S, outside exactly 0; tokens without a support in the same chunk; a head that learns."""
    monkeypatch.setattr(logprobs_module, "CHUNK_BYTES", 3 * 11 * 8)
    torch.manual_seed(0)
    head = torch.nn.Linear(5, 11, bias=True, dtype=torch.float64).requires_grad_(learns)
    hidden = torch.randn(8, 5, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(0, 11, (8,))
    allowed = [{int(target), (3 * row) % 11, 4} if row % 3 else set() for row, target in enumerate(targets)]
    pairs = torch.tensor([(row, number) for row, ids in enumerate(allowed) for number in sorted(ids)])
    cut = torch.full((8, 11), float("-inf"), dtype=torch.float64)
    for row, ids in enumerate(allowed):
        cut[row, sorted(ids) or slice(None)] = 0.0
    learning = [hidden, head.weight, head.bias] if learns else [hidden]
    weights = torch.randn(8, dtype=torch.float64)
    logits = (head(hidden) / TEMPERATURE).detach().requires_grad_()
    found, entropy = token_logprobs(hidden, head, targets, TEMPERATURE, Support(pairs[:, 0], pairs[:, 1]))
    wanted = (head(hidden) / TEMPERATURE + cut).log_softmax(-1).gather(1, targets[:, None])[:, 0]
    torch.testing.assert_close(found, wanted)
    for one, other in zip(*(torch.autograd.grad((x * weights).sum(), learning) for x in (found, wanted)), strict=True):
        torch.testing.assert_close(one, other)
    table = logits.log_softmax(-1)
    torch.testing.assert_close(entropy, -(table.exp() * table).sum(-1).detach())
    # The identity as a head: the gradient to the hidden state is the gradient to the logits.
    straight = torch.nn.Linear(11, 11, bias=False, dtype=torch.float64).requires_grad_(False)
    straight.weight.copy_(torch.eye(11))
    (slope,) = torch.autograd.grad(token_logprobs(logits, straight, targets, 1.0, Support(pairs[:, 0], pairs[:, 1]))[0].sum(), logits)
    assert not slope[cut.isinf()].any() and bool((slope[~cut.isinf()] != 0).all())


def test_a_near_certain_token_keeps_its_small_gradient_in_bfloat16() -> None:
    head = torch.nn.Linear(2, 2, bias=False, dtype=torch.bfloat16)
    with torch.no_grad():
        head.weight.copy_(torch.eye(2))
    hidden = torch.tensor([[10.0, 0.0]], dtype=torch.bfloat16, requires_grad=True)
    found, _ = token_logprobs(hidden, head, torch.tensor([0]), 1.0)
    found.sum().backward()
    rest = 1 / (1 + math.exp(10))
    assert hidden.grad is not None
    assert float(hidden.grad[0, 0]) == pytest.approx(rest, rel=0.01)
    assert found.dtype == torch.float32


def test_models_whose_logits_are_scaled_after_the_head_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = load(tmp_path, torch.float32)
    check_layout(model, "tiny")
    original = type(model).forward

    def capped(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        result.logits = torch.tanh(result.logits / 3) * 3
        return result

    monkeypatch.setattr(type(model), "forward", capped)
    with pytest.raises(EnvironmentMissing, match="other log-probs"):
        check_layout(model, "tiny")
