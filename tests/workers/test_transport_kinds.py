"""What single transports promise beyond the conformance suite: who may read, who listens where, what memory they take."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import psutil
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from tests.workers.transport_rig import (
    BROADCASTS,
    ENGINE,
    ROOT,
    RUN,
    OtherProcess,
    arrived,
    listening,
    payload,
    place,
    received,
    transport,
    until,
)
from workers.axes.transport.base import Link
from workers.axes.transport.cuda_ipc import CudaIpcTransport
from workers.axes.transport.digest import digest_of
from workers.axes.transport.leftovers import SEGMENTS, segment_prefix, sweep
from workers.axes.transport.payload import RUN as RUN_BYTES
from workers.contract.config import Transport
from workers.contract.errors import DigestMismatch, EngineError, EnvironmentMissing

# -- files and segments ----------------------------------------------------------------------------------


def test_an_attempt_that_wakes_leaves_the_next_ones_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_ATTEMPT", "second")
    sender = transport("shared_memory", "trainer", tmp_path)
    manifest = sender.send(payload(), 1, "adapter", [ENGINE])
    try:
        assert manifest.handle["segment"].startswith(f"hr-{RUN[:12]}-second-")
        monkeypatch.setenv("HEADRACE_ATTEMPT", "first")
        assert sweep(RUN) == [] and place(manifest).exists()
        with pytest.raises(EngineError, match="another run or attempt"):
            transport("shared_memory", ENGINE, tmp_path).receive(manifest)
        assert sweep(RUN, whole_run=True) == [manifest.handle["segment"]] and not place(manifest).exists()
    finally:
        sender.close()


def test_shared_memory_names_belong_to_their_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADRACE_ATTEMPT", raising=False)
    sender = transport("shared_memory", "trainer", tmp_path)
    manifest = sender.send(payload(), 1, "adapter", [ENGINE])
    try:
        assert manifest.handle["segment"].startswith(f"hr-{RUN[:12]}-0-") and os.stat(place(manifest)).st_mode & 0o077 == 0
        stranger = type(sender)(Link("someoneelse0", tmp_path, ENGINE, Transport(kind="shared_memory")))
        with pytest.raises(EngineError, match="another run"):
            stranger.receive(manifest)
        with pytest.raises(EngineError, match="another run"):
            sender.receive(replace(manifest, handle={"segment": f"{segment_prefix(RUN)}/../../etc/passwd"}))
        assert sweep(RUN) == [manifest.handle["segment"]] and not place(manifest).exists()
    finally:
        sender.close()


def test_a_file_is_whole_and_anybody_can_read_it(tmp_path: Path) -> None:
    sender = transport("filesystem", "trainer", tmp_path)
    manifest = sender.send(payload(), 1, "adapter", [ENGINE])
    assert [path.name for path in (tmp_path / "weights").iterdir()] == ["version-1.safetensors"]
    assert digest_of(load_file(place(manifest))) == manifest.digest, "the layout is that of safetensors"
    sender.close()


# What a process holds beside the tensors, at its peak: 24 tensors of 8 MB, each made when it is read.
MEMORY = """
import json, resource, sys, tempfile, threading
from collections.abc import Mapping
from pathlib import Path
import torch
from tests.workers.transport_rig import transport
torch.set_num_threads(1)
SIZE, COUNT = 8_000_000, 24
class Made(Mapping):
    def __getitem__(self, name): return torch.full((SIZE // 4,), float(name))
    def __iter__(self): return iter([f"{number:02}" for number in range(COUNT)])
    def __len__(self): return COUNT
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
kind = sys.argv[1]
with tempfile.TemporaryDirectory() as folder:
    sender, receiver = (transport(kind, name, Path(folder), bucket_mb=8) for name in ("trainer", "generator/0"))
    receiver.receive(sender.send({"a": torch.zeros(9)}, 1, "full", ["generator/0"]))
    before = peak()
    manifest = sender.send(Made(), 2, "full", ["generator/0"])
    sent = peak()
    got = receiver.receive(manifest)
    print(json.dumps({"send": sent - before, "receive": peak() - sent, "whole": SIZE * COUNT, "largest": SIZE}))
    receiver.close(); sender.close()
"""


@pytest.mark.parametrize("kind", ["filesystem", "shared_memory", "http"])
def test_beside_the_destination_one_tensor_is_held(kind: str) -> None:
    done = subprocess.run([sys.executable, "-c", MEMORY, kind], capture_output=True, text=True, timeout=120, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    held = json.loads(done.stdout)
    allowed = 1.1 * held["largest"] + 2_000_000  # the interpreter's own movements
    mapped = held["whole"] if kind == "shared_memory" else 0  # the destination itself, which counts for each side that maps it
    assert held["send"] <= mapped + allowed and held["receive"] <= held["whole"] + mapped + allowed, held


# -- http ------------------------------------------------------------------------------------------------


@pytest.fixture
def http(tmp_path: Path) -> Iterator[tuple]:
    sender, receiver = transport("http", "trainer", tmp_path), transport("http", ENGINE, tmp_path)
    yield sender, receiver
    sender.close()
    receiver.close()


def test_only_the_token_opens_the_door(http: tuple, caplog: pytest.LogCaptureFixture) -> None:
    sender, receiver = http
    with caplog.at_level(logging.DEBUG):
        manifest = sender.send(payload(), 1, "adapter", [ENGINE])
        url, token = manifest.handle["url"], manifest.handle["token"]
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": token}, {"Authorization": "Bearer \xe4"}):
            answer = httpx.get(url, headers={name: value.encode("latin-1") for name, value in headers.items()})
            assert answer.status_code == 401 and not answer.content
        with pytest.raises(EngineError, match="answered 401") as refused:
            receiver.receive(replace(manifest, handle={"url": url, "token": "wrong"}))
        assert refused.value.retryable and token not in str(refused.value)
        good = {"Authorization": f"Bearer {token}"}
        assert httpx.get(f"{url}x", headers=good).status_code == 404
        assert len(httpx.get(url, headers={**good, "Range": "bytes=0-9"}).content) == manifest.bytes
        assert digest_of(receiver.receive(manifest)) == manifest.digest
    assert len(token) >= 32 and token not in caplog.text


def test_the_weights_are_served_on_loopback_only(http: tuple) -> None:
    sender, _ = http
    before = listening()
    sender.send(payload(), 1, "adapter", [ENGINE])
    ports = listening() - before
    addresses = {c.laddr.ip for c in psutil.Process().net_connections() if c.laddr.port in ports and c.status == psutil.CONN_LISTEN}
    assert len(ports) == 1 and addresses == {"127.0.0.1"}


@pytest.mark.parametrize("status", ["200 OK", "206 Partial Content", "302 Found"])
def test_a_cut_connection_is_refused(http: tuple, status: str) -> None:
    sender, receiver = http
    manifest = sender.send(payload(), 1, "adapter", [ENGINE])
    body = httpx.get(manifest.handle["url"], headers={"Authorization": f"Bearer {manifest.handle['token']}"}).content
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body[: len(body) // 2])

        thread = threading.Thread(target=serve)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/weights/1"
        with pytest.raises(EngineError, match="cannot be read") as refused:
            receiver.receive(replace(manifest, handle={**manifest.handle, "url": url}))
        thread.join()
    assert refused.value.retryable


def test_a_reader_that_stops_reading_does_not_hold_the_trainer(tmp_path: Path) -> None:
    sender = transport("http", "trainer", tmp_path)
    manifest = sender.send({"a": torch.zeros(8_000_000)}, 1, "full", [ENGINE])
    port = int(manifest.handle["url"].split(":")[2].split("/")[0])
    with socket.create_connection(("127.0.0.1", port)) as reader:
        path = "/" + manifest.handle["url"].split("/", 3)[3]
        reader.sendall(f"GET {path} HTTP/1.0\r\nAuthorization: Bearer {manifest.handle['token']}\r\n\r\n".encode())
        assert reader.recv(12).startswith(b"HTTP/1.0 200")
        sender.close()
        assert until(lambda: not any("process_request" in thread.name for thread in threading.enumerate()))


# -- process groups --------------------------------------------------------------------------------------


@pytest.fixture(params=BROADCASTS)
def broadcast(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_group_listens_on_loopback_and_is_kept(broadcast: str, tmp_path: Path) -> None:
    sender, receiver = transport(broadcast, "trainer", tmp_path), transport(broadcast, ENGINE, tmp_path)
    before = listening()
    groups = []
    try:
        for version in (1, 2, 3):
            manifest = sender.send(payload(version), version, "full", [ENGINE])
            assert digest_of(receiver.receive(manifest)) == manifest.digest
            groups.append(manifest.handle["group"])
        ports = listening() - before
        addresses = {c.laddr.ip for c in psutil.Process().net_connections() if c.laddr.port in ports and c.status == psutil.CONN_LISTEN}
        assert len(set(groups)) == 1 and ports and addresses == {"127.0.0.1"}
    finally:
        receiver.close()
        sender.close()


@pytest.mark.parametrize("fate", [signal.SIGKILL, signal.SIGSTOP])
def test_an_engine_that_dies_or_hangs_between_publishes(
    broadcast: str, fate: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("workers.axes.transport.group.PATIENCE_S", 1.0)
    sender, survivor = transport(broadcast, "trainer", tmp_path, bucket_mb=4), transport(broadcast, ENGINE, tmp_path)
    other = OtherProcess(broadcast, "generator/1", tmp_path)
    try:
        first = sender.send(payload(1), 1, "full", [ENGINE, "generator/1"])
        answer: list[str] = []
        asking = threading.Thread(target=lambda: answer.append(other.receive(first)))
        asking.start()
        assert digest_of(survivor.receive(first)) == first.digest
        asking.join()
        assert answer == [first.digest]
        os.kill(other.process.pid, fate)
        monkeypatch.setattr("workers.axes.transport.group.COMING_S", 1.0)  # who hangs is waited for as who is late is
        large = {"a": torch.ones(10_000_000)}  # more than sockets hold
        manifest = sender.send(large, 2, "full", [ENGINE, "generator/1"])
        outcome = received({ENGINE: survivor}, manifest)[ENGINE]
        assert isinstance(outcome, dict) or (isinstance(outcome, EngineError) and outcome.retryable)
        assert until(lambda: "group" in caplog.text), "the trainer says what became of the publish"
        assert arrived(sender, {ENGINE: survivor}, 3)
    finally:
        other.end()
        survivor.close()
        sender.close()


def test_an_engine_that_comes_late_is_waited_for(broadcast: str, tmp_path: Path) -> None:
    """It finishes its requests first (interrupt drain), while the others are here already."""
    sender, first, late = (transport(broadcast, name, tmp_path) for name in ("trainer", ENGINE, "generator/1"))
    manifest = sender.send(payload(), 1, "full", [ENGINE, "generator/1"])
    got: list[dict[str, torch.Tensor]] = []
    waiting = threading.Thread(target=lambda: got.append(first.receive(manifest)))
    waiting.start()
    assert not until(lambda: bool(got), 0.6)
    assert digest_of(late.receive(manifest)) == manifest.digest
    waiting.join()
    assert digest_of(got[0]) == manifest.digest
    for end in (first, late, sender):
        end.close()


def test_a_publish_without_engines_or_for_others_is_refused(broadcast: str, tmp_path: Path) -> None:
    sender, stranger = transport(broadcast, "trainer", tmp_path), transport(broadcast, "generator/9", tmp_path)
    with pytest.raises(EngineError, match="no engine"):
        sender.send(payload(), 1, "full", [])
    manifest = sender.send(payload(), 1, "full", [ENGINE])
    with pytest.raises(EngineError, match="not among the members"):
        stranger.receive(manifest)
    sender.close()


# -- what a machine must have ----------------------------------------------------------------------------


def test_cuda_ipc_says_that_it_needs_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(EnvironmentMissing) as refused:
        CudaIpcTransport(Link(RUN, tmp_path, "trainer", Transport(kind="cuda_ipc")))
    assert refused.value.field == "transport.kind" and refused.value.cure


def test_the_object_store_says_that_it_needs_ray(tmp_path: Path) -> None:
    code = (
        "from pathlib import Path; from tests.workers.transport_rig import transport\n"
        "from workers.contract.errors import EnvironmentMissing\n"
        f"try: transport('object_store', 'trainer', Path({str(tmp_path)!r}))\n"
        "except EnvironmentMissing as error: print(error.field, error.cure)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=ROOT, check=False)
    assert done.stdout.startswith("transport.kind set orchestration.kind to ray"), done.stderr


def test_shared_memory_is_written_again(tmp_path: Path) -> None:
    """The third publish lies where the first did; the second is still there. A segment that is mostly empty by then is let go."""
    sender, receiver = (transport("shared_memory", name, tmp_path) for name in ("trainer", ENGINE))
    try:
        first = sender.send({**payload(), "z.long": torch.ones(99_999)}, 1, "full", [ENGINE])
        page = place(first).stat().st_ino
        second = sender.send(payload(2), 2, "full", [ENGINE])
        third = sender.send(payload(3), 3, "full", [ENGINE])
        assert place(third).stat().st_ino == page and not place(first).exists() and third.bytes < place(third).stat().st_size
        assert [digest_of(receiver.receive(sent)) for sent in (second, third)] == [second.digest, third.digest]
        with pytest.raises(EngineError, match="cannot be read") as refused:
            receiver.receive(first)
        assert refused.value.retryable
        page = place(second).stat().st_ino
        fourth = sender.send({**payload(4), "z.long": torch.ones(99_999)}, 4, "full", [ENGINE])
        assert place(fourth).stat().st_ino == page, "it grows"
        fifth = sender.send(payload(5), 5, "full", [ENGINE])
        assert place(fifth).stat().st_size == fifth.bytes
        assert [digest_of(receiver.receive(sent)) for sent in (fourth, fifth)] == [fourth.digest, fifth.digest]
    finally:
        sender.close()


@pytest.mark.parametrize("publishes", [0, 1, 2])
def test_what_was_written_over_while_it_was_borrowed_is_refused(tmp_path: Path, publishes: int) -> None:
    """The segment itself is lent: what it held when it was hashed must be what was read of it."""
    sender, receiver = (transport("shared_memory", name, tmp_path) for name in ("trainer", ENGINE))
    try:
        first = sender.send(payload(1), 1, "full", [ENGINE])
        with contextlib.ExitStack() as stack:
            if publishes == 2:
                stack.enter_context(pytest.raises(DigestMismatch, match="written over"))
            with receiver.borrow(first) as lent:
                assert digest_of(lent) == first.digest
                for version in range(2, 2 + publishes):
                    latest = sender.send(payload(version), version, "full", [ENGINE])
                assert (digest_of(lent) == first.digest) is (publishes < 2)
        latest = sender.send(payload(9), 9, "full", [ENGINE])
        assert digest_of(receiver.receive(latest)) == latest.digest
    finally:
        sender.close()


def test_what_is_kept_mapped_shows_every_publish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Payloads of many lengths, each in a segment that was mapped for another one, hashed while they are written and afterwards."""
    monkeypatch.setattr("workers.axes.transport.segment.SMALL", RUN_BYTES)
    sender, receiver = (transport("shared_memory", name, tmp_path) for name in ("trainer", ENGINE))
    random = torch.Generator().manual_seed(3)
    try:
        for version in range(1, 30):
            size = int(torch.randint(1, 1_200_000, (), generator=random))
            sent = sender.send({**payload(version), "b.long": torch.randn(size, generator=random)}, version, "full", [ENGINE])
            assert digest_of(receiver.receive(sent)) == sent.digest
            assert len(receiver._views._views) <= 2 and len([*SEGMENTS.glob(f"{segment_prefix(RUN)}*")]) <= 2
    finally:
        sender.close()


LAYOUTS: list[dict[str, tuple[list[int], torch.dtype]]] = [
    {"a": ([16, 24], torch.bfloat16), "b": ([24, 16], torch.bfloat16)},
    {"a": ([24, 16], torch.bfloat16), "b": ([24, 16], torch.bfloat16)},
    {"a": ([16, 24], torch.float16), "b": ([24, 16], torch.bfloat16)},
    {"a": ([16, 24], torch.bfloat16), "c": ([24, 16], torch.bfloat16)},
    {"a": ([16, 24], torch.bfloat16)},
    {"a": ([3], torch.uint8), "b": ([24, 16], torch.float32)},  # b would begin at an odd byte
    {"a": ([0, 3], torch.float32), "b": ([5], torch.float32)},
]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, len(LAYOUTS) - 1), st.booleans(), st.booleans()), min_size=4, max_size=12))
def test_layouts_that_come_again_and_others(tmp_path: Path, publishes: list[tuple[int, bool, bool]]) -> None:
    """A payload of the layout that stood in its segment before takes a short way on both sides: what arrives is what was sent, also
    where a tensor is a view, and a flipped byte is found."""
    sender, receiver = (transport("shared_memory", name, tmp_path) for name in ("trainer", ENGINE))
    random = torch.Generator().manual_seed(len(publishes))
    try:
        for version, (number, turned, flip) in enumerate(publishes, 1):
            tensors = {}
            for name, (shape, dtype) in LAYOUTS[number].items():
                made = torch.randint(0, 99, shape[::-1] if turned else shape, generator=random).to(dtype)
                tensors[name] = made.t() if turned and len(shape) == 2 else made
            sent = sender.send(tensors, version, "full", [ENGINE])
            assert sent.digest == digest_of(tensors)
            if flip:
                with place(sent).open("r+b") as file:
                    file.seek(sent.bytes - 1)
                    last = file.read(1)[0]
                    file.seek(sent.bytes - 1)
                    file.write(bytes([last ^ 1]))
                with pytest.raises(DigestMismatch):
                    receiver.receive(sent)
                continue
            assert digest_of(receiver.receive(sent)) == sent.digest
    finally:
        sender.close()


def test_the_digest_tells_every_piece_of_a_large_tensor(tmp_path: Path) -> None:
    """Read by runs in several threads: their order and each of their bytes count, and a type or shape that differs."""
    numbers = torch.arange(2_400_000, dtype=torch.int32)  # more than two runs
    flipped, swapped = numbers.clone(), numbers.clone()
    flipped[-1] += 1
    half = len(numbers) // 2
    swapped[:half], swapped[half:] = numbers[half:], numbers[:half]
    seen = [numbers, flipped, swapped, numbers.view(torch.float32), numbers.view(2400, 1000)]
    assert len({digest_of({"a": tensor}) for tensor in seen} | {digest_of({"b": numbers})}) == 6
    sender, receiver = (transport("filesystem", name, tmp_path) for name in ("trainer", ENGINE))
    manifest = sender.send({"a": numbers, "b": flipped}, 1, "full", [ENGINE])
    assert digest_of(receiver.receive(manifest)) == manifest.digest
    sender.close()
