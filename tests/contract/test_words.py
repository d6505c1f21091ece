"""Every word of the contract is described, and the registry knows exactly the contract's kinds."""

from __future__ import annotations

from typing import get_args

import pytest

from workers import registry
from workers.contract import axes, events, fields, metrics, presets
from workers.contract.config import RunConfig


def test_every_kind_is_described_and_no_other() -> None:
    assert {axis: set(kinds) for axis, kinds in axes.AXES.items()} == {axis: set(rows) for axis, rows in axes.DESCRIPTIONS.items()}
    assert all(text.endswith(".") for rows in axes.DESCRIPTIONS.values() for text in rows.values())


def test_the_registry_holds_exactly_the_contracts_kinds() -> None:
    assert {axis: set(kinds) for axis, kinds in axes.AXES.items()} == {axis: set(rows) for axis, rows in registry.TABLE.items()}


def test_every_event_kind_is_described() -> None:
    assert set(events.KINDS) == set(events.DESCRIPTIONS)


def test_every_metric_is_described_and_named_by_its_key() -> None:
    for name, metric in metrics.CATALOGUE.items():
        assert metric.name == name and metric.title and metric.description.endswith((".", ":"))
        assert metric.group in get_args(metrics.Group)
    for name, metric in metrics.PATTERNS.items():
        assert metric.name == name and metric.title and metric.description.endswith(".") and metric.group in get_args(metrics.Group)


def test_a_metric_with_a_part_filled_in_is_found_and_a_stranger_is_not() -> None:
    found = metrics.describe("engine/generator/3/kv_share")
    assert found is not None and (found.title, found.unit) == ("Cache in use (generator/3)", "share")
    gpu = metrics.describe("system/gpu/0/utilization")
    assert gpu is not None and gpu.name == "system/gpu/0/utilization"
    assert metrics.describe("reward/mean") is metrics.CATALOGUE["reward/mean"]
    assert metrics.describe("engine/generator/3/mood") is None and metrics.describe("mine") is None


@pytest.mark.parametrize("path", list(fields.table()))
def test_every_field_has_a_title_a_sentence_and_limits(path: str) -> None:
    info = fields.table()[path]
    assert info.title and info.description and info.description.rstrip().endswith((".", "}"))
    assert not fields.limits(info).startswith("a value"), "its type has no words"


def test_every_section_says_what_it_is() -> None:
    for name, info in RunConfig.model_fields.items():
        if (model := fields.section(info)) is not None:
            assert model.__doc__, name


@pytest.mark.parametrize("name", presets.names())
def test_every_preset_says_where_it_comes_from(name: str) -> None:
    meta = presets.load(name)["preset"]
    assert all(meta[key] for key in ("title", "description", "provenance", "version"))
    assert isinstance(meta["approximates"], list)
