"""An export: `python -m workers export` in a process of its own (this side never loads torch), then one zip of what it wrote."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from django.db import transaction
from django.utils import timezone

from headrace.artifacts import places
from headrace.artifacts.models import Export, JobState
from headrace.artifacts.services import EXPORT_TASK, name_of, wake
from headrace.experiments.models import Artifact
from workers.contract.errors import HeadraceError

log = logging.getLogger(__name__)

CARD = "README.md"
LARGEST_CARD = 100_000
TIMEOUT_S = 900
MESSAGE_LOST_AFTER = timedelta(seconds=5)
WAKE_EVERY = timedelta(seconds=20)
_EPOCH = (1980, 1, 1, 0, 0, 0)  # equal files, equal zip


class ExportFailed(HeadraceError):
    """The exporter said no."""


def advance(guard: Callable[[], None]) -> None:
    """Called every pass of the reconciler: wakes a worker for what was forgotten, and ends what was cut off."""
    now = timezone.now()
    forgotten = Export.unscoped.filter(state=JobState.QUEUED, state_since__lt=now - MESSAGE_LOST_AFTER)
    for export in forgotten[:20]:
        guard()
        Export.unscoped.filter(pk=export.pk, state=JobState.QUEUED).update(state_since=now + WAKE_EVERY - MESSAGE_LOST_AFTER)
        wake(EXPORT_TASK, export.public_id)
    cut_off = Export.unscoped.filter(state=JobState.RUNNING, state_since__lt=now - timedelta(seconds=TIMEOUT_S + 60))
    cut_off.update(state=JobState.FAILED, state_since=now, problem={"message": "it was cut off", "cure": "ask for it again"})


def make(public_id: str) -> bool:
    """Called by the task. True: the zip is there. Every failure ends as words on the row."""
    now = timezone.now()
    if not Export.unscoped.filter(public_id=public_id, state=JobState.QUEUED).update(state=JobState.RUNNING, state_since=now):
        return False
    export = Export.unscoped.select_related("artifact__run", "artifact__attempt", "team").get(public_id=public_id)
    try:
        zipped, card = build(export.artifact)
        _store(export, zipped, card)
    except (HeadraceError, OSError, subprocess.SubprocessError, zipfile.BadZipFile) as error:
        log.warning("export %s: %s", public_id, error)
        cure = getattr(error, "cure", None) or "see that the disk has room, then ask again"
        message = error.message if isinstance(error, HeadraceError) else str(error)[:300]
        Export.unscoped.filter(pk=export.pk, state=JobState.RUNNING).update(
            state=JobState.FAILED, state_since=timezone.now(), problem={"message": message, "cure": cure}
        )
        return False
    return True


def build(artifact: Artifact) -> tuple[Path, str]:
    """The zip beside the run's attempts, and its model card. Raises NotHere, Damaged, ExportFailed, OSError, SubprocessError."""
    checkpoint = places.locate(artifact)
    places.check_plain(checkpoint)
    exports = places.run_folder(artifact.run) / "exports"
    exports.mkdir(parents=True, exist_ok=True, mode=0o700)
    out = exports / f".making-{artifact.public_id}"
    shutil.rmtree(out, ignore_errors=True)
    try:
        run_exporter(checkpoint, out)
        places.check_plain(out)
        card_file = out / CARD
        card = card_file.read_text(encoding="utf-8", errors="replace")[:LARGEST_CARD] if card_file.is_file() else ""
        final = exports / f"{checkpoint.name}-{artifact.public_id}.zip"
        aside = exports / f".{final.name}"
        _zip(out, aside, checkpoint.name)
        aside.replace(final)
    finally:
        shutil.rmtree(out, ignore_errors=True)
    return final, card


def run_exporter(checkpoint: Path, out: Path) -> None:
    """`python -m workers export CHECKPOINT --out DIR`. Raises ExportFailed in its own words, TimeoutExpired."""
    argv = [sys.executable, "-m", "workers", "export", str(checkpoint), "--out", str(out)]
    env = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_SECRET")}
    done = subprocess.run(argv, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, env=env)
    if done.returncode != 0:
        line = next((text for text in reversed(done.stderr.splitlines()) if text.strip()), "no reason given").removeprefix("error: ")
        message, _, cure = line.partition(" -> ")
        raise ExportFailed(message[:400], field="artifact", value=checkpoint.name, cure=cure[:300] or "choose another checkpoint")


def _zip(folder: Path, target: Path, name: str) -> None:
    """Stored, not deflated: weights do not shrink."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for path in sorted(folder.iterdir()):
            entry = zipfile.ZipInfo(f"{name}/{path.name}", _EPOCH)
            entry.external_attr = 0o644 << 16
            entry.file_size = path.stat().st_size
            with path.open("rb") as source, archive.open(entry, "w", force_zip64=True) as sink:
                shutil.copyfileobj(source, sink, 1 << 20)


@transaction.atomic
def _store(export: Export, zipped: Path, card: str) -> None:
    source = export.artifact
    result, _ = Artifact.unscoped.update_or_create(
        attempt=source.attempt,
        kind=Artifact.Kind.EXPORT,
        path=str(zipped),
        defaults={
            "team_id": source.team_id,
            "run_id": source.run_id,
            "bytes": zipped.stat().st_size,
            "sha256": places.hash_file(zipped),
            "step": source.step,
            "version": source.version,
            "state": Artifact.State.COMPLETE,
        },
    )
    clean = card.replace("\x00", "")
    Export.unscoped.filter(pk=export.pk).update(state=JobState.DONE, state_since=timezone.now(), result=result, card=clean, problem=None)
    log.info("export %s: %s, %d bytes", export.public_id, name_of(result), result.bytes)
