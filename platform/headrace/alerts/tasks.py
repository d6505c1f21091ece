"""Celery tasks: wake-ups. A lost or doubled message changes nothing."""

from celery import shared_task


@shared_task(name="headrace.alerts.deliver", ignore_result=True)  # type: ignore[untyped-decorator]
def deliver(pk: int) -> None:
    """Sent on commit with the key of a delivery."""
    from headrace.alerts.deliver import deliver as deliver_one

    deliver_one(int(pk))
