"""/metrics for Prometheus: the token's team and its runs under way; for administrators also the parts of the server.

Scraped with an API token (`authorization: {credentials_file: ...}`), so a scrape sees what its owner may see and nothing else.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.db.models import Count
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.http import require_safe
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from headrace import health
from headrace.experiments.models import Attempt, Run
from headrace.experiments.states import RunState
from headrace.teams.models import ApiToken, Team
from headrace.teams.policy import can_with_token
from headrace.teams.services import verify_api_token
from headrace.telemetry.models import Series
from headrace.telemetry.selectors import heartbeat_age_s
from workers.contract.metrics import CATALOGUE

MOST_RUNS = 200  # labels are kept for ever by whoever scrapes: runs that are over are not among them


@login_not_required  # answers 401 itself: a scraper follows no redirect to a login page
@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """Text exposition format 0.0.4."""
    scheme, _, secret = request.headers.get("Authorization", "").partition(" ")
    token = verify_api_token(secret.strip()) if scheme.lower() == "bearer" else None
    if token is None or not can_with_token(token, "metrics.view", token.team):
        answer = JsonResponse(
            {"code": "unauthenticated", "message": "send an API token", "cure": "Authorization: Bearer <token>"}, status=401
        )
        answer["WWW-Authenticate"] = "Bearer"
        return answer
    registry = CollectorRegistry()
    registry.register(Scrape(token))
    return HttpResponse(generate_latest(registry), content_type=CONTENT_TYPE_PLAIN_0_0_4)


class Scrape(Collector):
    """Reads the database once a scrape; nothing is counted in this process, so every web process answers alike."""

    def __init__(self, token: ApiToken) -> None:
        self.token = token

    def describe(self) -> list[Metric]:
        """Nothing to say before a scrape: registering must not read the database."""
        return []

    def collect(self) -> Iterator[Metric]:
        team = self.token.team
        yield _runs_by_state(team)
        yield from _active_runs(team)
        if self.token.user.is_staff:
            yield from _server()


def _runs_by_state(team: Team) -> Metric:
    family = GaugeMetricFamily("headrace_runs", "Runs of the team by state.", labels=["team", "state"])
    counted: dict[Any, int] = dict(
        Run.objects.for_team(team).filter(deleted_at=None).order_by().values_list("state").annotate(n=Count("pk")).values_list("state", "n")
    )
    for state in RunState.values:
        family.add_metric([team.slug, state], counted.get(state, 0))
    return family


def _active_runs(team: Team) -> Iterator[Metric]:
    """Every catalogued series of every run under way, by its last finite value; a series without a point is absent."""
    running = Run.objects.for_team(team).filter(state__in=RunState.active() - {RunState.QUEUED}, deleted_at=None).order_by("-created_at")
    runs = list(running[:MOST_RUNS])
    newest = {attempt.run_id: attempt for attempt in Attempt.objects.for_team(team).filter(run__in=runs).order_by("number")}
    beats = GaugeMetricFamily("headrace_run_heartbeat_age_seconds", "Seconds since a run was last heard.", labels=["run"])
    step = GaugeMetricFamily("headrace_run_step", "Steps trained.", labels=["run"])
    values: dict[str, GaugeMetricFamily] = {}
    for run in runs:
        attempt = newest.get(run.pk)
        if attempt is None:
            continue
        age = heartbeat_age_s(attempt)
        if age is not None:
            beats.add_metric([run.public_id], age)
        found = (
            Series.objects.for_team(team).filter(attempt=attempt, name__in=CATALOGUE.keys()).values_list("name", "last_value", "last_step")
        )
        steps = [last_step for _, _, last_step in found if last_step is not None]
        if steps:
            step.add_metric([run.public_id], max(steps))
        for name, value, _ in found:
            if value is not None:
                family = values.setdefault(name, GaugeMetricFamily(_name(name), _words(name), labels=["run"]))
                family.add_metric([run.public_id], value)
    yield beats
    yield step
    yield from values.values()


def _server() -> Iterator[Metric]:
    ready = GaugeMetricFamily("headrace_ready", "1 where a part of the server answers.", labels=["part"])
    for part, word in health.results().items():
        ready.add_metric([part], float(word == "ok"))
    yield ready
    free = GaugeMetricFamily("headrace_disk_free_bytes", "Free bytes where the data folder lies.")
    free.add_metric([], shutil.disk_usage(settings.DATA_DIR).free)
    yield free


def _name(series: str) -> str:
    return "headrace_run_" + "".join(character if character.isalnum() else "_" for character in series)


def _words(series: str) -> str:
    entry = CATALOGUE[series]
    return f"{entry.description} Unit: {entry.unit}." if entry.unit else entry.description
