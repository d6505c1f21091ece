"""What keeps pages quick: queries that do not grow with rows, compressed data, static names by content."""

from __future__ import annotations

import gzip
import json
import re
import secrets
import subprocess
import sys
from pathlib import Path

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from headrace.compare import services as views
from headrace.compare.models import SavedView
from headrace.experiments import services as runs
from headrace.experiments.models import Project
from headrace.teams import audit, invitations
from headrace.teams import services as teams
from headrace.teams.models import Membership, Role, User
from tests.platform_tests import race_rig
from tests.platform_tests.telemetry_rig import Rig, new_rig
from workers.contract import loading

ROOT = Path(__file__).resolve().parents[2]
LISTS = (
    *("/runs/", "/queue/", "/races/", "/views/", "/alerts/", "/compare/", "/account/", "/team/", "/team/invitations/", "/team/tokens/"),
    *("/team/projects/", "/team/audit/", "/team/storage/", "/search.json?q=a", "/api/v1/runs"),
)


def _more(rig: Rig, first: int, count: int) -> None:
    """Rows of every kind that the lists show."""
    project = Project.unscoped.get(team=rig.team, slug="p")
    for number in range(first, first + count):
        config = runs.create_config(rig.team, loading.resolve(None, None, [f"seed={number}"]))
        name = f"a run {number}"
        run = runs.start_run(team=rig.team, user=rig.user, config=config, project=project, name=name, idempotency_key=name, tags=["a"])
        user = User.objects.create_user(f"{rig.team.slug}-{number}@example.org", name=f"a {number}")
        Membership.objects.create(team=rig.team, user=user, role=Role.MEMBER)
        invitations.invite(by=rig.user, team=rig.team, email=f"new-{number}@example.org")
        teams.issue_api_token(user=rig.user, team=rig.team, name=f"a {number}")
        views.save_view(rig.team, rig.user, page=SavedView.Page.RUNS, name=f"a view {number}", query=f"q=seed:{number}")
        Project.objects.create(team=rig.team, name=f"a {number}", slug=f"a-{number}")
        race_rig.make(rig.team, rig.user, key=f"race-{number}")
        audit.record("run.edit", user=user, team=rig.team, obj=run)


def _queries(client: Client, path: str) -> int:
    client.get(path)  # whatever is read once and kept
    with CaptureQueriesContext(connection) as caught:
        assert client.get(path).status_code == 200, path
    return len(caught)


@pytest.mark.django_db
def test_queries_of_a_page_do_not_grow_with_its_rows(client: Client) -> None:
    rig = new_rig()
    _more(rig, 0, 2)
    client.force_login(rig.user)
    few = {path: _queries(client, path) for path in LISTS}
    _more(rig, 2, 8)
    many = {path: _queries(client, path) for path in LISTS}
    assert {path: (few[path], many[path]) for path in LISTS if many[path] > few[path] + 1} == {}
    assert max(many.values()) <= 40, many


@pytest.mark.django_db
def test_data_is_sent_compressed_and_pages_are_not(client: Client) -> None:
    rig = new_rig()
    _more(rig, 0, 3)
    client.force_login(rig.user)
    address = "/search.json?q=a"
    plain = client.get(address)
    packed = client.get(address, headers={"accept-encoding": "gzip, br"})
    assert packed["Content-Encoding"] == "gzip" and int(packed["Content-Length"]) == len(packed.content) < len(plain.content)
    assert json.loads(gzip.decompress(packed.content)) == plain.json()
    assert "Accept-Encoding" in plain["Vary"] and "Content-Encoding" not in plain
    assert "Content-Encoding" not in client.get("/runs/", headers={"accept-encoding": "gzip"})


def test_collected_files_are_named_by_content_and_lead_to_one_another(tmp_path: Path) -> None:
    env = {"HEADRACE_DATA_DIR": str(tmp_path), "HEADRACE_SECRET_KEY": secrets.token_urlsafe(64), "HEADRACE_STATIC_COLLECTED": "1"}
    env |= {"DJANGO_SETTINGS_MODULE": "headrace.settings", "PYTHONPATH": f"{ROOT}:{ROOT / 'platform'}", "PATH": ""}
    command = [sys.executable, "-m", "django", "collectstatic", "--noinput", "--verbosity", "0"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    scripts = [path for path in (tmp_path / "static" / "js").rglob("*.js") if re.search(r"\.[0-9a-f]{12}\.js$", path.name)]
    leads = [(path, name) for path in scripts for name in re.findall(r"""["'](\.{1,2}/[^"']+\.js)["']""", path.read_text())]
    assert len(scripts) > 40 and len(leads) > 100
    assert [(path.name, name) for path, name in leads if not re.search(r"\.[0-9a-f]{12}\.js$", name)] == []
    assert [(path.name, name) for path, name in leads if not (path.parent / name).is_file()] == []
    assert all(path.with_name(f"{path.name}.gz").is_file() for path in scripts if path.stat().st_size > 2000)
