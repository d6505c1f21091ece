"""One whole sample, token by token, with its group's other completions. The reply is of bounded size whatever the driver sent."""

from __future__ import annotations

from typing import Any

from django.db.models import Avg, Count, F

from headrace.experiments.models import Attempt
from headrace.telemetry import codec
from headrace.telemetry.codec import clean_text
from headrace.telemetry.models import EventBatch, Sample
from headrace.telemetry.samples import TEXTS, spread_of

TEXT_LIMIT = 100_000
TOKENS_SHOWN = 2048
TOKEN_TEXT = 200
COLUMNS_SHOWN = 16
GROUP_SHOWN = 64
KNOWN = ("ids", "text", "logprobs", "versions", "trainer_logprobs", "mask", "loss_mask")


def detail(attempt: Attempt, seq: int, *, first: int = 0, shown: int = TOKENS_SHOWN) -> dict[str, Any] | None:
    """One whole sample, tokens first .. first + shown - 1 of it, and its group's other completions. None where seq is no sample."""
    batch = EventBatch.objects.for_team(attempt.team_id).filter(attempt=attempt, first_seq__lte=seq, last_seq__gte=seq).first()
    if batch is None:
        return None
    event = next(codec.unpack(batch.body, batch.first_seq, batch.codec).between(seq, seq).events())
    if event.kind != "sample":
        return None
    data: dict[str, Any] = {}
    for name, value in event.data.items():
        if name in TEXTS or isinstance(value, str):
            data[name] = clean_text(value, TEXT_LIMIT)
        elif value is None or isinstance(value, int | float):
            data[name] = value
    tokens = event.data.get("tokens")
    data["tokens"], total = _tokens(tokens if isinstance(tokens, dict) else {}, first, shown)
    rows = Sample.objects.for_team(attempt.team_id).filter(attempt=attempt)
    mine = rows.filter(seq=seq).values_list("group", flat=True).first()
    group = rows.filter(group=mine) if mine else rows.none()
    about = group.aggregate(n=Count("pk"), mean=Avg("reward"), squares=Avg(F("reward") * F("reward")))
    beside = group.order_by("index", "seq").values("seq", "step", "index", "outcome", "reward", "advantage", "token_count")
    return {
        **event.as_dict(),
        "data": data,
        "tokens_total": total,
        "tokens_first": first,
        "texts_cut": [name for name in TEXTS if len(str(event.data.get(name) or "")) > TEXT_LIMIT],
        "group": {"n": about["n"], "mean": about["mean"], "spread": spread_of(about), "samples": list(beside[:GROUP_SHOWN])},
    }


def _tokens(tokens: dict[str, Any], first: int, shown: int) -> tuple[dict[str, list[Any]], int]:
    """The columns first .. first + shown - 1 as plain values, and how many tokens there are."""
    columns = [(name, column) for name, column in tokens.items() if isinstance(column, list) and len(name) <= 40]
    columns = sorted(columns, key=lambda item: item[0] not in KNOWN)[:COLUMNS_SHOWN]
    total = max((len(column) for _, column in columns), default=0)
    return {clean_text(name, 40): [_plain(value) for value in column[first : first + shown]] for name, column in columns}, total


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return clean_text(value, TOKEN_TEXT)
    return value if value is None or isinstance(value, int | float) else None
