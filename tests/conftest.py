"""Settings for every test, set before Django is configured. Light: nothing heavy is imported here."""

import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import django
import pytest

if "DJANGO_SETTINGS_MODULE" in os.environ and "PYTEST_XDIST_WORKER" not in os.environ:
    # pytest-django has read the settings by now, from the caller's environment: the tests would run in the caller's data folder.
    pytest.exit("DJANGO_SETTINGS_MODULE is set -> unset it: the tests choose their own settings", returncode=2)

_DATA_DIR = Path(tempfile.mkdtemp(prefix="headrace-tests-"))

# The tests' own world: nothing of the caller's environment leaks in, and nothing is written outside _DATA_DIR.
for _name in [name for name in os.environ if name.startswith("HEADRACE_") and not name.startswith("HEADRACE_TEST_")]:
    del os.environ[_name]
# Not in pyproject.toml: pytest-django would read the settings before this file has run.
os.environ["DJANGO_SETTINGS_MODULE"] = "headrace.settings"
os.environ["HEADRACE_DATA_DIR"] = str(_DATA_DIR)
os.environ["HEADRACE_SECRET_KEY"] = "only-for-tests-" + "0123456789abcdefghijklmnopqrstuvwxyz" * 2
os.environ["HEADRACE_LOG_LEVEL"] = "WARNING"
if "HEADRACE_TEST_DATABASE_URL" in os.environ:
    os.environ["HEADRACE_DATABASE_URL"] = os.environ["HEADRACE_TEST_DATABASE_URL"]

# At import, before any other conftest, so that those and the test files may import models at their top.
django.setup()


# The files that take longest, the longest first. Two processes share the files: whoever began one of these last would be waited for.
# Before them what starts Ray in the test's own process: it forks, and where a thread has run distributed tensors before, torch's
# clean-up of that thread never ends in the child.
LONGEST = [
    "workers/test_carriers.py",
    "workers/test_transport.py",
    "faults/test_product_deaths.py",
    "faults/test_cut_points.py",
    "e2e/test_up.py",
    "e2e/test_every_page.py",
    "e2e/test_race_real.py",
    "e2e/test_main_job.py",
    "workers/test_run.py",
    "workers/test_remote_vllm.py",
    "workers/test_vllm_runs.py",
    "workers/test_vllm.py",
    "workers/test_benchmarks.py",
    "workers/test_starting.py",
    "workers/test_orchestration.py",
]
_seconds: Counter[str] = Counter()  # by file


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rank = {str(Path(__file__).parent / name): place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(str(item.path), len(rank)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What LONGEST should say."""
    terminalreporter.section("slowest files")
    for name, seconds in _seconds.most_common(12):
        terminalreporter.write_line(f"{seconds:7.1f}s {name}")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """A failure is printed when it happens, and so is one that is tried again: a run that is ended from outside has then said why."""
    _seconds[report.nodeid.partition("::")[0]] += report.duration
    if report.outcome in ("failed", "rerun") and "PYTEST_XDIST_WORKER" not in os.environ:
        print(
            f"\n{report.outcome}: {report.nodeid} ({report.when}, {report.duration:.0f} s)\n{report.longreprtext}\n",
            file=sys.__stdout__,
            flush=True,
        )


def pytest_unconfigure() -> None:
    shutil.rmtree(_DATA_DIR, ignore_errors=True)


@pytest.fixture(scope="session")
def data_dir() -> Iterator[Path]:
    """HEADRACE_DATA_DIR of this session."""
    yield _DATA_DIR
