"""An attempt's folder on this machine: the two files its driver starts from, and what an earlier one left to go on from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import transaction

from headrace.experiments.models import Attempt
from headrace.experiments.tokens import issue_run_token
from headrace.identifiers import hash_secret
from headrace.supervisor.layout import write_private

SPEC, NOTE = "spec.json", "attempt.json"


@transaction.atomic
def write_files(attempt: Attempt) -> Path:
    """DATA_DIR/runs/<run>/attempt-<number>/ with spec.json and attempt.json, both 0600. A repeat keeps the token that a driver may hold.

    Under the attempt's lock: of two launchers the second finds the first one's token in the file, so file and hash cannot differ.
    """
    locked = Attempt.unscoped.select_for_update(of=("self",)).get(pk=attempt.pk)
    run = attempt.run
    folder = Path(locked.out_dir or settings.RUNS_DIR / run.public_id / f"attempt-{attempt.number}").resolve()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_private(folder / SPEC, json.dumps(run.config.data, indent=2, allow_nan=False))
    note = folder / NOTE
    if locked.out_dir != str(folder):
        locked.out_dir = str(folder)
        locked.save(update_fields=["out_dir"])
    attempt.out_dir = locked.out_dir
    token = _kept_token(note, locked) or issue_run_token(locked)
    attempt.token_hash, attempt.token_expires = locked.token_hash, locked.token_expires
    content: dict[str, Any] = {
        "run": run.public_id,
        "attempt": attempt.public_id,
        "number": attempt.number,
        "fence": attempt.fence,
        "server": f"http://127.0.0.1:{settings.PORT}" if attempt.cluster is None else settings.BASE_URL,
        "token": token,
        "ingested_through": locked.ingested_through,
    }
    write_private(note, json.dumps(content))
    return folder


def has_checkpoint(folder: str | Path) -> bool:
    """Whether an attempt's folder holds a checkpoint that was written to its end: the manifest is its last file."""
    return bool(folder) and any(Path(folder).glob("checkpoints/step-*/MANIFEST.json"))


def has_spool(attempt: Attempt) -> bool:
    """Whether there is something that `ship` could send."""
    folder = Path(attempt.out_dir)
    return bool(attempt.out_dir) and (folder / NOTE).is_file() and any(folder.rglob("*.spool"))


def _kept_token(note: Path, attempt: Attempt) -> str | None:
    try:
        token = json.loads(note.read_text())["token"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return token if isinstance(token, str) and attempt.token_hash == hash_secret(token) else None
