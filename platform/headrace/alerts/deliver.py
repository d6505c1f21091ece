"""Sending what waits. The row is the truth: a message is claimed, sent by a process of its own, and its outcome written down.

Celery is a wake-up; the reconciler's pass sends what a lost message, a dead worker or a failed try left behind.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from headrace.alerts.models import Alert, AlertChannel, AlertDelivery
from headrace.alerts.sealing import Unreadable, unseal

log = logging.getLogger(__name__)

DELIVER_TASK = "headrace.alerts.deliver"
WALL_S = 20.0
AGAIN_AFTER = (timedelta(seconds=15), timedelta(minutes=1), timedelta(minutes=5), timedelta(minutes=20))
CLAIM_STALE_AFTER = timedelta(minutes=2)
NO_WORKER_AFTER = timedelta(seconds=30)
MOST_A_PASS = 20
State = AlertDelivery.State
Purpose = AlertDelivery.Purpose


def enqueue(alert: Alert, channels: list[AlertChannel], purpose: str) -> None:
    """Called within the transaction that opens or resolves an alert: one row a channel, and a wake-up after the commit."""
    rows = [
        AlertDelivery(team_id=alert.team_id, alert=alert, channel=channel, channel_name=channel.name, purpose=purpose)
        for channel in channels
        if channel.enabled
    ]
    for row in rows:
        row.save()
        transaction.on_commit(lambda pk=row.pk: _wake(pk))  # type: ignore[misc]


def deliver(pk: int) -> AlertDelivery | None:
    """Claims and sends one. None: somebody else has it, or it is not due."""
    now = timezone.now()
    claimed = AlertDelivery.unscoped.filter(pk=pk, state=State.WAITING, due_at__lte=now).update(state=State.SENDING, due_at=now)
    if not claimed:
        return None
    row = AlertDelivery.unscoped.select_related("channel", "alert", "alert__run", "alert__rule").get(pk=pk)
    if row.channel is None or not row.channel.enabled:
        outcome = {"ok": False, "again": False, "words": "the channel was removed or switched off"}
    else:
        outcome = send(row.channel, message_of(row.alert, row.purpose))
    return _settle(row, outcome)


def send_test(channel: AlertChannel, by: str) -> AlertDelivery:
    """The test button: sent at once, told on the page."""
    row = AlertDelivery.unscoped.create(
        team_id=channel.team_id, channel=channel, channel_name=channel.name, purpose=Purpose.TEST, state=State.SENDING
    )
    message = {
        "title": "Headrace: a test message",
        "body": f"The channel {channel.name} works. {by} pressed the test button.",
        "severity": "info",
        "payload": {"event": "test", "channel": channel.name, "sent_by": by, "at": timezone.now().isoformat()},
    }
    return _settle(row, {**send(channel, message), "again": False})


def advance(limit: int = MOST_A_PASS) -> int:
    """Called by the reconciler: wakes the workers for what is due, and for what was claimed by one that died.

    A slow address must not hold up the runs: only where no worker takes it is a message sent here, one a pass. Returns how many were.
    """
    now = timezone.now()
    AlertDelivery.unscoped.filter(state=State.SENDING, due_at__lt=now - CLAIM_STALE_AFTER).update(state=State.WAITING)
    # One that is fresh belongs to the worker that is being woken for it
    due = AlertDelivery.unscoped.filter(state=State.WAITING, due_at__lte=now, created_at__lt=now - timedelta(seconds=3))
    waiting = list(due.order_by("due_at").values_list("pk", "due_at")[:limit])
    if not waiting:
        return 0
    first, since = waiting[0]
    if since > now - NO_WORKER_AFTER and all(_wake(pk) for pk, _ in waiting):
        return 0
    return int(deliver(first) is not None)


def message_of(alert: Alert | None, purpose: str) -> dict[str, Any]:
    """What is sent: a title, a few lines, and the JSON of a webhook. Links lead back here, to the second it happened."""
    if alert is None:
        return {"title": "Headrace", "body": "The alert is gone.", "severity": "info", "payload": {"event": purpose}}
    link = f"{settings.BASE_URL}/runs/{alert.run.public_id}/?t={alert.second}"
    over = purpose == Purpose.RESOLVED
    title = f"{'Resolved: ' if over else ''}{alert.rule_name}: {alert.run.name}"
    lines = [
        alert.title,
        alert.detail,
        f"Step {alert.step}" if alert.step is not None else "",
        "The run was asked to pause." if alert.held_run else "",
    ]
    payload = {
        "event": "alert.resolved" if over else "alert.fired",
        "id": alert.public_id,
        "rule": alert.rule_name,
        "kind": alert.kind,
        "severity": alert.severity,
        "title": alert.title,
        "detail": alert.detail,
        "run": {"id": alert.run.public_id, "name": alert.run.name, "state": alert.run.state, "url": link},
        "step": alert.step,
        "value": alert.value,
        "opened_at": alert.opened_at.isoformat(),
        "resolved_at": alert.resolved_at.isoformat() if alert.resolved_at else None,
    }
    return {
        "title": title[:200],
        "body": "\n".join([*filter(None, lines), link]),
        "severity": "info" if over else alert.severity,
        "payload": payload,
    }


def send(channel: AlertChannel, message: dict[str, Any]) -> dict[str, Any]:
    """Runs the sender. {ok, again, words}. No transaction may be open around it but a test's."""
    try:
        address = unseal(channel.sealed)
    except Unreadable as error:
        return {"ok": False, "again": False, "words": f"{error.message}: {error.cure}"}
    job = {"kind": channel.kind, **address, **message, "allowed": settings.ALERT_HOSTS}
    # Nothing of the server's environment but what Python needs: no proxy, no token
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PATH": os.environ.get("PATH", ""), "LANG": "C.UTF-8"}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "headrace.alerts.sender"],
            input=json.dumps(job),
            capture_output=True,
            text=True,
            timeout=WALL_S,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"ok": False, "again": True, "words": f"no answer within {WALL_S:.0f} s"}
    try:
        outcome: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        log.error("the sender of channel %s ended with %s", channel.public_id, done.returncode)
        return {"ok": False, "again": True, "words": "the sending process failed, or the reply was too large"}
    return outcome


def _settle(row: AlertDelivery, outcome: dict[str, Any]) -> AlertDelivery:
    now = timezone.now()
    row.tries += 1
    row.words = str(outcome["words"])[:300]
    if outcome["ok"]:
        row.state, row.done_at = State.SENT, now
    elif outcome["again"] and row.tries <= len(AGAIN_AFTER):
        row.state, row.due_at = State.WAITING, now + AGAIN_AFTER[row.tries - 1]
    else:
        row.state, row.done_at = State.FAILED, now
    with transaction.atomic():
        row.save(update_fields=["tries", "words", "state", "due_at", "done_at"])
        if row.channel is not None:
            changes: dict[str, Any] = {"last_ok_at": now, "last_error": ""} if outcome["ok"] else {"last_error": row.words}
            AlertChannel.unscoped.filter(pk=row.channel.pk).update(**changes)
    return row


def _wake(pk: int) -> bool:
    from headrace.celery import app

    try:
        app.send_task(DELIVER_TASK, args=[pk], retry=False)
        return True
    except Exception as error:  # whatever the broker's client raises: the reconciler sends what is due
        log.warning("the sender was not woken for delivery %s: %s: %s", pk, type(error).__name__, error)
        return False
