"""Putting runs away and taking them back. A run that is put away stays whole; the runs table leaves it out until asked."""

from __future__ import annotations

from django.db import transaction
from django.utils import timezone

from headrace.experiments.models import Run
from headrace.experiments.problems import WrongState
from headrace.teams import audit
from headrace.teams.models import User
from headrace.teams.services import require


@transaction.atomic
def archive_run(run: Run, user: User) -> None:
    """Put a run that is over away. Raises NotAllowed, WrongState."""
    require(user, "run.edit", run)
    locked = Run.unscoped.select_for_update(of=("self",)).get(pk=run.pk)
    if not locked.is_over:
        raise WrongState(f"a run that is {locked.state} cannot be put away", field="state", value=locked.state, cure="cancel it first")
    if locked.archived_at is None:
        locked.archived_at = timezone.now()
        locked.save(update_fields=["archived_at"])
        audit.record("run.archive", user=user, team=locked.team, obj=locked)


@transaction.atomic
def unarchive_run(run: Run, user: User) -> None:
    """Take a run back into the table. Raises NotAllowed."""
    require(user, "run.edit", run)
    locked = Run.unscoped.select_for_update(of=("self",)).get(pk=run.pk)
    if locked.archived_at is not None:
        locked.archived_at = None
        locked.save(update_fields=["archived_at"])
        audit.record("run.unarchive", user=user, team=locked.team, obj=locked)
