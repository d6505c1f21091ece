"""Float32 masters over working copies in the model's type, whatever it is that learns.

Forward and backward passes use the copies, the very values that are published, so that trainer and engine speak of the same
policy. Where the model is float32 itself and lies in one piece, masters and copies are one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from workers.axes.lora.base import Cut, local

EXACT = (torch.float32, torch.float64)


class Masters:
    """The half of every kind of `Adapters` that concerns numbers. learned: the model's learning parameters, by name, as they are now."""

    def __init__(self, learned: Callable[[], dict[str, Tensor]]) -> None:
        self._learned = learned
        self.working: dict[str, Tensor] = learned()
        self.masters: dict[str, Tensor] = {
            name: parameter if parameter.dtype in EXACT else parameter.detach().float() for name, parameter in self.working.items()
        }

    def gather(self) -> None:
        """Adds the copies' gradients to the masters', in float32."""
        for name, master in self.masters.items():
            copy = self.working[name]
            if copy is master or copy.grad is None:
                continue
            gradient = local(copy.grad).to(master.dtype)
            if master.grad is None:
                master.grad = gradient
            else:
                master.grad.add_(gradient)
            copy.grad = None

    def refresh(self) -> None:
        """Rounds the masters into the copies."""
        with torch.no_grad():
            for name, master in self.masters.items():
                if self.working[name] is not master:
                    local(self.working[name]).copy_(master)

    def lay_out(self, cut: Cut) -> None:
        """The parameters have become pieces, or stayed what they are. A piece's master is kept apart from it: the library that made
        the piece may move it."""
        before, self.working = self.masters, self._learned()
        self.masters = {
            name: parameter if parameter is before[name] else cut(parameter, before[name].detach()).clone()
            for name, parameter in self.working.items()
        }
        self.refresh()


def named(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """In sorted order of names: the order of everything that is written, hashed or sent."""
    return dict(sorted(parameters.items()))
