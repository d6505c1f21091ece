"""Rules: when they fire and resolve, live and in the dry run; who may; what they do to a run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from headrace.alerts import deliver, dryrun, firing, kinds, services, silence, watch
from headrace.alerts.kinds import Point, firings, parse
from headrace.alerts.models import Alert, AlertDelivery, AlertRule
from headrace.alerts.sealing import seal
from headrace.experiments import lifecycle
from headrace.experiments.models import Run
from headrace.experiments.problems import BadInput
from headrace.teams.models import Membership, Role, User
from headrace.teams.services import NotAllowed
from headrace.telemetry.codec import Columns
from headrace.telemetry.ingest import ingest
from headrace.telemetry.models import Series
from tests.platform_tests.telemetry_rig import Rig, new_rig, push

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _fresh_rules() -> Iterator[None]:
    watch._kept.clear()
    yield
    watch._kept.clear()


@pytest.fixture
def rig() -> Rig:
    made = new_rig()
    push(made.attempt, [("started", {"provenance": {}})])
    made.run.refresh_from_db()
    return made


def rule(rig: Rig, kind: str = "threshold", options: dict[str, Any] | None = None, **fields: Any) -> AlertRule:
    given = {
        "name": f"rule {AlertRule.objects.for_team(rig.team).count()}",
        "kind": kind,
        "options": options or {},
        "enabled": True,
        **fields,
    }
    return services.save_rule(rig.team, rig.user, given)


LOW = {"metric": "loss/entropy", "side": "below", "value": 0.1, "points": 2}


class Driver:
    """Posts values of now, one a batch."""

    def __init__(self, rig: Rig) -> None:
        self.attempt, self.seq, self.began = rig.attempt, 2, time.time() - 60

    def tell(self, name: str, *values: Any, t: float | None = None) -> None:
        for value in values:
            at = self.began + self.seq if t is None else t
            ingest(self.attempt.public_id, 1, Columns(self.seq, [at], [self.seq], ["metrics"], [{"values": {name: value}}]))
            self.seq += 1


def alerts(rig: Rig) -> list[Alert]:
    return list(Alert.objects.for_team(rig.team).order_by("pk"))


def test_a_threshold_fires_once_resolves_and_keeps_quiet_for_its_cooldown(rig: Rig) -> None:
    made = rule(rig, options=LOW, cooldown_s=600)
    driver = Driver(rig)
    driver.tell("loss/entropy", 0.5, 0.05)
    assert alerts(rig) == [], "one point of two"
    driver.tell("loss/entropy", 0.04, 0.03)
    (alert,) = alerts(rig)
    assert (alert.step, alert.value, alert.resolved_at, alert.rule) == (4, 0.04, None, made)
    assert alert.title == "Entropy is 0.04, below 0.1 for 2 points"
    driver.tell("loss/entropy", 0.5)
    alert.refresh_from_db()
    assert alert.resolved_at is not None
    driver.tell("loss/entropy", 0.01, 0.01)
    (same,) = alerts(rig)
    assert (same.count, same.resolved_at) == (2, None), "within the cooldown it is opened again without a word"
    Alert.unscoped.update(opened_at=timezone.now() - timedelta(hours=1), resolved_at=timezone.now())
    driver.tell("loss/entropy", 0.01)
    assert len(alerts(rig)) == 2


def test_values_of_long_ago_and_replays_are_history_not_news(rig: Rig) -> None:
    rule(rig, options={**LOW, "points": 1})
    driver = Driver(rig)
    driver.tell("loss/entropy", 0.01, t=time.time() - 3600)
    assert alerts(rig) == []
    columns = Columns(3, [time.time()], [3], ["metrics"], [{"values": {"loss/entropy": 0.01}}])
    ingest(rig.attempt.public_id, 1, columns, replay=True)
    assert alerts(rig) == []


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
def test_a_value_that_is_not_finite_fires_and_is_over_at_once(rig: Rig, value: str) -> None:
    rule(rig, "nonfinite")
    driver = Driver(rig)
    driver.tell("loss/policy", 0.5, value, value)
    (alert,) = alerts(rig)
    assert (alert.step, alert.count) == (3, 2) and alert.resolved_at is not None
    assert alert.title.startswith("loss/policy is ")


def test_no_number_is_no_evidence(rig: Rig) -> None:
    rule(rig, options={**LOW, "points": 1})
    Driver(rig).tell("loss/entropy", "NaN")
    assert alerts(rig) == []


def test_a_collapse_is_measured_against_the_best_of_the_window(rig: Rig) -> None:
    rule(rig, "collapse", {"percent": 50, "steps": 20, "mean_of": 2})
    driver = Driver(rig)
    driver.tell("reward/mean", 0.1, 0.3, 0.8, 0.9, 0.8, 0.5)
    assert alerts(rig) == []
    driver.tell("reward/mean", 0.3, 0.2)
    (alert,) = alerts(rig)
    assert "fell to 0.4" in alert.title and "53 %" in alert.title


def test_a_reward_that_was_never_high_does_not_collapse() -> None:
    options = parse("collapse", {"mean_of": 1})
    points = [Point(float(i), i, value) for i, value in enumerate([0.0, 0.0, 0.0, math.nan, 0.0])]
    assert firings(options, points, 0) == []
    falling = [Point(float(i), i, value) for i, value in enumerate([-1.0, -1.2, -1.6])]
    assert [point.step for point, _ in firings(options, falling, 0)] == [2]
    old_best = [Point(float(i), i * 30, value) for i, value in enumerate([1.0, 0.6, 0.45])]
    assert firings(options, old_best, 0) == [], "the best has left the window"


def test_seconds_instead_of_points() -> None:
    options = parse("threshold", {"metric": "buffer/depth", "side": "above", "value": 3, "seconds": 5})
    depth = [2, 4, 4, 4, 1, 4, 4, 4, 4, 4, 4, 4]
    found = firings(options, [Point(float(i), 0, value) for i, value in enumerate(depth)], 0)
    assert [point.t for point, _ in found] == [10.0]


def test_seconds_are_counted_however_many_points_they_bring(rig: Rig) -> None:
    rule(rig, options={"metric": "buffer/depth", "side": "above", "value": 3, "seconds": 600})
    now = time.time()

    def batch(first: int, t: list[float], value: list[Any]) -> None:
        data = {"name": "buffer/depth", "t": t, "step": [1] * len(t), "value": value}
        ingest(rig.attempt.public_id, 1, Columns(first, [t[-1]], [1], ["points"], [data]))

    times = [now - 660 + 0.05 * i for i in range(13_000)]
    batch(2, times[:11_000], [1.0] + [4.0] * 10_999)
    assert alerts(rig) == [], "9 minutes of 10"
    batch(3, times[11_000:], [4.0] * 1999 + ["NaN"])
    assert [alert.value for alert in alerts(rig)] == [4.0]
    before = Alert.unscoped.get().last_at
    batch(4, [now], [5.0])
    assert Alert.unscoped.get().last_at == before and len(alerts(rig)) == 1
    batch(5, [now + 0.1], [1.0])
    assert alerts(rig)[0].resolved_at is not None


def test_states_are_told_and_close_what_is_open(rig: Rig) -> None:
    rule(rig, options={**LOW, "points": 1})
    rule(rig, "state", {"states": ["failed"]}, severity="critical")
    Driver(rig).tell("loss/entropy", 0.01)
    lifecycle.attempt_finished(rig.attempt, "failed", cause={"message": "the loss was not finite"})
    low, failed = alerts(rig)
    assert low.resolved_at is not None and failed.resolved_at is not None
    assert failed.detail == "the loss was not finite" and failed.severity == "critical"


def test_scope_is_one_run_a_preset_or_a_tag(rig: Rig) -> None:
    other = new_rig()
    run = rig.run
    run.preset, run.tags = "prime-rl@2", ["night"]
    run.save()
    for fields, fits in (
        ({}, True),
        ({"run": run}, True),
        ({"preset": "prime-rl"}, True),
        ({"preset": "prime"}, False),
        ({"tag": "night"}, True),
        ({"tag": "nigh"}, False),
        ({"preset": "prime-rl", "tag": "day"}, False),
    ):
        assert watch.in_scope(rule(rig, options=LOW, **fields), run) is fits, fields
    with pytest.raises(BadInput):
        rule(rig, options=LOW, run=other.run)
    assert not watch.in_scope(rule(rig, options=LOW), other.run)
    rule(rig, options=LOW, enabled=False)
    assert all(one.enabled for one, _ in watch.rules_for(run))


def test_silence_is_found_by_the_reconciler_and_ends_with_the_next_step(rig: Rig) -> None:
    rule(rig, "stall", {"of": "step", "seconds": 60})
    Driver(rig).tell("reward/mean", 0.5)
    assert silence.look() == 0
    Series.unscoped.update(last_t=time.time() - 120)
    Run.unscoped.filter(pk=rig.run.pk)
    rig.attempt.refresh_from_db()
    rig.attempt.started_at = timezone.now() - timedelta(hours=1)
    rig.attempt.save(update_fields=["started_at"])
    with lifecycle.lifecycle_writes():
        Run.unscoped.filter(pk=rig.run.pk).update(state_since=timezone.now() - timedelta(hours=1))
    assert silence.look() == 1 and silence.look() == 0
    (alert,) = alerts(rig)
    assert alert.title.startswith("no step has finished for 1") and alert.resolved_at is None
    Series.unscoped.update(last_t=time.time())
    silence.look()
    alert.refresh_from_db()
    assert alert.resolved_at is not None


def test_a_queue_that_is_too_long() -> None:
    rig = new_rig()
    rule(rig, "queue", {"seconds": 60})
    assert silence.look() == 0
    with lifecycle.lifecycle_writes():
        Run.unscoped.filter(pk=rig.run.pk).update(state_since=timezone.now() - timedelta(minutes=5))
    assert silence.look() == 1
    lifecycle.transition(rig.run, "cancelled")
    assert alerts(rig)[0].resolved_at is not None


def test_holding_the_run_asks_for_a_checkpoint_and_a_pause(rig: Rig) -> None:
    rule(rig, options={**LOW, "points": 1}, hold_run=True)
    Driver(rig).tell("loss/entropy", 0.01)
    rig.run.refresh_from_db()
    assert (rig.run.control["pause"], rig.run.control["checkpoint_now"]) == (True, 1)
    assert rig.run.control["asked"]["pause"]["by"] == "alert rule 0"
    assert alerts(rig)[0].held_run is True


def test_what_is_sent_is_recorded_tried_again_and_given_up(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.alerts.models import AlertChannel

    channel = AlertChannel.objects.create(team=rig.team, name="hook", kind="webhook", sealed=seal({"url": "u", "secret": "s"}), hint="h")
    sent: list[dict[str, Any]] = []
    answers = iter([{"ok": False, "again": True, "words": "answered 503"}, {"ok": True, "again": False, "words": "answered 200"}])
    monkeypatch.setattr(deliver, "send", lambda channel, message: (sent.append(message), next(answers))[1])
    rule(rig, options={**LOW, "points": 1}, channels=[channel], tell_resolved=True)
    driver = Driver(rig)
    driver.tell("loss/entropy", 0.01)
    row = AlertDelivery.objects.for_team(rig.team).get()
    assert (row.state, row.purpose) == ("waiting", "fired")
    assert deliver.deliver(row.pk).state == "waiting"  # type: ignore[union-attr]
    assert deliver.deliver(row.pk) is None, "not due yet"
    AlertDelivery.unscoped.update(due_at=timezone.now(), created_at=timezone.now() - timedelta(minutes=1))
    woken: list[int] = []
    monkeypatch.setattr(deliver, "_wake", lambda pk: not woken.append(pk))
    assert (deliver.advance(), woken) == (0, [row.pk]), "it is a worker's: the pass does not wait for slow addresses"
    AlertDelivery.unscoped.update(due_at=timezone.now() - timedelta(minutes=1))
    assert deliver.advance() == 1, "no worker has taken it"
    row.refresh_from_db()
    assert (row.state, row.tries, row.words) == ("sent", 2, "answered 200")
    assert sent[0]["payload"]["event"] == "alert.fired" and sent[0]["payload"]["run"]["id"] == rig.run.public_id
    assert f"/runs/{rig.run.public_id}/?t=" in sent[0]["body"]
    driver.tell("loss/entropy", 0.9)
    assert AlertDelivery.objects.for_team(rig.team).get(purpose="resolved").state == "waiting"
    AlertDelivery.unscoped.filter(purpose="resolved").update(state="sending", due_at=timezone.now() - timedelta(hours=1))
    monkeypatch.setattr(deliver, "send", lambda channel, message: {"ok": False, "again": False, "words": "answered 404"})
    AlertDelivery.unscoped.update(created_at=timezone.now() - timedelta(minutes=1))
    assert deliver.advance() == 1, "one that a dead worker had claimed"
    channel.refresh_from_db()
    assert channel.last_error == "answered 404"


def test_the_dry_run_says_what_the_watch_would_have_said(rig: Rig) -> None:
    live = rule(rig, options=LOW, cooldown_s=0)
    driver = Driver(rig)
    driver.tell("loss/entropy", *[0.5, 0.05, 0.05, 0.5, 0.05, 0.04, 0.03, 0.5])
    told = [alert.step for alert in alerts(rig)]
    result = dryrun.dry_run(live, rig.run)
    assert [one.step for one in result["found"]] == told == [4, 7]
    assert result["looked"] == "8 points of loss/entropy" and result["in_scope"]
    state = rule(rig, "state", {"states": ["running"]})
    assert [one.words for one in dryrun.dry_run(state, rig.run)["found"]] == ["it became running"]
    assert dryrun.dry_run(rule(rig, "stall", {"of": "event", "seconds": 15}), rig.run)["found"]
    assert dryrun.dry_run(rule(rig, "queue", {"seconds": 10}), rig.run)["found"] == []
    assert dryrun.dry_run(rule(rig, "nonfinite"), rig.run)["found"] == []


@pytest.mark.parametrize(
    ("kind", "options", "field"),
    [
        ("threshold", {"metric": "<script>", "side": "above", "value": 1}, "metric"),
        ("threshold", {"metric": "a", "side": "beside", "value": 1}, "side"),
        ("threshold", {"metric": "a", "side": "above", "value": math.nan}, "value"),
        ("threshold", {"metric": "a", "side": "above", "value": math.inf}, "value"),
        ("threshold", {"metric": "a", "side": "above", "value": 1, "points": 0}, "points"),
        ("collapse", {"percent": 0}, "percent"),
        ("stall", {"seconds": 1}, "seconds"),
        ("state", {"states": []}, "states"),
        ("state", {"states": ["exploded"]}, "states"),
        ("queue", {"seconds": 1e12}, "seconds"),
        ("queue", {"second": 60}, "second"),
        ("magic", {}, "kind"),
    ],
)
def test_options_that_make_no_sense_are_named(rig: Rig, kind: str, options: dict[str, Any], field: str) -> None:
    with pytest.raises(BadInput) as fault:
        rule(rig, kind, options)
    assert fault.value.field == field


def test_every_ready_made_rule_is_one_that_can_be_saved(rig: Rig) -> None:
    made = services.add_ready_made(rig.team, rig.user, [offered.key for offered in kinds.READY_MADE])
    assert len(made) == len(kinds.READY_MADE)
    assert services.add_ready_made(rig.team, rig.user, ["ended-badly"]) == [], "once"
    assert all(kinds.describe(one.kind, one.options) for one in made)


def test_roles(rig: Rig, member: Callable[..., User]) -> None:
    made = rule(rig, options=LOW)
    maker, viewer = member(rig.team, Role.MEMBER), member(rig.team, Role.VIEWER)
    own = services.save_rule(rig.team, maker, {"name": "own", "kind": "threshold", "options": LOW, "enabled": True})
    services.switch_rule(own, maker, False)
    for call in (
        lambda: services.save_rule(rig.team, viewer, {"name": "x", "kind": "threshold", "options": LOW}),
        lambda: services.switch_rule(made, maker, False),
        lambda: services.delete_rule(made, maker),
        lambda: services.save_rule(rig.team, maker, {"name": "x", "kind": "threshold", "options": LOW, "hold_run": True}),
        lambda: services.add_ready_made(rig.team, viewer, ["done"]),
    ):
        with pytest.raises(NotAllowed):
            call()
    assert Membership.objects.for_team(rig.team).count() == 3


def test_the_pages(client: Client, rig: Rig, member: Callable[..., User]) -> None:
    client.force_login(rig.user)
    page = client.get("/alerts/").content.decode()
    assert "Start with these" in page and "No channel yet" in page
    assert client.post("/alerts/ready-made/", {"key": ["ended-badly", "nan"]}).headers["Location"] == "/alerts/"
    form = {"name": "my low entropy", "metric": "loss/entropy", "side": "below", "value": "0.1", "points": "1", "seconds": "0"}
    form |= {"severity": "critical", "cooldown_s": "60", "enabled": "on"}
    Driver(rig).tell("loss/entropy", 0.05)
    tried = client.post("/alerts/rules/new/?kind=threshold", {**form, "try": "1", "try_run": rig.run.public_id}).content.decode()
    assert "would have fired 1 time: at step 2" in tried
    assert not AlertRule.objects.for_team(rig.team).filter(name="my low entropy").exists()
    assert client.post("/alerts/rules/new/?kind=threshold", {**form, "save": "1"}).status_code == 302
    made = AlertRule.objects.for_team(rig.team).get(name="my low entropy")
    bad = client.post(f"/alerts/rules/{made.public_id}/", {**form, "value": "NaN", "save": "1"})
    assert bad.status_code == 422
    assert client.get("/alerts/rules/new/?kind=magic").status_code == 404
    firing.fire(made, rig.run, firing.Found("<script>alert(1)</script>", time.time()))
    for path in ("/alerts/", "/alerts/?q=script&open=1&page=1", f"/alerts/rules/{made.public_id}/", "/alerts/?page=99999999999"):
        reply = client.get(path)
        assert reply.status_code == 200 and b"<script>alert" not in reply.content, path
    told = client.get(f"/runs/{rig.run.public_id}/alerts.json").json()["alerts"]
    assert told[0]["open"] is True and told[0]["title"] == "<script>alert(1)</script>"
    stranger = new_rig()
    client.force_login(stranger.user)
    assert client.get(f"/runs/{rig.run.public_id}/alerts.json").status_code == 404
    for path in ("", "switch/", "delete/"):
        assert client.post(f"/alerts/rules/{made.public_id}/{path}", {"enabled": "0"}).status_code == 404
    assert made.name not in client.get("/alerts/").content.decode()
    client.force_login(member(rig.team, Role.VIEWER))
    assert client.get("/alerts/rules/new/?kind=state").status_code == 403
    assert client.post(f"/alerts/rules/{made.public_id}/delete/").status_code == 403
