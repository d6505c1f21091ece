"""Frozen linear layers. bf16 weights on a CPU are packed once into oneDNN's own layout, which is about 1.7 times as fast."""

from __future__ import annotations

from functools import cache

import torch
from torch.nn import functional

# The operators are private to torch: they are probed once and `functional.linear` stands in where they are missing or wrong.
_ROWS_HINT = 64


@cache
def packing_works() -> bool:
    """Whether this torch build packs bf16 weights and multiplies with them correctly."""
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(48, 32, generator=generator).bfloat16()
    rows = torch.randn(5, 32, generator=generator).bfloat16()
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS_HINT)
        plain = torch.ops.mkldnn._linear_pointwise(rows, packed, None, "none", [], "")
        added = torch.ops.mkldnn._linear_pointwise.binary(rows, plain, packed, None, "add")
    except (RuntimeError, AttributeError, NotImplementedError):
        return False
    wanted = functional.linear(rows.float(), weight.float())
    return bool(torch.allclose(plain.float(), wanted, atol=0.2) and torch.allclose(added.float(), 2 * wanted, atol=0.4))


class Linear:
    """y = x W^T + b on rows [n, inputs]."""

    __slots__ = ("_bias", "_packed", "_weight", "inputs", "outputs")

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.outputs, self.inputs = weight.shape
        self._packed = weight.dtype == torch.bfloat16 and weight.device.type == "cpu" and packing_works()
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS_HINT) if self._packed else weight
        self._bias = bias

    @property
    def biased(self) -> bool:
        return self._bias is not None

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        if self._packed:
            plain: torch.Tensor = torch.ops.mkldnn._linear_pointwise(rows, self._weight, self._bias, "none", [], "")
            return plain
        return functional.linear(rows, self._weight, self._bias)

    def added_to(self, residual: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """residual + y, in one pass where packed."""
        if self._packed:
            added: torch.Tensor = torch.ops.mkldnn._linear_pointwise.binary(rows, residual, self._weight, self._bias, "add")
            return added
        return residual + functional.linear(rows, self._weight, self._bias)
