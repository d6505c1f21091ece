"""The Python client and the command line, against the real application: every call, its refusals, and what is written to disk."""

from __future__ import annotations

import csv
import io
import json
import os
import stat
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import django.test
import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from django.utils import timezone

from headrace import cli
from headrace.api import several
from headrace.client import ApiError, Client, login
from headrace.client import transport as network
from headrace.experiments.models import Run
from headrace.teams import services as teams
from headrace.telemetry import export
from tests.platform_tests.telemetry_rig import Rig, metric, new_rig, push

pytestmark = pytest.mark.django_db

SERVER = "http://127.0.0.1:8700"


@pytest.fixture
def rig() -> Rig:
    return new_rig()


def secret(rig: Rig, scope: str = "write") -> str:
    return teams.issue_api_token(user=rig.user, team=rig.team, name="t", scope=scope)[1]


class InProcess(httpx.BaseTransport):
    """Django's own test client as a network: the same middleware and routes, in the test's transaction."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        headers = {name: value for name, value in request.headers.items() if name not in ("content-length", "content-type", "host")}
        path = request.url.raw_path.decode()
        content_type = request.headers.get("content-type", "application/octet-stream")
        found = django.test.Client(raise_request_exception=False).generic(
            request.method, path, request.read(), content_type=content_type, headers=headers
        )
        body = b"".join(found.streaming_content) if found.streaming else found.content
        return httpx.Response(found.status_code, headers=dict(found.headers), content=body, request=request)


def transport() -> InProcess:
    return InProcess()


@pytest.fixture
def client(rig: Rig) -> Iterator[Client]:
    with Client(SERVER, secret(rig), transport=transport()) as made:
        yield made


@pytest.fixture
def terminal(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    """`headrace` on a machine of its own, whose requests reach this process' application."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    inner = httpx.Client.__init__

    def wired(self: httpx.Client, **options: Any) -> None:
        inner(self, **{**options, "transport": transport()})

    monkeypatch.setattr(network.httpx.Client, "__init__", wired)
    token = tmp_path / "token"
    token.write_text(secret(rig))
    assert cli.main(["login", SERVER, "--token-file", str(token)]) == 0
    return rig


def some_events(rig: Rig) -> None:
    events = [metric(0.1 * step) for step in range(1, 6)]
    push(rig.attempt, [*events, ("log", {"level": "info", "message": "=cmd|' /C calc'!A0 \x1b[31mred"})])


def test_me_projects_presets_and_check(client: Client, rig: Rig) -> None:
    me = client.me()
    assert (me.email, me.team_id, me.scope) == (rig.user.email, rig.team.public_id, "write")
    assert [row.id for row in client.projects()] == [rig.run.project.public_id]
    assert "pipelinerl" in {row["name"] for row in client.presets()}
    assert client.check(preset="demo", set=["seed=9"]).config["seed"] == 9
    with pytest.raises(ApiError) as refused:
        client.check(preset="demo", set=["budget.steps=0"])
    assert refused.value.status == 422 and refused.value.field == "budget.steps"


def test_a_run_is_launched_once_read_edited_and_deleted(client: Client) -> None:
    first = client.launch("mine", preset="demo", set=["budget.steps=2"], key="k", tags=["a"])
    again = client.launch("mine", preset="demo", set=["budget.steps=2"], key="k", tags=["a"])
    assert first.id == again.id and first.state == "queued" and first.steps_total == 2
    assert first.id in {run.id for run in client.runs(limit=500)}
    assert client.edit(first.id, note="a note", tags=["b"]).name == "mine"
    assert Run.unscoped.get(public_id=first.id).note == "a note"
    with pytest.raises(ApiError) as refused:
        client.delete(first.id)
    assert refused.value.status == 409
    assert client.act(first.id, "cancel").state == "cancelled"
    assert client.extend(first.id, steps=5).control["steps"] == 5
    client.delete(first.id)
    with pytest.raises(ApiError) as gone:
        client.run(first.id)
    assert gone.value.status == 404


@pytest.mark.parametrize("action", ["pause", "continue", "stop", "checkpoint"])
def test_a_run_that_is_over_cannot_be_steered(client: Client, action: str) -> None:
    run = client.launch("mine", preset="demo")
    client.act(run.id, "cancel")
    with pytest.raises(ApiError) as refused:
        client.act(run.id, action)
    assert refused.value.status == 409 and refused.value.field == "state"


def test_what_a_running_run_is_asked(client: Client, rig: Rig) -> None:
    some_events(rig)
    run = rig.run.public_id
    push(rig.attempt, [("started", {})], first=7)
    assert client.act(run, "pause").control["pause"] is True
    assert client.act(run, "continue").control["pause"] is False
    assert client.act(run, "checkpoint").control["checkpoint_now"] == 1
    assert client.act(run, "stop").control["stop_after_step"] is True


def test_history_is_read(client: Client, rig: Rig) -> None:
    some_events(rig)
    run = rig.run.public_id
    columns = client.series(run, ["reward/mean"])
    assert columns.series["reward/mean"]["step"] == [1, 2, 3, 4, 5] and columns.through_seq == 6
    assert [event["seq"] for event in client.events(run, after=4).events] == [5, 6]
    assert client.logs(run).logs[0]["message"].startswith("=cmd")
    assert client.samples(run) == [] and client.artifacts(run) == []
    assert client.snapshot(run)["run"]["id"] == run
    compared = client.compare([run, client.launch("other", preset="demo", set=["seed=3"]).id])
    assert compared.differences["seed"][1] == 3
    assert compared.runs[0].results["reward/mean"] == pytest.approx(0.5) and compared.runs[1].results["reward/mean"] is None


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda c, r: c.series(r, []), "names"),
        (lambda c, r: c.series(r, ["a/../b"]), "names"),
        (lambda c, r: c.series(r, ["a"], x="tokens"), "x"),
        (lambda c, r: c.series(r, ["a"], buckets=10**9), "buckets"),
        (lambda c, r: c.samples(r, outcome="nice"), "outcome"),
        (lambda c, r: c.compare([r, "nosuchrun123"]), "runs"),
        (lambda c, r: list(c.runs(state="asleep")), "state"),
        (lambda c, r: c.launch("x", preset="demo", experiment="none"), "experiment"),
        (lambda c, r: c.launch("x", preset="demo", priority=101), "priority"),
        (lambda c, r: c.launch("x", preset="demo", colour="red"), "colour"),
    ],
)
def test_what_cannot_be_answered_names_its_field(client: Client, rig: Rig, call: Any, field: str) -> None:
    with pytest.raises(ApiError) as refused:
        call(client, rig.run.public_id)
    assert refused.value.field == field, refused.value
    assert refused.value.status in (400, 422)


def test_export_is_whole_in_every_format(client: Client, rig: Rig, tmp_path: Path) -> None:
    events = [metric(float(step)) for step in range(1, 6001)]
    for first in range(0, 6000, 1000):
        push(rig.attempt, events[first : first + 1000], first=first + 1)
    push(rig.attempt, [metric("NaN"), ("log", {"level": "info", "message": "=1+1"})], first=6001)
    run = rig.run.public_id
    client.export(run, tmp_path / "series.parquet")
    table = pq.read_table(tmp_path / "series.parquet")
    assert table.num_rows == 6001
    assert (
        table["value"].to_pylist()[:6000] == [float(step) for step in range(1, 6001)]
        and table["value"][6000].as_py() != table["value"][6000].as_py()
    )
    client.export(run, tmp_path / "logs.csv", what="logs", form="csv")
    rows = list(csv.reader(io.StringIO((tmp_path / "logs.csv").read_text())))
    assert rows[0][-1] == "message" and rows[1][-1] == "'=1+1", "a spreadsheet must not run what a run wrote"
    client.export(run, tmp_path / "events.jsonl", what="events", form="jsonl")
    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [line["seq"] for line in lines] == list(range(1, 6003))
    client.export(run, tmp_path / "samples.csv", what="samples", form="csv")
    assert (tmp_path / "samples.csv").read_text().startswith("attempt,seq,time,step")
    assert list(tmp_path.glob("*.part")) == []


def test_a_refused_export_leaves_no_file(client: Client, rig: Rig, tmp_path: Path) -> None:
    with pytest.raises(ApiError):
        client.export("nosuchrun123", tmp_path / "x.parquet")
    assert list(tmp_path.iterdir()) == []


def test_a_reading_token_changes_nothing(rig: Rig) -> None:
    with Client(SERVER, secret(rig, "read"), transport=transport()) as reader:
        assert reader.run(rig.run.public_id).id == rig.run.public_id
        for act in (
            lambda: reader.launch("x", preset="demo"),
            lambda: reader.act(rig.run.public_id, "cancel"),
            lambda: reader.edit(rig.run.public_id, name="y"),
        ):
            with pytest.raises(ApiError) as refused:
                act()
            assert refused.value.status == 403


def test_a_server_that_is_away_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network.time, "sleep", lambda seconds: None)

    def fail(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with Client(SERVER, "hra_x", transport=httpx.MockTransport(fail)) as away, pytest.raises(ApiError) as refused:
        away.me()
    assert refused.value.status == 0 and refused.value.retryable and refused.value.field == "server"


# --- the command line


def test_the_login_is_private_and_forgotten(terminal: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    assert stat.S_IMODE(os.stat(login.path()).st_mode) == 0o600
    assert "hra_" not in repr(login.read())
    assert cli.main(["whoami"]) == 0
    assert terminal.user.email in capsys.readouterr().out
    assert cli.main(["logout"]) == 0 and cli.main(["whoami"]) == 2
    assert "headrace login" in capsys.readouterr().err


def test_launch_show_compare_cancel_and_export(terminal: Rig, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert (
        cli.main(
            ["launch", "--preset", "demo", "--set", "budget.steps=2", "--seeds", "1,2", "--name", "pair", "--group", "g", "--key", "k"]
        )
        == 0
    )
    ids = [line.split()[0] for line in capsys.readouterr().out.splitlines() if "/runs/" in line]
    assert len(ids) == 2 and Run.unscoped.filter(group="g").count() == 2
    assert (
        cli.main(
            ["launch", "--preset", "demo", "--set", "budget.steps=2", "--seeds", "1,2", "--name", "pair", "--group", "g", "--key", "k"]
        )
        == 0
    )
    assert Run.unscoped.filter(group="g").count() == 2, "the same key starts nothing"
    capsys.readouterr()
    assert cli.main(["show", ids[0]]) == 0 and "queued" in capsys.readouterr().out
    assert cli.main(["compare", *ids]) == 0
    said = capsys.readouterr().out
    assert "seed" in said and f"/compare/?runs={ids[0]},{ids[1]}" in said and "no data" in said
    assert cli.main(["cancel", ids[0]]) == 0 and cli.main(["watch", ids[0]]) == 1
    assert "cancelled" in capsys.readouterr().out
    assert cli.main(["runs", "--state", "cancelled"]) == 0 and ids[0] in capsys.readouterr().out
    assert cli.main(["export", ids[0], "--format", "csv"]) == 0 and (tmp_path / f"{ids[0]}-series.csv").is_file()
    assert cli.main(["export", ids[0], "--format", "csv"]) == 2, "nothing is overwritten"
    assert cli.main(["export", ids[0], "--what", "logs", "--out", str(tmp_path / "named.csv")]) == 0
    assert (tmp_path / "named.csv").read_bytes()[:4] != b"PAR1", "the ending of --out says the format"
    capsys.readouterr()
    assert cli.main(["ask", ids[0], "3 + 5 ="]) != 0 and "no such checkpoint" in capsys.readouterr().err


def test_tail_shows_no_control_characters(terminal: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    some_events(terminal)
    assert cli.main(["tail", terminal.run.public_id]) == 0
    said = capsys.readouterr().out
    assert "red" in said and "\x1b" not in said


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (["launch", "--set", "budget.steps=0"], 1, "budget.steps"),
        (["launch", "--seeds", "a,b"], 2, "seeds"),
        (["show", "nosuchrun123"], 1, "no such thing"),
        (["tail", "x", "--level", "loud"], 2, "level"),
        (["nonsense"], 2, "nonsense"),
        (["login"], 2, "server"),
    ],
)
def test_faults_are_told_in_a_line(terminal: Rig, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, word: str) -> None:
    assert cli.main(arguments) == code
    told = capsys.readouterr()
    assert word in told.err and "Traceback" not in told.err


# --- several runs


def test_a_sweep_is_started_once_read_and_cancelled(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {
        "preset": "demo",
        "set": ["budget.steps=2"],
        "seeds": [1, 2],
        "axes": {"optimizer.learning_rate": [1e-4, 2e-4]},
        "key": "s",
    }
    sweep = client.start_sweep("grid", **asked)
    assert client.start_sweep("grid", **asked).id == sweep.id
    assert len(sweep.runs) == 4 and {run.id for run in client.runs(group=sweep.id)} == {run.id for run in sweep.runs}
    assert {entry["run"]["id"] for entry in client.queue().waiting} >= {run.id for run in sweep.runs}
    monkeypatch.setattr(several, "MOST", 1)
    last = sweep.runs[0].id
    Run.unscoped.filter(public_id=last).update(priority=5, created_at=timezone.now() - timedelta(days=1))
    assert [entry["run"]["id"] for entry in client.queue().waiting] == [last], "the first to start, not the newest"
    assert {run.state for run in client.act_on_sweep(sweep.id, "cancel").runs} == {"cancelled"}
    with pytest.raises(ApiError) as refused:
        client.start_sweep("wrong", preset="demo", axes={"optimizer.nothing": [1]})
    assert "optimizer.nothing" in str(refused.value)


def test_runs_are_found_by_query(client: Client, rig: Rig) -> None:
    tagged = client.launch("tagged", preset="demo", tags=["keep"])
    assert [run.id for run in client.runs("tag:keep")] == [tagged.id]
    with pytest.raises(ApiError) as refused:
        list(client.runs("tag:keep and ("))
    assert refused.value.status == 400


def test_a_race_is_started_read_reported_and_cancelled(client: Client, tmp_path: Path) -> None:
    spec = {
        "contenders": [{"preset": "pipelinerl", "label": "a"}, {"preset": "trl-sync", "label": "b"}],
        "seeds": [1, 2],
        "stop": {"kind": "samples", "value": 64},
    }
    race = client.start_race("two designs", spec, key="r")
    assert client.start_race("two designs", spec, key="r").id == race.id and race.live["total"] == 4
    assert [row.id for row in client.races()] == [race.id]
    assert client.report(race.id, tmp_path / "r.html") > 1000 and "two designs" in (tmp_path / "r.html").read_text()
    assert client.report(race.id, tmp_path / "r.csv") > 0
    assert client.act_on_race(race.id, "pause").state == "paused"
    assert client.act_on_race(race.id, "cancel").state in ("stopping", "cancelled")
    with pytest.raises(ApiError) as refused:
        client.start_race("one", {**spec, "contenders": spec["contenders"][:1]})
    assert refused.value.status == 422 and "contenders" in str(refused.value)


def test_views_are_saved_listed_and_deleted(client: Client) -> None:
    view = client.save_view("runs", "good ones", "q=reward%3E0.5")
    assert [row.name for row in client.views("runs")] == ["good ones"] and client.views("compare") == []
    client.delete_view(view.id)
    assert client.views() == []


def test_a_reading_token_starts_nothing_either(rig: Rig) -> None:
    with Client(SERVER, secret(rig, "read"), transport=transport()) as reader:
        assert reader.races() == [] and reader.views() == [] and reader.queue().running == []
        for act in (
            lambda: reader.start_sweep("x", preset="demo", seeds=[1]),
            lambda: reader.start_race("x", {}),
            lambda: reader.save_view("runs", "x", ""),
        ):
            with pytest.raises(ApiError) as refused:
                act()
            assert refused.value.status == 403


def test_long_texts_are_exported_in_pieces_of_bounded_size() -> None:
    batch = pa.RecordBatch.from_pydict({"text": ["x" * 40_000] * 500})
    sizes = [sum(part.nbytes for part in group) for group in export._gathered(iter([batch] * 9))]
    assert len(sizes) == 9 and sum(sizes) == 9 * batch.nbytes
    small = pa.RecordBatch.from_pydict({"text": ["x"] * 500})
    assert len(list(export._gathered(iter([small] * 9)))) == 1


@pytest.mark.parametrize(("error", "sent"), [(httpx.ReadTimeout, 1), (httpx.RemoteProtocolError, 1), (httpx.ConnectError, network.RETRIES)])
def test_what_would_act_twice_is_not_sent_again_once_it_may_have_arrived(
    error: type[httpx.TransportError], sent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network.time, "sleep", lambda seconds: None)
    asked: list[str] = []

    def lost(request: httpx.Request) -> httpx.Response:
        asked.append(request.method)
        raise error("lost")

    with Client(SERVER, "hra_x", transport=httpx.MockTransport(lost)) as client:
        acts = (lambda: client.act("a", "checkpoint"), lambda: client.ask("a", ["1+1"]), lambda: client.delete("a"))
        for act in acts:
            asked.clear()
            with pytest.raises(ApiError):
                act()
            assert len(asked) == sent
        asked.clear()
        with pytest.raises(ApiError):
            client.launch("mine")
        assert len(asked) == network.RETRIES, "it carries a key"
