"""The bad inputs that reach the web, by their numbers: each is refused with the field, the value and a cure, and nothing is half made.

COVERED names the tests of those that other files hold; the rest is here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.cache import cache
from django.test import Client
from django.utils import timezone

from headrace.experiments import services
from headrace.experiments.models import Config, Run
from headrace.teams.models import ApiToken, AuditEvent
from headrace.telemetry.models import EventBatch
from tests.platform_tests.telemetry_rig import Rig, document, metric, new_rig, push

pytestmark = pytest.mark.django_db

HERE = Path(__file__).parent
COVERED = {
    11: ["test_telemetry_ingest.py::test_non_finite_values_are_stored_exactly"],
    12: ["test_telemetry_ingest.py::test_a_repeat_is_stored_once_and_answers_the_mark"],
    15: ["test_telemetry_ingest.py::test_the_names_of_a_run_are_limited"],
    20: ["../e2e/test_injection.py::test_every_page_shows_them_as_text"],
    21: ["test_table.py::test_cells_never_begin_a_formula"],
    22: ["../e2e/test_injection.py::test_every_page_shows_them_as_text"],
    28: ["test_telemetry_ingest.py::test_decompression_is_bounded"],
    30: ["test_artifacts.py::test_a_link_out_of_the_folder_is_not_followed"],
    43: ["test_artifacts.py::test_a_path_outside_the_runs_folder_is_not_believed"],
    45: ["test_artifacts.py::test_verify_finds_a_changed_byte_and_a_missing_file"],
    46: ["test_alerts_delivery.py::test_public_addresses"],
    47: ["test_alerts_delivery.py::test_where_a_name_leads_is_looked_at_when_it_is_connected_to"],
    48: ["test_alerts_delivery.py::test_a_redirect_is_not_followed_and_an_endless_reply_is_left"],
    49: ["test_alerts_delivery.py::test_addresses_that_are_refused_when_they_are_given"],
    50: ["test_alerts_delivery.py::test_an_endless_reply_to_apprise_ends"],
    51: ["test_matrix.py::test_another_teams_things_do_not_exist"],
    52: ["test_telemetry_ingest.py::test_a_gap_names_the_expected_seq", "test_socket_run.py::test_what_a_client_sends_is_ignored"],
    53: ["test_doors.py::test_sockets_of_another_origin_are_refused"],
}


@pytest.fixture
def rig() -> Iterator[Rig]:
    cache.clear()
    yield new_rig()
    cache.clear()


def token(rig: Rig, scope: str = "write") -> dict[str, str]:
    from headrace.teams.services import issue_api_token

    return {"Authorization": f"Bearer {issue_api_token(user=rig.user, team=rig.team, name='t', scope=scope)[1]}"}


def send(rig: Rig, path: str, body: Any, method: str = "post", **headers: str) -> Any:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    client = Client(raise_request_exception=False)
    return getattr(client, method)(f"/api/v1{path}", data=data, content_type="application/json", headers={**token(rig), **headers})


def ship(rig: Rig, body: Any, **headers: str) -> Any:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    kind = headers.pop("kind", "application/json")
    own = {"Authorization": f"Bearer {rig.token}", **headers}
    path = f"/api/v1/attempts/{rig.attempt.public_id}/events"
    return Client(raise_request_exception=False).post(path, data=data, content_type=kind, headers=own)


def run_body(**changes: Any) -> dict[str, Any]:
    return {"name": "n", "config": {"preset": "demo", "budget": {"steps": 2}}, "idempotency_key": "k", **changes}


def test_what_is_covered_elsewhere_is_there() -> None:
    for number, places in COVERED.items():
        for place in places:
            file, _, name = place.partition("::")
            assert re.search(rf"def {name}\b", (HERE / file).read_text()), (number, place)


# --- numbers (1 to 10)

NUMBERS: list[tuple[int, str, str]] = [
    (1, "optimizer.learning_rate", "NaN"),
    (2, "optimizer.learning_rate", "Infinity"),
    (2, "optimizer.learning_rate", "-1"),
    (3, "budget.steps", "0"),
    (3, "budget.steps", "-5"),
    (3, "budget.steps", str(2**63)),
    (4, "optimizer.learning_rate", "1e400"),
    (6, "batch.group_size", "0"),
    (9, "budget.steps", '"8"'),
    (9, "budget.steps", "true"),
    (10, "budget.steps", "0.1"),
    (10, "batch.group_size", "2.5"),
]


@pytest.mark.parametrize("number, field, value", NUMBERS)
@pytest.mark.parametrize("path", ["/runs", "/config/check"])
def test_a_number_that_cannot_be_is_named(rig: Rig, path: str, number: int, field: str, value: str) -> None:
    block, _, name = field.partition(".")
    wanted = '{"name": "n", "idempotency_key": "k", ' if path == "/runs" else "{"
    answer = send(rig, path, (wanted + f'"config": {{"preset": "demo", "{block}": {{"{name}": {value}}}}}}}').encode())
    assert answer.status_code == 422, answer.content
    fault = next(row for row in answer.json()["problems"] if row["field"] == field)
    assert fault["cure"] and fault["message"] and fault["value"] is not None
    assert (Run.unscoped.count(), Config.unscoped.count()) == (1, 1)


def test_settings_that_contradict_each_other_are_named(rig: Rig) -> None:
    """5: a batch that is no multiple of its group. 7: a staleness below none."""
    for changes, part in (({"batch": {"samples": 10, "group_size": 4}}, "batch"), ({"buffer": {"max_staleness": -1}}, "buffer")):
        answer = send(rig, "/config/check", {"config": changes, "preset": "demo"})
        assert answer.status_code == 422
        assert any((row["field"] or "").startswith(part) and row["cure"] for row in answer.json()["problems"]), answer.json()


# --- metrics (13, 14, 16)


@pytest.mark.parametrize("name", ["a" * 200, "a/../b", "", "reward mean", "<script>", "\x00", "../../etc/passwd"])
def test_a_series_name_that_cannot_be_is_named(rig: Rig, name: str) -> None:
    """14"""
    answer = ship(rig, document([metric(1.0), metric(1.0, name)]))
    told = answer.json()
    assert answer.status_code == 422 and told["field"].startswith("data.1") and told["cure"]
    assert EventBatch.unscoped.count() == 0


@pytest.mark.parametrize("t", [-1e300, 1e300, 253_402_300_800.0, "now", None])
def test_a_time_outside_the_calendar_is_named(rig: Rig, t: Any) -> None:
    """16"""
    answer = ship(rig, {**document([metric(1.0)]), "t": [t]})
    assert answer.status_code == 422, answer.content
    assert answer.json()["field"].startswith("t") and EventBatch.unscoped.count() == 0


# --- text (17 to 19)

TEXTS: list[tuple[int, str]] = [
    (17, ""),
    (17, " \t "),
    (18, "x" * 10_000_000),
    (18, "x" * 201),
    (19, "nul\x00"),
    (19, "lone \ud800"),
    (19, "\u202egnp.exe"),
    (19, "ad\u200bmin"),
    (19, "bell\x07"),
]


@pytest.mark.parametrize("number, text", TEXTS)
def test_a_name_that_cannot_be_is_named(rig: Rig, number: int, text: str) -> None:
    for path, body in (("/runs", run_body(name=text)), ("/views", {"page": "runs", "name": text}), ("/uploads", run_body(name=text))):
        answer = send(rig, path, body)
        told = answer.json()
        assert answer.status_code in (400, 422) and told["field"] == "name" and told["cure"], (path, told)
        assert len(answer.content) < 2000, "a value is told, not given back whole"
    assert send(rig, f"/runs/{rig.run.public_id}", {"name": text}, "patch").status_code in (400, 422)
    assert (Run.unscoped.count(), Run.unscoped.get().name) == (1, rig.run.name)


def test_tags_and_notes_are_bounded(rig: Rig) -> None:
    for field, value in (("tags", ["t"] * 100), ("tags", ["x" * 1000]), ("tags", ["a\u202eb"]), ("note", "x" * 100_000), ("note", "\x00")):
        answer = send(rig, f"/runs/{rig.run.public_id}", {field: value}, "patch")
        assert answer.status_code in (400, 422) and str(answer.json()["field"]).startswith(field[:3]), (field, answer.content[:200])
    rig.run.refresh_from_db()
    assert (rig.run.tags, rig.run.note) == ([], "")


# --- bodies (25 to 28, 55)


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'{"name": "\xe9"}', b"[" * 100_000, b'{"config":' * 100_000, b'{"name": 1' + b"0" * 5000 + b"}"],
    ids=["empty", "cut short", "list", "null", "latin-1", "deep", "deep objects", "long number"],
)
def test_a_body_that_is_none_is_named(rig: Rig, body: bytes) -> None:
    for answer in (send(rig, "/runs", body), send(rig, "/config/check", body), ship(rig, body)):
        assert answer.status_code in (400, 422), (answer.status_code, answer.content[:300])
        told = answer.json()
        assert told["message"] and told["cure"]
    assert Run.unscoped.count() == 1 and EventBatch.unscoped.count() == 0


def test_a_wrong_content_type_is_no_form(rig: Rig) -> None:
    """55: a driver's JSON counts whatever it is called; a form is no JSON, and a page's form takes none."""
    assert ship(rig, b"a=1&b=2", kind="application/x-www-form-urlencoded").status_code == 400
    assert ship(rig, b"x", kind="multipart/form-data; boundary=x").status_code == 400
    client = Client(raise_request_exception=False)
    client.force_login(rig.user)
    answer = client.post(f"/runs/{rig.run.public_id}/edit/", data='{"name": "x"}', content_type="application/json")
    assert answer.status_code in (200, 422)
    rig.run.refresh_from_db()
    assert rig.run.name != "x"


def test_a_body_that_says_it_is_short_is_not_read_beyond_its_bound(rig: Rig) -> None:
    """55: a chunked bomb has no length, or a false one."""
    answer = ship(rig, b" " * (17 * 1024 * 1024))
    assert answer.status_code == 413 and answer.json()["field"] == "body" and answer.json()["cure"]
    assert send(rig, "/runs", run_body(note="x" * (17 * 1024 * 1024))).status_code in (400, 413, 422)
    assert Run.unscoped.count() == 1


def test_a_header_with_an_underscore_is_not_the_one_with_a_dash(rig: Rig) -> None:
    """55: `HTTP_X_FORWARDED_PROTO` style doubles never stand for credentials."""
    client = Client(raise_request_exception=False, headers={})
    secret = token(rig)["Authorization"]
    assert client.get("/api/v1/me", headers={"Proxy-Authorization": secret}).status_code == 401
    assert client.get("/api/v1/me", headers={"Authorization": f"{secret}, {secret}"}).status_code == 401
    assert client.get("/api/v1/me", headers={"Authorization": f"Basic {secret}"}).status_code == 401


# --- paths and queries (43, 56)

ODD_IDS = ["..%2f..%2fetc%2fpasswd", "%2e%2e", "a%00b", "%ff", "a" * 5000, "-1", "1e9", "%F0%9F%92%A9", "abcdefghijkl%0d%0aX: y"]


@pytest.mark.parametrize("odd", ODD_IDS)
def test_an_odd_id_is_one_that_never_was(rig: Rig, odd: str) -> None:
    client = Client(raise_request_exception=False)
    client.force_login(rig.user)
    for address in (
        "/runs/{}/",
        "/runs/{}/snapshot.json",
        "/races/{}/",
        "/sweeps/{}/",
        "/views/{}/",
        "/api/v1/runs/{}",
        "/api/v1/races/{}",
    ):
        assert client.get(address.format(odd)).status_code in (400, 404), address


PAGES: list[tuple[str, str]] = [
    ("/api/v1/runs?limit=1000000000", "limit"),
    ("/api/v1/runs?limit=-1", "limit"),
    ("/api/v1/runs?limit=x", "limit"),
    ("/api/v1/runs?before=yesterday", "before"),
    ("/api/v1/runs?state=asleep", "state"),
    ("/api/v1/runs?query=nonsense>>3", "query"),
    ("/api/v1/races?limit=1000000000", "limit"),
    ("/api/v1/runs/{run}/samples?limit=1000000000", "limit"),
    ("/api/v1/runs/{run}/samples?outcome=eaten", "outcome"),
    ("/api/v1/runs/{run}/events?after=-1", "after"),
    ("/api/v1/runs/{run}/events?limit=1000000000", "limit"),
    ("/api/v1/runs/{run}/logs?attempt=99999999999999999999", "attempt"),
    ("/api/v1/runs/{run}/series?names=a&x=colour", "x"),
    ("/api/v1/runs/{run}/series?names=a&buckets=1000000000", "buckets"),
    ("/api/v1/runs/{run}/series?names=a&from=nan", "from"),
    ("/api/v1/runs/{run}/series?names=a/../b", "names"),
    ("/api/v1/runs/{run}/export?format=exe", "format"),
    ("/runs/{run}/series.json?names=a&buckets=1000000000", "buckets"),
    ("/runs/{run}/samples.json?limit=1000000000", "limit"),
    ("/runs/{run}/samples.json?sort=colour", "sort"),
    ("/runs/{run}/logs.json?level=loud", "level"),
    ("/runs/{run}/then.json?t=nan", "t"),
    ("/runs/{run}/then.json?t=1e300", "t"),
]


@pytest.mark.parametrize("address, field", PAGES)
def test_a_query_that_cannot_be_is_named(rig: Rig, address: str, field: str) -> None:
    """56"""
    client = Client(raise_request_exception=False)
    client.force_login(rig.user)
    answer = client.get(address.format(run=rig.run.public_id))
    assert answer.status_code in (400, 422), (answer.status_code, answer.content[:200])
    told = answer.json()
    assert str(told["field"]).endswith(field) and told["cure"], told


@pytest.mark.parametrize(
    "query", ["page=1000000000", "page=-1", "page=x", "page=%00", "q=%00", "q=" + "(" * 5000, "sort=colour", "cols=a,b,,c"]
)
def test_a_page_number_or_filter_that_cannot_be_is_forgiven(rig: Rig, query: str) -> None:
    """56: pages show what there is; they never fail and never grow."""
    client = Client(raise_request_exception=False)
    client.force_login(rig.user)
    for address in ("/runs/", "/alerts/", "/races/", "/team/audit/", "/search.json", "/compare/", "/queue/", "/views/"):
        assert client.get(f"{address}?{query}").status_code in (200, 400, 404, 422), address


# --- tokens (54), editions (57), what is over (58)


def test_a_token_that_is_over_is_none(rig: Rig) -> None:
    """54"""
    headers = token(rig)
    row = ApiToken.unscoped.latest("pk")
    me = "/api/v1/me"
    for spoiled in ({"expires_at": timezone.now() - timedelta(seconds=1)}, {"revoked_at": timezone.now()}):
        assert Client().get(me, headers=headers).status_code == 200
        before = {name: getattr(row, name) for name in spoiled}
        ApiToken.unscoped.filter(pk=row.pk).update(**spoiled)
        answer = Client().get(me, headers=headers)
        assert answer.status_code == 401 and answer.json()["cure"] and answer["WWW-Authenticate"] == "Bearer"
        ApiToken.unscoped.filter(pk=row.pk).update(**before)
    reading = send(rig, "/runs", run_body(), Authorization=token(rig, "read")["Authorization"])
    assert reading.status_code == 403 and reading.json()["cure"]
    assert Client().get(f"{me}?token={headers['Authorization'][7:]}").status_code == 401, "never in the address"


def test_an_edit_of_an_older_edition_is_refused(rig: Rig) -> None:
    """57: by API and by form; what was typed is kept, and saving again is a decision."""
    path = f"/runs/{rig.run.public_id}"
    read = Client().get(f"/api/v1{path}", headers=token(rig)).json()["version"]
    assert send(rig, path, {"note": "mine", "version": read}, "patch").status_code == 200
    late = send(rig, path, {"note": "theirs", "version": read}, "patch")
    assert (late.status_code, late.json()["field"], late.json()["value"]) == (409, "version", repr(read)) and late.json()["cure"]
    rig.run.refresh_from_db()
    assert rig.run.note == "mine"
    assert send(rig, path, {"note": "without"}, "patch").status_code == 200, "who names no edition means what it says"
    browser = Client()
    browser.force_login(rig.user)
    form = {"name": "new", "tags": "", "note": "typed", "version": read}
    answer = browser.post(f"{path}/edit/", form)
    page = answer.content.decode()
    assert answer.status_code == 409 and "typed" in page and read not in page
    again = re.search(r'name="version" value="(\w+)"', page)
    assert again and browser.post(f"{path}/edit/", {**form, "version": again[1]}).status_code == 302
    rig.run.refresh_from_db()
    assert (rig.run.name, rig.run.note) == ("new", "typed")


def test_cancelling_what_is_over_changes_nothing(rig: Rig) -> None:
    """58"""
    push(rig.attempt, [("started", {"resumed_from": None}), ("finished", {"outcome": "succeeded", "cause": None, "summary": {}})])
    before = Run.unscoped.filter(pk=rig.run.pk).values().get()
    trail = AuditEvent.unscoped.count()
    answer = send(rig, f"/runs/{rig.run.public_id}/cancel", {})
    assert answer.status_code == 200 and answer.json()["state"] == "succeeded"
    assert services.cancel_run(Run.unscoped.get(pk=rig.run.pk), rig.user) is False
    assert Run.unscoped.filter(pk=rig.run.pk).values().get() == before
    assert AuditEvent.unscoped.exclude(action__startswith="token.").count() == trail
