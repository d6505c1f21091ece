"""From what a user gives to a config: layers, overrides, files, and every fault named at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.contract import fields, loading, presets
from workers.contract.config import RunConfig
from workers.contract.errors import ConfigError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
SECTIONS = st.sampled_from([*RunConfig.model_fields, "x"])
LEAVES = st.sampled_from([path.rpartition(".")[2] for path in fields.paths()])
NEAR_MISSES = st.dictionaries(SECTIONS, JSON | st.dictionaries(LEAVES, JSON, max_size=4), max_size=5)


def refused(**given_: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        loading.resolve(**given_)
    return caught.value


def test_nothing_given_is_the_demo() -> None:
    config = loading.resolve()
    assert config.preset == "demo@2"
    assert config.environment.options == {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}


def test_a_spec_alone_is_not_the_demo_unless_it_says_so() -> None:
    assert loading.resolve({"seed": 3}).preset is None
    assert loading.resolve({"seed": 3, "preset": "demo"}).environment.options["max_terms"] == 2


def test_layers_are_preset_then_spec_then_sets() -> None:
    config = loading.resolve({"budget": {"steps": 5}, "seed": 3}, preset="demo", sets=["budget.steps=6"])
    assert (config.budget.steps, config.seed, config.environment.system_prompt) == (6, 3, "Answer with the number only.")


def test_a_stored_config_outlives_its_preset() -> None:
    stored = {**loading.resolve().as_json(), "preset": "gone@9"}
    assert loading.resolve(stored).preset == "gone@9"
    assert refused(spec={"preset": "gone@9"}).field == "preset"
    assert refused(spec={"preset": "demo@99"}).cure == "use demo@2"


def test_another_dataset_starts_without_the_words_of_the_one_below() -> None:
    config = loading.resolve(sets=["environment.dataset=leg_counting", "environment.options.max_animals=3"])
    assert config.environment.options == {"max_animals": 3}
    assert config.environment.system_prompt == RunConfig().environment.system_prompt


@pytest.mark.parametrize(
    ("item", "path", "value"),
    [
        ("budget.steps=100", ("budget", "steps"), 100),
        ("optimizer.learning_rate=1e-3", ("optimizer", "learning_rate"), 1e-3),
        ("evaluation.at_start=false", ("evaluation", "at_start"), False),
        ("loss.dual_clip=null", ("loss", "dual_clip"), None),
        ("environment.system_prompt=12", ("environment", "system_prompt"), "12"),
        ("environment.system_prompt=a=b", ("environment", "system_prompt"), "a=b"),
        ('environment.options={"min_terms": 3, "max_terms": 4}', ("environment", "options"), {"min_terms": 3, "max_terms": 4}),
        ('partial=["continue"]', ("partial",), ["continue"]),
    ],
)
def test_an_override_is_read_by_its_fields_type(item: str, path: tuple[str, ...], value: Any) -> None:
    found: Any = loading.resolve(sets=[item])
    for name in path:
        found = getattr(found, name)
    assert found == value and type(found) is type(value)


def test_a_single_option_is_added_to_the_others() -> None:
    assert loading.resolve(sets=["environment.options.max_terms=3"]).environment.options["min_terms"] == 2


def test_a_section_that_may_be_null_takes_both_forms() -> None:
    one, other = (loading.resolve(sets=[item]) for item in ("staleness.depth_bound.value=2", 'staleness.depth_bound={"value": 2}'))
    assert one == other and one.staleness.depth_bound is not None


@pytest.mark.parametrize(
    ("item", "field", "cure"),
    [
        ("budget.stepz=3", "budget.stepz", "budget.steps"),
        ("steps=3", "steps", "budget.steps"),
        ("staleness.depth_bound.valu=3", "staleness.depth_bound.valu", "staleness.depth_bound.value"),
        ("learning=3", "learning", "optimizer.learning_rate"),
        ("budget.steps", "set", "budget.steps=100"),
        ("budget.steps=9.5", "budget.steps", "a whole number, at least 1"),
        ("budget.steps=", "budget.steps", "a whole number"),
        ("environment.options={", "environment.options", "JSON"),
        ("loss.policy=pp", "loss.policy", "ppo"),
        ("optimizer.learning_rate=NaN", "optimizer.learning_rate", "finite"),
        ("preset=demo", "preset", "--preset"),
    ],
)
def test_a_wrong_override_names_field_and_cure(item: str, field: str, cure: str) -> None:
    error = refused(sets=[item])
    assert error.field == field and cure in str(error.cure)


def test_every_fault_is_named_at_once() -> None:
    spec = {"batch": {"prompts": "8", "group_size": 1, "groups": 3}, "seed": True, "budget": 3, "rewards": {"zero_variance": "x"}}
    error = refused(spec=spec)
    assert {problem.field for problem in error.problems} == {
        "batch.prompts",
        "batch.group_size",
        "batch.groups",
        "seed",
        "budget",
        "rewards.zero_variance",
    }
    assert all(problem.cure for problem in error.problems)
    assert [str(problem) for problem in loading.problems(spec)] == [str(problem) for problem in error.problems]


def test_what_cannot_work_together_is_not_resolved() -> None:
    assert refused(sets=["buffer.depth=3"]).field == "buffer.depth"


def test_a_newer_schema_is_refused_clearly() -> None:
    error = refused(spec={"schema_version": 3})
    assert error.field == "schema_version" and error.cure == "update Headrace"


def test_a_config_of_an_older_schema_means_what_it_meant() -> None:
    older = {"schema_version": 1, "loss": {"tis_cap": 3.0}, "rewards": {"zero_variance": "drop"}}
    config = loading.resolve(older)
    assert [(item.hi, item.action) for item in config.loss.corrections] == [(3.0, "clip")]
    assert config.rewards.zero_variance == "refill"
    assert loading.resolve({"schema_version": 1, "loss": {"policy": "reinforce_is", "tis_cap": 5.0}}).loss.cap == 5.0
    assert loading.resolve({"schema_version": 1, "loss": {"tis_cap": None}}).loss.corrections == []


def test_an_unknown_preset_lists_those_there_are() -> None:
    error = refused(preset="dem")
    assert "did you mean demo?" in str(error.cure)


def test_diff_names_what_differs() -> None:
    changed = loading.diff(loading.resolve(), loading.resolve(sets=["seed=8", "loss.dual_clip=3"]))
    assert changed == {"seed": (7, 8), "loss.dual_clip": (None, 3.0)}


@pytest.mark.parametrize("name", presets.names())
def test_every_preset_resolves_and_round_trips(name: str) -> None:
    config = loading.resolve(preset=name)
    assert loading.resolve(config.as_json()) == config
    assert loading.resolve(json.loads(json.dumps(config.as_json()))).digest() == config.digest()


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.json", b'{"seed": 1, "seed": 2}', "twice"),
        ("a.json", b'{"seed": NaN}', "no such number"),
        ("a.json", b'{"seed": 1e400}', "finite"),
        ("a.json", b'{"seed": ' + b"9" * 5000 + b"}", "digits"),
        ("a.json", b"[1]", "object"),
        ("a.json", b"{", "line 1"),
        ("a.json", b"", "line 1"),
        ("a.json", '{"preset": "dé"}'.encode("latin-1"), "UTF-8"),
        ("a.json", '{"seed": 1}'.encode("utf-16"), "UTF-16"),
        ("a.json", b'{"a":' * 40 + b"1" + b"}" * 40, "deeper"),
        ("a.json", b"[" * 100_000, "deeper"),
        ("a.json", b" " * (1024 * 1024 + 1), "larger"),
        ("a.json", b'{"preset": "\\u0000"}', "NUL"),
        ("a.json", b'{"preset": "\\ud800"}', "surrogate"),
        ("a.toml", b"seed = 1\nseed = 2", "TOML"),
        ("a.toml", b"seed = 2020-01-01", "JSON value"),
        ("a.toml", b"seed = inf", "finite"),
    ],
)
def test_a_bad_file_is_refused_with_its_fault(tmp_path: Path, name: str, data: bytes, words: str) -> None:
    file = tmp_path / name
    file.write_bytes(data)
    with pytest.raises(ConfigError) as caught:
        loading.read(file)
    assert words in str(caught.value) and caught.value.cure


def test_files_of_both_kinds_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b'\xef\xbb\xbf{"seed": 5}')
    (tmp_path / "a.toml").write_text("seed = 5\n[budget]\nsteps = 2\n")
    assert loading.read(tmp_path / "a.json") == {"seed": 5}
    assert loading.read(tmp_path / "a.toml") == {"seed": 5, "budget": {"steps": 2}}
    for path in (tmp_path, tmp_path / "none.json", "a\x00b"):
        with pytest.raises(ConfigError):
            loading.read(path)


@settings(max_examples=300, deadline=None)
@given(JSON | NEAR_MISSES)
def test_whatever_is_given_is_a_config_or_a_config_error(value: Any) -> None:
    faults = loading.problems(value)
    if faults or value is None:
        assert all(str(fault) and json.dumps(fault.as_dict()) for fault in faults)
        return
    config = loading.resolve(value)
    assert loading.resolve(config.as_json()) == config


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200) | st.text(max_size=200), st.booleans())
def test_whatever_the_file_holds_is_a_table_or_a_config_error(data: bytes | str, toml: bool) -> None:
    try:
        assert isinstance(loading.parse(data, toml=toml), dict)
    except ConfigError as error:
        assert error.message


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(list(fields.table())), st.text(max_size=30))
def test_whatever_an_override_says_is_a_config_or_names_its_field(path: str, text: str) -> None:
    for fault in loading.problems(sets=[f"{path}={text}"]):
        assert fault.field and fault.cure
