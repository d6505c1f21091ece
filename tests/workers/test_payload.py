"""Payloads: what an engine puts together is, bit by bit, what the trainer had."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from tests.workers.tiny_model import make_tiny_model
from tests.workers.transport_rig import OneAtATime, payload, transport
from workers import registry
from workers.axes.payload.base import Packed, Payload
from workers.axes.payload.delta import AT, FULL_ABOVE, MASK, NEW, Delta, packed_bits, unpacked_bits
from workers.axes.transport.digest import digest_of
from workers.contract.axes import PayloadKind
from workers.contract.config import RunConfig
from workers.contract.errors import EngineError
from workers.records import Manifest, SampleRequest
from workers.rollout.torch.generator import TorchGenerator

ENGINE = "generator/0"
WHOLE = [kind for kind in get_args(PayloadKind) if kind not in ("delta", "expert_shards")]  # expert_shards wants a model of experts
DTYPES = {torch.bfloat16: torch.int16, torch.float16: torch.int16, torch.float32: torch.int32, torch.float64: torch.int64}
quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def manifest_of(packed: Packed, version: int) -> Manifest:
    return Manifest(version, "", 0, packed.kind, "", {}, base=packed.base, note=packed.note)


def handed_on(trainer: Payload, engine: Payload, weights: dict[str, torch.Tensor], version: int) -> tuple[Packed, dict[str, torch.Tensor]]:
    packed = trainer.pack(weights, version, [ENGINE])
    copies = {name: packed.tensors[name].clone() for name in packed.tensors}
    return packed, engine.unpack(copies, manifest_of(packed, version))


def flipped(weights: dict[str, torch.Tensor], share: float, seed: int) -> dict[str, torch.Tensor]:
    """The weights with a random bit flipped in about `share` of all positions: NaNs and negative zeros come up, too."""
    generator = torch.Generator().manual_seed(seed)
    result = {}
    for name, tensor in weights.items():
        word = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
        bits = tensor.clone().reshape(-1).view(word)
        chosen = torch.rand(bits.shape, generator=generator) < share
        places = torch.randint(0, 8 * tensor.element_size(), bits.shape, generator=generator)
        bits[chosen] ^= (torch.ones_like(bits) << places.to(word))[chosen]
        result[name] = bits.view(tensor.dtype).reshape(tensor.shape)
    return result


def numbers(seed: int = 0, size: int = 1000) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {f"{index}.weight": torch.randn(size // 10, 10, generator=generator).to(dtype) for index, dtype in enumerate(DTYPES)}


@pytest.mark.parametrize("kind", [*WHOLE, "delta"])
def test_whole_weights_arrive(kind: str) -> None:
    trainer, engine = (registry.resolve("payload", kind)(kind) for _ in range(2))
    for version in (1, 2, 3):
        weights = payload(version)
        _, whole = handed_on(trainer, engine, weights, version)
        assert digest_of(whole) == digest_of(weights)


@pytest.mark.parametrize("kind", WHOLE)
def test_what_travels_whole_is_called_by_its_name_and_builds_on_nothing(kind: str) -> None:
    packed = registry.resolve("payload", kind)(kind).pack(payload(), 4, [ENGINE])
    assert packed.kind == kind and packed.base is None


@pytest.mark.parametrize("kind", [*WHOLE, "delta"])
def test_each_tensor_is_read_once_in_order(kind: str, tmp_path: Path) -> None:
    """By payload and transport together, whichever reads: a value may be gathered from other ranks when it is read."""
    trainer, sender = registry.resolve("payload", kind)(kind), transport("filesystem", "trainer", tmp_path)
    for version in (1, 2):
        weights = OneAtATime(payload(version))
        sender.send(trainer.pack(weights, version, [ENGINE]).tensors, version, kind, [ENGINE])
        assert weights.reads == sorted(payload()) and weights.most_alive == 1
    sender.close()


@quick
@given(shares=st.lists(st.sampled_from([0.0, 0.001, 0.01, 0.1, 0.3, 0.39, 0.45, 1.0]), min_size=1, max_size=4), seed=st.integers(0, 10**6))
def test_any_change_of_bits_arrives(shares: list[float], seed: int) -> None:
    trainer, engine = Delta("delta"), Delta("delta")
    weights = numbers(seed)
    handed_on(trainer, engine, weights, 1)
    for version, share in enumerate(shares, start=2):
        changed = flipped(weights, share, seed + version)
        packed, whole = handed_on(trainer, engine, changed, version)
        assert digest_of(whole) == digest_of(changed)
        positions = sum(tensor.numel() for tensor in weights.values())
        differing = sum(int((bits(changed[name]) != bits(weights[name])).sum()) for name in weights)
        assert packed.note["changed_share"] == pytest.approx(differing / positions)
        assert packed.kind == ("full" if differing > FULL_ABOVE * positions else "delta")
        assert packed.base == (version - 1 if packed.kind == "delta" else None)
        weights = changed


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(DTYPES[tensor.dtype])


@quick
@given(count=st.integers(0, 70), seed=st.integers(0, 1000))
def test_bits_are_packed_and_unpacked(count: int, seed: int) -> None:
    mask = torch.rand(count, generator=torch.Generator().manual_seed(seed)) > 0.5
    packed = packed_bits(mask)
    assert packed.numel() == -(-count // 8) and torch.equal(unpacked_bits(packed, count), mask)


def test_few_changes_go_by_position_and_many_by_mask() -> None:
    trainer = Delta("delta")
    weights = {"few": torch.zeros(10_000).bfloat16(), "many": torch.zeros(10_000).bfloat16(), "none": torch.zeros(10_000).bfloat16()}
    trainer.pack(weights, 1, [ENGINE])
    weights["few"][[7, 9_999]] = 1
    weights["many"][::3] = 1
    packed = trainer.pack(weights, 2, [ENGINE])
    assert set(packed.tensors) == {"few" + AT, "few" + NEW, "many" + MASK, "many" + NEW}
    assert packed.tensors["few" + AT].dtype == torch.int32 and packed.tensors["few" + AT].tolist() == [7, 9_999]
    assert packed.tensors["many" + MASK].nbytes == 1250
    assert sum(tensor.nbytes for tensor in packed.tensors.values()) < 0.15 * sum(tensor.nbytes for tensor in weights.values())


def test_the_threshold_is_exact() -> None:
    for changed, kind in ((40, "delta"), (41, "full")):
        trainer, weights = Delta("delta"), {"a": torch.zeros(100)}
        trainer.pack(weights, 1, [ENGINE])
        weights["a"][:changed] = 1
        packed = trainer.pack(weights, 2, [ENGINE])
        assert packed.kind == kind and packed.note == {"changed_share": changed / 100}


def test_an_unchanged_publish_still_travels(tmp_path: Path) -> None:
    trainer, engine, weights = Delta("delta"), Delta("delta"), numbers()
    handed_on(trainer, engine, weights, 1)
    packed, whole = handed_on(trainer, engine, weights, 2)
    assert packed.kind == "delta" and packed.note == {"changed_share": 0.0} and digest_of(whole) == digest_of(weights)
    sender = transport("filesystem", "trainer", tmp_path)
    assert sender.receive(sender.send(packed.tensors, 2, "delta", [ENGINE])).keys() == packed.tensors.keys()
    sender.close()


def test_another_base_is_refused_and_the_old_weights_stay() -> None:
    trainer, engine, late = Delta("delta"), Delta("delta"), Delta("delta")
    weights = numbers()
    handed_on(trainer, engine, weights, 1)
    trainer.pack(flipped(weights, 0.01, 2), 2, [ENGINE])  # lost on its way
    newest = flipped(weights, 0.02, 3)
    packed = trainer.pack(newest, 3, [ENGINE])
    for receiver in (engine, late):
        with pytest.raises(EngineError, match="builds on version 2") as refused:
            receiver.unpack(packed.tensors, manifest_of(packed, 3))
        assert refused.value.retryable and "in full" in str(refused.value.cure)
    again, whole = handed_on(trainer, engine, newest, 3)  # the driver sends the same version again
    assert again.kind == "full" and again.base is None and digest_of(whole) == digest_of(newest)
    packed, whole = handed_on(trainer, engine, flipped(newest, 0.01, 4), 4)
    assert packed.kind == "delta" and packed.base == 3


def test_an_engine_that_is_new_gets_whole_weights_and_one_that_goes_changes_nothing() -> None:
    trainer, weights = Delta("delta"), numbers()
    trainer.pack(weights, 1, ["a", "b"])
    assert trainer.pack(weights, 2, ["a"]).kind == "delta"
    assert trainer.pack(weights, 3, ["a", "b"]).kind == "full"
    assert trainer.pack(weights, 4, ["a", "b"]).kind == "delta"


@pytest.mark.parametrize("how", ["shape", "dtype", "name", "gone"])
def test_other_tensors_go_whole(how: str) -> None:
    trainer, engine, weights = Delta("delta"), Delta("delta"), numbers()
    handed_on(trainer, engine, weights, 1)
    name = next(iter(weights))
    if how == "shape":
        weights[name] = weights[name].reshape(10, -1)
    elif how == "dtype":
        weights[name] = weights[name].float()
    elif how == "name":
        weights["new"] = torch.ones(3)
    else:
        del weights[name]
    packed, whole = handed_on(trainer, engine, weights, 2)
    assert packed.kind == "full" and whole.keys() == weights.keys() and digest_of(whole) == digest_of(weights)
    assert handed_on(trainer, engine, weights, 3)[0].kind == "delta"


def test_what_serves_is_never_written_into() -> None:
    """An engine decodes with the old weights while the new ones are put together; the trainer goes on training."""
    trainer, engine, weights = Delta("delta"), Delta("delta"), numbers()
    _, first = handed_on(trainer, engine, weights, 1)
    before = digest_of(first)
    changed = flipped(weights, 0.05, 9)
    expected = digest_of(changed)
    packed = trainer.pack(changed, 2, [ENGINE])
    for tensor in changed.values():
        tensor.zero_()
    second = engine.unpack({name: tensor.clone() for name, tensor in packed.tensors.items()}, manifest_of(packed, 2))
    assert digest_of(first) == before and digest_of(second) == expected


def test_a_read_that_fails_makes_the_next_publish_whole() -> None:
    class Torn(OneAtATime):
        def __getitem__(self, name: str) -> torch.Tensor:
            if name.startswith("2"):
                raise EngineError("a rank is gone")
            return super().__getitem__(name)

    trainer, engine, weights = Delta("delta"), Delta("delta"), numbers()
    handed_on(trainer, engine, weights, 1)
    newer = flipped(weights, 0.01, 5)
    with pytest.raises(EngineError, match="a rank is gone"):
        trainer.pack(Torn(newer), 2, [ENGINE])
    packed, whole = handed_on(trainer, engine, newer, 3)
    assert packed.kind == "full" and digest_of(whole) == digest_of(newer)


@pytest.mark.parametrize("fault", ["position", "count", "type", "name", "mask", "half"])
def test_a_delta_that_does_not_fit_is_refused(fault: str) -> None:
    trainer, engine, weights = Delta("delta"), Delta("delta"), {"a": torch.zeros(1000), "b": torch.zeros(1000)}
    handed_on(trainer, engine, weights, 1)
    weights["a"][3] = 1
    weights["b"][::4] = 1
    packed = trainer.pack(weights, 2, [ENGINE])
    parts = dict(packed.tensors)
    if fault == "position":
        parts["a" + AT] = torch.tensor([1000], dtype=torch.int32)
    elif fault == "count":
        parts["a" + NEW] = torch.ones(2)
    elif fault == "type":
        parts["a" + NEW] = torch.ones(1, dtype=torch.float64)
    elif fault == "name":
        parts["c" + AT], parts["c" + NEW] = parts["a" + AT], parts["a" + NEW]
    elif fault == "mask":
        parts["b" + MASK] = torch.zeros(3, dtype=torch.uint8)
    else:
        del parts["b" + MASK]
    with pytest.raises(EngineError, match="does not fit") as refused:
        engine.unpack(parts, manifest_of(packed, 2))
    assert refused.value.retryable
    whole = engine.unpack(packed.tensors, manifest_of(packed, 2))  # what was held is what it was
    assert digest_of(whole) == digest_of(weights)


async def test_an_engine_under_deltas_samples_as_one_under_whole_weights(tmp_path: Path) -> None:
    """The real engine on a tiny model: a full publish, two deltas, and beside it an engine that got everything at once."""
    folder = make_tiny_model(tmp_path / "tiny")
    weights = {name: tensor.bfloat16() for name, tensor in load_file(folder / "model.safetensors").items()}
    answers = []
    for payload_kind in ("delta", "full"):
        config = RunConfig.model_validate(
            {
                "model": {"path": str(folder), "dtype": "bfloat16"},
                "lora": {"kind": "off"},
                "transport": {"kind": "filesystem", "payload": payload_kind},
                "rollout": {"threads": 1},
            }
        )
        road = tmp_path / payload_kind
        sender, trainer = transport("filesystem", "trainer", road), registry.resolve("payload", payload_kind)(payload_kind)
        generator = TorchGenerator(config, ENGINE, transport("filesystem", ENGINE, road))
        try:
            for version in (1, 2, 3):
                generation = torch.Generator().manual_seed(version)
                scale = {name: torch.rand(tensor.shape, generator=generation) < 0.1 * (version - 1) for name, tensor in weights.items()}
                changed = {name: torch.where(scale[name], tensor * 1.5, tensor) for name, tensor in weights.items()}
                packed = trainer.pack(changed, version, [ENGINE])
                assert packed.kind == ("delta" if payload_kind == "delta" and version > 1 else "full")
                manifest = sender.send(packed.tensors, version, packed.kind, [ENGINE])
                await generator.update(replace(manifest, base=packed.base))
            rollout = await generator.generate(SampleRequest("a/0", "a", 0, [1, 20, 30, 40], 7, 8, 1.0))
            answers.append((rollout.token_ids, rollout.logprobs, rollout.versions))
        finally:
            await generator.stop()
            sender.close()
    assert answers[0] == answers[1] and set(answers[0][2]) == {3}
