"""Presets are pure data: every file loads, resolves, round-trips and can run, and says exactly what it is."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from workers.contract import compat, design, loading, presets
from workers.contract.axes import AXES
from workers.contract.bounds import most_groups
from workers.contract.config import RunConfig
from workers.contract.errors import ConfigError

VARIANTS = [name for name in presets.names() if presets.read(name)[0].variant_of]
# CUDA IPC needs a GPU, expert shards a model with experts; the demo's workload has neither. Presets run without vLLM and servers.
ELSEWHERE = {("transport", "cuda_ipc"), ("payload", "expert_shards"), ("rollout", "vllm"), ("rollout", "remote")}


@pytest.mark.parametrize("name", presets.names())
def test_a_preset_resolves_round_trips_and_can_run(name: str) -> None:
    config = loading.resolve(preset=name)
    assert compat.check(config) == []
    assert RunConfig.model_validate(json.loads(json.dumps(config.as_json()))) == config
    assert config.preset == presets.read(name)[0].label
    assert loading.resolve(config.as_json()) == config


@pytest.mark.parametrize("name", presets.names())
def test_a_preset_says_where_it_comes_from(name: str) -> None:
    meta = presets.read(name)[0]
    assert meta.provenance and meta.signature and meta.description and meta.library and meta.project
    assert meta.approximates or name == presets.DEFAULT, "no preset runs the library itself"
    assert all(sentence.endswith(".") for sentence in (*meta.approximates, meta.description, meta.signature))


@pytest.mark.parametrize("name", [name for name in presets.names() if name != presets.DEFAULT])
def test_every_preset_is_compared_on_the_demos_workload(name: str) -> None:
    demo, config = loading.resolve(preset=presets.DEFAULT), loading.resolve(preset=name)
    assert presets.read(name)[0].workload == presets.DEFAULT
    assert (config.batch, config.environment, config.model) == (demo.batch, demo.environment, demo.model)
    assert config.budget.steps == demo.budget.steps and config.lora.rank == demo.lora.rank
    assert config.sampling.max_new_tokens == demo.sampling.max_new_tokens


def test_the_eighteen_and_no_other_are_listed() -> None:
    listed = presets.catalogue()
    assert [row["name"] for row in listed] == list(presets.LIBRARIES) and len(listed) == 18
    assert presets.names()[:19] == [presets.DEFAULT, *presets.LIBRARIES]
    for row in listed:
        assert {
            "name",
            "library",
            "date",
            "axes",
            "provenance",
            "approximates",
            "title",
            "description",
            "signature",
            "variants",
        } <= row.keys()
        assert row["variant_of"] is None and set(row["axes"]) == set(AXES)
        assert all(variant["variant_of"] == row["name"] for variant in row["variants"])
    assert sorted(variant["name"] for row in listed for variant in row["variants"]) == sorted(VARIANTS)
    assert presets.catalogue(everything=True)[0]["name"] == presets.DEFAULT


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_varies_a_preset(name: str) -> None:
    meta = presets.read(name)[0]
    assert meta.variant_of in presets.LIBRARIES and name.startswith(meta.variant_of)
    changed = loading.diff(loading.resolve(preset=meta.variant_of), loading.resolve(preset=name))
    assert set(changed) - {"preset"}, "it is the same design"
    options = [row["option"] for row in meta.provenance]
    assert len(options) == len(set(options))


def test_every_kind_of_every_axis_is_in_some_preset() -> None:
    used = {
        (axis, kind) for name in presets.names() for axis, kinds in design.kinds(loading.resolve(preset=name)).items() for kind in kinds
    }
    assert {(axis, kind) for axis, kinds in AXES.items() for kind in kinds} - used == ELSEWHERE


def test_no_two_of_the_eighteen_are_the_same_design() -> None:
    seen = {json.dumps({**loading.resolve(preset=name).as_json(), "preset": None}, sort_keys=True) for name in presets.LIBRARIES}
    assert len(seen) == 18


@pytest.mark.parametrize("name", ["trl-sync", "art-march-2026"])
def test_a_synchronous_design_is_synchronous_by_construction(name: str) -> None:
    config = loading.resolve(preset=name)
    assert config.buffer.kind == "none" and config.staleness.max_lag == 0
    assert most_groups(config) == config.batch.prompts and config.interrupt.kind == "batch"


def test_facts_that_tell_the_libraries_apart() -> None:
    resolved = {name: loading.resolve(preset=name) for name in presets.names()}
    assert resolved["verl"].sync.every_steps == 4 and resolved["verl"].loss.dual_clip == 3.0
    assert resolved["pipelinerl"].buffer.ring == 128 and resolved["pipelinerl"].loss.cap == 1.02
    assert resolved["prime-rl"].partial == ["continue", "cancel_group"] and resolved["prime-rl"].loss.policy == "dppo"
    assert resolved["atropos"].transport.kind == "restart" and resolved["atropos"].sync.every_steps == 3
    assert resolved["trl-sync"].loss.corrections[0].level == "sequence" and resolved["trl-sync"].loss.corrections[0].hi == 3.0
    assert resolved["areal"].loss.anchor == "decoupled" and resolved["areal"].interrupt.kind == "abort"
    assert resolved["nemo-rl"].staleness.over_limit == "drop" and resolved["nemo-rl"].staleness.max_lag == 1
    assert resolved["oat"].backend.sharded_optimizer and resolved["oat"].loss.aggregation == "sequence_sum_constant"
    whole = [name for name, config in resolved.items() if config.lora.kind == "off"]
    assert all(resolved[name].optimizer.learning_rate <= 2e-5 for name in whole), "every weight learns"


def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, change: Any) -> None:
    folder = tmp_path / "presets"
    shutil.copytree(presets.FOLDER, folder)
    path = folder / f"{name}.toml"
    path.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8")
    monkeypatch.setattr(presets, "FOLDER", folder)
    presets._parsed.cache_clear()


@pytest.mark.parametrize(
    ("name", "before", "after", "words"),
    [
        ("verl", 'title = "', 'subtitle = "', "missing title; unknown subtitle"),
        ("verl", "version = 1", 'version = "1"', "wrong type: version"),
        ("verl", 'date = "2026-08-22"', 'date = "August"', "date is written"),
        ("verl", 'name = "verl"', 'name = "vera"', "its name is that of the file"),
        ("verl", 'workload = "demo"', 'workload = "own"', "workload must be"),
        ("verl", 'value = "null", file', 'value = "null", path', "option, value and file"),
        ("verl-wait", 'variant_of = "verl"', 'variant_of = "verl-fully-async"', "no variant itself"),
        ("verl-wait", 'variant_of = "verl"', 'variant_of = "nobody"', "no variant itself"),
    ],
)
def test_a_wrong_preset_table_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, before: str, after: str, words: str
) -> None:
    def change(text: str) -> str:
        assert before in text
        return text.replace(before, after, 1)

    _folder(tmp_path, monkeypatch, name, change)
    try:
        with pytest.raises(ConfigError, match=words):
            presets.read(name)
    finally:
        presets._parsed.cache_clear()


def test_an_unknown_preset_is_told_with_its_neighbour() -> None:
    with pytest.raises(ConfigError, match="did you mean verl"):
        presets.read("verll")


def test_the_command_lists_them() -> None:
    command = [sys.executable, "-m", "workers", "presets"]
    listed = json.loads(subprocess.run([*command, "--json"], capture_output=True, text=True, check=True, timeout=60).stdout)
    assert [row["name"] for row in listed] == list(presets.LIBRARIES)
    text = subprocess.run([*command, "--all"], capture_output=True, text=True, check=True, timeout=60).stdout
    assert len(text.splitlines()) == 1 + len(presets.names())
