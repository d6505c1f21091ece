"""From events to rows: which points, samples, log lines and latest values a stretch of events means. No database here.

Ingest calls `derive` for every new stretch, `rebuild` for every stored one: both see the same events, so both reach the same rows.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headrace.telemetry.codec import Columns, Event, clean_text
from headrace.telemetry.columns import Rows, from_points
from headrace.telemetry.problems import IngestProblem
from workers.contract.events import decode_number

NAME = re.compile(r"(?!.*\.\.)[A-Za-z0-9][A-Za-z0-9_./:@+-]{0,119}", re.ASCII)
LAG_PREFIX = "lag/tokens/"  # the lag histogram as one series a lag: tokens of the step trained at that lag
# What a lane did, as one series a cause and lane: t when a span began, value its seconds. `span/<cause>/<lane>`
SPAN_PREFIX = "span/"
LARGEST_LAG_KEPT = 255  # older tokens are counted at this lag, so that a runaway lag cannot eat the run's names
LOG_LEVELS = ("debug", "info", "warning", "error")
OUTCOMES = ("trained", "dropped", "failed", "evaluation")
LATEST_KINDS = ("state", "phase", "lag", "sync", "checkpoint")
MOMENT_KINDS = frozenset({"started", "phase", "lag", "sync", "evaluation", "checkpoint", "finished"})
_BIGINT = 2**63 - 1
_TEXT_LIMIT = 200_000


@dataclass(slots=True)
class _Points:
    seq: list[int] = field(default_factory=list)
    t: list[float] = field(default_factory=list)
    step: list[int] = field(default_factory=list)
    value: list[float] = field(default_factory=list)

    def rows(self) -> Rows:
        return from_points(
            np.array(self.seq, dtype=np.int64),
            np.array(self.t, dtype=np.float64),
            np.array(self.step, dtype=np.int64),
            np.array(self.value, dtype=np.float64),
        )


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of the attempt's log."""

    seq: int
    t: float
    step: int
    level: str
    message: str
    source: str


@dataclass(slots=True)
class Derived:
    """What a stretch of events adds."""

    points: dict[str, Rows] = field(default_factory=dict)
    samples: list[dict[str, Any]] = field(default_factory=list)
    logs: list[LogLine] = field(default_factory=list)
    latest: dict[str, dict[str, Any]] = field(default_factory=dict)
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    moments: list[dict[str, Any]] = field(default_factory=list)
    started: Event | None = None
    finished: Event | None = None
    ended: dict[str, Any] | None = None  # the last event, where no start came after it


def derive(columns: Columns) -> Derived:
    """Rows of these events. Raises IngestProblem naming the event and field that make no sense."""
    found = Derived()
    gathered: dict[str, _Points] = {}
    for index, event in enumerate(columns.events()):
        where = f"data.{index}"
        if event.kind == "metrics":
            _metrics(event, where, gathered)
        elif event.kind == "points":
            _points(event, where, gathered)
        elif event.kind == "lag":
            _lag(event, where, gathered)
        elif event.kind == "spans":
            _spans(event, where, gathered)
        elif event.kind == "sample":
            found.samples.append(_sample(event, where))
        elif event.kind == "log":
            found.logs.append(_log(event, where))
        elif event.kind == "evaluation":
            found.evaluations.append(_summary(event))
        elif event.kind == "started":
            found.started = event
            found.ended = None
        elif event.kind == "finished":
            found.finished = event
            found.ended = _summary(event)
        if event.kind in LATEST_KINDS:
            found.latest[event.kind] = _summary(event)
        if event.kind in MOMENT_KINDS:
            found.moments.append({**_summary(event), "kind": event.kind})
    found.points = {name: points.rows() for name, points in gathered.items()}
    return found


def check_name(name: Any, where: str) -> str:
    """A series name, or IngestProblem."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise IngestProblem(
            "not a series name",
            field=where,
            value=name,
            cure="1 to 120 characters: letters, digits and _ . / : @ + -, no two dots in a row, beginning with a letter or digit",
        )
    return name


def _summary(event: Event) -> dict[str, Any]:
    return {"seq": event.seq, "t": event.t, "step": event.step, "data": clean_json(event.data)}


def clean_json(value: Any) -> Any:
    """The same JSON with text that every database takes."""
    if isinstance(value, str):
        return clean_text(value, _TEXT_LIMIT)
    if isinstance(value, list):
        return [clean_json(item) for item in value]
    if isinstance(value, dict):
        return {clean_text(key, 1000): clean_json(item) for key, item in value.items()}
    return value


def _number(value: Any, where: str) -> float:
    try:
        return decode_number(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise IngestProblem(
            "not a number", field=where, value=value, cure='send a JSON number, or "NaN", "Infinity", "-Infinity"'
        ) from error


def _integer(value: Any, where: str, low: int = 0) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= _BIGINT:
        raise IngestProblem("not a whole number in range", field=where, value=value, cure=f"send an integer from {low}")
    return value


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise IngestProblem("not an object", field=where, value=value, cure="see EventBatch in workers/contract/events.py")
    return value


def _metrics(event: Event, where: str, gathered: dict[str, _Points]) -> None:
    for name, value in _mapping(event.data.get("values"), f"{where}.values").items():
        points = gathered.get(name)
        if points is None:
            points = gathered[check_name(name, f"{where}.values")] = _Points()
        # exact types first: this is the line that runs once a point
        number = value if type(value) is float else _number(value, f"{where}.values.{name}")
        points.seq.append(event.seq)
        points.t.append(event.t)
        points.step.append(event.step)
        points.value.append(number)


def _points(event: Event, where: str, gathered: dict[str, _Points]) -> None:
    name = check_name(event.data.get("name"), f"{where}.name")
    t, step, value = (event.data.get(key) for key in ("t", "step", "value"))
    if not (isinstance(t, list) and isinstance(step, list) and isinstance(value, list) and len(t) == len(step) == len(value)):
        raise IngestProblem("t, step and value must be lists of one length", field=where, cure="send one t and one step a value")
    if not value:
        return
    if not set(map(type, t)) <= {float, int} or not all(map(math.isfinite, t)):
        raise IngestProblem("times must be finite numbers", field=f"{where}.t", cure="send Unix seconds")
    for i, item in enumerate(step):
        _integer(item, f"{where}.step.{i}")
    if not set(map(type, value)) <= {float}:
        value = [_number(item, f"{where}.value.{i}") for i, item in enumerate(value)]
    points = gathered.setdefault(name, _Points())
    points.seq.extend([event.seq] * len(value))
    points.t.extend(map(float, t))
    points.step.extend(step)
    points.value.extend(value)


def _lag(event: Event, where: str, gathered: dict[str, _Points]) -> None:
    counts = _mapping(event.data.get("counts"), f"{where}.counts")
    kept: dict[int, int] = {}
    for lag, tokens in counts.items():
        if not (lag.isascii() and lag.isdigit() and len(lag) <= 18):
            raise IngestProblem("not a lag", field=f"{where}.counts", value=lag, cure="lags are whole numbers of versions, from 0")
        place = min(int(lag), LARGEST_LAG_KEPT)
        kept[place] = kept.get(place, 0) + _integer(tokens, f"{where}.counts.{lag}")
    for place, tokens in sorted(kept.items()):
        points = gathered.setdefault(f"{LAG_PREFIX}{place}", _Points())
        points.seq.append(event.seq)
        points.t.append(event.t)
        points.step.append(event.step)
        points.value.append(float(tokens))


def _spans(event: Event, where: str, gathered: dict[str, _Points]) -> None:
    spans = event.data.get("spans")
    if not isinstance(spans, list):
        raise IngestProblem("not a list", field=f"{where}.spans", value=spans, cure="send [[lane, cause, began, ended], ...]")
    for i, span in enumerate(spans):
        if not isinstance(span, list) or len(span) != 4:
            raise IngestProblem("not a span", field=f"{where}.spans.{i}", value=span, cure="send [lane, cause, began, ended]")
        lane, cause, *instants = span
        if not isinstance(cause, str) or "/" in cause:
            raise IngestProblem("not a cause", field=f"{where}.spans.{i}.1", value=cause, cure="a word of the time ledger")
        began, ended = (_number(value, f"{where}.spans.{i}") for value in instants)
        if not (math.isfinite(began) and math.isfinite(ended) and began <= ended):
            raise IngestProblem("a span ends after it began", field=f"{where}.spans.{i}", value=span, cure="send finite Unix seconds")
        points = gathered.setdefault(check_name(f"{SPAN_PREFIX}{cause}/{lane}", f"{where}.spans.{i}"), _Points())
        points.seq.append(event.seq)
        points.t.append(began)
        points.step.append(event.step)
        points.value.append(ended - began)


def _log(event: Event, where: str) -> LogLine:
    level = event.data.get("level", "info")
    if level not in LOG_LEVELS:
        raise IngestProblem("not a log level", field=f"{where}.level", value=level, cure=f"one of {', '.join(LOG_LEVELS)}")
    message, source = clean_text(event.data.get("message"), 20_000), clean_text(event.data.get("source"), 200)
    return LogLine(event.seq, event.t, event.step, level, message, source)


def _sample(event: Event, where: str) -> dict[str, Any]:
    """The columns of a Sample row; tokens and log-probs stay in the event."""
    data = event.data
    outcome = data.get("outcome")
    if outcome not in OUTCOMES:
        raise IngestProblem("not an outcome", field=f"{where}.outcome", value=outcome, cure=f"one of {', '.join(OUTCOMES)}")
    tokens = data.get("tokens")
    ids = tokens.get("ids") if isinstance(tokens, dict) else None
    row: dict[str, Any] = {
        "seq": event.seq,
        "t": event.t,
        "step": event.step,
        "outcome": outcome,
        "index": min(_integer(data.get("index") or 0, f"{where}.index"), 2**31 - 1),
        "token_count": len(ids) if isinstance(ids, list) else 0,
    }
    short = ("group", "episode", "prompt_id", "drop_reason")
    row.update({name: clean_text(data.get(name), 100) for name in short})
    row["finish_reason"] = clean_text(data.get("finish_reason"), 20)
    row.update({name: clean_text(data.get(name), _TEXT_LIMIT) for name in ("prompt", "completion", "answer_expected", "answer_given")})
    for name in ("reward", "advantage"):
        value = None if data.get(name) is None else _number(data[name], f"{where}.{name}")
        # A column holds finite numbers only; the event keeps the exact value
        row[name] = value if value is not None and math.isfinite(value) else None
    for name in ("version_min", "version_max", "version_trained"):
        row[name] = None if data.get(name) is None else _integer(data[name], f"{where}.{name}")
    return row
