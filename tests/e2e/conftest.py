"""The browser's fixtures, and one real Ray head for the whole session, on ports and folders of its own."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.supervisor import parts, pidfile
from headrace.supervisor.layout import Layout, free_ports
from headrace.supervisor.process import MARK, Child, become_subreaper, carrying, end, reap_orphans
from tests.e2e.browsing import browser, forgiven, options, page, served, server, signed_in  # noqa: F401

BUSY = 4  # a machine with other work may take that many times as long as an idle one


def wait_until(condition, seconds: float, what: str, every: float = 0.1):
    """The condition's first true value, or a failure that says what did not come. `seconds`: what an idle machine may take."""
    seconds *= BUSY
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            pytest.fail(f"not within {seconds:.0f} s: {what}")
        time.sleep(every)


def end_child(layout: Layout, child: Child) -> None:
    child.signal_group(signal.SIGTERM)
    deadline = time.monotonic() + 5
    while child.running and time.monotonic() < deadline:
        reap_orphans()
        time.sleep(0.05)
    child.signal_group(signal.SIGKILL)
    if child.process:
        child.process.wait(timeout=5)
    end({p.pid: p for p in [*carrying(MARK, layout.mark), *pidfile.leftovers(layout)]}.values(), grace_s=0)


@pytest.fixture(scope="session")
def ray_layout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Layout]:
    """A running local Ray head, started exactly as `headrace up` starts it."""
    become_subreaper()
    layout = Layout(data=Path(tmp_path_factory.mktemp("ray")).resolve(), port=free_ports(1)[0])
    layout.make()
    layout.write_secrets()
    child = parts.ray(layout, dict(os.environ) | {"HEADRACE_SECRET_KEY": "a-secret-that-ray-must-not-see"})
    child.start()
    pidfile.write(layout, child.groups)
    try:
        wait_until(lambda: not child.running or child.ready(), 90, "the Ray head")
        assert child.running, child.last_lines(40)
        yield layout
    finally:
        end_child(layout, child)
        layout.clear()


@pytest.fixture
def on_ray(ray_layout: Layout, settings) -> Layout:
    """Django settings that point at the session's Ray head."""
    settings.RAY_ADDRESS = ray_layout.ray_url
    settings.RAY_TOKEN_FILE = str(ray_layout.ray_token)
    return ray_layout
