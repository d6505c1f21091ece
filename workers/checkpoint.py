"""Checkpoints: written aside, synced, renamed; the manifest last. Only complete, hashed checkpoints are ever seen.

A checkpoint `step-000010/` holds adapter_model.safetensors, adapter_config.json (PEFT's layout), optimizer.safetensors,
trainer.json (random states), driver.json (cursor, ledger, version, buffer) and MANIFEST.json (bytes and sha256 of each).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workers.contract.errors import CheckpointError
from workers.spool import sync_folder

MANIFEST = "MANIFEST.json"
DRIVER = "driver.json"


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint whose files agree with its manifest."""

    folder: Path
    step: int
    version: int
    bytes: int
    sha256: str  # of the manifest
    config_digest: str

    def driver_state(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads((self.folder / DRIVER).read_text())
        return state


class Checkpoints:
    """The checkpoints of one attempt's folder."""

    def __init__(self, folder: Path, keep_last: int) -> None:
        self._folder = folder
        self._keep_last = keep_last

    async def save(
        self, *, step: int, version: int, config_digest: str, driver: dict[str, Any], write_trainer: Callable[[Path], Awaitable[Any]]
    ) -> Checkpoint:
        """Returns once the checkpoint is durable under its final name. Raises OSError (disk full); the former ones stand."""
        self._folder.mkdir(parents=True, exist_ok=True)
        aside = self._folder / f".writing-step-{step:06d}"
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        await write_trainer(aside)
        (aside / DRIVER).write_text(json.dumps(driver))
        files = {path.name: {"bytes": path.stat().st_size, "sha256": _sync_and_hash(path)} for path in sorted(aside.iterdir())}
        manifest = {"step": step, "version": version, "config_digest": config_digest, "files": files}
        (aside / MANIFEST).write_text(json.dumps(manifest, indent=1))
        _sync_and_hash(aside / MANIFEST)
        sync_folder(aside)
        final = self._folder / f"step-{step:06d}"
        replaced = self._folder / f".replaced-step-{step:06d}"
        if final.exists():
            final.rename(replaced)
        aside.rename(final)
        sync_folder(self._folder)
        shutil.rmtree(replaced, ignore_errors=True)
        self._prune()
        return _open(final)

    def latest(self) -> tuple[Checkpoint | None, list[CheckpointError]]:
        """The newest complete checkpoint, and what was wrong with newer ones."""
        faults: list[CheckpointError] = []
        for folder in sorted(self._folder.glob("step-*"), reverse=True):
            try:
                return _open(folder), faults
            except CheckpointError as error:
                faults.append(error)
        return None, faults

    def _prune(self) -> None:
        for folder in sorted(self._folder.glob("step-*"))[: -self._keep_last]:
            shutil.rmtree(folder)


def _open(folder: Path) -> Checkpoint:
    try:
        text = (folder / MANIFEST).read_bytes()
        manifest = json.loads(text)
        files = manifest["files"]
        for name, fact in files.items():
            path = folder / name
            if path.stat().st_size != fact["bytes"] or _hash(path) != fact["sha256"]:
                raise CheckpointError(
                    f"{name} is not what the manifest says", field="checkpoint", value=str(folder), cure="the one before is used"
                )
    except (OSError, ValueError, KeyError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(
            f"the checkpoint is not complete: {error}", field="checkpoint", value=str(folder), cure="the one before is used"
        ) from error
    return Checkpoint(
        folder=folder,
        step=manifest["step"],
        version=manifest["version"],
        bytes=sum(fact["bytes"] for fact in files.values()),
        sha256=hashlib.sha256(text).hexdigest(),
        config_digest=manifest["config_digest"],
    )


def _hash(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _sync_and_hash(path: Path) -> str:
    with path.open("rb") as stream:
        os.fsync(stream.fileno())
    return _hash(path)
