"""How long an engine generated while the trainer trained, from the stretches that a run told. Nothing told: the ledger's bound counts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.experiments.models import Attempt
from headrace.telemetry.columns import unpack
from headrace.telemetry.derive import SPAN_PREFIX
from headrace.telemetry.models import SeriesChunk

Floats = NDArray[np.float64]
Stretches = tuple[Floats, Floats]  # began, ended, in Unix seconds


def seconds_together(attempt: Attempt) -> float | None:
    """Of one attempt, whose access the caller has checked. None: it told no stretch of the one or of the other."""
    generate, train = _stretches(attempt, "generate", "generator"), _stretches(attempt, "train", "trainer")
    if not len(generate[0]) or not len(train[0]):
        return None
    both = np.concatenate([generate[0], train[0]]), np.concatenate([generate[1], train[1]])
    return max(0.0, covered(generate) + covered(train) - covered(both))


def covered(stretches: Stretches) -> float:
    """Seconds in which at least one of the stretches lies."""
    order = np.argsort(stretches[0], kind="stable")
    began, ended = stretches[0][order], np.maximum.accumulate(stretches[1][order])
    before = np.concatenate([[-np.inf], ended[:-1]])
    return float(np.maximum(0.0, ended - np.maximum(began, before)).sum())


def _stretches(attempt: Attempt, cause: str, pool: str) -> Stretches:
    """What the lanes of a pool did under one cause."""
    chunks = SeriesChunk.objects.for_team(attempt.team_id).filter(attempt=attempt, level=0)
    bodies = chunks.filter(series__name__startswith=f"{SPAN_PREFIX}{cause}/{pool}").values_list("body", flat=True)
    parts = [(rows.t0, rows.t0 + rows.first) for rows in map(unpack, bodies.iterator(chunk_size=16))]
    if not parts:
        return np.empty(0), np.empty(0)
    return np.concatenate([began for began, _ in parts]), np.concatenate([ended for _, ended in parts])
