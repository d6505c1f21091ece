"""Celery tasks: wake-ups of ten lines. A lost or doubled message changes nothing; the reconciler finds what was missed."""

from celery import shared_task


@shared_task(name="headrace.artifacts.probe", ignore_result=True)  # type: ignore[untyped-decorator]
def probe(public_id: str) -> None:
    """Sent on commit by `ask_probe`."""
    from headrace.artifacts.probing import launch

    launch(str(public_id))


@shared_task(name="headrace.artifacts.export", ignore_result=True)  # type: ignore[untyped-decorator]
def export(public_id: str) -> None:
    """Sent on commit by `ask_export`."""
    from headrace.artifacts.exporting import make

    make(str(public_id))
