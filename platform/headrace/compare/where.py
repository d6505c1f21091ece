"""A parsed query as a Django query: every term becomes SQL, so that a page reads only its own rows. Errors name the place in the text."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db.models import Case as SqlCase
from django.db.models import DateTimeField, DurationField, ExpressionWrapper, F, Max, Min, OuterRef, Q, QuerySet, Subquery, Value, When
from django.db.models.functions import Coalesce
from django.db.models.lookups import Exact, GreaterThan, GreaterThanOrEqual, IsNull, LessThan, LessThanOrEqual
from django.utils import timezone
from django.utils.dateparse import parse_date, parse_datetime

from headrace.compare import fields, query
from headrace.compare.expressions import JsonListHas, JsonNumber, JsonText, Like, always, like, literally
from headrace.compare.fields import RunField
from headrace.compare.query import QueryError
from headrace.experiments.models import Attempt, Run
from headrace.experiments.states import RunState
from headrace.teams.models import Team
from headrace.telemetry.models import Series
from workers.contract.metrics import CATALOGUE

MOST_METRICS = 8
UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800}
_LENGTH = re.compile(r"(\d+(?:\.\d+)?)(s|min|m|h|d|w)")
_ORDER = {":": Exact, "<": LessThan, "<=": LessThanOrEqual, ">": GreaterThan, ">=": GreaterThanOrEqual}
YES, NO = {"yes", "true", "1"}, {"no", "false", "0"}
# Text fields that are a column of their own or of a joined row.
COLUMNS = {
    "name": ("name",),
    "state": ("state",),
    "preset": ("preset",),
    "group": ("group",),
    "source": ("source",),
    "id": ("public_id",),
    "note": ("note",),
    "project": ("project__name", "project__slug"),
    "experiment": ("experiment__name", "experiment__public_id"),
}
CONFIG_OWN = {"task": "environment.dataset", "model": "model.path"}


@dataclass
class Filtering:
    """One query being applied to one team's runs."""

    team: Team
    user: Any
    now: datetime

    def __post_init__(self) -> None:
        self.metrics: set[str] = set()
        self.mentioned: set[str] = set()


def apply(runs: QuerySet[Run], parsed: query.Query, *, team: Team, user: Any) -> tuple[QuerySet[Run], set[str]]:
    """The team's runs that fit, sorted where the query sorts, and the keys of the fields it names. Raises QueryError."""
    work = Filtering(team, user, timezone.now())
    if parsed.where is not None:
        runs = runs.filter(_node(work, parsed.where))
    if parsed.sort:
        runs = ordered(runs, [(_field(work, item.field, item.span), item.descending) for item in parsed.sort])
    return runs, work.mentioned


def ordered(runs: QuerySet[Run], by: list[tuple[RunField, bool]]) -> QuerySet[Run]:
    """Sorted by fields, runs without a value last, then newest first."""
    keys = []
    for place, (item, descending) in enumerate(by):
        name = f"sort_{place}"
        runs = runs.annotate(**{name: value_of(item)})
        keys.append(F(name).desc(nulls_last=True) if descending else F(name).asc(nulls_last=True))
    return runs.order_by(*keys, "-created_at", "-pk")


def value_of(item: RunField) -> Any:
    """The SQL expression of a field's one value."""
    if item.key == "step":
        return _newest(item.path, "last_step")
    if item.source == "metric":
        return _newest(item.path, "last_value")
    if item.source == "config":
        return (JsonNumber if item.kind == "number" else JsonText)("config__data", item.path)
    if item.key in CONFIG_OWN:
        return JsonText("config__data", CONFIG_OWN[item.key])
    if item.key == "duration":
        return duration()
    if item.key == "tag":
        return JsonText("tags", "")
    if item.key == "by":
        return Coalesce("created_by__name", "created_by__email", "source")
    own = {"created": "created_at", "archived": "archived_at"}
    return F(own.get(item.key) or COLUMNS.get(item.key, (item.key,))[0])


def duration() -> Any:
    """From the first attempt's start to the last one's end, or to now while the run is not over."""
    attempts = Attempt.unscoped.filter(run=OuterRef("pk")).order_by().values("run")
    began: Any = Subquery(attempts.annotate(at=Min("started_at")).values("at"), output_field=DateTimeField())
    ended: Any = Subquery(attempts.annotate(at=Max("ended_at")).values("at"), output_field=DateTimeField())
    now = Value(timezone.now(), output_field=DateTimeField())
    end = SqlCase(
        When(state__in=sorted(RunState.over()), then=Coalesce(ended, F("state_since"))), default=now, output_field=DateTimeField()
    )
    return ExpressionWrapper(end - began, output_field=DurationField())


def _newest(name: str, column: str) -> Any:
    """A column of the run's newest series of this name. The runs it is joined to are the team's already."""
    mine = Series.unscoped.filter(attempt__run=OuterRef("pk"), name=name)
    return Subquery(mine.order_by("-attempt__number").values(column)[:1])


def _node(work: Filtering, node: query.Node) -> Any:
    if isinstance(node, query.Word):
        return _word(node.text)
    if isinstance(node, query.Not):
        return ~_node(work, node.node)
    if isinstance(node, query.Compare):
        return _compare(work, node)
    parts = [_node(work, part) for part in node.nodes]
    joined = parts[0]
    for part in parts[1:]:
        joined = joined & part if isinstance(node, query.All) else joined | part
    return joined


def _word(text: str) -> Q:
    pattern = f"%{literally(text)}%"
    task = Q(Like(JsonText("config__data", "environment.dataset"), pattern))
    return Q(Like("name", pattern)) | Q(Like("preset", pattern)) | Q(public_id=text) | task


def _field(work: Filtering, name: str, span: query.Span) -> RunField:
    item = fields.resolve(name, span)
    work.mentioned.add(item.key)
    if item.source == "metric":
        stored = Series.objects.for_team(work.team).filter(name=item.path)
        if item.path not in CATALOGUE and item.path not in work.metrics and not stored.exists():
            raise fields.unknown(name, span)
        work.metrics.add(item.path)
        if len(work.metrics) > MOST_METRICS:
            raise QueryError(f"more than {MOST_METRICS} metrics in one query", span, cure="ask for fewer")
    return item


def _compare(work: Filtering, node: query.Compare) -> Q:
    item = _field(work, node.field, (node.span[0], node.span[0] + len(node.field)))
    negated = node.op in ("!=", "!~")
    op = {"!=": ":", "!~": "~"}.get(node.op, node.op)
    answers = [_one(work, item, op, value) for value in node.values]
    found = answers[0]
    for answer in answers[1:]:
        found = found | answer
    return ~found if negated else found


def _one(work: Filtering, item: RunField, op: str, value: query.Value) -> Q:
    # An option of a dataset may be anything: with < and > it is asked for as a number.
    if item.kind in ("text", "list") or (item.kind == "json" and op in (":", "~")):
        return _text(work, item, op, value)
    if op == "~":
        raise QueryError(f"~ is for text, and {item.key} is none", value.span, value=value.text, cure="use = < <= > or >=")
    if item.kind == "boolean":
        return _boolean(item, op, value)
    if value.is_none or value.is_any:
        if op != ":":
            raise QueryError(f"{op} takes a value", value.span, value=value.text, cure=f"{item.key}:none asks for runs without one")
        return _present(value_of(item), value.is_any)
    wanted = _wanted(work, item, op, value)
    expression = JsonNumber("config__data", item.path) if item.kind == "json" else value_of(item)
    return _ordered(expression, op, wanted)


def _ordered(expression: Any, op: str, wanted: Any) -> Q:
    """A comparison that is false, not unknown, where there is no value: `not` then finds those runs."""
    if isinstance(wanted, tuple):
        low, high = wanted
        return _ordered(expression, ">=", low) & _ordered(expression, "<", high)
    return Q(Coalesce(_ORDER[op](expression, wanted), always(False)))


def _present(expression: Any, there: bool) -> Q:
    return Q(IsNull(expression, not there))


def _text(work: Filtering, item: RunField, op: str, value: query.Value) -> Q:
    if op not in (":", "~"):
        raise QueryError(f"{op} is for numbers and times, and {item.key} is text", value.span, cure=f"use {item.key}:{value.text}")
    if value.is_none or value.is_any:
        empty = _empty(item)
        return empty if value.is_none else ~empty
    pattern = literally(value.text) if value.quoted else like(value.text)
    if op == "~":
        pattern = f"%{pattern}%"
    if item.key == "tag":
        return Q(JsonListHas("tags", "", pattern))
    if item.kind == "list":
        return Q(JsonListHas("config__data", item.path, pattern))
    if item.key == "by":
        return _by(work, value, pattern)
    if item.key == "preset" and op == ":" and "@" not in value.text:
        return Q(Like("preset", pattern)) | Q(Like("preset", f"{pattern}@%"))
    found = Q()
    for expression in COLUMNS.get(item.key) or (value_of(item),):
        found |= Q(Like(expression, pattern))
    return found


def _empty(item: RunField) -> Q:
    if item.key == "tag":
        return Q(tags=[])
    if item.kind == "list":
        return Q(Like(JsonText("config__data", item.path), "[]")) | _present(JsonText("config__data", item.path), False)
    if item.key == "by":
        return Q(created_by=None)
    expression = value_of(item)
    return _present(expression, False) | Q(Like(expression, ""))


def _by(work: Filtering, value: query.Value, pattern: str) -> Q:
    if not value.quoted and value.text.lower() == "me":
        return Q(created_by=work.user)
    people = Q(Like("created_by__name", pattern)) | Q(Like("created_by__email", pattern)) | Q(Like("created_by__email", f"{pattern}@%"))
    return people | (Q(created_by=None) & Q(Like("source", pattern)))


def _boolean(item: RunField, op: str, value: query.Value) -> Q:
    word = value.text.lower()
    if op != ":" or word not in YES | NO:
        raise QueryError(f"{item.key} is yes or no", value.span, value=value.text, cure=f"write {item.key}:yes or {item.key}:no")
    if item.key == "archived":
        return Q(archived_at__isnull=word in NO)
    return Q(Like(JsonText("config__data", item.path), "true" if word in YES else "false"))


def _wanted(work: Filtering, item: RunField, op: str, value: query.Value) -> Any:
    """The value as the column's type; for `created:2026-11-01` the day from its begin to its end."""
    if item.kind == "duration":
        return timedelta(seconds=_seconds(value))
    if item.kind == "time":
        return _time(work, op, value)
    try:
        number = float(value.text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or abs(number) > 1e300 or "_" in value.text:
        raise QueryError(f"{item.key} is a number", value.span, value=value.text, cure="write for example 0.5 or 2e-4")
    return number


def _seconds(value: query.Value) -> float:
    found = _LENGTH.fullmatch(value.text.lower())
    if found is None or len(value.text) > 9:
        raise QueryError(
            "is not a length of time", value.span, value=value.text, cure="write a number with s, m, h, d or w, such as 90s or 2h"
        )
    return float(found.group(1)) * UNITS[found.group(2)]


def _time(work: Filtering, op: str, value: query.Value) -> Any:
    if _LENGTH.fullmatch(value.text.lower()):
        if op == ":":
            raise QueryError("an age needs < or >", value.span, value=value.text, cure=f"created>{value.text}: later than {value.text} ago")
        seconds = _seconds(value)
        if seconds > 100 * 365 * 86400:
            raise QueryError("is too long ago", value.span, value=value.text, cure="write at most 100 years")
        return work.now - timedelta(seconds=seconds)
    try:
        day, moment = parse_date(value.text), parse_datetime(value.text)
    except ValueError:
        day = moment = None
    if day is not None:
        begin = datetime(day.year, day.month, day.day, tzinfo=UTC)
        following = begin + timedelta(days=1) if day.year < 9999 else begin
        return {":": (begin, following), ">": following, "<=": following}.get(op, begin)
    if moment is not None:
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    raise QueryError("is not a time", value.span, value=value.text, cure="write an age such as 7d, or a date such as 2026-11-01")
