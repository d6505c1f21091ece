"""Opening and resolving alerts. Called by the watch (series, states) and by the reconciler's look at silence.

One open alert at most for a rule and a run: firing again while it is open is nothing new. Within the cooldown after it was told it is
opened again without a word; beyond it a new one is told.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import timedelta

from django.db import IntegrityError, transaction
from django.utils import timezone

from headrace.alerts import deliver
from headrace.alerts.kinds import MOMENTARY
from headrace.alerts.models import Alert, AlertRule
from headrace.experiments import control
from headrace.experiments.models import Run
from workers.contract.errors import HeadraceError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Found:
    """What a rule saw."""

    title: str
    t: float
    step: int | None = None
    value: float | None = None
    detail: str = ""


def fire(rule: AlertRule, run: Run, found: Found) -> Alert | None:
    """The new alert, or None: it is open already, or was told within the cooldown."""
    now = timezone.now()
    momentary = rule.kind in MOMENTARY
    try:
        with transaction.atomic():
            # The rule's row is the lock: of two processes that see it at once, the second finds what the first has told
            if AlertRule.objects.for_team(rule.team_id).select_for_update().filter(pk=rule.pk).first() is None:
                return None
            last = Alert.objects.for_team(rule.team_id).filter(rule=rule, run=run).order_by("-opened_at", "-pk").first()
            if last is not None and last.resolved_at is None:
                return None
            if last is not None and rule.kind != "state" and last.opened_at > now - timedelta(seconds=rule.cooldown_s):
                last.count, last.last_at = last.count + 1, now
                last.resolved_at = now if momentary else None
                last.save(update_fields=["count", "last_at", "resolved_at"])
                return None
            alert = Alert.objects.create(
                team_id=rule.team_id,
                rule=rule,
                rule_name=rule.name,
                kind=rule.kind,
                severity=rule.severity,
                run=run,
                title=found.title[:200],
                detail=found.detail[:500],
                value=found.value,
                step=found.step,
                t=found.t,
                resolved_at=now if momentary else None,
            )
            deliver.enqueue(alert, list(rule.channels.all()), deliver.Purpose.FIRED)
    except IntegrityError:  # two processes saw it at once; the other was first
        return None
    if rule.hold_run:
        _hold(alert, rule)
    return alert


def resolve(alert: Alert, rule: AlertRule | None) -> None:
    """What held does not hold any more, or the run is over."""
    with transaction.atomic():
        changed = Alert.objects.for_team(alert.team_id).filter(pk=alert.pk, resolved_at=None).update(resolved_at=timezone.now())
        if not changed:
            return
        alert.refresh_from_db()
        if rule is not None and rule.tell_resolved:
            deliver.enqueue(alert, list(rule.channels.all()), deliver.Purpose.RESOLVED)


def open_alerts(run: Run) -> dict[int | None, Alert]:
    """{rule key: the open alert} of a run."""
    rows = Alert.objects.for_team(run.team_id).filter(run=run, resolved_at=None).select_related("rule")
    return {row.rule.pk if row.rule is not None else None: row for row in rows}


def _hold(alert: Alert, rule: AlertRule) -> None:
    """Checkpoint and pause, as the buttons do. A run that cannot be asked is left alone."""
    actor = f"alert {rule.name}"[:200]
    try:
        with transaction.atomic():
            control.checkpoint_now(alert.run, None, actor=actor)
            control.pause_run(alert.run, None, actor=actor)
            alert.held_run = True
            alert.save(update_fields=["held_run"])
    except HeadraceError as error:
        log.info("alert %s could not hold run %s: %s", alert.public_id, alert.run.public_id, error.message)
