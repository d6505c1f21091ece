"""Any dataset of reasoning-gym by name. It makes question `i` from seed + i, so ranges of seeds apart share no draw.

A task of few different questions (one-digit sums have 200) draws the same ones on both sides; `build` keeps them apart.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import importlib
import importlib.metadata
import json
from functools import lru_cache
from typing import Any

from workers.contract.config import RunConfig
from workers.contract.errors import ConfigError, EnvironmentMissing
from workers.environments.base import Entry

# Training seeds lie in [base, base + 10^6) with base under 2^30; held-out seeds begin 2^30 later.
SEED_SPAN = 2**30
_OURS = {"seed": "it follows from the run's seed", "size": "set environment.size"}


class ReasoningGymTask:
    """`environment.dataset` names the dataset, `environment.options` its options. Its own verifier judges."""

    def __init__(self, config: RunConfig) -> None:
        environment = config.environment
        self.name = environment.dataset
        self._options = dict(environment.options)
        self._base = int.from_bytes(hashlib.sha256(f"{config.seed}:data".encode()).digest()[:8]) % (SEED_SPAN - 1_000_000)
        self._make, self._version = _factory(self.name, self._options)
        self._train = self._dataset(self._base, environment.size)
        self._held_out = self._dataset(self._base + SEED_SPAN, config.evaluation.prompts)
        self.size = len(self._train)
        self.entry = lru_cache(maxsize=4096)(self._entry)  # type: ignore[method-assign]
        self._probe()

    def entry(self, index: int) -> Entry:
        """Training question `index`. The instance keeps the last 4096, for they are judged soon after they are asked."""
        return self._entry(index)

    def held_out(self, count: int) -> list[Entry]:
        return [_as_entry(self._held_out[index]) for index in range(min(count, len(self._held_out)))]

    def score(self, entry: Entry, answer: str) -> float:
        return float(self._train.score_answer(answer, entry=entry.data))

    def digest(self) -> str:
        parts = ["reasoning-gym", self._version, self.name, self._options, self._base, self.size]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def _entry(self, index: int) -> Entry:
        return _as_entry(self._train[index])

    def _dataset(self, seed: int, size: int) -> Any:
        try:
            return self._make(self.name, seed=seed, size=size, **self._options)
        except Exception as error:  # datasets check their options by assert, TypeError or ValueError, each in its way
            raise self._refused(error) from error

    def _probe(self) -> None:
        """Makes one question, so that options of a wrong type are told before anything starts."""
        try:
            self.entry(0)
        except Exception as error:  # as above: nothing says how a dataset fails
            raise self._refused(error) from error

    def _refused(self, error: Exception) -> ConfigError:
        reason = str(error) or type(error).__name__
        return ConfigError(
            f"{self.name} cannot be made with these options: {reason}",
            field="environment.options",
            value=self._options,
            cure=f"its options are {_described(_config_class(self.name))}",
        )


def _as_entry(item: dict[str, Any]) -> Entry:
    answer = item.get("answer")
    return Entry(question=str(item["question"]), answer=None if answer is None else str(answer), data=item)


def _gym() -> Any:
    try:
        return importlib.import_module("reasoning_gym.factory")
    except ImportError as error:
        raise EnvironmentMissing(
            "the package reasoning-gym is not installed", field="environment.dataset", cure='pip install "headrace[engine]"'
        ) from error


def _config_class(name: str) -> Any:
    importlib.import_module("reasoning_gym")
    return _gym().DATASETS[name][1]


def _factory(name: str, options: dict[str, Any]) -> tuple[Any, str]:
    gym = _gym()
    importlib.import_module("reasoning_gym")  # registers the datasets
    if name not in gym.DATASETS:
        close = difflib.get_close_matches(name, list(gym.DATASETS), n=4, cutoff=0.5)
        cure = f"did you mean {' or '.join(close)}?" if close else f"choose one of: {', '.join(sorted(gym.DATASETS))}"
        raise ConfigError("no reasoning-gym dataset of this name, nor a .jsonl file", field="environment.dataset", value=name, cure=cure)
    kind = _config_class(name)
    known = {item.name for item in dataclasses.fields(kind)}
    for option, value in options.items():
        if option in _OURS:
            raise ConfigError("is not an option of the task here", field=f"environment.options.{option}", value=value, cure=_OURS[option])
        if option not in known:
            close = difflib.get_close_matches(option, known - _OURS.keys(), n=2, cutoff=0.5)
            hint = f"did you mean {' or '.join(close)}? " if close else ""
            raise ConfigError(
                f"{name} has no such option",
                field=f"environment.options.{option}",
                value=value,
                cure=f"{hint}its options are {_described(kind)}",
            )
    return gym.create_dataset, importlib.metadata.version("reasoning-gym")


def _described(kind: Any) -> str:
    words = []
    for item in dataclasses.fields(kind):
        if item.name not in _OURS:
            default = f" = {item.default!r}" if item.default is not dataclasses.MISSING else ""
            words.append(f"{item.name}{default}")
    return ", ".join(words) or "none"
