"""Tells open run pages that the run itself changed. Connected once, when the app is ready."""

from __future__ import annotations

from typing import Any

from headrace.experiments.models import Run, RunTransition
from headrace.experiments.signals import run_changed
from headrace.telemetry import notify
from headrace.telemetry.frames import run_message
from headrace.telemetry.selectors import run_state


def connect() -> None:
    """Called by TelemetryConfig.ready."""
    run_changed.connect(_run_changed, dispatch_uid="telemetry.run_changed")


def _run_changed(sender: type[Run], run: Run, transition: RunTransition, **kwargs: Any) -> None:
    """After the commit of a transition."""
    notify.send(run.public_id, run_message(run_state(run)))
