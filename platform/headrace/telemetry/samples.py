"""Samples, read for people: filtered, sorted, paged by key, and by group. Every reply is of bounded size.

Each function takes a run whose access the caller has checked, and stays in its team.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.db.models import Avg, Count, F, FloatField, Max, Min, Q, QuerySet, Value
from django.db.models.functions import Cast, Coalesce, Substr

from headrace.experiments.models import Run
from headrace.telemetry.models import Sample
from headrace.telemetry.queries import BadQuery

LIST_TEXT = 600  # characters of a text in a list; the whole one is `detail`'s
MAX_PAGE = 200
MAX_GROUPS = 40
GROUP_SHOWN = 16
COUNT_CAP = 10_000
SORTS = ("newest", "oldest", "reward", "-reward", "advantage", "-advantage", "length", "-length", "lag", "-lag")
GROUP_SORTS = ("newest", "oldest", "reward", "-reward", "spread", "-spread")
TEXTS = ("prompt", "completion", "answer_expected", "answer_given")
_FACTS = (
    *("seq", "t", "step", "group", "episode", "prompt_id", "index", "outcome", "drop_reason", "finish_reason"),
    *("reward", "advantage", "version_min", "version_max", "version_trained", "token_count"),
)
_LAST = 1e300  # where a value is missing its row comes last, whichever way the list is sorted


@dataclass(frozen=True, slots=True)
class Filters:
    """What is asked for. None and "" ask for nothing. `version`: sampled, at least in part, by that policy version; `versions`: how
    many it spans at least; `until`: told by then, Unix seconds."""

    step: int | None = None
    outcome: str = ""
    reason: str = ""
    finish: str = ""
    group: str = ""
    prompt_id: str = ""
    text: str = ""
    attempt: int | None = None
    reward_min: float | None = None
    reward_max: float | None = None
    version: int | None = None
    versions: int | None = None
    until: float | None = None


def matching(run: Run, wanted: Filters) -> QuerySet[Sample]:
    """Samples of the run that fit, in no order."""
    rows = Sample.objects.for_team(run.team_id).filter(attempt__run=run)
    exact = {
        "step": wanted.step,
        "outcome": wanted.outcome,
        "drop_reason": wanted.reason,
        "finish_reason": wanted.finish,
        "group": wanted.group,
        "prompt_id": wanted.prompt_id,
        "attempt__number": wanted.attempt,
        "reward__gte": wanted.reward_min,
        "reward__lte": wanted.reward_max,
        "t__lte": wanted.until,
    }
    rows = rows.filter(**{name: value for name, value in exact.items() if value not in (None, "")})
    if wanted.version is not None:
        rows = rows.filter(version_min__lte=wanted.version, version_max__gte=wanted.version)
    if wanted.versions is not None:
        rows = rows.filter(version_max__gte=F("version_min") + wanted.versions - 1)
    if wanted.text:
        found = Q()
        for name in TEXTS:
            found |= Q(**{f"{name}__icontains": wanted.text})
        rows = rows.filter(found)
    return rows


def page(run: Run, wanted: Filters, *, sort: str = "newest", cursor: str = "", limit: int = 50) -> dict[str, Any]:
    """One page of samples; `next` is the cursor of the page after it, null on the last. The count stops at COUNT_CAP."""
    rows = matching(run, wanted)
    counted = rows.order_by()[: COUNT_CAP + 1].count()
    keyed, newest_first = _keyed(rows, sort)
    ordered = _after(keyed, cursor, sort.startswith("-"), newest_first=newest_first)
    found = _listed(ordered[: limit + 1])
    more = len(found) > limit
    found = found[:limit]
    last = found[-1] if found else None
    result = {
        "samples": [_without_key(row) for row in found],
        "next": _cursor(last["key"], last["attempt"], last["seq"]) if more and last else None,
        "count": min(counted, COUNT_CAP),
        "count_is_more": counted > COUNT_CAP,
    }
    if wanted.step is not None:
        result |= _steps_beside(run, wanted)
    return result


def newest(run: Run, wanted: Filters, *, limit: int, longest: int) -> list[dict[str, Any]]:
    """The newest samples that fit, newest first, with texts cut at `longest` characters."""
    rows, _ = _keyed(matching(run, wanted), "newest")
    return [_without_key(row) for row in _listed(_after(rows, "", False, newest_first=True)[:limit], longest)]


def groups(run: Run, wanted: Filters, *, sort: str = "newest", cursor: str = "", limit: int = 12) -> dict[str, Any]:
    """Prompts with the completions that were kept of them: mean, spread and the samples side by side, GROUP_SHOWN at most of each."""
    rows = matching(run, wanted).values("attempt_id", "attempt__number", "group")
    rows = rows.annotate(
        n=Count("pk"),
        mean=Avg("reward"),
        squares=Avg(F("reward") * F("reward")),
        low=Min("reward"),
        high=Max("reward"),
        last=Max("seq"),
        at_step=Max("step"),
    )
    counted = rows.order_by()[: COUNT_CAP + 1].count()
    column = {"reward": F("mean"), "spread": F("squares") - F("mean") * F("mean")}.get(sort.lstrip("-"))
    descending = sort.startswith("-") or sort == "newest"
    missing = Value(-_LAST if descending else _LAST, output_field=FloatField())
    rows = rows.annotate(key=Coalesce(column, missing, output_field=FloatField()) if column else Cast(Value(0.0), FloatField()))
    rows = _after(rows, cursor, descending, newest_first=descending or column is not None, seq_name="last")
    found = list(rows[: limit + 1])
    more, found = len(found) > limit, found[:limit]
    beside = _samples_of(run, wanted, found)
    last = found[-1] if found else None
    result = {
        "groups": [_group(row, beside[row["attempt_id"], row["group"]]) for row in found],
        "next": _cursor(last["key"], last["attempt__number"], last["last"]) if more and last else None,
        "count": min(counted, COUNT_CAP),
        "count_is_more": counted > COUNT_CAP,
    }
    if wanted.step is not None:
        result |= _steps_beside(run, wanted)
    return result


def facets(run: Run) -> dict[str, Any]:
    """What there is to choose from, and what the config says that a reader of samples needs."""
    rows = Sample.objects.for_team(run.team_id).filter(attempt__run=run)
    ends = rows.aggregate(
        n=Count("pk"),
        step_min=Min("step"),
        step_max=Max("step"),
        reward_min=Min("reward"),
        reward_max=Max("reward"),
        version_min=Min("version_min"),
        version_max=Max("version_max"),
    )
    counts = rows.order_by().values("outcome", "drop_reason").annotate(n=Count("pk")).order_by("outcome", "-n")[:100]
    finishes = rows.order_by().values_list("finish_reason", flat=True).distinct()[:20]
    data = run.config.data if isinstance(run.config.data, dict) else {}
    loss, batch = data.get("loss"), data.get("batch")
    return {
        **ends,
        "outcomes": list(counts),
        "finishes": sorted(finish for finish in finishes if finish),
        "attempts": sorted(rows.order_by().values_list("attempt__number", flat=True).distinct()),
        "group_size": batch.get("group_size") if isinstance(batch, dict) else None,
        "bounds": ratio_bounds(loss if isinstance(loss, dict) else {}),
    }


def _listed(rows: QuerySet[Sample], longest: int = LIST_TEXT) -> list[dict[str, Any]]:
    """Rows of a list: the facts, and each text as far as a list shows it."""
    cut = {f"{name}_": Substr(name, 1, longest + 1) for name in TEXTS}
    found = []
    for row in rows.annotate(**cut).values("attempt__number", "key", *_FACTS, *cut):
        texts = {name: row.pop(f"{name}_") or "" for name in TEXTS}
        facts = {name: row[name] for name in _FACTS}
        shown = {name: text[:longest] for name, text in texts.items()}
        cuts = [name for name, text in texts.items() if len(text) > longest]
        found.append({"attempt": row["attempt__number"], "key": row["key"], **facts, **shown, "cut": cuts})
    return found


def _without_key(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "key"}


def _keyed(rows: QuerySet[Sample], sort: str) -> tuple[QuerySet[Sample], bool]:
    """Rows with the number they are sorted by as `key`, and whether newer ones come first among equals."""
    descending = sort.startswith("-")
    column: Any = {"reward": F("reward"), "advantage": F("advantage"), "length": F("token_count")}.get(sort.lstrip("-"))
    if sort.lstrip("-") == "lag":
        column = F("version_trained") - F("version_min")
    if column is None:
        return rows.annotate(key=Cast(Value(0.0), FloatField())), sort != "oldest"
    missing = Value(-_LAST if descending else _LAST, output_field=FloatField())
    return rows.annotate(key=Coalesce(Cast(column, FloatField()), missing, output_field=FloatField())), True


def _after(rows: Any, cursor: str, descending: bool, *, newest_first: bool, seq_name: str = "seq") -> Any:
    """The rows beyond the cursor, in order: by key, then by attempt and seq."""
    if cursor:
        key, number, seq = _read_cursor(cursor)
        side = "lt" if newest_first else "gt"
        later = Q(**{f"attempt__number__{side}": number}) | Q(**{"attempt__number": number, f"{seq_name}__{side}": seq})
        rows = rows.filter(Q(**{f"key__{'lt' if descending else 'gt'}": key}) | (Q(key=key) & later))
    sign = "-" if newest_first else ""
    return rows.order_by("-key" if descending else "key", f"{sign}attempt__number", f"{sign}{seq_name}")


def _cursor(key: float, attempt: int, seq: int) -> str:
    return f"{float(key)!r}_{attempt}_{seq}".replace("+", "")


def _read_cursor(text: str) -> tuple[float, int, int]:
    parts = text.split("_")
    try:
        if len(text) > 80 or len(parts) != 3:
            raise ValueError(text[:80])
        found = float(parts[0]), int(parts[1]), int(parts[2])
        if not (abs(found[0]) <= _LAST and 0 <= found[1] < 2**31 and 0 <= found[2] < 2**63):
            raise ValueError(text[:80])
    except ValueError:
        raise BadQuery("not a page of this list", field="cursor", value=text[:80], cure="take it from `next` of the page before") from None
    return found


def _steps_beside(run: Run, wanted: Filters) -> dict[str, Any]:
    """The nearest steps on either side that have a sample of the same kind."""
    every = Filters(**{name: getattr(wanted, name) for name in Filters.__slots__ if name != "step"})
    rows = matching(run, every)
    return {
        "step_before": rows.filter(step__lt=wanted.step).aggregate(step=Max("step"))["step"],
        "step_after": rows.filter(step__gt=wanted.step).aggregate(step=Min("step"))["step"],
    }


def _samples_of(run: Run, wanted: Filters, found: list[dict[str, Any]]) -> dict[tuple[int, str], list[dict[str, Any]]]:
    beside: dict[tuple[int, str], list[dict[str, Any]]] = {(row["attempt_id"], row["group"]): [] for row in found}
    for attempt_id, group in beside:
        rows = matching(run, wanted).filter(attempt_id=attempt_id, group=group).order_by("index", "-seq")
        listed = _listed(rows.annotate(key=Cast(Value(0.0), FloatField()))[:GROUP_SHOWN])
        beside[attempt_id, group] = [_without_key(row) for row in listed]
    return beside


def spread_of(row: dict[str, Any]) -> float | None:
    """The standard deviation of the rewards of a row with `mean` and `squares`, the mean of their squares."""
    # Not the database's own: on SQLite it fails where no reward is known
    return None if row["mean"] is None else max(0.0, row["squares"] - row["mean"] ** 2) ** 0.5


def _group(row: dict[str, Any], samples: list[dict[str, Any]]) -> dict[str, Any]:
    facts = {name: row[name] for name in ("group", "n", "mean", "low", "high")}
    return {"attempt": row["attempt__number"], "step": row["at_step"], **facts, "spread": spread_of(row), "samples": samples}


def ratio_bounds(loss: dict[str, Any]) -> dict[str, Any]:
    """The ratio bounds that a token can fall outside of: the first token-level correction's, else the clip's."""
    corrections = loss.get("corrections")
    for item in corrections if isinstance(corrections, list) else []:
        if isinstance(item, dict) and item.get("level") == "token":
            return {"of": f"the correction ({item.get('action')})", "low": item.get("lo"), "high": item.get("hi")}
    low, high = loss.get("clip_low"), loss.get("clip_high")
    if loss.get("policy") == "ppo" and isinstance(low, int | float) and isinstance(high, int | float):
        return {"of": "the clip", "low": 1 - low, "high": 1 + high}
    return {"of": "", "low": None, "high": None}
