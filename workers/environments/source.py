"""Training prompts one after another: all questions in each epoch, in the curriculum's order, and a cursor a resume goes on from.

A question that is held out for evaluation is left out, so that it is never trained on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workers.contract import config
from workers.contract.errors import CheckpointError, DataError
from workers.environments.curriculum import Curriculum
from workers.records import Prompt


class PromptSource:
    """`prompt` renders question `index`, None when it is held out. Every other one comes once an epoch, unless the curriculum
    passes it over."""

    def __init__(
        self,
        size: int,
        seed: int,
        digest: str,
        prompt: Callable[[int], Prompt | None],
        curriculum: config.Curriculum | None = None,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self._size = size
        self._seed = seed
        self._digest = digest
        self._prompt = prompt
        self._curriculum = Curriculum(curriculum or config.Curriculum(), size, seed, tell or (lambda _message: None))
        self._epoch = 0
        self._position = 0
        self._order = self._curriculum.order(0)

    @property
    def passed_over(self) -> int:
        """How often a prompt's turn passed because its pass rate lay outside the window."""
        return self._curriculum.passed_over

    @property
    def let_through(self) -> int:
        """How many prompts outside the window were asked because it left no others."""
        return self._curriculum.let_through

    def next(self) -> Prompt:
        """The next prompt. Called at each dispatch. Raises DataError when every question is held out.

        A window that leaves no prompt is opened, counted and told: this never waits for pass rates to change.
        """
        while True:
            for _ in range(2 * self._size):  # whatever the position, two epochs' length covers one whole epoch
                prompt = self._visit()
                if prompt is not None:
                    self._curriculum.asked()
                    return prompt
            if not self._curriculum.open():
                raise DataError(
                    "every training question is held out for evaluation or too long for the model",
                    field="evaluation.prompts",
                    cure="lower evaluation.prompts, raise environment.size, or widen environment.options",
                )

    def observe(self, prompt: Prompt, rewards: list[float]) -> None:
        """Called with every complete group: what its prompt's pass rate is learnt from. Failed samples have no reward there."""
        self._curriculum.observe(prompt.index, rewards)

    def state(self) -> dict[str, Any]:
        """The cursor as JSON. Called by checkpoints."""
        plain = {"epoch": self._epoch, "position": self._position, "size": self._size, "seed": self._seed, "digest": self._digest}
        if not self._curriculum.active:
            return plain
        # An order by pass rates came from those of the epoch's beginning: it cannot be made again from today's.
        order = {"order": self._order} if self._curriculum.by_rate else {}
        return {**plain, **order, "curriculum": self._curriculum.state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on from a cursor. Called once, on resume. Raises CheckpointError when it belongs to other data."""
        for name, mine in (("size", self._size), ("seed", self._seed), ("digest", self._digest)):
            if state.get(name) != mine:
                raise CheckpointError(
                    f"the checkpoint's data cursor has another {name} than this run's data",
                    field=f"cursor.{name}",
                    value=state.get(name),
                    cure="resume with the same dataset, options, size and seed",
                )
        epoch, position, order = state.get("epoch"), state.get("position"), None
        fits = type(epoch) is int and type(position) is int and epoch >= 0 and 0 <= position <= self._size
        if self._curriculum.by_rate:
            order = state.get("order")
            fits = fits and _is_permutation(order, self._size)
        if not fits:
            shown = {name: state.get(name) for name in ("epoch", "position")}
            raise CheckpointError("the checkpoint's data cursor is not one", field="cursor", value=shown, cure="use another checkpoint")
        if self._curriculum.active:
            self._curriculum.restore(state.get("curriculum"))
        self._epoch, self._position = int(state["epoch"]), int(state["position"])
        self._order = order if order is not None else self._curriculum.order(self._epoch)

    def _visit(self) -> Prompt | None:
        """The question whose turn it is; None where it is passed over, held out or too long."""
        if self._position == self._size:
            self._epoch += 1
            self._position = 0
            self._order = self._curriculum.order(self._epoch)
        index = self._order[self._position]
        prompt = self._prompt(index) if self._curriculum.admits(index) else None
        self._position += 1  # only now: a prompt that cannot be made is not left out in silence
        return prompt


def _is_permutation(order: Any, size: int) -> bool:
    return isinstance(order, list) and all(type(index) is int for index in order) and sorted(order) == list(range(size))
