"""What alerts listen to. Connected once, when the app is ready."""

from __future__ import annotations

from typing import Any

from headrace.experiments.models import Attempt, Run, RunTransition
from headrace.experiments.signals import run_changed
from headrace.telemetry.signals import batch_stored


def connect() -> None:
    """Called by AlertsConfig.ready."""
    run_changed.connect(_moved, dispatch_uid="alerts.run_changed")
    batch_stored.connect(_stored, dispatch_uid="alerts.batch_stored")


def _moved(sender: type[Run], run: Run, transition: RunTransition, **kwargs: Any) -> None:
    from headrace.alerts import watch

    watch.on_move(run, transition)


def _stored(sender: type[Attempt], attempt: Attempt, points: Any, last_t: float, **kwargs: Any) -> None:
    from headrace.alerts import watch

    watch.on_batch(attempt, points, last_t)
