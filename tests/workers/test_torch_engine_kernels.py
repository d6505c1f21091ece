"""The C kernels compute what plain torch does, and their absence costs speed alone."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from workers.rollout.torch import linear as linear_module
from workers.rollout.torch import native
from workers.rollout.torch.adapter import Pair
from workers.rollout.torch.cache import SlotCache
from workers.rollout.torch.kernels import PlainKernels
from workers.rollout.torch.linear import Linear
from workers.rollout.torch.native import NativeKernels, kernels_for, native_kernels, tile_kernels
from workers.rollout.torch.room import Room
from workers.rollout.torch.shape import Shape
from workers.rollout.torch.tiled import TiledPair, filled


def shape(heads: int = 6, kv_heads: int = 2, dim: int = 64) -> Shape:
    return Shape("LlamaForCausalLM", 1, heads * dim, heads, kv_heads, dim, 128, 64, 1e-5, 4096, True, False, {})


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache folder, and nothing remembered from before or for later."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    native_kernels.cache_clear()
    yield tmp_path
    native_kernels.cache_clear()


@pytest.fixture(scope="module")
def kernels() -> NativeKernels:
    built = native_kernels()
    assert built is not None, "this machine has a compiler, so the kernels must build and agree"
    return built


def rows(*sizes: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed)).bfloat16()


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(9, 3, 64), (4, 4, 32), (8, 1, 128), (2, 1, 48), (4, 2, 256)])
@pytest.mark.parametrize("first", [0, 5])
def test_attention_equals_plain_torch(kernels: NativeKernels, heads: int, kv_heads: int, dim: int, first: int) -> None:
    positions = torch.tensor([0, 1, 17, 63, 200, 299])
    count = len(positions)
    qkv, cosine, sine = rows(count, heads + 2 * kv_heads, dim), rows(count, 1, dim, seed=1), rows(count, 1, dim, seed=2)
    past = rows(2, 16, kv_heads, 320, dim, seed=3)
    results = []
    for kind in (kernels, PlainKernels()):
        cache = SlotCache(shape(heads, kv_heads, dim), torch.bfloat16)
        cache.reserve(16, 300)
        cache.layers[0].copy_(past)
        seen = kind.attend(qkv.clone(), heads, 0, kind.step(first, positions, cosine, sine, cache))
        results.append((seen.float(), cache.layers[0].float()))
    (ours, kept), (theirs, kept_there) = results
    assert torch.allclose(ours, theirs, atol=0.05, rtol=0.03) and (ours - theirs).abs().mean() < 0.004
    assert torch.allclose(kept, kept_there, atol=0.04, rtol=0.01)
    touched = (kept != past.float()).any(-1).nonzero()[:, 1].unique()
    assert touched.tolist() == list(range(first, first + count)), "no other slot is written"


@pytest.mark.parametrize("count", [1, 7, 64])
def test_norm_and_activation_equal_plain_torch(kernels: NativeKernels, count: int) -> None:
    plain = PlainKernels()
    for scale in (0.01, 1.0, 30.0):
        x, weight = rows(count, 576) * scale, rows(576, seed=1)
        assert torch.allclose(kernels.rms_norm(x, weight, 1e-5).float(), plain.rms_norm(x, weight, 1e-5).float(), rtol=0.02, atol=1e-3)
        assert torch.allclose(kernels.silu_mul(x).float(), plain.silu_mul(x).float(), rtol=0.02, atol=1e-4)
    part = rows(count, 3, 64)[:, :2]  # not contiguous, as a slice of query heads is
    assert torch.allclose(
        kernels.rms_norm(part, rows(64), 1e-5).float(), plain.rms_norm(part, rows(64), 1e-5).float(), rtol=0.02, atol=1e-3
    )


def test_extreme_inputs_stay_what_they_are(kernels: NativeKernels) -> None:
    large = torch.tensor([[-300.0, 300.0, 0.0, -0.0, 2.0, 2.0, 2.0, 2.0]]).bfloat16()
    assert kernels.silu_mul(large).float().tolist()[0] == pytest.approx([0.0, 600.0, 0.0, 0.0], abs=1e-30)
    broken = torch.full((1, 64), float("nan")).bfloat16()
    assert kernels.rms_norm(broken, torch.ones(64).bfloat16(), 1e-5).isnan().all(), "a NaN must not be hidden"


def test_built_once_and_found_again(fresh: Path) -> None:
    assert isinstance(kernels_for(shape(), torch.bfloat16), NativeKernels)
    (library,) = (fresh / "headrace" / "kernels").iterdir()
    written = library.stat().st_mtime_ns
    native_kernels.cache_clear()
    assert isinstance(kernels_for(shape(), torch.bfloat16), NativeKernels) and library.stat().st_mtime_ns == written


def test_models_they_do_not_fit_get_plain_torch() -> None:
    assert isinstance(kernels_for(shape(), torch.float32), PlainKernels)
    assert isinstance(kernels_for(shape(dim=40), torch.bfloat16), PlainKernels)


def test_no_compiler_and_no_write_access_fall_back(fresh: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    (fresh / "headrace").write_text("a file where the cache folder should be")
    with caplog.at_level(logging.INFO, native.__name__):
        assert isinstance(kernels_for(shape(), torch.bfloat16), PlainKernels)
        native_kernels.cache_clear()
        monkeypatch.setenv("PATH", str(fresh))
        assert isinstance(kernels_for(shape(), torch.bfloat16), PlainKernels)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("sqrtf(sum / (float)width + eps)", "sqrtf(sum + eps)"),
        ("- log(total)", "- log(total / 2)"),
        ("if (residual)", "if (0)"),
    ],
)
def test_a_library_that_computes_something_else_is_not_used(
    fresh: Path, kernels: NativeKernels, monkeypatch: pytest.MonkeyPatch, right: str, wrong: str
) -> None:
    if right == "if (residual)" and not kernels.tiles:
        pytest.skip("this processor has no AMX tiles: that product is never asked of the library")
    native_kernels.cache_clear()
    for name in (native._HEADER, *native._SOURCES):
        source = (native._FOLDER / name).read_text()
        (fresh / name).write_text(source.replace(right, wrong))
    monkeypatch.setattr(native, "_FOLDER", fresh)
    assert native_kernels() is None


def tiled(kernels: NativeKernels, a: torch.Tensor, b: torch.Tensor) -> TiledPair:
    missing = filled(a.shape[1]) - a.shape[1]
    halves = torch.nn.functional.pad(a, (0, missing)).t(), torch.nn.functional.pad(b, (0, 0, 0, missing)).t()
    (lowering,), (raising,) = (kernels.pack(half[None], half.new_empty(1, half.numel())) for half in halves)
    return TiledPair(lowering, raising)


@pytest.mark.parametrize("way", ["tiles", "packed", "plain"])
@pytest.mark.parametrize("count", [1, 15, 16, 61, 64, 130])
@pytest.mark.parametrize(("inputs", "outputs", "rank"), [(576, 960, 16), (64, 48, 0), (1536, 576, 48)])
def test_products_are_right_whoever_computes_them(
    monkeypatch: pytest.MonkeyPatch, kernels: NativeKernels, way: str, count: int, inputs: int, outputs: int, rank: int
) -> None:
    """Without AMX oneDNN's packed weights stand in for tiles, and torch's plain product for those."""
    if way == "tiles" and not kernels.tiles:
        pytest.skip("this machine has no AMX")
    if way != "tiles":
        monkeypatch.setattr(linear_module, "tile_kernels", lambda outputs, inputs: None)
    if way == "plain":
        monkeypatch.setattr(linear_module, "packing_works", lambda: False)
    x, weight, residual = rows(count, inputs), rows(outputs, inputs, seed=1) / inputs**0.5, rows(count, outputs, seed=2)
    bias = rows(outputs, seed=3)
    a, b = rows(inputs, rank, seed=4) / inputs**0.5, rows(rank, outputs, seed=5)
    pair = Pair(a, b, tiled(kernels, a, b)) if rank else None
    linear = Linear([weight[:16], weight[16:]], () if bias is None else [bias], Room(), "a")
    wanted = x.double() @ weight.double().t() + bias.double() + ((x @ a).double() @ b.double() if rank else 0)
    for ours, theirs in ((linear(x, pair), wanted), (linear.added_to(residual, x, pair), wanted + residual.double())):
        # Tiles round once, to 8 bits, the others after each of two or three sums; the adapter's lowered rows are rounded everywhere.
        atol = 2**-8 if way == "tiles" and not rank else 0.06
        assert ours.shape == theirs.shape and torch.allclose(ours.double(), theirs, rtol=2**-8, atol=atol)
    if pair is not None:
        plain = linear(x).double()
        assert (linear(x, pair).double() - wanted).abs().mean() < (plain - wanted).abs().mean() / 20, "the adapter counts"


def test_sizes_that_do_not_divide_into_tiles_are_multiplied_by_torch() -> None:
    x, weight = rows(5, 40), rows(24, 40, seed=1)
    assert tile_kernels(24, 40) is None
    assert torch.allclose(Linear([weight], (), Room(), "a")(x).float(), x.float() @ weight.float().t(), rtol=0.02, atol=0.1)


@pytest.mark.parametrize("vocabulary", [49152, 1000, 7])
def test_drawing_equals_plain_torch(kernels: NativeKernels, vocabulary: int) -> None:
    count = 300
    logits = rows(count, vocabulary) * 3
    temperatures = torch.tensor([1.0, 0.7, 1.3]).repeat(count // 3)
    numbers = torch.rand(count, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    numbers[:3] = torch.tensor([2.0**-54, 1 - 2.0**-54, 0.5], dtype=torch.float64)
    tokens, logprobs = kernels.draw(logits, temperatures.view(-1, 1), numbers)
    theirs, _ = PlainKernels().draw(logits, temperatures.view(-1, 1), numbers)
    exact = torch.log_softmax(logits.double() / temperatures.view(-1, 1), -1)
    assert torch.allclose(logprobs.double(), exact.gather(1, tokens.view(-1, 1)).view(-1), atol=2e-6, rtol=1e-6)
    assert (tokens == theirs).float().mean() > 0.99, "both walk the same distribution in the same order"
    # The number lies within the drawn token's stretch of the cumulative distribution.
    ends = exact.exp().cumsum(-1).gather(1, tokens.view(-1, 1)).view(-1)
    assert (numbers < ends + 1e-6).all() and (numbers > ends - logprobs.double().exp() - 1e-6).all()


def test_drawing_says_when_logits_are_broken_and_never_draws_the_impossible(kernels: NativeKernels) -> None:
    half = torch.full((1,), 0.5, dtype=torch.float64)
    for broken in (float("nan"), float("inf")):
        logits = rows(1, 1000)
        logits[0, 400] = broken
        assert not kernels.draw(logits, torch.ones(1, 1), half)[1].isfinite().any()
    lone = torch.full((1, 1000), float("-inf")).bfloat16()
    lone[0, 300] = 1.0
    for number in (2.0**-54, 0.5, 1 - 2.0**-54):
        tokens, logprobs = kernels.draw(lone, torch.ones(1, 1), torch.tensor([number], dtype=torch.float64))
        assert tokens.tolist() == [300] and logprobs.tolist() == pytest.approx([0.0], abs=1e-6)
