"""The pure parts of races: statistics against textbook values, curves, the plan, the checklist and the decision what to do next."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.compare.races import drawing, fairness, plan, progress, verdict
from headrace.compare.races.curves import Curve, along, band, common_end, percentile, smooth
from headrace.compare.races.facts import Facts, overlap
from headrace.compare.races.results import Finished, results
from headrace.compare.races.together import seconds_together
from tests.platform_tests.telemetry_rig import T0, new_rig, push
from workers.contract import presets
from workers.contract.errors import ConfigError

# Student's t, two-sided 95 %: the printed tables.
T_TABLE = {1: 12.7062, 2: 4.30265, 3: 3.18245, 4: 2.77645, 5: 2.57058, 10: 2.22814, 30: 2.04227, 120: 1.97993}
finite = st.floats(-1e6, 1e6, allow_nan=False)


@pytest.mark.parametrize(("freedom", "value"), T_TABLE.items())
def test_students_t_is_that_of_the_tables(freedom: int, value: float) -> None:
    assert verdict.t_quantile(0.975, freedom) == pytest.approx(value, abs=1e-4)
    assert verdict.t_below(value, freedom) == pytest.approx(0.975, abs=1e-5)
    assert verdict.t_below(-value, freedom) == pytest.approx(0.025, abs=1e-5)
    assert verdict.t_below(0.0, freedom) == pytest.approx(0.5)


def test_students_t_of_one_degree_is_cauchy() -> None:
    for value in (0.1, 1.0, 7.5, 300.0):
        assert verdict.t_below(value, 1) == pytest.approx(0.5 + math.atan(value) / math.pi, abs=1e-12)


def test_an_interval_worked_by_hand() -> None:
    # 4, 6, 8: mean 6, s = 2, 4.30265 * 2 / sqrt(3) = 4.9683
    found = verdict.interval([4, 6, 8])
    assert found is not None and found.mean == 6 and found.half == pytest.approx(4.96828, abs=1e-4)
    assert verdict.interval([]) is None
    one = verdict.interval([0.5])
    assert one == verdict.Interval(0.5, None, None, 1) and one.half is None


def test_seeds_are_compared_in_pairs() -> None:
    # Differences 1, 2, 3: t = 2 / (1 / sqrt(3)) = 3.4641 with 2 degrees: p = 0.07418
    found = verdict.compare("a", "b", {1: 11.0, 2: 22.0, 3: 33.0}, {1: 10.0, 2: 20.0, 3: 30.0})
    assert found.method == "paired" and found.difference == 2 and found.p == pytest.approx(0.07418, abs=1e-5)
    assert found.lo == pytest.approx(2 - 4.30265 / math.sqrt(3), abs=1e-4)


def test_other_seeds_are_compared_by_welch() -> None:
    # Welch's own textbook case: n = 4 and 3; by hand t = -2.2804 with 4.4377 degrees of freedom
    left, right = {1: 1.0, 2: 2.0, 3: 3.0, 4: 4.0}, {5: 4.0, 6: 5.0, 7: 7.0}
    found = verdict.compare("a", "b", left, right)
    parts = statistics.variance(left.values()) / 4, statistics.variance(right.values()) / 3
    freedom = sum(parts) ** 2 / (parts[0] ** 2 / 3 + parts[1] ** 2 / 2)
    t = (2.5 - 16 / 3) / math.sqrt(sum(parts))
    assert found.method == "welch" and found.p == pytest.approx(2 * (1 - verdict.t_below(abs(t), freedom)))
    assert found.lo is not None and found.hi is not None and found.lo < found.difference < found.hi


def test_holm_is_the_step_down() -> None:
    def pair(name: str, p: float | None) -> verdict.Comparison:
        return verdict.Comparison("x", name, 1.0, None, None, p, None, "paired", 3)

    found = verdict.holm([pair("a", 0.01), pair("b", 0.04), pair("c", 0.03), pair("d", None)])
    assert [item.p_holm for item in found] == [pytest.approx(0.03), pytest.approx(0.06), pytest.approx(0.06), None]


def test_a_clear_winner_and_none() -> None:
    clear = verdict.rank({"slow": {1: 1.0, 2: 1.1, 3: 0.9}, "fast": {1: 5.0, 2: 5.2, 3: 4.9}})
    assert clear is not None and clear.winner == "fast" and clear.order == ["fast", "slow"]
    close = verdict.rank({"a": {1: 1.0, 2: 2.0, 3: 3.0}, "b": {1: 2.0, 2: 1.0, 3: 3.1}})
    assert close is not None and close.winner is None and close.tied == ["a"] and "No clear winner" in close.words
    single = verdict.rank({"a": {1: 1.0}, "b": {1: 9.0}})
    assert single is not None and single.winner is None and "fewer than two seeds" in single.words
    lower = verdict.rank({"a": {1: 1.0, 2: 1.1}, "b": {1: 9.0, 2: 9.2}}, higher_is_better=False)
    assert lower is not None and lower.order[0] == "a"
    assert verdict.rank({"a": {}, "b": {}}) is None


def test_differences_without_spread_are_not_judged() -> None:
    same = verdict.compare("a", "b", {1: 0.1, 2: 0.2}, {1: 0.1, 2: 0.2})
    assert same.p == 1.0 and same.difference == 0
    shifted = verdict.compare("a", "b", {1: 1.0, 2: 2.0}, {1: 0.5, 2: 1.5})
    assert shifted.p is None and not shifted.significant and "no spread" in shifted.why


@settings(max_examples=80, deadline=None)
@given(st.dictionaries(st.sampled_from("abcde"), st.dictionaries(st.integers(1, 6), finite, max_size=6), min_size=1))
def test_verdicts_keep_their_promises(values: dict[str, dict[int, float]]) -> None:
    found = verdict.rank(values)
    if found is None:
        assert not any(values.values())
        return
    assert sorted(found.order) == sorted(label for label, seeds in values.items() if seeds)
    for pair in found.comparisons:
        assert pair.p is None or 0 <= pair.p <= (pair.p_holm or 0) <= 1
    if found.winner is not None:
        against = [pair for pair in found.comparisons if pair.first == found.winner]
        assert len(against) == len(found.order) - 1 and all(pair.significant and pair.difference > 0 for pair in against)


def test_curves_are_never_extended() -> None:
    curve = Curve.of([0, 10, 20], [0.0, 1.0, None])
    assert curve.end == 10 and curve.at(5) == 0.5 and curve.at(10.1) is None and curve.at(-1) is None
    assert common_end([curve, Curve.of([0, 4], [0, 1])]) == 4
    assert common_end([curve, Curve.of([], [])]) is None and common_end([]) is None
    assert Curve.of([2, 1, 2], [5, 3, 7]).y.tolist() == [3, 7]
    assert Curve.of([0, 50, 95, 100], [9, 9, 1, 3]).mean_before(100) == 2
    assert Curve.of([10], [3]).mean_before(9) is None
    assert along(Curve.of([0, 10], [0, 100]), [5, 20]) == [50, 100]
    assert smooth(Curve.of([1, 2, 3], [0, 3, 6]), 2).y.tolist() == [0, 1.5, 4.5]


def test_a_band_is_the_interval_at_every_point() -> None:
    curves = {1: Curve.of([0, 10], [0, 10]), 2: Curve.of([2, 12], [4, 14])}
    found = band(curves, 10.0)
    assert found["x"][0] == 2 and found["x"][-1] == 10 and set(found["n"]) == {2}
    assert found["mean"][0] == pytest.approx(3) and found["lo"][0] < 3 < found["hi"][0]
    alone = band({1: curves[1]}, 10.0)
    assert set(alone["lo"]) == {None}
    assert band(curves, 1.0)["x"] == [] and band({}, None)["x"] == []


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1e4), st.none() | finite), max_size=30), st.floats(0, 1e4))
def test_a_curve_stays_within_its_points(points: list[tuple[float, float | None]], x: float) -> None:
    curve = Curve.of([p[0] for p in points], [p[1] for p in points])
    assert (np.diff(curve.x) > 0).all()
    value = curve.at(x)
    if value is not None:
        assert curve.y.min() - 1e-6 <= value <= curve.y.max() + 1e-6 and curve.x[0] <= x <= curve.x[-1]


def test_percentiles_and_overlap() -> None:
    assert percentile({0: 90, 3: 10}, 0.95) == 3 and percentile({0: 95, 3: 5}, 0.95) == 0 and percentile({}, 0.95) is None
    lanes = {"generator/0": {"generate": 80.0, "idle": 20.0}, "trainer": {"train": 60.0}}
    assert overlap(lanes, 100.0) == pytest.approx(0.4)
    assert overlap({"generator/0": {"generate": 30.0}, "trainer": {"train": 30.0}}, 100.0) == 0
    assert overlap({}, 100.0) is None


def test_overlap_is_counted_from_the_stretches_that_were_told(db: None) -> None:
    rig = new_rig()
    assert seconds_together(rig.attempt) is None
    rows = [("generator/0", "generate", 0, 10), ("generator/1", "generate", 8, 20), ("generator/0", "idle", 10, 40)]
    rows += [("trainer", "train", 5, 12), ("trainer", "train", 18, 30), ("trainer", "idle", 0, 5)]
    push(rig.attempt, [("spans", {"spans": [[lane, cause, T0 + began, T0 + ended] for lane, cause, began, ended in rows]})])
    assert seconds_together(rig.attempt) == pytest.approx(7 + 2)


SPEC = {
    "contenders": [{"preset": "trl-sync", "label": "sync"}, {"preset": "demo", "label": "own", "changes": ["staleness.max_lag=0"]}],
    "seeds": [1, 2],
    "stop": {"kind": "wall_s", "value": 60},
}


def test_every_contender_gets_the_same_workload_seed_and_rule() -> None:
    spec = plan.read({**SPEC, "workload": {"batch": {"prompts": 4}}, "equal": {"loss.clip_high": 0.3}, "devices": 3})
    entries = plan.entries(spec)
    assert [(entry.contender, entry.seed) for entry in entries] == [(0, 1), (1, 1), (1, 2), (0, 2)]
    for entry in entries:
        assert entry.config.seed == entry.seed and entry.config.batch.prompts == 4 and entry.config.loss.clip_high == 0.3
        assert entry.config.budget.wall_s == 60 and entry.config.budget.steps == plan.STEPS_WITHOUT_BOUND
        assert plan.devices_of(entry.config) == 3
    assert entries[1].config.staleness.max_lag == 0 and entries[1].config.preset == "demo@2"


@pytest.mark.parametrize(
    ("stop", "budget"),
    [
        ({"kind": "samples", "value": 640}, {"samples": 640, "tokens": None, "wall_s": 900}),
        ({"kind": "tokens", "value": 5000.5}, {"samples": None, "tokens": 5001, "wall_s": 900}),
        ({"kind": "cost", "value": 1.0}, {"samples": None, "tokens": None, "wall_s": 600}),
    ],
)
def test_the_rule_becomes_the_budget(stop: dict[str, object], budget: dict[str, object]) -> None:
    spec = plan.read({**SPEC, "stop": stop, "limit_s": 900, "devices": 3})
    for entry in plan.entries(spec, price=2.0):  # 1 of money at 2 an hour for each of 3 devices: a sixth of an hour
        assert {key: getattr(entry.config.budget, key) for key in budget} == budget


def test_money_needs_a_price() -> None:
    spec = plan.read({**SPEC, "stop": {"kind": "cost", "value": 1.0}})
    with pytest.raises(ConfigError) as error:
        plan.entries(spec)
    assert error.value.field == "stop.kind" and "price" in str(error.value)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"contenders": [{"preset": "demo", "label": "a"}]}, "contenders"),
        ({"contenders": [{"preset": "demo", "label": "a"}, {"preset": "verl", "label": "a"}]}, "contenders"),
        ({"seeds": [1, 1]}, "seeds"),
        ({"seeds": [-1]}, "seeds"),
        ({"seeds": []}, "seeds"),
        ({"stop": {"kind": "moon", "value": 1}}, "stop.kind"),
        ({"stop": {"kind": "wall_s", "value": float("nan")}}, "stop.value"),
        ({"stop": {"kind": "wall_s", "value": 0}}, "stop.value"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_a_bad_spec_names_the_field(change: dict[str, object], field: str) -> None:
    with pytest.raises(ConfigError) as error:
        plan.read({**SPEC, **change})
    assert any((problem.field or "") == field for problem in error.value.problems)


@pytest.mark.parametrize("text", ["", "one", "1-", "5-1", "1-99", "99999999999"])
def test_seeds_that_cannot_be_read(text: str) -> None:
    with pytest.raises(ConfigError):
        plan.read_seeds(text)
    assert plan.read_seeds("1, 2  5-7") == [1, 2, 5, 6, 7]


def test_faults_of_a_contender_name_it() -> None:
    spec = plan.read({**SPEC, "contenders": [{"preset": "nobody", "label": "x"}, {"preset": "areal", "label": "y"}], "devices": 2})
    with pytest.raises(ConfigError) as error:
        plan.entries(spec)
    told = [str(problem) for problem in error.value.problems]
    assert any("x: no such preset" in text for text in told) and any("y: its trainer alone has 2 ranks" in text for text in told)


def test_the_time_it_takes() -> None:
    spec = plan.read(SPEC)
    assert plan.estimate_s(spec, [60.0] * 5, 2) == 180 and plan.estimate_s(spec, [None, 60.0], 1) is None


def judged(**changes: object) -> fairness.Fairness:
    spec = plan.read({**SPEC, **changes})
    first = {entry.contender: entry.config for entry in reversed(plan.entries(spec))}
    described = [presets.described(one.preset) for one in spec.contenders]
    return fairness.judge(spec, [first[0], first[1]], at_once=1, presets=described)


def test_the_checklist_sorts_what_differs() -> None:
    found = judged()
    assert {row.path for row in found.design} >= {"backend.kind", "buffer.kind"}
    assert {row.path for row in found.other} >= {"loss.corrections"} and all(row.differs for row in found.other)
    assert not {row.path for row in (*found.design, *found.other)} & {"seed", "preset"}
    levels = {check.key: check.level for check in found.checks}
    assert levels["learning"] == "warn" and levels["task"] == "same" and levels["devices"] == "warn"
    assert [label for label, _ in found.approximations] == ["sync"]


def test_what_is_made_equal_differs_no_more() -> None:
    row = next(row for row in judged().other if row.path == "loss.corrections")
    assert len(row.choices) == 2
    assert "loss.corrections" not in {row.path for row in judged(equal={"loss.corrections": row.values[0]}).other}


def test_the_checklist_afterwards() -> None:
    facts = {"packages": {"torch": "2.13"}, "git_commit": "abc", "model_digest": "m", "data_digest": "d", "cpu": {"count": 2}}
    assert {check.level for check in fairness.provenance_checks({("a", 1): facts, ("b", 1): facts})} == {"same"}
    other = {**facts, "packages": {"torch": "2.14"}}
    found = {check.key: check for check in fairness.provenance_checks({("a", 1): facts, ("b", 1): other, ("c", 1): {"cpu": {"count": 2}}})}
    assert found["told-packages"].level == "warn" and found["told-commit"].level == "note"
    of_seeds = {(label, seed): {**facts, "data_digest": f"d{seed}"} for label in "ab" for seed in (1, 2)}
    assert {check.level for check in fairness.provenance_checks(of_seeds)} == {"same"}, "a seed decides the prompts"
    of_seeds["a", 2]["data_digest"] = "other"
    prompts = next(check for check in fairness.provenance_checks(of_seeds) if check.key == "told-data")
    assert prompts.level == "warn" and "a, seed 2; b, seed 2" in prompts.text
    assert fairness.provenance_checks({}) == []


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(["go", "pause", "cancel"]),
    st.lists(
        st.tuples(st.sampled_from(["", "queued", "running", "stopping", "succeeded", "failed", "lost", "cancelled"]), st.integers(0, 2))
    ),
    st.integers(1, 5),
)
def test_the_next_step_keeps_its_bounds(asked: str, told: list[tuple[str, int]], at_once: int) -> None:
    slots = [progress.Slot(place, state, retries) for place, (state, retries) in enumerate(told)]
    step = progress.decide(asked, slots, at_once)
    active = [slot.place for slot in slots if slot.active]
    by_place = {slot.place: slot for slot in slots}
    assert len(active) + len(step.start) <= max(at_once, len(active))
    assert len(set(step.start)) == len(step.start) and not set(step.start) & set(active)
    assert all(by_place[place].wants_run() for place in step.start)
    assert not step.start or asked == "go"
    assert not step.cancel or asked == "cancel"
    if step.close:
        assert not active and (asked == "cancel" or not any(slot.wants_run() for slot in slots))


def facts(rewards: list[float], seconds: float, speed: float) -> Facts:
    times = np.linspace(0, seconds, len(rewards)).tolist()
    curve = {"wall_s": Curve.of(times, rewards), "samples": Curve.of([t * speed for t in times], rewards)}
    return Facts(
        {"train": curve, "heldout": curve}, {"samples_per_s": speed, "device_hours": 1.0}, {"engines": {"generate": 1.0}, "trainer": {}}
    )


def test_results_at_equal_time_and_at_equal_samples() -> None:
    told = [
        Finished("fast", 1, facts([0.0, 1.0], 100, 4.0)),
        Finished("slow", 1, facts([0.0, 1.0], 50, 1.0)),
        Finished("fast", 2, facts([0.0, 0.9], 100, 4.2)),
        Finished("slow", 2, facts([0.0, 0.9], 50, 1.1)),
    ]
    found = results(["fast", "slow", "absent"], told)
    heads = {head["key"]: head for head in found["headlines"]}
    assert heads["heldout@wall_s"]["at"] == 50 and heads["heldout@samples"]["at"] == pytest.approx(50)
    assert heads["heldout@wall_s"]["cells"]["fast"]["seeds"] == pytest.approx({"1": 0.5, "2": 0.45})
    assert heads["heldout@samples"]["cells"]["fast"]["seeds"]["1"] == pytest.approx(50 / 400)
    assert heads["heldout@wall_s"]["cells"]["absent"] is None
    row = next(row for row in found["rows"] if row["key"] == "samples_per_s")
    assert row["ranking"]["order"] == ["fast", "slow"]
    assert max(found["curves"]["heldout"]["wall_s"][0]["x"]) == 50
    assert found["time"]["fast"]["engines"] == {"generate": 1.0}


def test_no_entry_no_result() -> None:
    found = results(["a", "b"], [])
    assert found["finished"] == 0 and all(head["ranking"] is None for head in found["headlines"])
    drawn = drawing.chart("Reward", "s", found["curves"]["train"]["wall_s"])
    assert drawn.lines == [] and "No data yet" in drawn.words


def test_drawings() -> None:
    assert drawing.ticks(0, 1) == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0] and drawing.ticks(3, 3) == [3]
    pieces = drawing.bars({"train": 0.25, "generate": 0.5, "mystery": 0.25})
    assert [piece["cause"] for piece in pieces] == ["generate", "train", "other"] and pieces[-1]["x"] == 75.0
    series = [{"label": "a", "x": [0, 1], "mean": [0.1, 0.4], "lo": [0.0, 0.3], "hi": [0.2, 0.5]}]
    line = drawing.chart("Reward", "s", series).lines[0]
    assert line.band.count(",") == 4 and line.points.count(",") == 2 and line.last == "0.4"


def test_a_winner_by_its_mean_that_loses_seed_by_seed_is_none() -> None:
    """A seed that only one contender finished lifts its mean; over the common seeds the other one is ahead."""
    values = {"a": {1: 0.50, 2: 0.51, 3: 0.52, 4: 3.0}, "b": {1: 0.60, 2: 0.611, 3: 0.619}}
    found = verdict.rank(values)
    assert found is not None and found.order[0] == "a"
    assert found.comparisons[0].significant and found.comparisons[0].difference < 0
    assert found.winner is None and found.tied == ["b"]
