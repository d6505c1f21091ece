"""Celery tasks: wake-ups. A lost or doubled message changes nothing: a run without a forecast runs all the same."""

from typing import Any

from celery import shared_task

PAUSE_S = 3
MOST_TRIES = 20


@shared_task(name="headrace.experiments.forecast", ignore_result=True, bind=True, max_retries=MOST_TRIES)  # type: ignore[untyped-decorator]
def forecast(self: Any, run_id: str) -> None:
    """Sent on commit by `start_run` with the run's public id. While another forecast is made, it steps back and is tried again."""
    from headrace.experiments import foresight, planner
    from headrace.experiments.models import Run

    run = Run.unscoped.select_related("config", "team").filter(public_id=str(run_id)).first()
    if run is None:
        return
    try:
        foresight.fill(run, wait_s=0.0)
    except planner.PlannerBusy as fault:
        raise self.retry(exc=fault, countdown=PAUSE_S) from fault
