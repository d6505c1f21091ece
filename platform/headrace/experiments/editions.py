"""Which edition of a run's words somebody has read: two people who edit at once do not write over each other unseen."""

from __future__ import annotations

import hashlib
import json

from headrace.experiments.models import Run
from headrace.experiments.problems import WrongState


def edition(run: Run) -> str:
    """Equal for equal name, note and tags, and for nothing else. Forms and the API carry it as `version`."""
    words = json.dumps([run.name, run.note, run.tags], ensure_ascii=True)
    return hashlib.sha256(words.encode()).hexdigest()[:16]


def check_edition(run: Run, version: str) -> None:
    """Called with the run's row locked, before its words change. Raises WrongState (HTTP 409) for an edition that is not the newest."""
    if version != edition(run):
        raise WrongState(
            "somebody has changed this run since you read it", field="version", value=version[:40], cure="read it again, then save"
        )
