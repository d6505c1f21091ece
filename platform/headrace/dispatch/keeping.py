"""What people decide about keeping: the team's policy, runs that are kept for ever, and taking a deletion back."""

from __future__ import annotations

from django.db import transaction
from django.utils import timezone

from headrace.dispatch.models import RetentionPolicy
from headrace.dispatch.retention import DELETED_GRACE, KINDS, LEAST_DAYS, LONGEST_DAYS, days_of
from headrace.experiments.models import Run
from headrace.experiments.problems import BadInput, WrongState
from headrace.teams import audit
from headrace.teams.models import Team, User
from headrace.teams.services import require


def policy_of(team: Team) -> RetentionPolicy | None:
    """The team's policy; None: everything is kept for ever."""
    return RetentionPolicy.objects.for_team(team).first()


def check_days(days: dict[str, int | None]) -> None:
    """Raises BadInput for a number of days that cannot be kept to."""
    for kind in KINDS:
        number = days.get(kind)
        if number is not None and not LEAST_DAYS[kind] <= number <= LONGEST_DAYS:
            raise BadInput("is out of range", field=kind, value=number, cure=f"choose {LEAST_DAYS[kind]} to {LONGEST_DAYS} days, or none")


@transaction.atomic
def edit_policy(*, by: User, team: Team, days: dict[str, int | None]) -> RetentionPolicy:
    """From the next daily round on. Raises BadInput naming the kind."""
    require(by, "retention.edit", team)
    check_days(days)
    before = days_of(policy_of(team))
    values = {f"{kind}_days": days.get(kind) for kind in KINDS}
    policy, _ = RetentionPolicy.unscoped.update_or_create(team=team, defaults=values)
    audit.record("retention.edit", user=by, team=team, obj=team, detail={"days": days_of(policy), "before": before})
    return policy


@transaction.atomic
def keep_run(run: Run, user: User, *, keep: bool) -> None:
    """Retention takes nothing of a run that is kept for ever."""
    require(user, "run.edit", run)
    if Run.unscoped.filter(pk=run.pk).exclude(keep=keep).update(keep=keep):
        audit.record("run.keep" if keep else "run.unkeep", user=user, team=run.team, obj=run)
    run.keep = keep


@transaction.atomic
def restore_run(run: Run, user: User) -> None:
    """Takes a deletion back while the grace lasts; the tokens of its attempts stay dead."""
    require(user, "run.delete", run)
    locked = Run.unscoped.select_for_update(of=("self",)).filter(pk=run.pk).first()
    if locked is None or locked.deleted_at is None or locked.deleted_at <= timezone.now() - DELETED_GRACE:
        raise WrongState("it is too late to take this back", field="run", value=run.public_id, cure="clone its config from another run")
    locked.deleted_at = None
    locked.save(update_fields=["deleted_at"])
    audit.record("run.restore", user=user, team=locked.team, obj=locked)
