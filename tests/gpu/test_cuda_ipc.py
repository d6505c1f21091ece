"""cuda_ipc on a real GPU: the engine is another process, as CUDA opens no handle in the process that made it.

python -m pytest tests/gpu
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.workers.transport_rig import OneAtATime, OtherProcess, payload, transport
from workers.axes.transport.digest import digest_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is an NVIDIA driver, and this torch was built without CUDA"),
]
ENGINES = ["generator/0", "generator/1"]


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[OtherProcess]]:
    folder = tmp_path_factory.mktemp("road")
    made = [OtherProcess("cuda_ipc", name, folder) for name in ENGINES]
    yield made
    for engine in made:
        engine.end()


@pytest.fixture
def sender(tmp_path: Path) -> Iterator[Any]:
    end: Any = transport("cuda_ipc", "trainer", tmp_path)
    yield end
    end.close()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_was_sent_arrives(sender: Any, engines: list[OtherProcess], device: str) -> None:
    for version in (1, 2, 3):
        weights = {name: tensor.to(device) for name, tensor in payload(version).items()}
        manifest = sender.send(weights, version, "full", ENGINES)
        assert manifest.digest == digest_of(payload(version)) and manifest.transport == "cuda_ipc"
        for tensor in weights.values():
            tensor.zero_()  # the trainer goes on
        assert [engine.receive(manifest) for engine in engines] == [manifest.digest] * 2


def test_the_last_two_publishes_can_be_read(sender: Any, engines: list[OtherProcess]) -> None:
    manifests = [sender.send(payload(version), version, "full", ENGINES) for version in (1, 2, 3)]
    assert [engines[0].receive(manifest) for manifest in manifests[1:]] == [manifest.digest for manifest in manifests[1:]]
    assert engines[1].receive(manifests[0]).startswith("DigestMismatch True"), "its memory holds another version by now"


def test_the_bytes_of_another_version_and_strangers_are_refused(sender: Any, engines: list[OtherProcess]) -> None:
    manifest = sender.send(payload(1), 1, "full", ENGINES)
    assert engines[0].receive(replace(manifest, digest=digest_of(payload(2)))).startswith("DigestMismatch True")
    manifest = sender.send(payload(1), 2, "full", ENGINES[:1])
    assert engines[1].receive(manifest).startswith("EngineError True")


def test_a_flipped_byte_is_refused(sender: Any, engines: list[OtherProcess]) -> None:
    manifest = sender.send(payload(), 1, "full", ENGINES)
    sender._slots[sender._turn][0][40] ^= 0x10
    torch.cuda.synchronize()
    assert engines[0].receive(manifest).startswith("DigestMismatch True")


def test_each_tensor_is_read_once_in_order_and_let_go(sender: Any, engines: list[OtherProcess]) -> None:
    weights = OneAtATime({name: tensor.cuda() for name, tensor in payload().items()})
    manifest = sender.send(weights, 1, "full", ENGINES)
    assert weights.reads == sorted(payload()) and weights.most_alive == 1
    assert engines[0].receive(manifest) == manifest.digest


def test_memory_is_used_again_also_where_an_engine_died(sender: Any, tmp_path: Path) -> None:
    other = OtherProcess("cuda_ipc", "generator/9", tmp_path)
    manifest = sender.send(payload(1), 1, "full", ["generator/9"])
    assert other.receive(manifest) == manifest.digest
    other.end()
    used = None
    for version in range(2, 10):
        sender.send(payload(version), version, "full", ["generator/9"])
        if version == 3:
            used = torch.cuda.memory_allocated()
    assert torch.cuda.memory_allocated() == used
