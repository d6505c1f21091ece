"""Training prompts in order: a seeded shuffle of all questions in each epoch, and a cursor that a resume goes on from.

A question that is held out for evaluation is passed over, so that it is never trained on.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from workers.contract.errors import CheckpointError, DataError
from workers.records import Prompt


class PromptSource:
    """`prompt` renders question `index`, None when it is held out. Every other one comes once an epoch, each epoch in its own order."""

    def __init__(self, size: int, seed: int, digest: str, prompt: Callable[[int], Prompt | None]) -> None:
        self._size = size
        self._seed = seed
        self._digest = digest
        self._prompt = prompt
        self._epoch = 0
        self._position = 0
        self._order = self._shuffled()

    def next(self) -> Prompt:
        """The next prompt. Called at each dispatch. Raises DataError when every question is held out."""
        for _ in range(2 * self._size):  # whatever the position, two epochs' length covers one whole epoch
            if self._position == self._size:
                self._epoch += 1
                self._position = 0
                self._order = self._shuffled()
            prompt = self._prompt(self._order[self._position])
            self._position += 1  # only now: a prompt that cannot be made is not passed over in silence
            if prompt is not None:
                return prompt
        raise DataError(
            "every training question is held out for evaluation or too long for the model",
            field="evaluation.prompts",
            cure="lower evaluation.prompts, raise environment.size, or widen environment.options",
        )

    def state(self) -> dict[str, Any]:
        """The cursor as JSON. Called by checkpoints."""
        return {"epoch": self._epoch, "position": self._position, "size": self._size, "seed": self._seed, "digest": self._digest}

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
        epoch, position = state.get("epoch"), state.get("position")
        if type(epoch) is not int or type(position) is not int or epoch < 0 or not 0 <= position <= self._size:
            raise CheckpointError("the checkpoint's data cursor is not one", field="cursor", value=state, cure="use another checkpoint")
        self._epoch, self._position = epoch, position
        self._order = self._shuffled()

    def _shuffled(self) -> list[int]:
        order = list(range(self._size))
        random.Random(f"{self._seed}:{self._epoch}").shuffle(order)
        return order
