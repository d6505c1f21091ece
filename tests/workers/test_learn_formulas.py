"""The page's words: every choice of the loss block has a formula and a source, every recipe is a valid correction."""

from __future__ import annotations

from typing import Literal, get_args, get_origin

import pytest
from pydantic import BaseModel

from workers.contract.formulas import DIFFERENCES, FORMULAS
from workers.contract.learning import Correction, Distillation, Kl, Loss
from workers.learn.advantages import ADVANTAGES

SECTIONS: dict[str, type[BaseModel]] = {
    "loss": Loss,
    "loss.corrections": Correction,
    "loss.kl": Kl,
    "loss.distillation": Distillation,
}
CHOICES = {
    f"{section}.{name}": get_args(info.annotation)
    for section, model in SECTIONS.items()
    for name, info in model.model_fields.items()
    if get_origin(info.annotation) is Literal
}


def test_every_choice_of_the_loss_block_is_explained() -> None:
    assert {name: set(entries) for name, entries in FORMULAS.items() if name != "corrections"} == {
        name: set(kinds) for name, kinds in CHOICES.items()
    }
    assert set(ADVANTAGES) == set(CHOICES["loss.advantage"])
    for entries in FORMULAS.values():
        for entry in entries.values():
            assert entry["formula"].strip() and entry["source"].strip()


@pytest.mark.parametrize("name", ["is", "tis", "mis", "icepop", "seq_mask", "opsm", "veto"])
def test_a_recipe_is_a_config(name: str) -> None:
    values = FORMULAS["corrections"][name]["corrections"]
    loss = Loss.model_validate({"corrections": values})
    assert [item.model_dump() for item in loss.corrections] == values
    assert (name == "tis") == (loss.corrections == Loss().corrections)


def test_differences_say_something_of_each_side() -> None:
    assert all(all(text.strip() for text in one.values()) for one in DIFFERENCES)  # type: ignore[attr-defined]
    assert len({one["topic"] for one in DIFFERENCES}) == len(DIFFERENCES)
