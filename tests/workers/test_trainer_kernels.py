"""The trainer's own attention and adapted layers compute what torch and PEFT compute, forwards and backwards."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from workers.axes.backend import attention
from workers.axes.backend.layout import Item, build, rows_of
from workers.axes.lora import fused
from workers.axes.lora.fused import fuse


def shared_mask() -> Tensor:
    """Two rows of different lengths, so that one is padded."""
    items = [Item(str(k), k, [5, 6, 7, 8], list(range(9, 14 + k)), [0.0] * (5 + k), 1.0) for k in range(3)]
    other = Item("3", 3, [4, 3, 2], [8, 9, 10], [0.0] * 3, 1.0)
    return build(rows_of([*items, other], 100), 0).attention


def slopes(run: Callable[..., Tensor], *inputs: Tensor) -> list[Tensor]:
    """The output, then its gradient by each input, in float32, for one fixed gradient from above."""
    given = [part.clone().requires_grad_() for part in inputs]
    out = run(*given)
    above = torch.randn(out.shape, generator=torch.Generator().manual_seed(5)).to(out.dtype)
    return [out.detach().float(), *(slope.float() for slope in torch.autograd.grad(out, given, above))]


def error(found: Tensor, right: Tensor) -> float:
    return float((found - right).norm() / right.norm())


def test_attention_has_the_gradients_of_float32_as_nearly_as_torchs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    mask = shared_mask()
    rows, _, length, _ = mask.shape
    random = torch.Generator().manual_seed(1)
    query, key, value = (torch.randn(rows, heads, length, 16, generator=random).bfloat16() for heads in (6, 2, 2))

    def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True).transpose(1, 2)

    class Module(torch.nn.Module):
        num_key_value_groups = 3
        is_causal = True

    def ours(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention.attend(Module(), q, k, v, mask)[0]

    right = slopes(plain, query.float(), key.float(), value.float())
    torchs = slopes(plain, query, key, value)
    seen: list[int] = []
    apply = attention._Attention.apply
    monkeypatch.setattr(attention._Attention, "apply", lambda *given: (seen.append(1), apply(*given))[1])  # type: ignore[no-untyped-call]
    for mine, theirs, exact in zip(slopes(ours, query, key, value), torchs, right, strict=True):
        assert error(mine, exact) < max(0.01, 1.5 * error(theirs, exact))
    assert seen, "the kernel was not used"
    assert error(slopes(ours, query.float(), key.float(), value.float())[1], right[1]) < 1e-5
    assert len(seen) == 1, "float32 keeps torch's own pass"


def small() -> torch.nn.Module:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(12, 20), torch.nn.Tanh(), torch.nn.Linear(20, 8, bias=False)).double()
    adapted = get_peft_model(model, LoraConfig(r=4, lora_alpha=6, target_modules=["0", "2"]), autocast_adapter_dtype=False)
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    return adapted  # type: ignore[no-any-return]


def test_adapted_layers_have_pefts_values_and_gradients() -> None:
    theirs, ours = small(), small()
    fuse(ours, "default")
    x = torch.randn(3, 5, 12, dtype=torch.float64, requires_grad=True)
    found = []
    for model in (theirs, ours):
        out = model(x)
        learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
        assert len(learned) == 4
        found.append([out, *torch.autograd.grad(out.square().sum(), [x, *learned])])
    assert isinstance(ours.base_model.model[2].forward, fused._Forward)  # type: ignore[index, union-attr]
    for mine, right in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-12, atol=1e-12)


def test_switched_off_an_adapted_layer_is_the_plain_one() -> None:
    model = small()
    fuse(model, "default")
    x = torch.randn(2, 12, dtype=torch.float64)
    with_adapter = model(x)
    with model.disable_adapter():  # type: ignore[operator]
        without = model(x)
    assert not torch.allclose(with_adapter, without)
    base = model.base_model.model  # type: ignore[union-attr]
    plain = base[2].base_layer(torch.tanh(base[0].base_layer(x)))  # type: ignore[index]
    torch.testing.assert_close(without, plain)
