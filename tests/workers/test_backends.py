"""Every backend with everything that may learn: two ranks do what one process does, and nothing of them is left afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import psutil
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.workers.test_trainer import make_batch
from tests.workers.tiny_model import make_tiny_model
from workers import registry
from workers.axes.backend import ranks as ranks_module
from workers.axes.backend.together import Split, in_buckets, owners_of
from workers.axes.backend.tp import check_shares
from workers.axes.lora.base import local
from workers.axes.transport.digest import digest_of
from workers.contract.axes import BackendKind, LoraKind
from workers.contract.config import RunConfig
from workers.contract.errors import Cancelled, CheckpointError, EngineError, EnvironmentMissing
from workers.records import Batch, Manifest, StepResult


def make_silent(step: int) -> Batch:
    """Equal rewards: no gradient, but a step by AdamW's momentum."""
    batch = make_batch(step)
    for group in batch.groups:
        for sample in group.samples:
            sample.reward = 0.5
    return batch


BATCHES = [make_batch(1), make_silent(2), make_batch(3)]
PAYLOADS = {"adapter_only": "adapter", "merged": "merged_adapter", "off": "full"}
CASES = [(kind, lora) for kind in get_args(BackendKind) for lora in get_args(LoraKind)]


class Road:
    """A transport that reads each tensor once, as the door says, and keeps the payload's digest and values."""

    def __init__(self) -> None:
        self.values: dict[str, Tensor] = {}

    def send(self, tensors: Mapping[str, Tensor], version: int, payload: str, receivers: list[str]) -> Manifest:
        self.values = {name: tensors[name].clone() for name in sorted(tensors)}
        size = sum(value.nbytes for value in self.values.values())
        return Manifest(version, digest_of(self.values), size, payload, "filesystem", {})

    def receive(self, manifest: Manifest) -> dict[str, Tensor]:
        return self.values

    def close(self) -> None:
        """Nothing was made."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pool")


@pytest.fixture(scope="module")
def model(folder: Path) -> Path:
    return make_tiny_model(folder / "model")


def make(model: Path, kind: str, lora: str, ranks: int = 2, dtype: str = "float32", **blocks: dict[str, Any]) -> Any:
    base: dict[str, Any] = {
        "model": {"path": str(model), "dtype": dtype},
        "determinism": "strict" if dtype == "float32" else "fast",
        "lora": {"kind": lora, "rank": 4},
        "transport": {"kind": "filesystem", "payload": PAYLOADS[lora]},
        "optimizer": {"learning_rate": 1e-2},
        "batch": {"micro_tokens": 64},
        "backend": {"kind": kind, "ranks": 1 if kind == "single" else ranks, "threads": 1},
    }
    config = RunConfig.model_validate({**base, **{name: {**base.get(name, {}), **block} for name, block in blocks.items()}})
    return registry.resolve("backend", kind)(config, model.parent / "scratch", Road())


def pids(trainer: Any) -> list[int]:
    leader = getattr(trainer, "_leader", None)
    return leader.pids if leader else []


def gone(numbers: list[int], patience: float = 3.0) -> bool:
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        if not any(psutil.pid_exists(number) and psutil.Process(number).status() != psutil.STATUS_ZOMBIE for number in numbers):
            return True
        time.sleep(0.02)
    return False


def difference(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """Relative, in the 2-norm, over all tensors together."""
    assert one.keys() == other.keys()
    assert all(one[name].shape == other[name].shape and one[name].dtype == other[name].dtype for name in one)
    gaps = sum(float((one[name].double() - other[name].double()).square().sum()) for name in one)
    return float((gaps / sum(float(other[name].double().square().sum()) for name in other)) ** 0.5)


def blocks_of(kind: str, lora: str) -> dict[str, Any]:
    """merged trains as adapter_only does, and has here several optimizer steps a batch, a correction that changes denominators,
    and a sharded optimizer where there is one."""
    if lora != "merged":
        return {}
    survivors = {"hi": 1.2, "lo": 0.8, "action": "mask", "denominator": "survivors"}
    return {"batch": {"minibatches": 2}, "loss": {"corrections": [survivors]}, "backend": {"sharded_optimizer": kind == "ddp"}}


class Trained:
    """One trainer after three batches: what it said, what it published before and after, what it saved."""

    def __init__(self, model: Path, kind: str, lora: str) -> None:
        self.trainer = make(model, kind, lora, **blocks_of(kind, lora))
        self.first = self.trainer.publish(0, [])
        self.results: list[StepResult] = [self.trainer.train(batch) for batch in BATCHES]
        self.published = self.trainer.publish(3, [])
        self.values = dict(self.trainer._transport.values)
        self.saved = model.parent / f"saved-{kind}-{lora}"
        self.trainer.checkpoint(self.saved)


@pytest.fixture(scope="module")
def alone(model: Path) -> dict[str, Trained]:
    return {lora: Trained(model, "single", lora) for lora in get_args(LoraKind)}


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "-".join(case))
def pool(request: pytest.FixtureRequest, model: Path) -> Iterator[tuple[Trained, str]]:
    kind, lora = request.param
    trained = Trained(model, kind, lora)
    numbers = pids(trained.trainer)
    assert len(numbers) == (0 if kind == "single" else 1)
    assert all(psutil.pid_exists(number) for number in numbers)
    yield trained, lora
    trained.trainer.close()
    assert gone(numbers)
    assert not list((model.parent / "scratch").glob(f"ranks-{os.getpid()}-*"))


def test_ranks_die_with_rank_0(model: Path, tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from tests.workers.test_backends import make, pids\n"
        "if __name__ == '__main__':\n"
        "    trainer = make(Path(sys.argv[1]), 'ddp', 'adapter_only'); print(*pids(trainer), flush=True); time.sleep(60)"
    )
    environment = {**os.environ, "HEADRACE_RUN_ID": "run-of-ranks", "PYTHONPATH": os.pathsep.join(sys.path)}
    leader = subprocess.Popen([sys.executable, "-c", code, str(model)], stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert leader.stdout is not None
        peers = [int(number) for number in leader.stdout.readline().split()]
        assert [psutil.Process(number).environ()["HEADRACE_RUN_ID"] for number in peers] == ["run-of-ranks"]
        os.kill(peers[0], signal.SIGSTOP)  # one that cannot even hear the end of its socket
    finally:
        leader.kill()
        leader.wait()
    assert gone(peers)


def test_a_rank_that_is_silent_ends_the_pool(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks_module.Leader.__init__, "__defaults__", (1.5,))
    trainer = make(model, "ddp", "adapter_only")
    (peer,) = pids(trainer)
    monkeypatch.setattr(ranks_module, "LAST_WORDS_S", 0.1)
    os.kill(peer, signal.SIGSTOP)
    try:
        with pytest.raises(EngineError, match="lost one another"):
            trainer.train(BATCHES[0])
    finally:
        trainer.close()
    assert gone([peer])


def test_a_rank_that_cannot_load_is_named(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "bin"
    broken.mkdir()
    (broken / "python").write_text(f"#!/bin/sh\nexport PYTHONSTARTUP=\nexec {sys.executable} -c 'raise SystemExit(9)'\n")
    (broken / "python").chmod(0o755)
    monkeypatch.setattr(ranks_module.sys, "executable", str(broken / "python"))
    with pytest.raises(EngineError, match="rank 1 of the trainer ended with exit code 9"):
        make(model, "ddp", "adapter_only")


def test_it_trains_as_one_process_does(pool: tuple[Trained, str], alone: dict[str, Trained]) -> None:
    trained, lora = pool
    one = alone[lora]
    bound = 1e-5 if lora != "merged" else 1e-3  # six steps on ratios and a mask of one's own making magnify the last bits
    for mine, his in zip(trained.results, one.results, strict=True):
        assert mine.metrics.keys() == his.metrics.keys()
        for name in ("loss/policy", "loss/grad_norm", "loss/entropy", "loss/kl_mismatch", "loss/clip_share"):
            assert mine.metrics[name] == pytest.approx(his.metrics[name], rel=bound, abs=bound / 100), name
        assert mine.advantages == his.advantages and mine.skipped == his.skipped
        assert mine.logprobs.keys() == his.logprobs.keys()
        for identity, values in mine.logprobs.items():
            assert values == pytest.approx(his.logprobs[identity], rel=bound, abs=bound)
    assert difference(trained.values, one.values) < 1e-5


def test_a_publish_has_the_names_and_bytes_of_one_process(pool: tuple[Trained, str], alone: dict[str, Trained]) -> None:
    trained, lora = pool
    one = alone[lora]
    assert trained.first.digest == one.first.digest  # nothing had been trained: the same bits, wherever they lay
    assert trained.first.digest != trained.published.digest
    assert trained.published.bytes == one.published.bytes
    trained.trainer.checkpoint(one.saved, restore=True)
    again = trained.trainer.publish(3, [])
    assert again.digest == one.published.digest
    assert again.note == one.published.note


def test_checkpoints_have_one_layout_and_resume_bit_for_bit(pool: tuple[Trained, str], alone: dict[str, Trained]) -> None:
    trained, lora = pool
    one = alone[lora]
    files = {item.name for item in one.saved.iterdir()}
    assert {item.name for item in trained.saved.iterdir()} == files
    for name in files:
        if name.endswith(".safetensors"):
            assert difference(load_file(trained.saved / name), load_file(one.saved / name)) < 1e-5
    assert (trained.saved / "trainer.json").read_text() == (one.saved / "trainer.json").read_text()
    trainer = trained.trainer
    digests = []
    for _ in range(2):
        counters = trainer.checkpoint(trained.saved, restore=True)
        assert counters["steps"] == 3
        trainer.train(make_batch(4))
        digests.append(trainer.publish(4, []).digest)
    assert digests[0] == digests[1] != trained.published.digest


def test_a_checkpoint_that_does_not_fit_is_refused_and_the_pool_goes_on(pool: tuple[Trained, str], tmp_path: Path) -> None:
    trained, _ = pool
    with pytest.raises(CheckpointError, match="not readable"):
        trained.trainer.checkpoint(tmp_path, restore=True)
    assert trained.trainer.checkpoint(trained.saved, restore=True)["steps"] == 3
    assert not trained.trainer.train(make_batch(4)).skipped


def test_gathered_weights_are_read_bucket_by_bucket(pool: tuple[Trained, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """At every moment of a publish, memory beyond the model's own is at most the largest bucket (or tensor) and a tenth."""
    trained, lora = pool
    adapters, spread = trained.trainer._adapters, trained.trainer._spread
    monkeypatch.setattr("workers.axes.lora.merged.BLOCK_BYTES", 1024)  # this model's matrices are smaller than one block
    payload = adapters.payload(lambda name, piece: spread.whole("part", name, piece))
    sizes = {name: spread.shape(name, part) for name, part in adapters.parts().items()}
    largest = max(4 * torch.Size(shape).numel() for shape in sizes.values())
    monkeypatch.setattr(spread, "_bucket_bytes", largest, raising=False)
    with Memory() as memory:
        for name in payload:
            assert payload[name].nbytes <= largest
    pieces = any(local(part).shape != torch.Size(sizes[name]) for name, part in adapters.parts().items())
    assert (memory.peak > 0) == (pieces or lora == "merged")
    assert memory.peak <= 1.1 * largest, (memory.peak, largest)


def test_a_cancel_stops_every_rank_between_two_micro_batches(pool: tuple[Trained, str]) -> None:
    trained, lora = pool
    if lora != "merged":  # where a batch begins with a pass over all of its rows; a trainer that was told to stop trains no more
        return
    trainer = trained.trainer
    trainer.checkpoint(trained.saved, restore=True)
    before = trainer.publish(3, [])
    inner, passes = trainer._pass, []

    def stopping(*args: Any) -> Any:
        passes.append(1)
        if len(passes) == 2:
            trainer.interrupt()
        return inner(*args)

    trainer._pass = stopping
    for _ in range(2):
        with pytest.raises(Cancelled):
            trainer.train(make_batch(5, groups=6))
    assert len(passes) == 2
    assert all(master.grad is None for master in trainer._adapters.masters.values())
    assert trainer.publish(3, []).digest == before.digest  # the last step stands, and the ranks still answer


def test_a_rank_that_dies_ends_the_pool_with_its_cause(pool: tuple[Trained, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The last test of each pool: nothing of it is left. It dies while a batch is trained, or between two calls."""
    trained, lora = pool
    trainer = trained.trainer
    if not pids(trainer):
        return
    (peer,) = pids(trainer)
    inner = trainer._pass

    def killing(*args: Any) -> Any:
        os.kill(peer, signal.SIGKILL)
        return inner(*args)

    monkeypatch.setattr(trainer, "_pass", killing)
    if lora == "merged":
        os.kill(peer, signal.SIGKILL)
    calls = [lambda: trainer.train(make_batch(5)), lambda: trainer.checkpoint(trained.saved, restore=True)]
    started = time.monotonic()
    for call in (*calls, *calls):
        with pytest.raises(EngineError, match="rank 1 of the trainer ended with signal SIGKILL") as caught:
            call()
        assert caught.value.field == "trainer/1" and caught.value.retryable
    assert gone([peer])
    assert time.monotonic() - started < ranks_module.PATIENCE_S / 10


def test_a_model_that_ranks_cannot_share_is_refused(model: Path) -> None:
    plain = make(model, "single", "off")._model
    check_shares(plain, 2)
    with pytest.raises(EnvironmentMissing, match="num_attention_heads of 4 cannot be shared by 3 ranks"):
        check_shares(plain, 3)
    plain.model.layers[1].mlp.router = torch.nn.Linear(4, 4)
    with pytest.raises(EnvironmentMissing, match="another part"):
        check_shares(plain, 2)


def test_pieces_cover_a_tensor_once() -> None:
    whole = torch.arange(35.0).view(5, 7)
    for dim, ranks in ((0, 2), (0, 4), (1, 3), (0, 8)):
        split = Split((5, 7), dim, ranks)
        pieces = [split.of(whole, rank) for rank in range(ranks)]
        assert torch.equal(torch.cat(pieces, dim), whole)
        chunks = whole.chunk(ranks, dim)
        assert all(torch.equal(piece, chunk) for piece, chunk in zip(pieces, chunks, strict=False))


def test_owners_have_even_loads_and_buckets_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    masters = {f"w{number}": torch.zeros(number % 7 + 1, 10) for number in range(20)}
    owners = owners_of(masters, 3)
    loads = [sum(masters[name].numel() for name, rank in owners.items() if rank == wanted) for wanted in range(3)]
    assert max(loads) - min(loads) <= 10
    monkeypatch.setattr("workers.axes.backend.together.BUCKET_BYTES", 100)
    sizes: list[int] = []

    def double(flat: Tensor) -> None:
        sizes.append(flat.numel())
        flat.mul_(2)

    tensors = [torch.full((number,), float(number)) for number in (3, 40, 1, 2, 30)]
    in_buckets(tensors, double)
    assert sizes == [3, 40, 3, 30]
    assert [float(tensor.sum()) for tensor in tensors] == [18, 3200, 2, 8, 1800]


class Memory(TorchDispatchMode):
    """Bytes of the tensors made inside it: those alive now, and the most at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = {value.untyped_storage().data_ptr() for value in args if type(value) in (Tensor, torch.nn.Parameter)}
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else (result,):
            if type(value) is Tensor:
                self._count(value, known)
        return result

    def _count(self, value: Tensor, known: set[int]) -> None:
        storage = value.untyped_storage()
        if storage.data_ptr() in known or storage.data_ptr() in self._seen:
            return
        pointer, size = storage.data_ptr(), storage.nbytes()
        self._seen.add(pointer)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._free, pointer, size)

    def _free(self, pointer: int, size: int) -> None:
        self._seen.discard(pointer)
        self.now -= size
