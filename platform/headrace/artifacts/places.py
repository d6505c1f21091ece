"""Where artifacts lie on this machine. A path that an event told is believed only within its own run's folder, links followed."""

from __future__ import annotations

import hashlib
import json
import stat
from pathlib import Path
from typing import Any

from django.conf import settings

from headrace.experiments.models import Artifact, Run
from workers.contract.errors import HeadraceError

MANIFEST = "MANIFEST.json"
LARGEST_MANIFEST = 4 * 1024 * 1024
FILES_SHOWN = 200
LARGEST_HASHED = 64 * 1024**3


class NotHere(HeadraceError):
    """The artifact's bytes cannot be reached from this server."""


class Damaged(HeadraceError):
    """The bytes are not those that were recorded."""


def run_folder(run: Run) -> Path:
    """The only folder whose files belong to this run."""
    return (Path(settings.RUNS_DIR) / run.public_id).resolve()


def locate(artifact: Artifact) -> Path:
    """The artifact's file or folder. Raises NotHere where it is elsewhere, gone, or outside its run's folder."""
    base = Path(artifact.attempt.out_dir) if artifact.attempt and artifact.attempt.out_dir else run_folder(artifact.run)
    try:
        found = (base / artifact.path).resolve(strict=True)
    except (OSError, ValueError, RuntimeError):
        found = None
    if found is not None and found != run_folder(artifact.run) and found.is_relative_to(run_folder(artifact.run)):
        return found
    elsewhere = artifact.attempt is not None and (artifact.attempt.cluster_id is not None or not artifact.attempt.out_dir)
    raise NotHere(
        "its files are on another machine" if elsewhere else "its files are not in the run's folder any more",
        field="artifact",
        value=artifact.public_id,
        cure="fetch it from the machine that trained the run" if elsewhere else "choose another checkpoint",
    )


def is_here(artifact: Artifact) -> bool:
    """Whether `locate` would find it."""
    try:
        locate(artifact)
    except NotHere:
        return False
    return True


def files(folder: Path) -> list[dict[str, Any]]:
    """Names, sizes and digests of a checkpoint's files as its manifest lists them; empty where it cannot be read."""
    try:
        listed = _manifest(folder)["files"]
        rows = [{"name": name, "bytes": fact["bytes"], "sha256": fact["sha256"]} for name, fact in sorted(listed.items())]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, Damaged):
        return []
    return rows[:FILES_SHOWN]


def check_plain(folder: Path) -> None:
    """Raises Damaged if anything in a checkpoint's folder is a link or no plain file: what is copied from it could be anybody's."""
    for path in folder.iterdir():
        if not stat.S_ISREG(path.lstat().st_mode):
            raise Damaged("it holds something that is no plain file", field="artifact", value=path.name, cure="choose another checkpoint")


def verify(artifact: Artifact) -> dict[str, Any]:
    """Hashes the artifact again. Returns how many files and bytes agree. Raises NotHere and Damaged."""
    path = locate(artifact)
    try:
        if path.is_file():
            found = hash_file(path)
            if found != artifact.sha256:
                raise _differs(path.name, artifact)
            return {"files": 1, "bytes": path.stat().st_size}
        check_plain(path)
        if artifact.sha256 and hash_file(path / MANIFEST) != artifact.sha256:
            raise _differs(MANIFEST, artifact)
        listed = _manifest(path)["files"]
        total = sum(int(fact["bytes"]) for fact in listed.values())
        if total > LARGEST_HASHED:
            raise Damaged("too large to be hashed from a page", field="artifact", value=total, cure="run sha256sum beside its manifest")
        for name, fact in listed.items():
            if "/" in name or name.startswith("."):
                raise _differs(name, artifact)
            if (path / name).stat().st_size != fact["bytes"] or hash_file(path / name) != fact["sha256"]:
                raise _differs(name, artifact)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(
            f"it cannot be read to its end ({type(error).__name__})",
            field="artifact",
            value=artifact.public_id,
            cure="resume from the one before it, and delete this one",
        ) from error
    return {"files": len(listed), "bytes": total}


def hash_file(path: Path) -> str:
    """sha256, hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _manifest(folder: Path) -> dict[str, Any]:
    manifest = folder / MANIFEST
    if manifest.is_symlink() or manifest.stat().st_size > LARGEST_MANIFEST:
        raise Damaged("its manifest is not one", field="artifact", value=MANIFEST, cure="choose another checkpoint")
    found = json.loads(manifest.read_bytes())
    return found if isinstance(found, dict) else {}


def _differs(name: str, artifact: Artifact) -> Damaged:
    return Damaged(
        f"{name[:100]} is not what was recorded",
        field="artifact",
        value=artifact.public_id,
        cure="resume from the one before it, and delete this one",
    )
