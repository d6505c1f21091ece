"""One conformance suite for every transport: what was published arrives bit by bit, or it does not arrive at all."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from tests.workers.transport_rig import (
    BROADCASTS,
    ENGINE,
    RUN,
    OneAtATime,
    OtherProcess,
    arrived,
    listening,
    payload,
    place,
    received,
    transport,
    until,
)
from workers import registry
from workers.axes.transport.base import Transport
from workers.axes.transport.digest import digest_of
from workers.axes.transport.leftovers import SEGMENTS, segment_prefix, sweep
from workers.contract.axes import TransportKind
from workers.contract.errors import DigestMismatch, EngineError
from workers.records import Manifest

# cuda_ipc needs a GPU: tests/gpu. restart is taken by engines that start: tests of the orchestrations.
KINDS = [kind for kind in get_args(TransportKind) if kind not in ("cuda_ipc", "restart")]


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[str]:
    """A cluster of this file's own, on loopback. Returns its address."""
    from workers import cluster  # noqa: F401, settles Ray's settings before it is imported

    import ray  # isort: skip

    with tempfile.TemporaryDirectory(prefix="hr-ray-", ignore_cleanup_errors=True) as folder:
        ray.init(
            address="local",
            num_cpus=2,
            include_dashboard=False,
            object_store_memory=80 << 20,
            _node_ip_address="127.0.0.1",
            _temp_dir=folder,
            log_to_driver=False,
            logging_level="error",
        )
        yield ray.get_runtime_context().gcs_address
        ray.shutdown()


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == "object_store":
        request.getfixturevalue("ray_cluster")
    return str(request.param)


@pytest.fixture
def ends(kind: str, tmp_path: Path) -> Iterator[Callable[[str], Transport]]:
    """Makes ends of the road by name, and closes them."""
    made: list[Transport] = []

    def make(name: str) -> Transport:
        made.append(transport(kind, name, tmp_path))
        return made[-1]

    yield make
    for end in made:
        end.close()


@pytest.fixture
def sides(ends: Callable[[str], Transport]) -> tuple[Any, Any]:
    return ends("trainer"), ends(ENGINE)


def test_what_was_sent_arrives(sides: tuple, kind: str) -> None:
    sender, receiver = sides
    manifest = sender.send(payload(), 1, "adapter", [ENGINE])
    got = receiver.receive(manifest)
    assert manifest.transport == kind and manifest.payload == "adapter" and manifest.version == 1
    assert manifest.bytes >= sum(tensor.nbytes for tensor in payload().values()) and manifest.export_s > 0
    assert manifest.digest == digest_of(payload()) == digest_of(got)
    assert {name: (got[name].dtype, got[name].shape) for name in got} == {name: (t.dtype, t.shape) for name, t in payload().items()}


def test_both_ends_own_what_they_have(sides: tuple) -> None:
    """The trainer goes on writing into its weights at once; the engine may write into what it got."""
    sender, receiver = sides
    weights = {name: tensor.clone() for name, tensor in payload().items()}
    manifest = sender.send(weights, 1, "adapter", [ENGINE])
    for tensor in weights.values():
        tensor.zero_()
    got = receiver.receive(manifest)
    assert digest_of(got) == digest_of(payload())
    got["b.weight"].zero_()
    again = sender.send(payload(), 2, "adapter", [ENGINE])
    assert digest_of(receiver.receive(again)) == again.digest


def test_each_tensor_is_read_once_in_order_and_let_go(sides: tuple) -> None:
    sender, receiver = sides
    weights = OneAtATime(payload())
    manifest = sender.send(weights, 1, "full", [ENGINE])
    assert weights.reads == sorted(payload()) and weights.most_alive == 1
    assert digest_of(receiver.receive(manifest)) == digest_of(payload())


def test_two_engines_and_several_publishes(ends: Callable[[str], Transport]) -> None:
    sender = ends("trainer")
    engines = {name: ends(name) for name in (ENGINE, "generator/1")}
    for version in (1, 2, 3):
        assert arrived(sender, engines, version)


def test_an_engine_that_comes_and_one_that_goes(ends: Callable[[str], Transport]) -> None:
    sender, first, second = ends("trainer"), ends(ENGINE), ends("generator/1")
    assert arrived(sender, {ENGINE: first}, 1)
    assert arrived(sender, {ENGINE: first, "generator/1": second}, 2)
    assert arrived(sender, {"generator/1": second}, 3)


@pytest.mark.parametrize("alive", [True, False])
def test_an_engine_that_never_comes(ends: Callable[[str], Transport], kind: str, alive: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that lives is waited for, within bounds: it may be finishing its requests. One that is dead is not."""
    if alive:
        monkeypatch.setattr("workers.axes.transport.group.COMING_S", 0.5)
        ends("generator/1")
    sender, receiver = ends("trainer"), ends(ENGINE)
    manifest = sender.send(payload(), 1, "full", [ENGINE, "generator/1"])
    outcome = received({ENGINE: receiver}, manifest)[ENGINE]
    if kind in BROADCASTS:
        assert isinstance(outcome, EngineError) and outcome.retryable and outcome.cure
    else:
        assert digest_of(outcome) == manifest.digest
    monkeypatch.undo()
    assert arrived(sender, {ENGINE: receiver}, 2)


def test_an_engine_that_comes_late_to_a_later_publish(ends: Callable[[str], Transport], monkeypatch: pytest.MonkeyPatch) -> None:
    """It finishes long samples first. Neither the trainer nor the other engine, whose messages have deadlines, gives it up."""
    monkeypatch.setattr("workers.axes.transport.group.PATIENCE_S", 0.3)
    sender, engines = ends("trainer"), {name: ends(name) for name in (ENGINE, "generator/1")}
    assert arrived(sender, engines, 1)
    manifest = sender.send(payload(2), 2, "full", list(engines))
    late = engines["generator/1"].receive

    def receive(manifest: Manifest) -> Any:
        time.sleep(1.0)
        return late(manifest)

    monkeypatch.setattr(engines["generator/1"], "receive", receive)
    outcome = received(engines, manifest)
    assert all(isinstance(got, dict) and digest_of(got) == manifest.digest for got in outcome.values()), outcome


def test_an_engine_that_was_started_again(ends: Callable[[str], Transport], kind: str) -> None:
    """Same name, nothing known. A process group has met without it: one publish is refused, the next arrives."""
    sender = ends("trainer")
    first = ends(ENGINE)
    assert arrived(sender, {ENGINE: first}, 1)
    first.close()
    again = {ENGINE: ends(ENGINE)}
    assert arrived(sender, again, 2) or (kind in BROADCASTS and arrived(sender, again, 3))


def test_the_bytes_of_another_version_are_refused(sides: tuple) -> None:
    sender, receiver = sides
    manifest = sender.send(payload(1), 1, "adapter", [ENGINE])
    with pytest.raises(DigestMismatch) as refused:
        receiver.receive(replace(manifest, version=2, digest=digest_of(payload(2))))
    assert refused.value.retryable and refused.value.cure
    assert arrived(sender, {ENGINE: receiver}, 2)


@pytest.fixture
def tamper(kind: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, Manifest, Callable[[bytearray], None]], Manifest]:
    """Changes the bytes on their way; returns the manifest to receive by."""
    images: list[Any] = []
    if kind in BROADCASTS:
        road = registry.resolve("transport", kind)
        pieces = road._pieces
        monkeypatch.setattr(road, "_pieces", lambda self, image: images.append(image) or pieces(self, image))

    def change(sender: Any, manifest: Manifest, how: Callable[[bytearray], None]) -> Manifest:
        if images:  # the broadcast waits for the engine
            data = bytearray(images[-1].view)
            how(data)
            images[-1].view[:] = data
            return manifest
        if kind == "http":
            file = sender._server.offers["/" + manifest.handle["url"].split("/", 3)[3]]
            data = bytearray(os.pread(file.fileno(), manifest.bytes, 0))
            how(data)
            os.ftruncate(file.fileno(), len(data))
            os.pwrite(file.fileno(), data, 0)
        else:
            data = bytearray(place(manifest).read_bytes())
            how(data)
            place(manifest).write_bytes(data)
        return replace(manifest, bytes=len(data))  # not even where the length is made to agree

    return change


# Objects in Ray's store cannot be changed on their way; "the bytes of another version" tests their digest.
OPEN_KINDS = [kind for kind in KINDS if kind != "object_store"]
CUT_KINDS = [kind for kind in OPEN_KINDS if kind not in BROADCASTS]  # a group's messages have lengths that both sides know


@pytest.mark.parametrize("kind", OPEN_KINDS, indirect=True)
@pytest.mark.parametrize("where", [0.01, 0.5, 0.999])
def test_a_flipped_byte_is_refused(sides: tuple, tamper: Callable[..., Manifest], where: float) -> None:
    sender, receiver = sides
    manifest = sender.send(payload(), 1, "adapter", [ENGINE])

    def flip(data: bytearray) -> None:
        first = len(data) - sum(tensor.nbytes for tensor in payload().values())
        data[int(first + where * (len(data) - first - 1))] ^= 0x10

    with pytest.raises(DigestMismatch) as refused:
        receiver.receive(tamper(sender, manifest, flip))
    assert refused.value.retryable and refused.value.cure
    assert arrived(sender, {ENGINE: receiver}, 2)


@pytest.mark.parametrize("kind", [kind for kind in OPEN_KINDS if kind != "collective"], indirect=True)
@pytest.mark.parametrize("where", [0, 7, 8, 9, 40, 200, 500])
def test_a_flipped_byte_in_the_header_is_refused(sides: tuple, tamper: Callable[..., Manifest], where: int) -> None:
    sender, receiver = sides
    manifest = sender.send(payload(), 1, "adapter", [ENGINE])

    def flip(data: bytearray) -> None:
        data[where] ^= 0x10

    with pytest.raises(DigestMismatch):
        receiver.receive(tamper(sender, manifest, flip))
    assert arrived(sender, {ENGINE: receiver}, 2)


@pytest.mark.parametrize("kind", CUT_KINDS, indirect=True)
@pytest.mark.parametrize("left", [0, 7, 100, -1])
def test_a_cut_payload_is_refused(sides: tuple, tamper: Callable[..., Manifest], left: int) -> None:
    sender, receiver = sides
    manifest = sender.send(payload(), 1, "adapter", [ENGINE])

    def cut(data: bytearray) -> None:
        del data[left:]

    shorter = tamper(sender, manifest, cut)
    for seen in (manifest, shorter):
        with pytest.raises(DigestMismatch):
            receiver.receive(seen)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in BROADCASTS], indirect=True)
def test_two_publishes_stay_readable(sides: tuple) -> None:
    """A process group hands each publish on once; every other road keeps the last two."""
    sender, receiver = sides
    manifests = [sender.send(payload(version), version, "adapter", [ENGINE]) for version in range(1, 5)]
    for manifest in (*manifests[-2:], manifests[-2]):
        assert digest_of(receiver.receive(manifest)) == manifest.digest
    with pytest.raises(EngineError, match="cannot be read") as gone:
        receiver.receive(manifests[0])
    assert gone.value.retryable


def test_an_empty_publish_is_refused(sides: tuple) -> None:
    with pytest.raises(EngineError, match="without tensors"):
        sides[0].send({}, 1, "adapter", [ENGINE])


def test_a_publish_that_fails_while_it_is_read_leaves_the_road_open(sides: tuple, kind: str, tmp_path: Path) -> None:
    class Torn(OneAtATime):
        def __getitem__(self, name: str) -> torch.Tensor:
            if name.startswith("c."):
                raise EngineError("a rank is gone")
            return super().__getitem__(name)

    sender, receiver = sides
    with pytest.raises(EngineError, match="a rank is gone"):
        sender.send(Torn(payload()), 1, "full", [ENGINE])
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.parent.name != "members"] and not sweep(RUN)
    assert arrived(sender, {ENGINE: receiver}, 1)


def test_another_process_receives_and_its_end_takes_nothing_away(
    sides: tuple, kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    environment = {"RAY_ADDRESS": request.getfixturevalue("ray_cluster")} if kind == "object_store" else {}
    sender, receiver = sides
    other = OtherProcess(kind, "generator/1", tmp_path, environment)
    try:
        for version in (1, 2):
            manifest = sender.send(payload(version), version, "adapter", ["generator/1"])
            assert other.receive(manifest) == manifest.digest
    finally:
        other.end()
    if kind not in BROADCASTS:
        assert digest_of(receiver.receive(manifest)) == manifest.digest
    assert arrived(sender, {ENGINE: receiver}, 3)


def test_close_leaves_nothing(ends: Callable[[str], Transport], kind: str, tmp_path: Path) -> None:
    before = set(threading.enumerate())
    ports = listening()
    sender, receiver = ends("trainer"), ends(ENGINE)
    assert arrived(sender, {ENGINE: receiver}, 1)
    manifest = sender.send(payload(), 2, "full", [ENGINE])
    receiver.close()
    if kind not in BROADCASTS:
        assert digest_of(ends("generator/1").receive(manifest)) == manifest.digest, "a receiver must not take away what it read"
    sender.close()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in SEGMENTS.iterdir() if path.name.startswith(segment_prefix(RUN))]
    assert until(lambda: not set(threading.enumerate()) - before) and until(lambda: listening() <= ports)
    with pytest.raises(EngineError) as gone:
        ends("generator/2" if kind not in BROADCASTS else ENGINE).receive(manifest)
    assert gone.value.retryable
