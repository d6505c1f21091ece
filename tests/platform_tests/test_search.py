"""The palette's search and the API's help page."""

from __future__ import annotations

from collections.abc import Callable
from html import unescape

import pytest
from django.test import Client

from headrace.api import pages
from headrace.compare import services as views
from headrace.experiments.models import Run
from headrace.teams.models import Team, User

pytestmark = pytest.mark.django_db


def found(client: Client, text: str) -> list[dict[str, str]]:
    answer = client.get("/search.json", {"q": text})
    assert answer.status_code == 200
    entries: list[dict[str, str]] = answer.json()["entries"]
    return entries


def test_it_finds_what_the_team_has_and_what_the_help_says(team: Team, member: Callable[..., User], start: Callable[..., Run]) -> None:
    user = member(team)
    run = start(team, user, name="learning sums")
    view = views.save_view(team, user, page="runs", name="sums that learn", query="q=sums")
    client = Client()
    client.force_login(user)
    by_kind = {entry["kind"]: entry for entry in found(client, "sums")}
    assert by_kind["Run"]["url"] == f"/runs/{run.public_id}/" and view.name == by_kind["View"]["title"]
    assert [entry["title"] for entry in found(client, run.public_id)] == ["learning sums"]
    assert any(entry["url"] == "/runs/new/?preset=pipelinerl" for entry in found(client, "pipelinerl"))
    assert any(entry["title"] == "transport: shared_memory" for entry in found(client, "shared_memory"))
    assert any(entry["kind"] == "Metric" for entry in found(client, "entropy"))
    assert found(client, "")[0]["kind"] == "Run", "an empty question shows the newest runs"
    assert found(client, "\x00no such thing at all") == []
    for entry in found(client, "e"):
        assert client.get(entry["url"].partition("#")[0], follow=True).status_code == 200, entry


def test_another_teams_names_are_not_found(team: Team, other_team: Team, member: Callable[..., User], start: Callable[..., Run]) -> None:
    run = start(team, member(team), name="a secret name")
    client = Client()
    client.force_login(member(other_team, "owner"))
    assert [entry for text in ("secret", run.public_id, "") for entry in found(client, text)] == []
    assert Client().get("/search.json").status_code == 401


def test_the_help_page_names_every_operation(team: Team, member: Callable[..., User]) -> None:
    client = Client()
    client.force_login(member(team))
    text = unescape(client.get("/help/api/").content.decode())
    operations = [item for group in pages.groups() for item in group["operations"]]
    assert len(operations) > 40
    assert all(item["summary"] in text and item["text"] for item in operations)
    assert all(row["text"] and f"<code>{row['name']}</code>" in text for row in pages.commands())
