"""The doors of an environment: `Task` makes questions and judges answers, `Environment` is what the flow holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from workers.records import Prompt


@dataclass(frozen=True)
class Entry:
    """One question before rendering. `answer` is for people to read; `data` is what the task needs to judge."""

    question: str
    answer: str | None
    data: Any = None


class Task(Protocol):
    """Questions by index, of two ranges that never share one: `size` training questions, and held-out ones."""

    name: str
    size: int

    def entry(self, index: int) -> Entry:
        """Training question `index`, 0 <= index < size; the same every time. Called at dispatch and when judging."""
        ...

    def held_out(self, count: int) -> list[Entry]:
        """At most `count` held-out questions, the same every time. Called once, at start."""
        ...

    def score(self, entry: Entry, answer: str) -> float:
        """The reward of an extracted answer. Called in a thread, by the scorer; what it raises fails that sample alone."""
        ...

    def digest(self) -> str:
        """sha256 of everything that decides the questions. Called once, for the attempt's provenance."""
        ...


class Source(Protocol):
    """Training prompts in order, for ever.

    passed_over: how often a prompt's turn passed because its pass rate lay outside the curriculum's window;
    let_through: how many prompts outside it were asked because it left no others.
    """

    @property
    def passed_over(self) -> int: ...

    @property
    def let_through(self) -> int: ...

    def next(self) -> Prompt:
        """The next prompt. Called at each dispatch."""
        ...

    def observe(self, prompt: Prompt, rewards: list[float]) -> None:
        """Called once with every complete group; samples that failed have no reward there."""
        ...

    def state(self) -> dict[str, Any]:
        """The cursor as JSON. Called by checkpoints."""
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on from a cursor. Called once, on resume. Raises CheckpointError when it belongs to other data."""
        ...


class Environment(Protocol):
    """Where prompts come from, and how completions are read and judged. Built once by the driver.

    stop_ids: every token id that ends a completion. template_hash: of the one function that renders prompts.
    """

    source: Source
    evaluation_prompts: list[Prompt]
    stop_ids: list[int]
    template_hash: str
    data_digest: str

    def decode(self, ids: list[int]) -> str:
        """The text of generated tokens, special tokens left out. Called for scoring and for the page."""
        ...

    def tokens(self, ids: list[int]) -> list[str]:
        """Each token's own text, special tokens included. Called for the samples shown on the page."""
        ...

    def verify(self, prompt: Prompt, text: str) -> tuple[float, str | None]:
        """(reward, answer found in the text). No answer found is reward 0: the model gave none. Called in threads."""
        ...

    def provenance(self) -> dict[str, Any]:
        """What the attempt records about its data. Called once, at start."""
        ...
