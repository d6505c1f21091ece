"""The house keeps its shape: the platform trap, walls and layers, small files, no dangerous calls, every word known."""

from __future__ import annotations

import ast
import functools
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.workers.tiny_model import make_tiny_model
from workers import registry
from workers.contract import axes, events, metrics

ROOT = Path(__file__).resolve().parent.parent
TOP_LEVEL = {"manage.py", "pyproject.toml", "README.md", "LICENSE", "platform", "workers", "frontend", "migrations", "tests", "deploy"}
MADE_LOCALLY = {"__pycache__", "build", "dist", "screenshots"}  # what .gitignore leaves out
MAX_LINES = 500
DJANGOS_OWN = {"apps.py", "admin.py"}  # Django says what a module of this name is

# Upper may import lower or its own level, never higher. A module that is not named here sits beside the driver.
LEVELS: dict[str, int] = {
    "__main__": 6,
    **dict.fromkeys(
        ("cluster", "planner", "driver", "resume", "machine", "probe", "comparing", "export", "card", "console", "upload", "selftest"), 5
    ),
    **dict.fromkeys(
        (
            "pipeline",
            "pool",
            "loads",
            "recall",
            "progress",
            "told",
            "fates",
            "starting",
            "rates",
            "report",
            "gauges",
            "requests",
            "summary",
            "checkpoint",
            "provenance",
            "folder",
            "logs",
            "throttle",
            "parts",
            "evaluate",
            "flight",
            "gather",
            "admission",
            "publish",
            "steering",
        ),
        4,
    ),
    **dict.fromkeys(("axes", "rollout", "environments", "scoring"), 3),
    **dict.fromkeys(("learn", "ledger", "spans", "emit", "ship", "spool"), 2),
    **dict.fromkeys(("registry", "records", "clock", "models", "background"), 1),
    "contract": 0,
}
HEAVY = {"torch", "ray", "vllm", "peft", "transformers"}
WEB = {"django", "channels", "celery", "headrace", "ninja"}
UNSAFE_MODULES = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}
UNSAFE_CALLS = {"eval", "exec", "os.system", "os.popen", "torch.load", "yaml.load", "yaml.unsafe_load", "numpy.load", "np.load"}
UNSAFE_KEYWORDS = {"shell", "trust_remote_code", "allow_pickle"}
METRIC_NAME = re.compile(r"(reward|eval|buffer|flow|lag|sync|loss|throughput|time|samples|system)/[a-z0-9_]+")


@functools.cache
def tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"), str(file))


def sources(*folders: str) -> list[Path]:
    return sorted(file for folder in folders for file in (ROOT / folder).rglob("*.py") if "__pycache__" not in file.parts)


def imports(node: ast.AST) -> Iterator[str]:
    """Every dotted name a module imports when it runs: also inside functions and by import_module, not for type checkers alone."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, "imports are absolute"
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        elif isinstance(child, ast.Call) and ast.unparse(child.func).endswith("import_module"):
            yield from (str(argument.value) for argument in child.args[:1] if isinstance(argument, ast.Constant))
        yield from imports(child)


def fresh(code: str, tmp_path: Path) -> str:
    """Runs code in a new interpreter outside the repository, with a data folder of its own."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")},
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'platform'}",
        "HEADRACE_DATA_DIR": str(tmp_path / "data"),
        "HEADRACE_DEBUG": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_top_level_is_fixed() -> None:
    there = {item.name for item in ROOT.iterdir() if not item.name.startswith(".") and not item.name.endswith(".egg-info")}
    assert there - MADE_LOCALLY == TOP_LEVEL


def test_platform_is_a_source_root_and_no_package() -> None:
    assert not (ROOT / "platform" / "__init__.py").exists()
    assert not list((ROOT / "platform").glob("*.py")), "a module here would be importable beside the standard library"
    assert not (ROOT / "tests" / "platform").exists(), "a test folder of this name would take the standard module's place"


def test_the_standard_platform_module_stays_itself(tmp_path: Path) -> None:
    out = fresh("import headrace, workers, platform; print(platform.python_version()); print(platform.__file__)", tmp_path)
    assert out.split()[0].startswith("3.") and str(ROOT) not in out.split()[1]


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("headrace.asgi", HEAVY | {"reasoning_gym"}),
        ("headrace.celery", HEAVY | {"reasoning_gym"}),
        ("workers.pipeline", HEAVY | WEB | {"reasoning_gym", "numpy"}),
        ("workers.registry", HEAVY | WEB | {"reasoning_gym", "numpy"}),
        ("workers.environments.build", HEAVY | WEB | {"reasoning_gym"}),
    ],
)
def test_importing_it_loads_nothing_of_the_other_world(module: str, absent: set[str], tmp_path: Path) -> None:
    loaded = set(fresh(f"import sys, {module}\nprint(*sorted({{name.split('.')[0] for name in sys.modules}}))", tmp_path).split())
    assert not loaded & absent


def test_the_contract_needs_pydantic_and_nothing_else(tmp_path: Path) -> None:
    names = [f"workers.contract.{file.stem}" for file in sources("workers/contract") if file.stem != "__init__"]
    code = (
        f"import sys, {', '.join(names)}\n"
        "print(*sorted({name.split('.')[0] for name, module in sys.modules.items()"
        " if 'site-packages' in str(getattr(module, '__file__', ''))}))"
    )
    allowed = {"pydantic", "pydantic_core", "annotated_types", "typing_extensions", "typing_inspection", "_distutils_hack"}
    assert set(fresh(code, tmp_path).split()) <= allowed


def test_every_kind_of_the_registry_resolves(tmp_path: Path) -> None:
    code = "from workers import registry\nfor axis, rows in registry.TABLE.items():\n    for kind in rows:\n        "
    out = fresh(code + "print(axis, kind, registry.resolve(axis, kind).__name__)", tmp_path)
    assert len(out.splitlines()) == sum(len(rows) for rows in registry.TABLE.values())


def test_the_contracts_kinds_are_the_registrys() -> None:
    assert {axis: set(kinds) for axis, kinds in axes.AXES.items()} == {axis: set(rows) for axis, rows in registry.TABLE.items()}


def test_the_engine_knows_no_web_and_the_web_no_engine() -> None:
    for file in sources("workers"):
        assert not {name.split(".")[0] for name in imports(tree(file))} & WEB, file
    for file in sources("platform"):
        for name in imports(tree(file)):
            assert name.split(".")[0] not in HEAVY, f"{file}: {name}"
            assert not name.startswith("workers.") or name.startswith("workers.contract"), f"{file}: {name}"


def test_ray_and_vllm_live_in_one_folder_each() -> None:
    for name, folder in (("ray", "cluster"), ("vllm", "rollout/vllm")):
        for file in sources("workers"):
            if not file.is_relative_to(ROOT / "workers" / folder):
                assert name not in {found.split(".")[0] for found in imports(tree(file))}, file


def test_workers_import_downwards_only() -> None:
    wrong = []
    for file in sources("workers"):
        part = file.relative_to(ROOT / "workers").parts[0].removesuffix(".py")
        level = LEVELS.get(part, LEVELS["driver"])
        for name in imports(tree(file)):
            words = name.split(".")
            if words[0] == "workers" and len(words) > 1 and LEVELS.get(words[1], LEVELS["driver"]) > level:
                wrong.append(f"{file.relative_to(ROOT)} imports {name}")
    assert not wrong


def test_no_file_is_long() -> None:
    kinds = {".py", ".js", ".css", ".html", ".toml", ".md", ".sh"}
    files = [
        file
        for folder in ("platform", "workers", "migrations", "tests", "deploy", "frontend")
        for file in (ROOT / folder).rglob("*")
        if file.suffix in kinds and "vendor" not in file.parts
    ]
    assert len(files) > 100
    long = {str(file.relative_to(ROOT)): lines for file in files if (lines := file.read_text(encoding="utf-8").count("\n")) > MAX_LINES}
    assert not long


def test_the_driver_of_a_prepared_run_loads_no_torch(tmp_path: Path) -> None:
    """It computes nothing: torch would cost each run seconds at its start and memory all through."""
    code = """import sys
from pathlib import Path
import workers.driver
from workers.contract import loading
from workers.environments.build import build
config = loading.resolve(None, "demo", [])
"""
    model = make_tiny_model(tmp_path / "model")
    code += f"build(config, Path({str(model)!r}))\nprint('torch' in sys.modules)"
    assert fresh(code, tmp_path).splitlines()[-1] == "False"


def test_every_module_says_what_it_is() -> None:
    files = [file for file in sources("workers", "platform") if file.stat().st_size and file.name not in DJANGOS_OWN]
    silent = [str(file.relative_to(ROOT)) for file in files if not ast.get_docstring(tree(file))]
    assert not silent


@pytest.mark.parametrize("folder", ["workers", "platform", "migrations", "deploy"])
def test_nothing_dangerous_is_called(folder: str) -> None:
    wrong = []
    for file in sources(folder):
        wrong += [f"{file}: imports {name}" for name in imports(tree(file)) if name.split(".")[0] in UNSAFE_MODULES]
        for node in ast.walk(tree(file)):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                if name in UNSAFE_CALLS:
                    wrong.append(f"{file}:{node.lineno}: {name}")
                for keyword in node.keywords:
                    off = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
                    if keyword.arg in UNSAFE_KEYWORDS and not off:
                        wrong.append(f"{file}:{node.lineno}: {keyword.arg}={ast.unparse(keyword.value)}")
    assert not wrong


def test_no_failure_is_swallowed() -> None:
    wrong = []
    for file in sources("workers", "platform"):
        for node in ast.walk(tree(file)):
            if isinstance(node, ast.ExceptHandler) and [type(line) for line in node.body] == [ast.Pass]:
                wrong.append(f"{file}:{node.lineno}")
    assert not wrong


def test_every_metric_and_event_that_is_emitted_is_documented() -> None:
    used: set[str] = set()
    kinds: set[str] = set()
    filled: set[str] = set()
    for file in sources("workers"):
        if file.is_relative_to(ROOT / "workers" / "contract"):
            continue
        for node in ast.walk(tree(file)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and METRIC_NAME.fullmatch(node.value):
                used.add(node.value)
            if isinstance(node, ast.JoinedStr):
                shape = "".join(str(part.value) if isinstance(part, ast.Constant) else "0" for part in node.values)
                if re.fullmatch(r"(engine|system/gpu)/0/[a-z0-9_]+", shape):
                    filled.add(shape)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "emit" and node.args:
                first = node.args[0]
                if isinstance(first, ast.Constant):
                    kinds.add(str(first.value))
    assert used - metrics.CATALOGUE.keys() == set()
    assert len(used) > 20
    assert {re.sub("<[a-z]+>", "0", name) for name in metrics.PATTERNS} == filled
    assert kinds and kinds <= set(events.KINDS)
