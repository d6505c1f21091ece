"""AdamW on the float32 masters: schedule, gradient clip, and what happens when numbers are not finite."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from workers.axes.backend.spread import Alone, Spread
from workers.contract.config import Optimizer
from workers.contract.errors import CheckpointError, NonFinite

STATE = ("exp_avg", "exp_avg_sq", "step")  # what AdamW keeps of each tensor; moments are shaped like it, the step is one number


class Stepper:
    """One optimizer with its counters. attempts counts optimizer steps, skipped ones included: it drives the schedule."""

    def __init__(self, masters: Mapping[str, Tensor], options: Optimizer, total_steps: int, spread: Spread | None = None) -> None:
        self.masters = dict(masters)
        self.spread: Spread = spread or Alone()
        self.options = options
        self.total_steps = total_steps
        self.attempts = 0
        self.skipped = 0
        self.skipped_in_a_row = 0
        for master in self.masters.values():
            master.requires_grad_(True)
        self.adamw = torch.optim.AdamW(
            [master for name, master in self.masters.items() if self.spread.mine(name)],
            lr=options.learning_rate,
            betas=(options.beta1, options.beta2),
            eps=options.eps,
            weight_decay=options.weight_decay,
            foreach=True,
        )

    def learning_rate(self, attempt: int) -> float:
        """Of optimizer step `attempt` (from 0): linear warm-up, then constant, or down to 0 just after the budget's last step."""
        options = self.options
        if attempt < options.warmup_steps:
            return options.learning_rate * (attempt + 1) / options.warmup_steps
        if options.schedule == "constant":
            return options.learning_rate
        rest = max(1, self.total_steps - options.warmup_steps)
        done = min(1.0, (attempt - options.warmup_steps) / rest)
        return options.learning_rate * (1 - done if options.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * done)))

    def step(self, loss: float) -> dict[str, float]:
        """Clips and steps on the gradients gathered; clears them. Returns {} where the step was skipped.

        Raises NonFinite when loss or gradient was NaN or infinite too many times in a row.
        """
        rate = self.learning_rate(self.attempts)
        self.attempts += 1
        for master in self.masters.values():
            if master.grad is None:  # a batch that teaches nothing: the gradient is 0, and momentum goes on
                master.grad = torch.zeros_like(master)
        norm = self.spread.norm(self.masters)
        if not (math.isfinite(loss) and math.isfinite(norm)):
            self.clear()
            self._skip(loss, norm)
            return {}
        torch.nn.utils.clip_grads_with_norm_(self.masters.values(), self.options.max_grad_norm, torch.tensor(norm))
        self.adamw.param_groups[0]["lr"] = rate
        self.adamw.step()
        self.clear()
        self.spread.stepped(self.masters)
        self._check_weights(rate)
        self.skipped_in_a_row = 0
        return {"loss/grad_norm": norm, "loss/learning_rate": rate}

    def clear(self) -> None:
        """Forgets gradients: after a step, and when a batch is given up half-way."""
        for master in self.masters.values():
            master.grad = None

    @property
    def has_state(self) -> bool:
        """Whether AdamW has moments: they come with the first step that was not skipped."""
        return self.attempts > self.skipped

    def counters(self) -> dict[str, int]:
        """For a JSON file."""
        return {"attempts": self.attempts, "skipped": self.skipped, "skipped_in_a_row": self.skipped_in_a_row}

    def state(self, key: str, name: str) -> Tensor | None:
        """What this rank has of one tensor of AdamW's state, None where another rank has it. key: one of STATE."""
        found: Tensor | None = self.adamw.state.get(self.masters[name], {}).get(key)
        return found

    def whole_state(self, key: str, name: str) -> Tensor:
        """Called on rank 0 with each tensor of a checkpoint."""
        return self.spread.whole(key, name, self.state(key, name))

    def load(self, known: Sequence[str], read: Callable[[str], Tensor], counters: Mapping[str, int]) -> None:
        """Called on every rank. known: what the file holds, `<key>/<name>`; read: one of these, whole.

        Raises CheckpointError where they do not belong to these parameters.
        """
        state: dict[Tensor, dict[str, Any]] = {}
        for full in known:
            key, _, name = full.partition("/")
            if name not in self.masters or key not in STATE:
                raise CheckpointError(
                    "the optimizer's state belongs to other adapters", value=full, cure="resume with the run's own config"
                )
            if self.spread.mine(name):
                whole = read(full)
                state.setdefault(self.masters[name], {})[key] = whole if key == "step" else self.spread.cut(name, whole).clone()
        self.adamw.state.clear()
        self.adamw.state.update(state)
        self.attempts, self.skipped = int(counters["attempts"]), int(counters["skipped"])
        self.skipped_in_a_row = int(counters["skipped_in_a_row"])

    def _check_weights(self, rate: float) -> None:
        """A finite step may still overflow. Such weights must be neither published nor saved, and no step leads back: the run ends.

        The maximum norm is that of the largest absolute value; a NaN anywhere makes it NaN.
        """
        pieces = [master.detach() for master in self.masters.values() if master.numel()]
        largest = torch._foreach_norm(pieces, float("inf"))
        if not all(math.isfinite(value) for value in torch.stack(list(largest)).tolist()):
            raise NonFinite(
                "a weight was not finite after an optimizer step",
                field="optimizer.learning_rate",
                value=rate,
                cure="lower the learning rate and resume: the last checkpoint is from before it happened",
            )

    def _skip(self, loss: float, norm: float) -> None:
        self.skipped += 1
        self.skipped_in_a_row += 1
        if self.skipped_in_a_row >= self.options.stop_after_non_finite:
            raise NonFinite(
                f"loss {loss} or gradient norm {norm} was not finite {self.skipped_in_a_row} times in a row",
                field="optimizer.learning_rate",
                value=self.options.learning_rate,
                cure="lower the learning rate, or resume from a checkpoint before it happened",
            )
