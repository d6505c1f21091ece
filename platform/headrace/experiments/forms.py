"""What the new-run form adds to the schema's fields: sections in reading order, sentences beside kinds, error links."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from django import forms as plain
from django.http import QueryDict

from headrace.schema_form import Block, Field, blocks, fields_of
from headrace.schema_parse import Errors
from workers.contract import axes, design
from workers.contract.config import RunConfig
from workers.contract.errors import HeadraceError
from workers.contract.formulas import FORMULAS

# Title, one sentence, and the config blocks shown under it. Blocks named nowhere land in the last section.
LAYOUT: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("Model and task", "Which language model learns, what it is asked and how its answers are judged.", ("model", "environment")),
    ("Samples", "How many completions make one step, and how they are drawn.", ("batch", "sampling", "rewards", "curriculum")),
    (
        "Learning",
        "How rewards become advantages, advantages a loss, and the loss a step of what learns.",
        ("optimizer", "loss", "lora", "replay"),
    ),
    (
        "Flow",
        "How generation and training overlap: the pools, what waits between them, how old a sample may be, how weights travel.",
        ("rollout", "orchestration", "buffer", "staleness", "sync", "transport", "interrupt", "partial", "backend"),
    ),
    ("Measuring and keeping", "When the model is tested on held-out prompts and when it is saved.", ("evaluation", "checkpoint")),
    ("Budget and seed", "When the run ends, and where its randomness starts.", ("budget", "run")),
)
BLOCK_TITLES = {"batch": "Batch", "run": "Whole run", "lora": "LoRA"}
AXIS_OF_FIELD = {path: axis for axis, path in design.FIELDS.items()}
AXIS_TITLES = {"lora": "LoRA", "rollout": "Rollout engine", "partial": "Partial rollouts"}


@dataclass(frozen=True)
class Section:
    """One card of the form."""

    title: str
    text: str
    blocks: tuple[Block, ...]

    @property
    def main(self) -> list[Field]:
        return [item for block in self.blocks for item in block.main]

    @property
    def more(self) -> list[Field]:
        return [item for block in self.blocks for item in block.more]

    @property
    def more_count(self) -> int:
        return len(self.more)

    @property
    def more_titles(self) -> str:
        titles = [item.title[:1].lower() + item.title[1:] for item in self.more]
        return ", ".join(titles[:4]) + (", …" if len(titles) > 4 else "")

    @property
    def more_has_errors(self) -> bool:
        return any(item.errors for item in self.more)


@lru_cache(maxsize=1)
def schema() -> dict[str, Any]:
    """The config's JSON Schema, made once a process."""
    return RunConfig.model_json_schema()


def describe(path: str, choice: str) -> str:
    """The contract's sentence about a kind or an option, or the formula of a word of the loss; "" for choices that need none."""
    words = axes.DESCRIPTIONS.get(AXIS_OF_FIELD.get(path, ""), {}) or axes.OPTIONS.get(path, {})
    formula = FORMULAS.get(path, {}).get(choice)
    return words.get(choice, "") or (formula["formula"] if formula else "")


def sections(
    values: Mapping[str, Any] | None = None,
    *,
    submitted: QueryDict | None = None,
    errors: Mapping[str, Iterable[str]] | None = None,
) -> list[Section]:
    """The form, filled and with its faults. Called for every showing of the page."""
    by_name = {block.name: block for block in blocks(schema(), values, submitted=submitted, errors=errors, describe=describe)}
    titled = {
        name: Block(name, BLOCK_TITLES.get(name, name.capitalize()), block.description, block.fields) for name, block in by_name.items()
    }
    titled["partial"], titled["run"] = _apart(titled["run"], "partial")
    placed = {name for _title, _text, names in LAYOUT for name in names}
    result = [Section(title, text, tuple(titled[name] for name in names if name in titled)) for title, text, names in LAYOUT]
    rest = tuple(block for name, block in titled.items() if name not in placed)
    return [*result, Section("More", "Further settings.", rest)] if rest else result


def _apart(block: Block, path: str) -> tuple[Block, Block]:
    """A field of the run as a whole that is read beside other ones, as a block of its own; and the rest."""
    own = tuple(item for item in block.fields if item.path == path)
    rest = tuple(item for item in block.fields if item.path != path)
    return Block(path, AXIS_TITLES[path], own[0].help, own), Block(block.name, block.title, block.description, rest)


def error_links(form: Iterable[Section], errors: Errors) -> list[dict[str, str]]:
    """Every fault once, with the id of its input, for the summary on top of the page."""
    known = {item.path: item for section in form for item in (*section.main, *section.more)}
    links = []
    for path, messages in errors.items():
        item = known.get(path)
        links += [{"id": item.input_id if item else "", "title": item.title if item else path, "error": text} for text in messages]
    return links


def from_problems(problems: Iterable[HeadraceError]) -> Errors:
    """Errors of the contract by the path of their field, each as a sentence with its cure. A part of a field belongs to it."""
    known = fields_of(schema())
    found: Errors = {}
    for problem in problems:
        path = whole = problem.field or ""
        while path and path not in known:
            path = path.rpartition(".")[0]
        place = _place(whole[len(path) + 1 :]) if path else ""
        found.setdefault(path, []).append(place + sentence(problem.message, problem.cure))
    return found


def _place(inside: str) -> str:
    """Where inside one input a fault is: "0.hi" of a list is item 1, hi."""
    words = [f"item {int(word) + 1}" if word.isdigit() else word for word in inside.split(".") if word]
    return f"{', '.join(words)}: ".capitalize() if words else ""


def sentence(message: str, cure: str | None) -> str:
    """What is wrong and what to do about it, as people write."""
    parts = [text.strip().rstrip(".") for text in (message, cure or "")]
    return " ".join(f"{text[:1].upper()}{text[1:]}." for text in parts if text)


class EditForm(plain.Form):
    """What people say about a run. The service judges it; tags are written with commas between them."""

    name = plain.CharField(label="Name", max_length=200, widget=plain.TextInput(attrs={"class": "input", "autocomplete": "off"}))
    tags = plain.CharField(
        label="Tags",
        required=False,
        max_length=1300,
        help_text="With commas between them.",
        widget=plain.TextInput(attrs={"class": "input", "autocomplete": "off"}),
    )
    note = plain.CharField(label="Note", required=False, max_length=10_000, widget=plain.Textarea(attrs={"class": "input", "rows": 4}))

    def clean_tags(self) -> list[str]:
        return [tag.strip() for tag in self.cleaned_data["tags"].split(",") if tag.strip()]
