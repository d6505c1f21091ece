"""The page "Add a kind of your own" is true: its three touches, made to a copy of the engine, give a kind that passes the suites."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "frontend" / "templates" / "help" / "add-a-kind.md"
CODE = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)

# Slow tokens: a group is generated over several publishes, so that a few of its tokens are older than the others.
FLOW = """
from tests.workers.test_flow_policies import config, lags, simulate
from workers.axes.staleness.drop_mostly import DropMostly

def ran(over_limit):
    flow = {"rollout": {"max_running": 16}, "buffer": {"depth": 4}, "staleness": {"max_lag": 1, "over_limit": over_limit}}
    return simulate(config(**flow), token_s=0.1, lengths=lambda identity: 20 + 40 * (hash(identity) % 3))

strict, mostly = ran("drop"), ran("drop_mostly")
assert isinstance(mostly.staleness, DropMostly)
assert max(lags(strict)) <= 1 < max(lags(mostly)), "a few old tokens are trained where most are fresh"
assert mostly.samples.dropped["stale"] < strict.samples.dropped["stale"], (mostly.samples.dropped, strict.samples.dropped)
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The engine and its tests with what the page says done to them."""
    folder = tmp_path_factory.mktemp("own")
    for part in ("workers", "tests/workers", "tests/contract"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    for how, file, body in CODE.findall(PAGE.read_text(encoding="utf-8")):
        if how == "new":
            assert not (folder / file).exists()
            (folder / file).write_text(body, encoding="utf-8")
        elif how == "change":
            path = folder / file
            text = path.read_text(encoding="utf-8")
            before = "".join(line[1:] + "\n" for line in body.splitlines() if line.startswith("-"))
            after = "".join(line[1:] + "\n" for line in body.splitlines() if line.startswith("+"))
            assert text.count(before) == 1, f"{file} no longer holds, once: {before}"
            path.write_text(text.replace(before, after), encoding="utf-8")
    return folder


def _run(folder: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0"}
    done = subprocess.run([sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_the_page_touches_three_places() -> None:
    touched = [(how, file) for how, file, _ in CODE.findall(PAGE.read_text(encoding="utf-8")) if how in ("new", "change")]
    assert {file for how, file in touched if how == "change"} == {"workers/contract/axes.py", "workers/registry.py"}
    assert [how for how, _ in touched].count("new") == 1


def test_the_commands_of_the_page_pass(copy: Path) -> None:
    (commands,) = [body for how, _, body in CODE.findall(PAGE.read_text(encoding="utf-8")) if how == "run"]
    for line in commands.splitlines():
        program, *arguments = line.split()
        assert program == "python"
        extra = ["-p", "no:cacheprovider", "-q", "-k", "drop_mostly or registry or described"] if "pytest" in arguments else []
        output = _run(copy, *arguments, *extra)
        if extra:
            assert re.search(r"\b[1-9]\d* passed", output), output


def test_the_new_kind_does_what_it_says_in_the_flow(copy: Path) -> None:
    _run(copy, "-c", FLOW)


def test_the_registry_resolves_it_and_a_stranger_is_still_refused(copy: Path) -> None:
    names = _run(copy, "-c", "from workers import registry; print(registry.resolve('staleness', 'drop_mostly').__name__)")
    assert names.strip() == "DropMostly"
    with pytest.raises(AssertionError, match="drop_gently"):
        _run(copy, "-m", "workers", "check", "--set", "staleness.over_limit=drop_gently")
