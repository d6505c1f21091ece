"""A JSONL file of questions and answers. Every line is checked before anything starts, and a fault names its line."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from workers.contract.config import RunConfig
from workers.contract.errors import ConfigError, DataError
from workers.environments.base import Entry
from workers.scoring.verifiers import VERIFIERS

MAX_BYTES = 512 * 1024 * 1024
MAX_LINE_BYTES = 1024 * 1024
MAX_ROWS = 1_000_000
MAX_PROMPT_CHARS = 100_000


@dataclass(frozen=True)
class Options:
    """`environment.options` of a JSONL task: the columns' names and the share of prompts held out."""

    prompt: str = "prompt"
    answer: str = "answer"
    id: str = "id"
    held_out_share: float = 0.1


class JsonlTask:
    """All rows of the file are used, whatever `environment.size` says. A prompt's hash decides on which side it is."""

    def __init__(self, config: RunConfig) -> None:
        environment = config.environment
        self._path = Path(environment.dataset).expanduser()
        self.name = self._path.stem
        self._options = _options(environment.options)
        self._verifier = VERIFIERS[environment.verifier]
        entries, self._digest = self._load()
        self._train, self._held_out = self._split(entries)
        self.size = len(self._train)

    def entry(self, index: int) -> Entry:
        return self._train[index]

    def held_out(self, count: int) -> list[Entry]:
        return self._held_out[:count]

    def score(self, entry: Entry, answer: str) -> float:
        return self._verifier(answer, str(entry.answer))

    def digest(self) -> str:
        return self._digest

    def _load(self) -> tuple[list[Entry], str]:
        entries: list[Entry] = []
        first_line: dict[str, int] = {}
        total = hashlib.sha256(repr(self._options).encode())
        try:
            if not self._path.is_file():
                reason = "is not a plain file" if self._path.exists() else "does not exist"
                self._fail(f"the file {reason}", None, "give the path of a .jsonl file on the machine that runs the driver")
            if self._path.stat().st_size > MAX_BYTES:
                self._fail(f"the file is larger than {MAX_BYTES} bytes", None, "split it")
            with self._path.open("rb") as stream:
                for number, line in self._lines(stream):
                    total.update(line)
                    if line.strip():
                        entries.append(self._row(line, number, first_line))
                    if len(entries) > MAX_ROWS:
                        self._fail(f"more than {MAX_ROWS} rows", number, "split the file")
        except OSError as error:
            self._fail(f"the file cannot be read: {error.strerror}", None, "check its permissions")
        if not entries:
            self._fail("the file holds no rows", None, 'write one JSON object a line: {"prompt": "2 + 2", "answer": "4"}')
        return entries, total.hexdigest()

    def _lines(self, stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
        number = 0
        while line := stream.readline(MAX_LINE_BYTES + 1):
            number += 1
            if number == 1:
                if line.startswith((b"\xff\xfe", b"\xfe\xff")):
                    self._fail("the file is UTF-16, not UTF-8", 1, "save it as UTF-8")
                line = line.removeprefix(b"\xef\xbb\xbf")
            if len(line) > MAX_LINE_BYTES:
                self._fail(f"the line is longer than {MAX_LINE_BYTES} bytes", number, "shorten it, or write one object a line")
            yield number, line

    def _row(self, line: bytes, number: int, first_line: dict[str, int]) -> Entry:
        try:
            # Numbers keep their own spelling: an answer of 1.50 stays "1.50".
            row = json.loads(line.decode("utf-8"), parse_int=str, parse_float=str, parse_constant=_refuse_constant)
        except UnicodeDecodeError as error:
            self._fail(f"not UTF-8 (byte {error.start} of the line); Latin-1 perhaps", number, "save the file as UTF-8")
        except (ValueError, RecursionError) as error:
            reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
            self._fail(f"not valid JSON: {reason}", number, "correct the line")
        if not isinstance(row, dict):
            self._fail("the line is not a JSON object", number, 'write {"prompt": "...", "answer": "..."}')
        values = []
        for column in (self._options.prompt, self._options.answer):
            if column not in row:
                columns = ", ".join(sorted(row))[:200] or "none"
                self._fail(f"there is no column {column!r}; the line has: {columns}", number, "name the columns in environment.options")
            value = row[column]
            if not isinstance(value, str) or not value.strip():
                self._fail(f"column {column!r} is not text, or empty", number, "give text or a number")
            if "\x00" in value or any("\ud800" <= char <= "\udfff" for char in value):
                self._fail(f"column {column!r} holds a NUL or half a character", number, "take it out")
            values.append(value)
        if len(values[0]) > MAX_PROMPT_CHARS:
            self._fail(f"the prompt is longer than {MAX_PROMPT_CHARS} characters", number, "shorten it")
        if self._options.id in row:
            identity = str(row[self._options.id])
            if identity in first_line:
                self._fail(f"the id {identity[:80]!r} stands already in line {first_line[identity]}", number, "give each row its own id")
            first_line[identity] = number
        return Entry(question=values[0], answer=values[1].strip())

    def _split(self, entries: list[Entry]) -> tuple[list[Entry], list[Entry]]:
        """The same prompt is always on the same side, whatever else the file holds; each side gets at least one."""
        hashes = {entry.question: _fraction(entry.question) for entry in entries}
        if len(hashes) < 2:
            self._fail("the file holds only one prompt; none can be held out", None, "give at least two different prompts")
        held_out = {question for question, fraction in hashes.items() if fraction < self._options.held_out_share}
        if not held_out:
            held_out = {min(hashes, key=lambda question: hashes[question])}
        elif len(held_out) == len(hashes):
            held_out.remove(max(hashes, key=lambda question: hashes[question]))
        train = [entry for entry in entries if entry.question not in held_out]
        # In hash order, so that a shorter evaluation is no part of the file's beginning.
        rest = sorted((entry for entry in entries if entry.question in held_out), key=lambda entry: hashes[entry.question])
        return train, rest

    def _fail(self, message: str, line: int | None, cure: str) -> NoReturn:
        where = f"line {line}: " if line is not None else ""
        raise DataError(f"{where}{message}", field="environment.dataset", value=str(self._path), cure=cure)


def _options(given: dict[str, Any]) -> Options:
    known = set(Options.__dataclass_fields__)
    for name, value in given.items():
        if name not in known:
            raise ConfigError(
                "a JSONL task has no such option",
                field=f"environment.options.{name}",
                value=value,
                cure=f"its options are {', '.join(sorted(known))}",
            )
        share = name == "held_out_share"
        fits = (isinstance(value, float) and 0 < value < 1) if share else (isinstance(value, str) and bool(value))
        if not fits:
            wanted = "a number between 0 and 1" if share else "the name of a column"
            raise ConfigError("has a value of the wrong kind", field=f"environment.options.{name}", value=value, cure=f"give {wanted}")
    return Options(**given)


def _fraction(text: str) -> float:
    return float(int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) / 2**64)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
