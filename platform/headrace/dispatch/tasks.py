"""Celery tasks: wake-ups of ten lines. A lost or doubled message changes nothing; the reconciler finds what was missed."""

from celery import shared_task


@shared_task(name="headrace.dispatch.launch", ignore_result=True)  # type: ignore[untyped-decorator]
def launch(attempt_id: str) -> None:
    """Sent on commit by `start_run` and `resume_run` with the attempt's public id (or its key)."""
    from headrace.dispatch.launcher import launch_attempt

    launch_attempt(str(attempt_id))
