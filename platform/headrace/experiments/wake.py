"""The launch message: a wake-up that may be lost, because the reconciler launches what nobody launched."""

from __future__ import annotations

import logging

from headrace.experiments.models import Attempt, Run
from workers.contract.failpoints import reached

log = logging.getLogger(__name__)

LAUNCH_TASK = "headrace.dispatch.launch"
FORECAST_TASK = "headrace.experiments.forecast"


def wake_launcher(attempt: Attempt) -> bool:
    """Send the launch message. False: the broker did not take it, which the reconciler makes good."""
    from headrace.celery import app

    reached("submit.accepted")
    try:
        app.send_task(LAUNCH_TASK, args=[attempt.public_id], retry=False)
    except Exception as error:  # whatever the broker's client raises: the run is queued and none of it may fail the request
        log.warning("the launcher was not woken for attempt %s: %s: %s", attempt.public_id, type(error).__name__, error)
        return False
    return True


def wake_forecast(run: Run) -> bool:
    """Send the forecast message. False: the broker did not take it; the run then has no forecast, and needs none."""
    from headrace.celery import app

    try:
        app.send_task(FORECAST_TASK, args=[run.public_id], retry=False)
    except Exception as error:  # as above: a forecast may fail no request
        log.warning("nobody was asked for the forecast of run %s: %s: %s", run.public_id, type(error).__name__, error)
        return False
    return True
