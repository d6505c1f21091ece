"""The kernels in C: built once with the machine's compiler, checked against plain torch, left aside wherever that fails."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import torch
from torch.nn import functional

from workers.rollout.torch.cache import SlotCache
from workers.rollout.torch.kernels import Kernels, PlainKernels, Step
from workers.rollout.torch.sampling import draw_plainly
from workers.rollout.torch.shape import Shape
from workers.rollout.torch.tiled import Tiled, TiledPair, fits

logger = logging.getLogger(__name__)

_FOLDER = Path(__file__).parent
_SOURCES = ("glue.c", "tiles.c", "draw.c")
_HEADER = "numbers.h"
# No -ffast-math: linking with it would change the rounding mode of the whole process.
_FLAGS = ["-O3", "-march=native", "-mprefer-vector-width=512", "-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC"]
_BUILD_SECONDS = 60
_LANES, _MOST_DIM = 16, 256  # as in numbers.h


class NativeKernels:
    """bfloat16, contiguous, on the CPU. Threads are torch's own: both use the one libgomp of the process."""

    def __init__(self, library: ctypes.CDLL) -> None:
        """Raises AttributeError where the library lacks a function."""
        pointer, size = ctypes.c_void_p, ctypes.c_int64
        library.rms_norm.argtypes = [pointer] * 3 + [size] * 2 + [ctypes.c_float]
        library.silu_mul.argtypes = [pointer] * 2 + [size] * 2
        library.attend.argtypes = [pointer] * 6 + [size] * 7
        library.multiply.argtypes = [pointer] * 7 + [size] * 4
        library.pack.argtypes = [pointer] * 2 + [size] * 2
        library.draw.argtypes = [pointer] * 5 + [size] * 2
        self._library = library
        self.tiles = bool(library.tiles_work())  # whether `multiply` may be called

    def step(self, first: int, positions: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor, cache: SlotCache) -> Step:
        return Step(first, positions.contiguous(), cosine.contiguous(), sine.contiguous(), cache)

    def rms_norm(self, rows: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        rows = rows.contiguous()
        out = torch.empty_like(rows)
        width = rows.shape[-1]
        self._library.rms_norm(*_pointers(rows, weight, out), rows.numel() // width, width, eps)
        return out

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        gate_up = gate_up.contiguous()
        count, width = gate_up.shape[0], gate_up.shape[1] // 2
        out = torch.empty(count, width, dtype=gate_up.dtype)
        self._library.silu_mul(*_pointers(gate_up, out), count, width)
        return out

    def attend(self, qkv: torch.Tensor, heads: int, layer: int, step: Step) -> torch.Tensor:
        qkv = qkv.contiguous()
        count, rows, dim = qkv.shape
        out = torch.empty(count, heads * dim, dtype=qkv.dtype)
        cache = step.cache
        given = _pointers(qkv, step.cosine, step.sine, cache.layers[layer], step.positions, out)
        if self._library.attend(*given, count, heads, (rows - heads) // 2, dim, cache.slots, cache.positions, step.first):
            raise MemoryError("attention found no memory for its scores")
        return out

    def draw(self, logits: torch.Tensor, temperatures: torch.Tensor, numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = logits.contiguous()
        count, vocabulary = logits.shape
        tokens, logprobs = torch.empty(count, dtype=torch.int64), torch.empty(count)
        given = _pointers(logits, temperatures.contiguous(), numbers.contiguous(), tokens, logprobs)
        if self._library.draw(*given, count, vocabulary):
            raise MemoryError("drawing tokens found no memory for its sums")
        return tokens, logprobs

    def pack(self, weights: torch.Tensor, packed: torch.Tensor) -> list[Tiled]:
        """n weights [n, outputs, inputs] that fit, in one go, into `packed` [n, outputs x inputs], which torch has aligned to 64 bytes."""
        count, outputs, inputs = weights.shape
        weights = weights.contiguous()
        self._library.pack(*_pointers(weights, packed), count * outputs, inputs)
        return [Tiled(data, outputs, inputs) for data in packed.unbind(0)]

    def pack_into(self, packed: torch.Tensor, parts: Sequence[torch.Tensor]) -> Tiled:
        """One weight, given by parts that stand under each other and fit each for itself; `packed` as in `pack`."""
        inputs, row = parts[0].shape[1], 0
        for part in parts:
            place = packed[row * inputs : (row + len(part)) * inputs]
            self._library.pack(*_pointers(part.contiguous(), place), len(part), inputs)
            row += len(part)
        return Tiled(packed, row, inputs)

    def multiply(
        self, rows: torch.Tensor, weight: Tiled, bias: torch.Tensor | None, residual: torch.Tensor | None, pair: TiledPair | None
    ) -> torch.Tensor:
        """rows W^T + bias + residual + the adapter's product [n, outputs], rounded once. Only where `tiles`."""
        rows = rows.contiguous()
        lowering, raising, ranks = (pair.lowering.data, pair.raising.data, pair.lowering.outputs) if pair else (None, None, 0)
        residual = None if residual is None else residual.contiguous()
        out = torch.empty(rows.shape[0], weight.outputs, dtype=rows.dtype)
        given = _pointers(rows, weight.data, bias, residual, lowering, raising, out)
        if self._library.multiply(*given, rows.shape[0], weight.inputs, weight.outputs, ranks):
            raise MemoryError("a matrix product found no memory for its rows")
        return out


def _pointers(*tensors: torch.Tensor | None) -> list[int | None]:
    return [None if tensor is None else tensor.data_ptr() for tensor in tensors]


def kernels_for(shape: Shape, dtype: torch.dtype) -> Kernels:
    """Called once at start: the fastest kernels that fit the model."""
    fits = dtype == torch.bfloat16 and shape.head_dim % _LANES == 0 and shape.head_dim <= _MOST_DIM
    return (native_kernels() if fits else None) or PlainKernels()


def tile_kernels(outputs: int, inputs: int) -> NativeKernels | None:
    """The kernels, where this machine multiplies by tiles and a bf16 weight of this size divides into them."""
    kernels = native_kernels() if fits(outputs, inputs) else None
    return kernels if kernels is not None and kernels.tiles else None


@cache
def native_kernels() -> NativeKernels | None:
    """Built and checked, once a process. None, with a log line that says why, where there is no compiler or the result is not right."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or platform.system() != "Linux":
        logger.info("no C compiler found: decoding with plain torch kernels, about half as fast")
        return None
    try:
        kernels = NativeKernels(ctypes.CDLL(str(_build(compiler))))
        wrong = _difference(kernels)
    except (OSError, subprocess.SubprocessError, AttributeError) as error:
        logger.warning("the C kernels cannot be built or loaded, decoding with plain torch: %s", error)
        return None
    if wrong:
        logger.warning("the C kernels differ from torch in %s: decoding with plain torch", wrong)
        return None
    return kernels


def _build(compiler: str) -> Path:
    """The shared library for this very source, compiler and processor, from the cache or freshly built."""
    source = b"|".join((_FOLDER / name).read_bytes() for name in (_HEADER, *_SOURCES))
    version = subprocess.run([compiler, "--version"], capture_output=True, timeout=_BUILD_SECONDS, check=True).stdout
    processor = next((line for line in _read(Path("/proc/cpuinfo")).splitlines() if line.startswith("flags")), "")
    identity = hashlib.sha256(b"|".join([source, version, " ".join(_FLAGS).encode(), processor.encode()])).hexdigest()
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace" / "kernels"
    library = folder / f"kernels-{identity[:24]}.so"
    if library.is_file():
        return library
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=folder) as aside:
        fresh = Path(aside) / library.name
        command = [compiler, *_FLAGS, "-o", str(fresh), *(str(_FOLDER / name) for name in _SOURCES), "-lm"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_BUILD_SECONDS, check=False)
        if done.returncode:
            raise OSError(f"{compiler} failed: {done.stderr.strip()[-300:]}")
        fresh.replace(library)
    return library


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


def _difference(kernels: NativeKernels) -> str:
    """Which operation, if any, is not what plain torch computes, within bf16's rounding. Empty: all agree."""
    random = torch.Generator().manual_seed(0)

    def rows(*sizes: int) -> torch.Tensor:
        return torch.randn(*sizes, generator=random).bfloat16()

    plain = PlainKernels()
    x, weight = rows(5, 96), rows(96)
    outcomes = {"rms_norm": (kernels.rms_norm(x, weight, 1e-5), plain.rms_norm(x, weight, 1e-5))}
    outcomes["silu_mul"] = (kernels.silu_mul(x), plain.silu_mul(x))
    logits, numbers = rows(6, 1000) * 3, torch.rand(6, generator=random, dtype=torch.float64)
    for number, (ours, theirs) in enumerate(
        zip(kernels.draw(logits, torch.ones(6), numbers), draw_plainly(logits, torch.ones(6, 1), numbers), strict=True)
    ):
        outcomes[f"draw/{number}"] = (ours, theirs)
    if kernels.tiles:
        outcomes["multiply"] = _products(kernels, rows)
    for dim in (48, 64):
        shape = Shape("", 1, 6 * dim, 6, 2, dim, 8, 8, 1e-5, 64, True, False, {})
        positions = torch.tensor([0, 7, 33])
        cosine, sine, qkv = rows(3, 1, dim), rows(3, 1, dim), rows(3, 10, dim)
        past = rows(2, 16, 2, 64, dim)
        seen, kept = [], []
        for kind in (kernels, plain):
            slots = SlotCache(shape, torch.bfloat16)
            slots.reserve(4, 64)
            slots.layers[0].copy_(past)
            seen.append(kind.attend(qkv.clone(), 6, 0, kind.step(1, positions, cosine, sine, slots)))
            kept.append(slots.layers[0])
        outcomes[f"attend/{dim}"] = (seen[0], seen[1])
        outcomes[f"cache/{dim}"] = (kept[0], kept[1])
    return ", ".join(
        name for name, (ours, theirs) in outcomes.items() if not torch.allclose(ours.float(), theirs.float(), atol=0.06, rtol=0.03)
    )


def _products(kernels: NativeKernels, rows: Callable[..., torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    x, weight, bias, residual, lowering, raising = rows(70, 64), rows(48, 64), rows(48), rows(70, 48), rows(32, 64), rows(48, 32) / 32
    (whole,), (lower,), (upper,) = (kernels.pack(one[None], one.new_empty(1, one.numel())) for one in (weight, lowering, raising))
    ours = kernels.multiply(x, whole, bias, residual, TiledPair(lower, upper))
    low = functional.linear(x, lowering).float()
    return ours, functional.linear(x.float(), weight.float(), bias.float()) + residual.float() + functional.linear(low, raising.float())
