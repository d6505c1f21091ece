"""Only complete, hashed checkpoints are ever seen; a damaged one falls back to the one before and says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from workers.checkpoint import Checkpoints


async def save(store: Checkpoints, step: int, *, fail: bool = False) -> None:
    async def trainer(folder: Path) -> None:
        (folder / "adapter_model.safetensors").write_bytes(b"weights %d" % step)
        if fail:
            raise OSError(28, "No space left on device")

    await store.save(step=step, version=step, config_digest="c", driver={"step": step}, write_trainer=trainer)


async def test_the_newest_is_found_and_old_ones_go(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, keep_last=2)
    for step in (1, 2, 3):
        await save(store, step)
    found, faults = store.latest()
    assert found is not None
    assert (found.step, found.driver_state(), faults) == (3, {"step": 3}, [])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000002", "step-000003"]


@pytest.mark.parametrize("damage", ["truncate", "flip", "delete a file", "delete the manifest", "tear the manifest"])
async def test_damage_falls_back_to_the_one_before(tmp_path: Path, damage: str) -> None:
    store = Checkpoints(tmp_path, keep_last=2)
    await save(store, 1)
    await save(store, 2)
    newest = tmp_path / "step-000002"
    weights, manifest = newest / "adapter_model.safetensors", newest / "MANIFEST.json"
    if damage == "truncate":
        weights.write_bytes(weights.read_bytes()[:-1])
    elif damage == "flip":
        weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    elif damage == "delete a file":
        weights.unlink()
    elif damage == "delete the manifest":
        manifest.unlink()
    else:
        manifest.write_text(manifest.read_text()[:20])
    found, faults = store.latest()
    assert found is not None
    assert found.step == 1
    assert len(faults) == 1
    assert "step-000002" in str(faults[0])


async def test_a_save_that_fails_leaves_the_former_one(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, keep_last=2)
    await save(store, 1)
    with pytest.raises(OSError, match="No space"):
        await save(store, 2, fail=True)
    found, _ = store.latest()
    assert found is not None
    assert found.step == 1


async def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, keep_last=2)
    await save(store, 1)
    await save(store, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000001"]


async def test_the_one_just_written_outlives_a_damaged_newer_one(tmp_path: Path) -> None:
    await save(Checkpoints(tmp_path, keep_last=2), 10)
    await save(Checkpoints(tmp_path, keep_last=2), 20)
    (tmp_path / "step-000020" / "MANIFEST.json").write_text("[]")
    await save(Checkpoints(tmp_path, keep_last=1), 15)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".damaged-step-000020", "step-000015"]


async def test_a_kill_between_the_two_renames_hides_nothing(tmp_path: Path) -> None:
    await save(Checkpoints(tmp_path, keep_last=2), 1)
    (tmp_path / "step-000001").rename(tmp_path / ".replaced-step-000001")
    (tmp_path / ".writing-step-000001").mkdir()
    found, _ = Checkpoints(tmp_path, keep_last=2).latest()
    assert found is not None and found.step == 1
    await save(Checkpoints(tmp_path, keep_last=2), 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000001", "step-000002"]
