"""What the transport tests share: payloads of every kind of tensor, a receiver in another process, many receivers at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import torch

from workers import registry
from workers.axes.transport.base import Link, Transport
from workers.axes.transport.digest import digest_of
from workers.axes.transport.leftovers import SEGMENTS
from workers.contract import config
from workers.records import Manifest, to_wire

RUN = "transport" + os.environ.get("PYTEST_XDIST_WORKER", "one")  # a segment is named by the first twelve letters
ENGINE = "generator/0"
BROADCASTS = ("collective", "collective_bucketed")
ROOT = Path(__file__).parents[2]


def payload(version: int = 1) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(version)
    return {
        "b.weight": torch.randn(3, 5, generator=generator),
        "a.weight": torch.randn(4, 2, generator=generator).bfloat16(),
        "c.scalar": torch.tensor(float(version)),
        "d.view": torch.randn(6, 4, generator=generator).t(),
        "e.sliced": torch.randn(64, 33, generator=generator)[::2, 1::3].half(),
        "f.empty": torch.zeros(0, 3),
        "g.positions": torch.arange(version, version + 9),
        "h.mask": torch.rand(11, generator=generator) > 0.5,
        "ä.name": torch.full((1, 1, 1), float("nan"), dtype=torch.float64),
    }


def transport(kind: str, name: str, folder: Path, bucket_mb: float = 0.001) -> Transport:
    """One end of the road. Buckets are small, so that every payload takes several."""
    made: Transport = registry.resolve("transport", kind)(Link(RUN, folder, name, config.Transport(kind=kind, bucket_mb=bucket_mb)))
    return made


def received(ends: Mapping[str, Transport], manifest: Manifest) -> dict[str, Any]:
    """What each end makes of the manifest, all at the same time: its tensors, or the error it raised."""

    def one(end: Transport) -> Any:
        try:
            return end.receive(manifest)
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(ends)) as pool:
        return dict(zip(ends, pool.map(one, ends.values()), strict=True))


def arrived(sender: Transport, ends: Mapping[str, Transport], version: int) -> bool:
    """Whether a publish of `version` reaches every end bit by bit."""
    manifest = sender.send(payload(version), version, "full", list(ends))
    outcome = received(ends, manifest)
    return all(isinstance(got, dict) and digest_of(got) == digest_of(payload(version)) for got in outcome.values())


def place(manifest: Manifest) -> Path:
    handle = manifest.handle
    return Path(handle["path"]) if "path" in handle else SEGMENTS / handle["segment"]


def listening() -> set[int]:
    return {connection.laddr.port for connection in psutil.Process().net_connections() if connection.status == psutil.CONN_LISTEN}


def until(true: Callable[[], bool], patience: float = 5.0) -> bool:
    end = time.monotonic() + patience
    while not true() and time.monotonic() < end:
        time.sleep(0.01)
    return true()


class OneAtATime(Mapping[str, torch.Tensor]):
    """Weights that are made when they are read, as those of a sharded trainer are: who reads, in which order, and what is held."""

    def __init__(self, values: Mapping[str, torch.Tensor]) -> None:
        self._values = values
        self.reads: list[str] = []
        self.alive = 0
        self.most_alive = 0

    def __getitem__(self, name: str) -> torch.Tensor:
        self.reads.append(name)
        fresh = self._values[name].clone()
        self.alive += 1
        self.most_alive = max(self.most_alive, self.alive)
        weakref.finalize(fresh, self._gone)
        return fresh

    def _gone(self) -> None:
        self.alive -= 1

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._values, reverse=True))

    def __len__(self) -> int:
        return len(self._values)


class OtherProcess:
    """An engine's end of the road in a process of its own. Answers each manifest with the digest of what it got."""

    def __init__(self, kind: str, name: str, folder: Path, environment: dict[str, str] | None = None, bucket_mb: float = 0.001) -> None:
        call = [sys.executable, "-m", "tests.workers.transport_rig", kind, name, str(folder), str(bucket_mb)]
        self.process = subprocess.Popen(
            call, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env={**os.environ, **(environment or {})}
        )
        self._said()  # it is there

    def receive(self, manifest: Manifest) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(to_wire(manifest)) + "\n")
        self.process.stdin.flush()
        return self._said()

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def _said(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


def main() -> None:
    from workers.contract.errors import HeadraceError
    from workers.records import from_wire

    torch.set_num_threads(1)
    kind, name, folder, bucket_mb = sys.argv[1:]
    if kind == "object_store":
        from workers import cluster  # noqa: F401, settles Ray's settings before it is imported

        import ray  # isort: skip

        ray.init(address=os.environ["RAY_ADDRESS"], log_to_driver=False, logging_level="error")
    end = transport(kind, name, Path(folder), float(bucket_mb))
    print("ready", flush=True)
    for line in sys.stdin:
        try:
            print(digest_of(end.receive(from_wire(Manifest, json.loads(line)))), flush=True)
        except HeadraceError as error:
            print(f"{type(error).__name__} {error.retryable} {error}", flush=True)
    end.close()


if __name__ == "__main__":
    main()
