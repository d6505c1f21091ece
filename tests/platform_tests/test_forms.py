"""The one form renderer: every config field has an input, and what a page shows comes back as the same config."""

from __future__ import annotations

from typing import Any

import pytest
from django.http import QueryDict

from headrace.experiments import forms, live_check
from headrace.experiments.draft import Draft
from headrace.schema_form import Field, blocks, fields_of
from headrace.schema_parse import differences, parse
from workers.contract import axes, fields, loading, presets
from workers.contract.config import Correction, Kl, RunConfig
from workers.contract.errors import ConfigError


def posted(values: dict[str, Any], **changes: str | None) -> QueryDict:
    """What a browser sends for a form filled with `values`; `changes` by dotted path with __ for dots, None: not sent."""
    query = QueryDict(mutable=True)
    for block in blocks(forms.schema(), values):
        for item in block.fields:
            if item.kind in ("boolean", "choices"):
                query[f"{item.path}.shown"] = "1"
            if item.kind == "choices":
                query.setlist(item.path, item.value)
            elif item.kind != "boolean":
                query[item.path] = item.value
            elif item.value:
                query[item.path] = "on"
    if values.get("preset"):
        query["preset"] = values["preset"]
    for name, value in changes.items():
        path = name.replace("__", ".")
        if value is None:
            query.pop(path, None)
        else:
            query[path] = value
    return query


def test_every_field_of_the_config_has_one_input() -> None:
    shown = set(fields_of(forms.schema()))
    # A block that may be left empty is one input, as JSON: its parts have none of their own.
    wanted = {path if path in shown or path.rpartition(".")[0] not in shown else path.rpartition(".")[0] for path in fields.paths()}
    assert shown == wanted - {"schema_version", "preset"}


@pytest.mark.parametrize("name", presets.names())
def test_a_shown_config_comes_back_the_same(name: str) -> None:
    config = loading.resolve(None, preset=name)
    data, errors = parse(forms.schema(), posted(config.as_json()))
    assert errors == {}
    assert RunConfig.model_validate(data) == config


def test_values_keep_their_types() -> None:
    values = RunConfig().as_json()
    query = posted(
        values,
        budget__wall_s="",
        loss__dual_clip="2.5",
        budget__steps="1_000",
        evaluation__at_start=None,
        environment__options='{"a": [1]}',
    )
    data, errors = parse(forms.schema(), query)
    assert errors == {}
    assert data["budget"] == {"steps": 1000, "wall_s": None, "samples": None, "tokens": None}
    assert data["loss"]["dual_clip"] == 2.5
    assert data["evaluation"]["at_start"] is False
    assert data["environment"]["options"] == {"a": [1]}


@pytest.mark.parametrize(
    ("path", "text", "part"),
    [
        ("batch.prompts", "eight", "not a whole number"),
        ("batch.prompts", "", "A number is needed"),
        ("batch.prompts", "1.5", "not a whole number"),
        ("optimizer.learning_rate", "fast", "not a number"),
        ("environment.options", "[1]", "JSON object"),
        ("environment.options", "{", "Not JSON"),
        ("loss.corrections", '{"hi": 2}', "list of objects"),
        ("loss.corrections", "[2]", "list of objects"),
        ("loss.corrections", "[", "Not JSON"),
        ("loss.kl", "[]", "JSON object"),
        ("staleness.depth_bound", "1", "JSON object"),
    ],
)
def test_what_cannot_be_read_is_said_at_its_field(path: str, text: str, part: str) -> None:
    data, errors = parse(forms.schema(), posted(RunConfig().as_json(), **{path.replace(".", "__"): text}))
    assert part in errors[path][0]
    assert path.split(".")[1] not in data.get(path.split(".")[0], {})


def test_faults_of_the_contract_land_at_their_field_with_the_cure() -> None:
    data = RunConfig().as_json()
    data["buffer"]["depth"] = 2
    with pytest.raises(ConfigError) as caught:
        loading.resolve(data)
    errors = forms.from_problems(caught.value.problems)
    assert "buffer.depth" in errors
    assert "Set buffer.depth to 8 or more" in errors["buffer.depth"][0]
    links = live_check.links(Draft(errors=errors))
    assert (links[0]["id"], links[0]["title"]) == ("field-buffer-depth", "Buffer depth")


def test_a_block_that_may_be_left_out_and_a_list_of_objects_come_back() -> None:
    query = posted(
        RunConfig().as_json(),
        loss__kl='{"coefficient": 0.04}',
        loss__corrections='[{"hi": 3.0, "action": "mask"}, {"level": "sequence"}]',
        staleness__depth_bound="",
        loss__distillation="",
    )
    data, errors = parse(forms.schema(), query)
    assert errors == {}
    config = RunConfig.model_validate(data)
    assert config.loss.kl is not None and config.loss.kl.coefficient == 0.04
    assert [item.action for item in config.loss.corrections] == ["mask", "clip"]
    assert config.staleness.depth_bound is None and config.loss.distillation is None


def test_a_fault_inside_a_list_or_block_says_where() -> None:
    spec = {
        "loss": {"corrections": [{}, {"hi": 0.5}], "kl": {"coefficient": -1}},
        "staleness": {"depth_bound": {"value": 1, "unit": "days"}},
    }
    with pytest.raises(ConfigError) as caught:
        loading.resolve(spec)
    errors = forms.from_problems(caught.value.problems)
    assert errors["loss.corrections"][0].startswith("Item 2, hi: ")
    assert errors["loss.kl"][0].startswith("Coefficient: ")
    assert errors["staleness.depth_bound"][0].startswith("Unit: ")


def test_json_fields_say_what_may_stand_in_them() -> None:
    known = fields_of(forms.schema())
    assert {part.name for part in known["loss.corrections"].parts} == set(Correction.model_fields)
    assert known["loss.corrections"].listed and known["loss.corrections"].example.startswith("[")
    assert Kl.model_validate_json(known["loss.kl"].example) == Kl()
    assert known["loss.distillation"].example == "", "a teacher has no default"


def test_words_of_the_loss_are_explained_by_their_formula() -> None:
    known = {item.path: item for section in forms.sections() for item in (*section.main, *section.more)}
    for path in (
        "loss.policy",
        "loss.advantage",
        "loss.aggregation",
        "loss.anchor",
        "buffer.order",
        "interrupt.kv_after",
        "staleness.lag_from",
    ):
        assert all(choice.description for choice in known[path].choices), path


def test_sections_hold_every_block_once_and_open_where_an_error_is() -> None:
    form = forms.sections(RunConfig().as_json(), errors={"sampling.top_k": ["too many"]})
    names = [block.name for section in form for block in section.blocks]
    wanted = {path.partition(".")[0] if "." in path else "run" for path in fields_of(forms.schema())}
    assert sorted(names) == sorted(wanted | {"partial"})  # a field of the whole run, read beside the interrupts
    shown = [item.path for section in form for item in (*section.main, *section.more)]
    assert sorted(shown) == sorted(fields_of(forms.schema()))
    assert "More" not in [section.title for section in form], "every block has its place"
    assert [section.title for section in form if section.more_has_errors] == ["Samples"]


def test_every_axis_kind_is_explained_beside_its_choice() -> None:
    known: dict[str, Field] = {item.path: item for section in forms.sections() for item in (*section.main, *section.more)}
    assert set(forms.AXIS_OF_FIELD.values()) == set(axes.AXES)
    for path in forms.AXIS_OF_FIELD:
        assert all(choice.description for choice in known[path].choices), path


def test_limits_are_said_in_words() -> None:
    known = fields_of(forms.schema())
    assert known["batch.group_size"].limits == "at least 2, at most 256"
    assert known["loss.dual_clip"].limits == "above 1, at most 100; empty: none"


def test_differences_name_the_field_and_both_values() -> None:
    before, after = RunConfig().as_json(), RunConfig().as_json()
    after["budget"]["steps"] = 7
    assert differences(forms.schema(), before, after) == [{"path": "budget.steps", "title": "Steps", "before": "40", "after": "7"}]
