"""From a config to the environment of a run: the task, the prompts rendered for this very model, the judge."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from workers.contract.config import RunConfig
from workers.contract.errors import ConfigError, DataError
from workers.environments.base import Entry, Source, Task
from workers.environments.extract import choose, extract
from workers.environments.rendering import Renderer
from workers.environments.source import PromptSource
from workers.records import Prompt

PROBES = 32  # training questions looked at before the answer's form and the held-out questions are settled


def build(config: RunConfig, model_folder: Path | str, tell: Callable[[str], None] | None = None) -> LanguageEnvironment:
    """Called once by the driver. Raises ConfigError, DataError or EnvironmentMissing before anything else starts.

    tell: hears, once a question, why a training question is passed over.
    """
    return LanguageEnvironment(config, make_task(config), Renderer(Path(model_folder), config.environment.system_prompt), tell)


def make_task(config: RunConfig) -> Task:
    """A .jsonl path is a file; every other name is reasoning-gym's."""
    dataset = config.environment.dataset
    if dataset.lower().endswith(".jsonl"):
        from workers.environments.jsonl import JsonlTask

        return JsonlTask(config)
    if "/" in dataset or "\\" in dataset:
        raise ConfigError("a data file's name ends in .jsonl", field="environment.dataset", value=dataset, cure="give a .jsonl file")
    from workers.environments.reasoning_gym import ReasoningGymTask

    return ReasoningGymTask(config)


class LanguageEnvironment:
    """Single questions in a language model's chat form. See `base.Environment`."""

    def __init__(self, config: RunConfig, task: Task, renderer: Renderer, tell: Callable[[str], None] | None = None) -> None:
        self._tell = tell or (lambda _message: None)
        self._passed_over: set[int] = set()
        self._config = config
        self._task = task
        self._renderer = renderer
        self.stop_ids = renderer.stop_ids
        self.template_hash = renderer.template_hash
        self.data_digest = task.digest()
        self.answer_kind = choose(config.environment.answer, (entry.answer for entry in _probes(task)))
        self._held_out = _kept_apart(task, task.held_out(config.evaluation.prompts))
        self._held_out_questions = {entry.question for entry in self._held_out}
        self.evaluation_prompts = [self._prompt(f"{task.name}:eval:{index}", index, entry) for index, entry in enumerate(self._held_out)]
        self.source: Source = PromptSource(task.size, config.seed, self.data_digest, self._training_prompt, config.curriculum, self._tell)

    def decode(self, ids: list[int]) -> str:
        return self._renderer.decode(ids)

    def tokens(self, ids: list[int]) -> list[str]:
        return self._renderer.tokens(ids)

    def verify(self, prompt: Prompt, text: str) -> tuple[float, str | None]:
        answer = extract(self.answer_kind, text)
        if answer is None:
            return 0.0, None
        held_out = prompt.id == f"{self._task.name}:eval:{prompt.index}"
        entry = self._held_out[prompt.index] if held_out else self._task.entry(prompt.index)
        return self._task.score(entry, answer), answer

    def provenance(self) -> dict[str, Any]:
        return {
            "dataset": self._task.name,
            "data_digest": self.data_digest,
            "template_hash": self.template_hash,
            "answer": self.answer_kind,
            "stop_ids": self.stop_ids,
            "training_prompts": self._task.size,
            "held_out_prompts": len(self.evaluation_prompts),
        }

    def _training_prompt(self, index: int) -> Prompt | None:
        entry = self._task.entry(index)
        if entry.question in self._held_out_questions:
            return None
        try:
            return self._prompt(f"{self._task.name}:{index}", index, entry)
        except DataError as error:
            # One question that is too long must not end a run, nor every resume of it.
            if index not in self._passed_over:
                self._passed_over.add(index)
                self._tell(f"a training question is passed over: {error}")
            return None

    def _prompt(self, identity: str, index: int, entry: Entry) -> Prompt:
        ids = self._renderer.render(entry.question)
        room, fresh = self._renderer.max_positions, self._config.sampling.max_new_tokens
        if isinstance(room, int) and len(ids) + fresh > room:
            raise DataError(
                f"prompt {identity} has {len(ids)} tokens; with {fresh} new ones it exceeds the model's {room}",
                field="sampling.max_new_tokens",
                value=fresh,
                cure="shorten the prompt, lower sampling.max_new_tokens, or choose a model with a longer context",
            )
        return Prompt(id=identity, index=index, text=entry.question, token_ids=ids, answer=entry.answer)


def _probes(task: Task) -> list[Entry]:
    return [task.entry(index) for index in range(min(task.size, PROBES))]


def _kept_apart(task: Task, held_out: list[Entry]) -> list[Entry]:
    """The held-out entries, thinned where a task has so few questions that too little would be left for training.

    Which questions stay is decided by their hash, so that the choice does not hang on the order of drawing.
    """
    probes = [entry.question for entry in _probes(task)]
    questions = sorted({entry.question for entry in held_out}, key=lambda text: hashlib.sha256(text.encode()).digest())
    while len(questions) > 1 and sum(probe not in questions for probe in probes) * 4 < len(probes):
        questions = questions[: len(questions) // 2]
    kept = set(questions)
    return [entry for entry in held_out if entry.question in kept]
