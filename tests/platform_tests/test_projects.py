"""Projects and experiments: made, renamed, described, archived, by those who may; those of other teams do not exist."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.test import Client

from headrace.experiments import projects, selectors
from headrace.experiments.models import Experiment, Project, Run
from headrace.experiments.problems import BadInput, WrongState
from headrace.teams.models import Role, Team, User
from headrace.teams.services import NotAllowed

pytestmark = pytest.mark.django_db
Member = Callable[..., User]


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def test_a_project_through_its_life(team: Team, member: Member, start: Callable[..., Run]) -> None:
    user = member(team, Role.MAINTAINER)
    start(team, user)
    browser = signed_in(user)
    address = browser.post("/team/projects/", {"name": "Sums", "note": "two\r\nlines"})["Location"]
    row = Project.objects.for_team(team).get(name="Sums")
    assert row.slug == "sums" and row.note == "two\nlines" and address == f"/team/projects/{row.public_id}/"
    assert browser.post("/team/projects/", {"name": "sUMS"}).status_code == 422
    assert browser.post("/team/projects/", {"name": "a\u200bb"}).status_code == 422
    assert browser.post(address, {"save": "1", "name": "Products", "note": ""}).status_code == 302
    row.refresh_from_db()
    assert (row.name, row.slug, row.note) == ("Products", "sums", "")
    assert browser.post(address, {"save": "1", "name": ""}).status_code == 422
    assert browser.post(address, {"create": "1", "new-name": "Clip?", "new-note": "n"}).status_code == 302
    assert browser.post(address, {"create": "1", "new-name": "clip?"}).status_code == 422
    assert "Clip?" in browser.get("/team/projects/").content.decode()
    browser.post(f"{address}archive/", {"archived": "1"})
    assert "Products" not in browser.get("/team/projects/").content.decode()
    assert "Products" in browser.get("/team/projects/?archived=1").content.decode()
    assert not selectors.projects_for(user, team).filter(pk=row.pk).exists()
    browser.post(f"{address}archive/", {"archived": "0"})
    assert selectors.projects_for(user, team).filter(pk=row.pk).exists()


def test_members_make_experiments_and_edit_their_own(team: Team, member: Member) -> None:
    user, other, viewer = member(team), member(team), member(team, Role.VIEWER)
    project = Project.objects.create(team=team, name="P", slug="p")
    address = f"/team/projects/{project.public_id}/"
    assert signed_in(viewer).post(address, {"create": "1", "new-name": "E"}).status_code == 403
    assert signed_in(user).post(address, {"save": "1", "name": "mine"}).status_code == 403
    assert signed_in(user).post(address, {"create": "1", "new-name": "E"}).status_code == 302
    row = Experiment.objects.for_team(team).get()
    place = f"{address}experiments/{row.public_id}/"
    assert signed_in(other).get(place).status_code == 403
    assert signed_in(other).post(f"{place}archive/", {"archived": "1"}).status_code == 403
    assert signed_in(user).post(place, {"name": "F", "note": "why"}).status_code == 302
    row.refresh_from_db()
    assert (row.name, row.note) == ("F", "why")
    assert signed_in(user).post(place, {"name": ""}).status_code == 422
    assert signed_in(user).post(f"{place}archive/", {"archived": "1"}).status_code == 302
    row.refresh_from_db()
    assert row.archived_at
    with pytest.raises(NotAllowed):
        projects.create_experiment(project=project, user=viewer, name="x")


def test_those_of_other_teams_do_not_exist(team: Team, other_team: Team, member: Member) -> None:
    owner = signed_in(member(other_team, Role.OWNER))
    project = Project.objects.create(team=team, name="P", slug="p")
    row = Experiment.objects.create(team=team, project=project, name="E")
    address = f"/team/projects/{project.public_id}/"
    for place in (
        address,
        f"{address}archive/",
        f"{address}experiments/{row.public_id}/",
        f"{address}experiments/{row.public_id}/archive/",
    ):
        assert owner.post(place, {"name": "x", "archived": "1", "save": "1"}).status_code == 404
    project.refresh_from_db()
    assert project.name == "P" and project.archived_at is None


def test_the_last_project_stays_and_slugs_do_not_meet(team: Team, member: Member) -> None:
    user = member(team, Role.MAINTAINER)
    first = projects.create_project(team=team, user=user, name="Über!")
    with pytest.raises(WrongState):
        projects.archive_project(first, user)
    assert first.slug == "uber"
    assert projects.create_project(team=team, user=user, name="uber").slug == "uber-2"
    assert projects.create_project(team=team, user=user, name="日本").slug == "project"
    with pytest.raises(BadInput):
        projects.create_project(team=team, user=user, name="x" * 201)


def test_counts_leave_deleted_runs_out(
    team: Team, member: Member, start: Callable[..., Run], django_assert_num_queries: Callable[..., object]
) -> None:
    user = member(team, Role.MAINTAINER)
    run = start(team, user)
    start(team, user)
    Run.unscoped.filter(pk=run.pk).update(deleted_at=run.created_at)
    with django_assert_num_queries(2):  # type: ignore[attr-defined]
        assert [folder.project.run_count for folder in projects.folders(user, team)] == [1]  # type: ignore[attr-defined]
