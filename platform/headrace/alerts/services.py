"""All writes that people make here: rules and channels. What fires and what is sent is written by `firing` and `deliver`."""

from __future__ import annotations

from typing import Any

from django.db import IntegrityError, transaction

from headrace.alerts import channels as building
from headrace.alerts import deliver, watch
from headrace.alerts.kinds import READY_MADE, parse
from headrace.alerts.models import Alert, AlertChannel, AlertDelivery, AlertRule, Severity
from headrace.alerts.sealing import seal
from headrace.experiments.models import Run
from headrace.experiments.problems import BadInput
from headrace.experiments.text import clean_line
from headrace.teams import audit
from headrace.teams.models import Team, User
from headrace.teams.services import require

MOST_RULES = 200
MOST_CHANNELS = 50
LONGEST_COOLDOWN_S = 604_800


def save_channel(
    team: Team,
    user: User,
    *,
    kind: str,
    name: str,
    given: dict[str, str],
    enabled: bool = True,
    channel: AlertChannel | None = None,
) -> tuple[AlertChannel, str]:
    """Make or change a channel. Returns it and the signing secret of a fresh webhook, which is shown this once.

    With `channel` and no address in `given` the sealed one stays. Raises BadInput naming the field, NotAllowed.
    """
    require(user, "channel.edit", team)
    clean = clean_line(name, field="name", longest=100)
    fresh = channel is None or any(value.strip() for value in given.values())
    built = building.build(channel.kind if channel is not None else kind, given) if fresh else None
    row = channel or AlertChannel(team=team, kind=kind, created_by=user)
    row.name, row.enabled = clean, enabled
    if built is not None:
        row.sealed, row.hint, row.last_error = seal(built.sealed), built.hint[:200], ""
    try:
        with transaction.atomic():
            if channel is None and AlertChannel.objects.for_team(team).count() >= MOST_CHANNELS:
                raise BadInput(f"the team has {MOST_CHANNELS} channels", field="name", cure="delete one that is not used")
            row.save()
            action = "channel.create" if channel is None else "channel.edit"
            audit.record(action, user=user, team=team, obj=row, detail={"kind": row.kind, "address_changed": fresh})
    except IntegrityError as error:
        raise BadInput("is the name of another channel", field="name", value=clean, cure="choose another name") from error
    watch.forget(team.pk)
    return row, built.shown_once if built is not None else ""


@transaction.atomic
def delete_channel(channel: AlertChannel, user: User) -> None:
    """Rules keep their other channels; what was sent stays in the history."""
    require(user, "channel.edit", channel)
    audit.record("channel.delete", user=user, team=channel.team, obj=channel)
    channel.delete()


def test_channel(channel: AlertChannel, user: User) -> AlertDelivery:
    """Send a message now, and tell what came of it."""
    require(user, "channel.edit", channel)
    audit.record("channel.test", user=user, team=channel.team, obj=channel)
    return deliver.send_test(channel, user.email)


def save_rule(team: Team, user: User, given: dict[str, Any], rule: AlertRule | None = None) -> AlertRule:
    """Make or change a rule. Raises BadInput naming the field, NotAllowed.

    `given`: name, kind, options, run, preset, tag, channels, severity, cooldown_s, tell_resolved, hold_run, enabled.
    """
    require(user, "alert.create" if rule is None else "alert.edit", team if rule is None else rule)
    row, chosen = prepare_rule(team, given, rule)
    with transaction.atomic():
        if rule is None:
            if AlertRule.objects.for_team(team).count() >= MOST_RULES:
                raise BadInput(f"the team has {MOST_RULES} rules", field="name", cure="delete one that is not used")
            row.created_by = user
        if row.hold_run:
            require(user, "run.edit", row.run or team)  # what the rule would do, its maker must be allowed to
        row.save()
        row.channels.set(chosen)
        audit.record("alert_rule.create" if rule is None else "alert_rule.edit", user=user, team=team, obj=row, detail={"kind": row.kind})
    watch.forget(team.pk)
    return row


def prepare_rule(team: Team, given: dict[str, Any], rule: AlertRule | None = None) -> tuple[AlertRule, list[AlertChannel]]:
    """The rule as it would be saved, checked and not saved: what the dry run tries. Raises BadInput."""
    row = rule or AlertRule(team=team, kind=str(given["kind"]))
    row.name = clean_line(given.get("name") or "", field="name", longest=100)
    row.options = parse(row.kind, given.get("options") or {}).model_dump()
    run, chosen = given.get("run"), list(given.get("channels") or [])
    if (isinstance(run, Run) and run.team_id != team.pk) or any(channel.team_id != team.pk for channel in chosen):
        raise BadInput("is not in this team", field="run", cure="choose one of this team's")
    row.run = run
    row.preset = clean_line(given["preset"], field="preset", longest=100) if given.get("preset") else ""
    row.tag = clean_line(given["tag"], field="tag", longest=60) if given.get("tag") else ""
    severity, cooldown = given.get("severity", Severity.WARNING), given.get("cooldown_s", 900)
    if severity not in Severity.values:
        raise BadInput("is not a severity", field="severity", value=str(severity)[:20], cure=f"one of {', '.join(Severity.values)}")
    if not isinstance(cooldown, int) or isinstance(cooldown, bool) or not 0 <= cooldown <= LONGEST_COOLDOWN_S:
        raise BadInput("is out of range", field="cooldown_s", value=str(cooldown)[:20], cure=f"0 to {LONGEST_COOLDOWN_S} s")
    row.severity, row.cooldown_s = severity, cooldown
    row.tell_resolved, row.hold_run, row.enabled = (bool(given.get(name)) for name in ("tell_resolved", "hold_run", "enabled"))
    return row, chosen


def add_ready_made(team: Team, user: User, keys: list[str]) -> list[AlertRule]:
    """The offered rules of these keys, with every channel of the team; one that is there by its name is left alone."""
    require(user, "alert.create", team)
    names = set(AlertRule.objects.for_team(team).values_list("name", flat=True))
    every = list(AlertChannel.objects.for_team(team).filter(enabled=True))
    made = []
    for offered in READY_MADE:
        if offered.key in keys and offered.name not in names:
            given = {
                "name": offered.name,
                "kind": offered.kind,
                "options": offered.options,
                "severity": offered.severity,
                "channels": every,
            }
            made.append(save_rule(team, user, {**given, "tell_resolved": True, "enabled": True}))
    return made


@transaction.atomic
def delete_rule(rule: AlertRule, user: User) -> None:
    """What it told stays in the history; what is open is resolved."""
    require(user, "alert.edit", rule)
    audit.record("alert_rule.delete", user=user, team=rule.team, obj=rule)
    from headrace.alerts import firing

    for alert in Alert.objects.for_team(rule.team_id).filter(rule=rule, resolved_at=None):
        firing.resolve(alert, None)
    watch.forget(rule.team_id)
    rule.delete()


@transaction.atomic
def switch_rule(rule: AlertRule, user: User, enabled: bool) -> None:
    """On or off; what is open stays open until it is looked at again."""
    require(user, "alert.edit", rule)
    rule.enabled = enabled
    rule.save(update_fields=["enabled"])
    audit.record("alert_rule.edit", user=user, team=rule.team, obj=rule, detail={"enabled": enabled})
    watch.forget(rule.team_id)
