"""What the new-run form adds to the schema's fields: sections in reading order, sentences beside kinds, error links."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
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

# Key, group, title, one sentence, and the config blocks shown under it. A key that is an axis has its page under /help/axes/.
# Blocks named nowhere land in a last section.
DESIGN, WORK = "The design: one kind on each axis", "The work: what is trained, on what, for how long"
LAYOUT: tuple[tuple[str, str, str, str, tuple[str, ...]], ...] = (
    ("orchestration", DESIGN, "Orchestration", "Who starts the pools and carries messages between them.", ("orchestration",)),
    ("rollout", DESIGN, "Rollout engine", "What generates completions, in how many copies, how many at a time.", ("rollout",)),
    ("buffer", DESIGN, "Buffer", "What waits between generation and training, and how much of it.", ("buffer",)),
    ("transport", DESIGN, "Weight sync", "How new weights travel to the engines, and how often.", ("sync", "transport")),
    ("interrupt", DESIGN, "Interrupt", "When engines take the new weights, and what running samples do meanwhile.", ("interrupt",)),
    ("staleness", DESIGN, "Staleness", "How many versions old a sample may be when it is trained.", ("staleness",)),
    ("partial", DESIGN, "Partial rollouts", "What becomes of half-finished samples at a weight change.", ("partial",)),
    ("lora", DESIGN, "LoRA", "Whether an adapter or every weight is trained, and what of it travels.", ("lora",)),
    ("backend", DESIGN, "Training backend", "How training is spread over processes.", ("backend",)),
    ("task", WORK, "Task", "What the model is asked, in which order, and how its answers are judged.", ("environment", "curriculum")),
    ("model", WORK, "Model", "Which language model learns.", ("model",)),
    ("samples", WORK, "Samples", "How many completions make one step, and how they are drawn.", ("batch", "sampling", "rewards")),
    (
        "loss",
        WORK,
        "Loss and optimizer",
        "How rewards become advantages, advantages a loss, and the loss a step.",
        ("optimizer", "loss", "replay"),
    ),
    (
        "measuring",
        WORK,
        "Measuring and keeping",
        "When the model is tested on held-out prompts and when it is saved.",
        ("evaluation", "checkpoint"),
    ),
    ("budget", WORK, "Budget and seed", "When the run ends, and where its randomness starts.", ("budget", "run")),
)
BLOCK_TITLES = {"batch": "Batch", "run": "Whole run", "lora": "LoRA"}
AXIS_OF_FIELD = {path: axis for axis, path in design.FIELDS.items()}
AXIS_TITLES = {"lora": "LoRA", "rollout": "Rollout engine", "partial": "Partial rollouts"}


@dataclass(frozen=True)
class Section:
    """One card of the form."""

    key: str
    group: str
    title: str
    text: str
    blocks: tuple[Block, ...]

    @property
    def axis(self) -> str:
        """The anchor of its help, if it is an axis."""
        return self.key if self.key in axes.AXES else ""

    @property
    def fields(self) -> list[Field]:
        return [*self.main, *self.more]

    @property
    def kind(self) -> Field | None:
        """The field that names the axis' kind, shown in the card's head."""
        wanted = design.FIELDS.get(self.key)
        return next((item for item in self.fields if item.path == wanted), None)

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
        name: Block(name, BLOCK_TITLES.get(name, name.capitalize()), block.description, _kinds_first(block.fields))
        for name, block in by_name.items()
    }
    titled["partial"], titled["run"] = _apart(titled["run"], "partial")
    placed = {name for *_words, names in LAYOUT for name in names}
    result = [
        Section(key, group, title, text, tuple(titled[name] for name in names if name in titled))
        for key, group, title, text, names in LAYOUT
    ]
    rest = tuple(block for name, block in titled.items() if name not in placed)
    return [*result, Section("more", WORK, "More", "Further settings.", rest)] if rest else result


def _kinds_first(fields: tuple[Field, ...]) -> tuple[Field, ...]:
    """What names an axis' kind is always in the open, before the rest of its block."""
    shown = [replace(item, level="main") if item.path in AXIS_OF_FIELD else item for item in fields]
    return tuple(sorted(shown, key=lambda item: item.path not in AXIS_OF_FIELD))


def _apart(block: Block, path: str) -> tuple[Block, Block]:
    """A field of the run as a whole that is read beside other ones, as a block of its own; and the rest."""
    own = tuple(item for item in block.fields if item.path == path)
    rest = tuple(item for item in block.fields if item.path != path)
    return Block(path, AXIS_TITLES[path], own[0].help, own), Block(block.name, block.title, block.description, rest)


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
    version = plain.CharField(required=False, max_length=64, widget=plain.HiddenInput())

    def clean_tags(self) -> list[str]:
        return [tag.strip() for tag in self.cleaned_data["tags"].split(",") if tag.strip()]
