"""Samples and log of a run: JSON for its page, the page of samples alone, the log as a file. One team's runs only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from headrace import streaming
from headrace.experiments.models import Attempt, Run
from headrace.telemetry import log_lines, sample_detail, samples, selectors
from headrace.telemetry.access import run_or_404
from headrace.telemetry.derive import LOG_LEVELS, OUTCOMES
from headrace.telemetry.queries import BIGINT, BadQuery, choice, integer, number, optional_integer, text
from headrace.telemetry.views import chosen_attempt, json_of_run

CHUNKS_A_PIECE = 64


@require_safe
def samples_page(request: HttpRequest, public_id: str) -> HttpResponse:
    """The samples alone; everything chosen is in the address."""
    run = run_or_404(request.user, public_id)
    return render(request, "runs/samples.html", {"section": "runs", "run": run, "page_data": {"run": run.public_id}})


@json_of_run
def sample_list(request: HttpRequest, run: Run) -> dict[str, Any]:
    """Filters, ?sort=, ?cursor=, ?limit=: one page of samples with the count of all that fit."""
    limit = integer(request, "limit", 50, 1, samples.MAX_PAGE)
    sort = choice(request, "sort", samples.SORTS, "newest")
    return samples.page(run, _filters(request), sort=sort, cursor=text(request, "cursor"), limit=limit)


@json_of_run
def sample_groups(request: HttpRequest, run: Run) -> dict[str, Any]:
    """The same filters; one page of prompts with their completions side by side."""
    limit = integer(request, "limit", 12, 1, samples.MAX_GROUPS)
    sort = choice(request, "sort", samples.GROUP_SORTS, "newest")
    return samples.groups(run, _filters(request), sort=sort, cursor=text(request, "cursor"), limit=limit)


@json_of_run
def sample_facets(request: HttpRequest, run: Run) -> dict[str, Any]:
    """What the run's samples can be filtered by."""
    return samples.facets(run)


@json_of_run
def sample(request: HttpRequest, run: Run, number: int, seq: int) -> dict[str, Any]:
    """One sample with its tokens, log-probs and versions. ?first=&tokens=: which of its tokens."""
    attempt = selectors.attempt_numbered(run, number) if number < 2**31 and seq <= BIGINT else None
    first = integer(request, "first", 0, 0, 10_000_000)
    shown = integer(request, "tokens", sample_detail.TOKENS_SHOWN, 1, sample_detail.TOKENS_SHOWN)
    found = sample_detail.detail(attempt, seq, first=first, shown=shown) if attempt else None
    if found is None:
        raise Http404("no such sample")
    return {"attempt": number, **found}


@json_of_run
def logs(request: HttpRequest, run: Run) -> dict[str, Any]:
    """?attempt=n and one of ?before=seq, ?after=seq, ?at=unix seconds, or none for the end; ?level=&source=&q= choose, ?limit= bounds."""
    if selectors.current_attempt(run) is None:
        return {"attempt": None, "logs": [], "older": None, "newer": None}
    attempt = chosen_attempt(request, run)
    wanted = log_lines.Wanted(choice(request, "level", LOG_LEVELS, "debug"), text(request, "source"), text(request, "q"))
    limit = integer(request, "limit", log_lines.MAX_LINES, 1, log_lines.MAX_LINES)
    before, after = optional_integer(request, "before", 0), optional_integer(request, "after", 0)
    at = number(request, "at", "Unix seconds")
    if sum(place is not None for place in (before, after, at)) > 1:
        raise BadQuery("before, after and at exclude one another", field="before", value=before, cure="give one of them")
    if after is not None:
        found = log_lines.after(attempt, wanted, after, limit)
    elif at is not None:
        found = log_lines.at(attempt, wanted, at, limit)
    else:
        found = log_lines.before(attempt, wanted, before, limit)
    return {"attempt": attempt.number, **found}


@require_safe
def log_file(request: HttpRequest, public_id: str) -> HttpResponse:
    """?attempt=n: every line of an attempt as a text file, in pieces."""
    run = run_or_404(request.user, public_id)
    try:
        attempt = chosen_attempt(request, run)
    except BadQuery as fault:
        raise Http404(fault.message) from None
    name = f"{run.public_id}-attempt-{attempt.number}.log"
    return streaming.attachment(request, _log_pieces(attempt), name=name, content_type="text/plain; charset=utf-8")


def _log_pieces(attempt: Attempt) -> Iterator[bytes]:
    seq: int | None = 0
    while seq is not None:
        piece, seq = log_lines.as_text(attempt, seq, CHUNKS_A_PIECE)
        yield piece.encode("utf-8", "replace")


def _filters(request: HttpRequest) -> samples.Filters:
    return samples.Filters(
        step=optional_integer(request, "step", 0),
        outcome=choice(request, "outcome", OUTCOMES),
        reason=text(request, "reason", 100),
        finish=text(request, "finish", 20),
        group=text(request, "group", 100),
        prompt_id=text(request, "prompt_id", 100),
        text=text(request, "q"),
        attempt=optional_integer(request, "attempt", 1, 2**31 - 1),
        reward_min=number(request, "reward_min", "a reward"),
        reward_max=number(request, "reward_max", "a reward"),
        version=optional_integer(request, "version", 0),
        versions=optional_integer(request, "versions", 1, 10_000),
        until=number(request, "until", "Unix seconds"),
    )
