"""One conformance suite for every transport: what was published arrives bit by bit, or it does not arrive at all."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import torch

from workers import registry
from workers.axes.transport.digest import digest_of
from workers.axes.transport.shared_memory import SEGMENTS, segment_prefix, sweep
from workers.contract.axes import TransportKind
from workers.contract.errors import DigestMismatch, EngineError
from workers.records import Manifest

RUN = "transporttest00"


@pytest.fixture(params=get_args(TransportKind))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def sides(kind: str, tmp_path: Path) -> Iterator[tuple]:
    transport = registry.resolve("transport", kind)
    sender, receiver = transport(RUN, tmp_path), transport(RUN, tmp_path)
    yield sender, receiver
    sender.close()
    receiver.close()


def payload(version: int = 1) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(version)
    return {
        "b.weight": torch.randn(3, 5, generator=generator),
        "a.weight": torch.randn(4, 2, generator=generator).bfloat16(),
        "c.scalar": torch.tensor(float(version)),
        "d.view": torch.randn(6, 4, generator=generator).t(),
    }


def place(manifest: Manifest) -> Path:
    handle = manifest.handle
    return Path(handle["path"]) if "path" in handle else SEGMENTS / handle["segment"]


def test_what_was_sent_arrives(sides: tuple, kind: str) -> None:
    sender, receiver = sides
    manifest = sender.send(payload(), 1, "adapter")
    received = receiver.receive(manifest)
    assert manifest.transport == kind and manifest.payload == "adapter" and manifest.version == 1
    assert manifest.bytes == place(manifest).stat().st_size and manifest.export_s > 0
    assert manifest.digest == digest_of(payload()) == digest_of(received)
    assert {name: tensor.dtype for name, tensor in received.items()} == {name: tensor.dtype for name, tensor in payload().items()}


def test_received_tensors_are_private(sides: tuple) -> None:
    sender, receiver = sides
    manifest = sender.send(payload(), 1, "adapter")
    receiver.receive(manifest)["b.weight"].zero_()
    assert digest_of(receiver.receive(manifest)) == manifest.digest


@pytest.mark.parametrize("where", [0.02, 0.5, 0.999])
def test_a_flipped_byte_is_refused(sides: tuple, where: float) -> None:
    sender, receiver = sides
    manifest = sender.send(payload(), 1, "adapter")
    data = bytearray(place(manifest).read_bytes())
    data[int(where * (len(data) - 1))] ^= 0x10
    place(manifest).write_bytes(data)
    with pytest.raises(DigestMismatch) as refused:
        receiver.receive(manifest)
    assert refused.value.retryable and refused.value.cure


@pytest.mark.parametrize("left", [0, 7, 100, -1])
def test_a_cut_payload_is_refused(sides: tuple, left: int) -> None:
    sender, receiver = sides
    manifest = sender.send(payload(), 1, "adapter")
    data = place(manifest).read_bytes()[:left]
    place(manifest).write_bytes(data)
    with pytest.raises(DigestMismatch):
        receiver.receive(manifest)
    with pytest.raises(DigestMismatch):  # not even where the length is made to agree
        receiver.receive(replace(manifest, bytes=len(data)))


def test_another_versions_bytes_are_refused(sides: tuple) -> None:
    sender, receiver = sides
    first, second = sender.send(payload(1), 1, "adapter"), sender.send(payload(2), 2, "adapter")
    with pytest.raises(DigestMismatch):
        receiver.receive(replace(second, handle=first.handle, bytes=first.bytes))


def test_two_generations_stay_readable(sides: tuple) -> None:
    sender, receiver = sides
    manifests = [sender.send(payload(version), version, "adapter") for version in range(1, 5)]
    for manifest in manifests[-2:]:
        assert digest_of(receiver.receive(manifest)) == manifest.digest
    with pytest.raises(EngineError, match="cannot be read"):
        receiver.receive(manifests[0])
    assert sum(place(manifest).exists() for manifest in manifests) == 2


def test_close_leaves_nothing(sides: tuple) -> None:
    sender, receiver = sides
    manifest = sender.send(payload(), 1, "adapter")
    receiver.close()
    assert place(manifest).exists(), "a receiver must not unlink what it read"
    sender.close()
    assert not place(manifest).exists()


def test_an_empty_publish_is_refused(sides: tuple) -> None:
    with pytest.raises(EngineError, match="without tensors"):
        sides[0].send({}, 1, "adapter")


READER = """
import json, sys
from pathlib import Path
from workers import registry
from workers.records import Manifest, from_wire
manifest = from_wire(Manifest, json.loads(sys.argv[1]))
print(len(registry.resolve("transport", manifest.transport)(sys.argv[2], Path(sys.argv[3])).receive(manifest)))
"""


def test_another_process_reads_and_its_end_takes_nothing_away(sides: tuple, tmp_path: Path) -> None:
    import json

    from workers.records import to_wire

    sender, receiver = sides
    manifest = sender.send(payload(), 1, "adapter")
    call = [sys.executable, "-c", READER, json.dumps(to_wire(manifest)), RUN, str(tmp_path)]
    done = subprocess.run(call, capture_output=True, text=True, timeout=120, cwd=Path(__file__).parents[2], check=False)
    assert done.returncode == 0 and done.stdout.strip() == "4", done.stderr
    assert not done.stderr, "no tracker may complain"
    assert digest_of(receiver.receive(manifest)) == manifest.digest


def test_an_attempt_that_wakes_leaves_the_next_ones_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transport = registry.resolve("transport", "shared_memory")
    monkeypatch.setenv("HEADRACE_ATTEMPT", "second")
    sender = transport(RUN, tmp_path)
    manifest = sender.send(payload(), 1, "adapter")
    try:
        assert manifest.handle["segment"].startswith("hr-transporttes-second-")
        monkeypatch.setenv("HEADRACE_ATTEMPT", "first")
        assert sweep(RUN) == [] and place(manifest).exists()
        with pytest.raises(EngineError, match="another run or attempt"):
            transport(RUN, tmp_path).receive(manifest)
        assert sweep(RUN, whole_run=True) == [manifest.handle["segment"]] and not place(manifest).exists()
    finally:
        sender.close()


def test_shared_memory_names_belong_to_their_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADRACE_ATTEMPT", raising=False)
    transport = registry.resolve("transport", "shared_memory")
    sender = transport(RUN, tmp_path)
    manifest = sender.send(payload(), 1, "adapter")
    try:
        assert manifest.handle["segment"].startswith("hr-transporttes-0-") and os.stat(place(manifest)).st_mode & 0o077 == 0
        with pytest.raises(EngineError, match="another run"):
            transport("someoneelse0", tmp_path).receive(manifest)
        with pytest.raises(EngineError, match="another run"):
            sender.receive(replace(manifest, handle={"segment": f"{segment_prefix(RUN)}/../../etc/passwd"}))
        assert sweep(RUN) == [manifest.handle["segment"]] and not place(manifest).exists()
    finally:
        sender.close()


def test_a_file_is_never_seen_half_written(tmp_path: Path) -> None:
    sender = registry.resolve("transport", "filesystem")(RUN, tmp_path)
    sender.send(payload(), 1, "adapter")
    assert [path.name for path in (tmp_path / "weights").iterdir()] == ["version-1.safetensors"]
