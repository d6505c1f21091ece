"""The audit trail as people read it: rows of one team, a sentence for each, links to what still exists, and the chain's check."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from datetime import time as clock
from typing import Any

from django.apps import apps
from django.db.models import Q, QuerySet
from django.utils import timezone

from headrace.teams import audit
from headrace.teams.forms import Filters
from headrace.teams.models import AuditEvent, Role, Team, User
from headrace.telemetry.export import cell

PAGE = 50
MOST_EXPORTED = 200_000
CHECK_S = 10.0
# What a person does outside any team, shown to the owners of the teams the person is in.
PERSONAL = ("login", "logout", "password.change", "account.edit", "session.end", "session.end_others")

SENTENCES = {
    "login": "{actor} signed in",
    "logout": "{actor} signed out",
    "login.failed": "somebody failed to sign in as {email}",
    "password.change": "{actor} changed their password",
    "account.edit": "{actor} changed their profile",
    "session.end": "{actor} ended a session of theirs ({device})",
    "session.end_others": "{actor} logged out everywhere else",
    "member.remove": "{actor} took {object} out of the team",
    "member.leave": "{actor} left the team",
    "invitation.create": "{actor} invited {who} as {role}",
    "invitation.revoke": "{actor} revoked an invitation for {who} as {role}",
    "invitation.accept": "{actor} accepted an invitation and joined as {role}",
    "token.create": "{actor} made the API token “{name}” ({scope})",
    "token.rotate": "{actor} rotated the API token “{name}”",
    "token.revoke": "{actor} revoked the API token “{name}” of {of}",
    "setup_link.issue": "{actor} issued a set-up link",
    "setup_link.spend": "{actor} set the server up as its first administrator",
    "team.create": "{actor} made this team",
    "team.edit": "{actor} renamed the team from “{before}” to “{name}”",
    "run.start": "{actor} started {object}",
    "run.cancel": "{actor} cancelled {object}",
    "run.resume": "{actor} resumed {object} as attempt {attempt}",
    "run.control": "{actor} steered {object}",
    "run.edit": "{actor} changed what is said about {object}",
    "run.delete": "{actor} deleted {object}",
    "run.restore": "{actor} took back the deletion of {object}",
    "run.keep": "{actor} keeps {object} for ever",
    "run.unkeep": "{actor} no longer keeps {object} for ever",
    "run.purge": "{actor} removed {object} and its files for good",
    "project.create": "{actor} made {object}",
    "project.edit": "{actor} changed {object}",
    "project.archive": "{actor} archived {object}",
    "project.restore": "{actor} brought {object} back",
    "experiment.create": "{actor} made {object}",
    "experiment.edit": "{actor} changed {object}",
    "experiment.archive": "{actor} archived {object}",
    "experiment.restore": "{actor} brought {object} back",
    "run.archive": "{actor} put {object} away",
    "run.unarchive": "{actor} took {object} out again",
    "run.budget": "{actor} changed the budget of {object}",
    "run.export": "{actor} exported {object}",
    "race.close": "{object} came to its end",
    "race.again": "{actor} ran an entry of {object} again",
    "channel.test": "{actor} tried {object}",
    "queue.priority": "{actor} changed the priority of {object}",
    "probe.create": "{actor} asked a probe of a run",
    "retention.edit": "{actor} changed how long traces are kept",
    "retention.enforce": "{actor} removed what the retention policy no longer keeps",
    "audit.export": "{actor} exported the audit trail",
    "audit.verify": "{actor} verified the audit trail",
}
VERBS = {"create": "made", "edit": "changed", "delete": "deleted", "start": "started", "stop": "stopped", "cancel": "cancelled"}
VERBS |= {"pause": "paused", "resume": "resumed"}
PLACES = {"user": "/team/", "apitoken": "/team/tokens/", "invitation": "/team/invitations/", "team": "/team/settings/"}
NAMED: dict[str, tuple[str, str, str]] = {
    "run": ("experiments.Run", "/runs/{}/", "the run"),
    "project": ("experiments.Project", "/team/projects/{}/", "the project"),
    "experiment": ("experiments.Experiment", "/team/projects/", "the experiment"),
    "sweep": ("experiments.Sweep", "/sweeps/{}/", "the sweep"),
    "race": ("compare.Race", "/races/{}/", "the race"),
    "savedview": ("compare.SavedView", "/views/{}/", "the view"),
    "alertrule": ("alerts.AlertRule", "/alerts/rules/{}/", "the alert rule"),
    "alertchannel": ("alerts.AlertChannel", "/alerts/channels/{}/", "the channel"),
}
# What is gone is named by its kind and id.
KINDS = {"savedview": "view", "alertrule": "alert rule", "alertchannel": "channel", "apitoken": "API token"}


@dataclass(frozen=True)
class Line:
    """One row in words. `link` "" where the object is gone or has no page."""

    at: datetime
    actor: str
    action: str
    before: str
    object: str
    link: str
    after: str
    detail: dict[str, Any]

    @property
    def sentence(self) -> str:
        return f"{self.before}{self.object}{self.after}"


@dataclass(frozen=True)
class Check:
    """What looking over the chain found. `complete` False: time ran out before the end of the trail."""

    rows: int
    broken: AuditEvent | None
    complete: bool


def rows_of(team: Team, filters: Filters | None = None) -> QuerySet[AuditEvent]:
    """The team's rows and what its members did outside any team, newest first."""
    members = User.objects.filter(memberships__team=team)
    personal = Q(team=None, action__in=PERSONAL, user__in=members.values("pk"))
    failed = Q(team=None, action="login.failed", detail__email__in=list(members.values_list("email", flat=True)))
    rows = AuditEvent.unscoped.filter(Q(team=team) | personal | failed).select_related("user").order_by("-pk")
    wanted = filters or Filters()
    if wanted.person:
        rows = rows.filter(actor=wanted.person)
    if wanted.action:
        rows = rows.filter(action=wanted.action)
    if wanted.object:
        rows = rows.filter(object_id=wanted.object)
    if wanted.since:
        rows = rows.filter(created_at__gte=_midnight(wanted.since))
    if wanted.until:
        rows = rows.filter(created_at__lt=_midnight(wanted.until) + timedelta(days=1))
    return rows


def choices(team: Team) -> dict[str, list[str]]:
    """Persons and actions that occur, for the form."""
    rows = rows_of(team).order_by()
    return {name: sorted(rows.values_list(name, flat=True).distinct()[:500]) for name in ("actor", "action")}


def lines(team: Team, rows: Sequence[AuditEvent]) -> list[Line]:
    """Sentences of a page of rows, with a fixed number of queries."""
    names = _names(team, rows)
    return [_line(row, names) for row in rows]


def as_csv(team: Team, rows: QuerySet[AuditEvent]) -> Iterator[bytes]:
    """Header and rows; a cell that a spreadsheet would run is quoted. At most MOST_EXPORTED rows, newest first."""
    yield _csv(["time", "person", "action", "object_kind", "object", "sentence", "detail", "row_hash", "previous_hash"])
    chunk: list[AuditEvent] = []
    for row in rows[:MOST_EXPORTED].iterator(chunk_size=500):
        chunk.append(row)
        if len(chunk) == 500:
            yield _chunk(team, chunk)
            chunk = []
    if chunk:
        yield _chunk(team, chunk)


def verify(most_seconds: float = CHECK_S) -> Check:
    """Follows the whole chain, of every team, from its first row: a changed or missing row shows wherever it was."""
    previous, count, until = "", 0, time.monotonic() + most_seconds
    for row in AuditEvent.unscoped.order_by("pk").iterator(chunk_size=1000):
        if row.previous_hash != previous or row.row_hash != audit.digest(row):
            return Check(count, row, complete=True)
        previous, count = row.row_hash, count + 1
        if count % 1000 == 0 and time.monotonic() > until:
            return Check(count, None, complete=False)
    return Check(count, None, complete=True)


def _names(team: Team, rows: Sequence[AuditEvent]) -> dict[tuple[str, str], tuple[str, str]]:
    """(kind, id) -> (name, link) of what exists in this team."""
    found: dict[tuple[str, str], tuple[str, str]] = {}
    for kind, (label, place, word) in NAMED.items():
        wanted = {row.object_id for row in rows if row.object_kind == kind}
        if wanted:
            model: Any = apps.get_model(label)
            here = model.objects.for_team(team).filter(public_id__in=wanted)
            gone = set(here.exclude(deleted_at=None).values_list("public_id", flat=True)) if kind == "run" else set()
            for public_id, name in here.values_list("public_id", "name"):
                found[kind, public_id] = (f"{word} “{name}”", "" if public_id in gone else place.format(public_id))
    people = {row.object_id for row in rows if row.object_kind == "user"}
    for person in User.objects.filter(public_id__in=people, memberships__team=team):
        found["user", person.public_id] = (person.get_full_name(), "/team/")
    return found


def _line(row: AuditEvent, names: dict[tuple[str, str], tuple[str, str]]) -> Line:
    detail = row.detail if isinstance(row.detail, dict) else {}
    actor = row.user.get_full_name() if row.user else row.actor
    name, link = names.get((row.object_kind, row.object_id), ("", ""))
    if not name:
        name = str(detail.get("email") or "") if row.object_kind == "user" else ""
        kind = KINDS.get(row.object_kind, row.object_kind) or row.action.rpartition(".")[0].replace("_", " ") or "something"
        name = name or f"{kind} {row.object_id}".strip()
        link = PLACES.get(row.object_kind, "") if row.object_kind != "user" else ""
    if row.action == "member.set":
        template = _member_words(detail)
    else:
        verb = row.action.rpartition(".")[2]
        template = SENTENCES.get(row.action) or f"{{actor}} {VERBS.get(verb, verb.replace('_', ' '))} {{object}}"
    words = {key: str(value) for key, value in detail.items()}
    words = {"email": "an unknown account", "of": "somebody", **words, "actor": actor, "who": words.get("email") or "anybody with the link"}
    words["role"] = Role(words["role"]).label.lower() if words.get("role") in Role.values else words.get("role", "")
    before, placed, after = template.partition("{object}")
    filled = (_fill(before, words), name if placed else "", _fill(after, words))
    return Line(row.created_at, actor, row.action, filled[0], filled[1], link if placed else "", filled[2], detail)


def _member_words(detail: dict[str, Any]) -> str:
    if detail.get("before"):
        return "{actor} changed the role of {object} from {before} to {role}"
    return "{actor} added {object} as {role}" if "before" in detail else "{actor} made {object} {role}"


def _fill(template: str, words: dict[str, str]) -> str:
    """Plain replacement: a value that looks like a placeholder stays as it is, and a missing one is a dash."""
    done, rest = "", template
    while "{" in rest:
        text, _, rest = rest.partition("{")
        key, _, rest = rest.partition("}")
        done += text + (words.get(key) or "–")
    return done + rest


def _chunk(team: Team, rows: Sequence[AuditEvent]) -> bytes:
    told = zip(rows, lines(team, rows), strict=True)
    return b"".join(
        _csv(
            [
                *(row.created_at.isoformat(), row.actor, row.action, row.object_kind, row.object_id, line.sentence),
                *("; ".join(f"{key}={value}" for key, value in sorted(line.detail.items())), row.row_hash, row.previous_hash),
            ]
        )
        for row, line in told
    )


def _csv(values: list[str]) -> bytes:
    sink = io.StringIO()
    csv.writer(sink).writerow([cell(value) for value in values])
    return sink.getvalue().encode()


def _midnight(day: date) -> datetime:
    return datetime.combine(day, clock.min, tzinfo=timezone.get_current_timezone())
