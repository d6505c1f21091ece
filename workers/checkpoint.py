"""Checkpoints: written aside, synced, renamed; the manifest last. Only complete, hashed checkpoints are ever seen.

A checkpoint `step-000010/` holds adapter_model.safetensors and adapter_config.json (PEFT's layout) or, where every weight
learns, model.safetensors and what transformers needs beside it; optimizer.safetensors, trainer.json (counters;
the trainer draws nothing at random once it has started), driver.json (cursor, ledger, version, buffer)
and MANIFEST.json (bytes and sha256 of each).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workers.contract.errors import CheckpointError
from workers.contract.failpoints import reached
from workers.spool import sync_folder

MANIFEST = "MANIFEST.json"
DRIVER = "driver.json"
SEAL_PATIENCE_S = 3.0


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
        self._sound: set[str] = set()  # names whose files are known to agree with their manifest
        self._sealing: asyncio.Future[Checkpoint] | None = None

    async def save(
        self, *, step: int, version: int, config_digest: str, driver: dict[str, Any], write_trainer: Callable[[Path], Awaitable[Any]]
    ) -> Checkpoint:
        """Returns once the checkpoint is durable under its final name. Raises OSError (disk full); the former ones stand."""
        text = json.dumps(driver)  # before anything is awaited: the flow goes on meanwhile
        await asyncio.to_thread(self._tidy)
        aside = self._folder / f".writing-step-{step:06d}"
        aside.mkdir()
        try:
            reached("save.begun")
            await write_trainer(aside)
            reached("save.files")
            facts = {"step": step, "version": version, "config_digest": config_digest}
            self._sealing = asyncio.ensure_future(asyncio.to_thread(self._seal, aside, text, facts))
            return await asyncio.shield(self._sealing)
        except OSError:
            shutil.rmtree(aside, ignore_errors=True)  # on a full disk it would keep the next one out
            raise

    def _seal(self, aside: Path, driver: str, facts: dict[str, Any]) -> Checkpoint:
        """In a thread: hashes, syncs, renames, and lets old ones go."""
        (aside / DRIVER).write_text(driver)
        files = {path.name: {"bytes": path.stat().st_size, "sha256": _sync_and_hash(path)} for path in sorted(aside.iterdir())}
        text = json.dumps({**facts, "files": files}, indent=1).encode()
        (aside / MANIFEST).write_bytes(text)
        _sync_and_hash(aside / MANIFEST)
        sync_folder(aside)
        reached("save.manifest")
        final = self._folder / f"step-{facts['step']:06d}"
        replaced = self._folder / f".replaced-{final.name}"
        if final.exists():
            final.rename(replaced)
            reached("save.replaced")
        aside.rename(final)
        sync_folder(self._folder)
        reached("save.named")
        shutil.rmtree(replaced, ignore_errors=True)
        self._sound.add(final.name)
        self._prune(final)
        return _made(final, text, {**facts, "files": files})

    async def close(self, patience_s: float = SEAL_PATIENCE_S) -> None:
        """Called at the attempt's end, when no trainer writes any more: what a cancel met half-made is removed, or has its name by now."""
        if self._sealing is not None:
            done, _ = await asyncio.wait({self._sealing}, timeout=patience_s)
            if not done:  # a thread still writes there: the next save takes it away
                return
            self._sealing.exception()  # who waited for it was told, or was cancelled
        if self._folder.is_dir():
            await asyncio.to_thread(self._tidy)

    def latest(self, check: Callable[[Checkpoint], None] | None = None) -> tuple[Checkpoint | None, list[CheckpointError]]:
        """The newest complete checkpoint, and what was wrong with newer ones. `check` raises CheckpointError for one not to be used."""
        faults: list[CheckpointError] = []
        for folder in self._candidates():
            try:
                found = open_checkpoint(folder)
                if check is not None:
                    check(found)
                return found, faults
            except CheckpointError as error:
                faults.append(error)
        return None, faults

    def _candidates(self) -> list[Path]:
        """Newest first. A kill between the two renames of a save leaves the former one under its `.replaced-` name."""
        found = list(self._folder.glob("step-*"))
        names = {path.name for path in found}
        found += [path for path in self._folder.glob(".replaced-step-*") if path.name.removeprefix(".replaced-") not in names]
        return sorted(found, key=_step_of, reverse=True)

    def _tidy(self) -> None:
        """Before a save, when this attempt owns the folder: takes back what a kill left aside, removes what was never finished."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for replaced in self._folder.glob(".replaced-step-*"):
            final = self._folder / replaced.name.removeprefix(".replaced-")
            if final.exists():
                shutil.rmtree(replaced, ignore_errors=True)
            else:
                replaced.rename(final)
        for unfinished in self._folder.glob(".writing-step-*"):
            shutil.rmtree(unfinished, ignore_errors=True)

    def _prune(self, written: Path) -> None:
        """Keeps the one just written and the newest sound ones; a damaged one is set aside and never counts."""
        kept = 1
        for folder in self._candidates():
            if folder == written:
                continue
            if not self._is_sound(folder):
                damaged = self._folder / f".damaged-{folder.name}"
                shutil.rmtree(damaged, ignore_errors=True)
                folder.rename(damaged)
            elif kept < self._keep_last:
                kept += 1
            else:
                shutil.rmtree(folder, ignore_errors=True)

    def _is_sound(self, folder: Path) -> bool:
        """Hashed once by this attempt, or written by it."""
        if folder.name not in self._sound:
            try:
                open_checkpoint(folder)
            except CheckpointError:
                return False
            self._sound.add(folder.name)
        return True


def _step_of(folder: Path) -> int:
    number = folder.name.rpartition("-")[2]
    return int(number) if number.isdecimal() else -1


def open_checkpoint(folder: Path) -> Checkpoint:
    """Every file of it is read and compared with the manifest. Raises CheckpointError."""
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
        if DRIVER not in files:
            raise KeyError(DRIVER)
        return _made(folder, text, manifest)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"the checkpoint is not complete: {error}", field="checkpoint", value=str(folder), cure="the one before is used"
        ) from error


def _made(folder: Path, text: bytes, manifest: dict[str, Any]) -> Checkpoint:
    return Checkpoint(
        folder=folder,
        step=manifest["step"],
        version=manifest["version"],
        bytes=sum(fact["bytes"] for fact in manifest["files"].values()),
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
