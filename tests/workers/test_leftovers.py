"""What a killed run leaves in shared memory is removed by the next one; what lives is left alone."""

from __future__ import annotations

import secrets
import signal
import subprocess
import sys

import pytest

from workers.axes.transport.leftovers import SEGMENTS, mark, segment_prefix, sweep, sweep_orphans

LIVE = """import sys, time
from workers.axes.transport.leftovers import SEGMENTS, mark, segment_prefix
held = mark(sys.argv[1])
(SEGMENTS / f"{segment_prefix(sys.argv[1])}7-abcd").write_bytes(b"weights")
print("there", flush=True)
time.sleep(60)
"""

pytestmark = pytest.mark.skipif(not SEGMENTS.is_dir(), reason="no shared memory by names on this system")


def test_only_what_a_dead_driver_left_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADRACE_ATTEMPT", raising=False)
    dead, living = (f"t{secrets.token_hex(5)}" for _ in range(2))
    processes = [subprocess.Popen([sys.executable, "-c", LIVE, run], stdout=subprocess.PIPE) for run in (dead, living)]
    try:
        for process in processes:
            assert process.stdout is not None and process.stdout.readline() == b"there\n"
        processes[0].send_signal(signal.SIGKILL)
        processes[0].wait()
        removed = sweep_orphans()
        assert {f"{segment_prefix(dead)}7-abcd", f"{segment_prefix(dead)}driver"} <= set(removed)
        assert not [name for name in removed if living in name]
        assert sorted(path.name for path in SEGMENTS.glob(f"hr-{living}*")) == [
            f"{segment_prefix(living)}{end}" for end in ("7-abcd", "driver")
        ]
    finally:
        for process in processes:
            process.kill()
            process.wait()
        sweep(dead, whole_run=True)
        sweep(living, whole_run=True)


def test_an_attempt_is_marked_once_and_its_end_removes_the_mark() -> None:
    run = f"t{secrets.token_hex(5)}"
    assert mark(run) is not None and mark(run) is None
    assert sweep(run) == [f"{segment_prefix(run)}driver"]
