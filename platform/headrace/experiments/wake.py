"""Messages to the workers that may be lost: the reconciler launches what nobody launched, and a run needs no forecast."""

from __future__ import annotations

import logging

from headrace.experiments.models import Attempt, Run
from workers.contract.failpoints import reached

log = logging.getLogger(__name__)

LAUNCH_TASK = "headrace.dispatch.launch"
FORECAST_TASK = "headrace.experiments.forecast"


def wake_launcher(attempt: Attempt) -> bool:
    """Send the launch message. False: the broker did not take it, which the reconciler makes good."""
    reached("submit.accepted")
    return _sent(LAUNCH_TASK, attempt.public_id, "the launcher was not woken for attempt")


def wake_forecast(run: Run) -> bool:
    """Send the forecast message. False: the broker did not take it; the run then has no forecast, and needs none."""
    return _sent(FORECAST_TASK, run.public_id, "nobody was asked for the forecast of run")


def _sent(task: str, about: str, otherwise: str) -> bool:
    from headrace.celery import app

    try:
        app.send_task(task, args=[about], retry=False)
    except Exception as error:  # whatever the broker's client raises: what was asked for is stored, and none of it may fail the request
        log.warning("%s %s: %s: %s", otherwise, about, type(error).__name__, error)
        return False
    return True
