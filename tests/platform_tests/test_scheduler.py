"""Which queued runs start: never more than there is or a team may have, nobody waits for ever, the same answer twice."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from headrace.dispatch.scheduler import AGEING_S, PATIENCE_S, RESOURCES, Ask, Capacity, Quota, Running, Waiting, launches, schedule

TWO = Capacity(cpus=2.0, gpus=0.0, memory_bytes=8e9)


def run(key: int, *, team: int = 1, priority: int = 0, waited: float = 0.0, cpus: float = 2.0, cluster: int = 0) -> Waiting:
    return Waiting(key, team, priority, waited, Ask(cpus=cpus, devices=max(1, int(cpus))), cluster)


def started(*waiting: Waiting, running: tuple[Running, ...] = (), capacity: Capacity = TWO, **more: object) -> list[int]:
    return launches(schedule(waiting, running, {0: capacity}, more.pop("quotas", {}), **more))  # type: ignore[arg-type]


def test_two_cores_run_one_demo_run_at_a_time_and_say_why_the_next_waits() -> None:
    first, second = schedule([run(1, waited=9), run(2)], [], {0: TWO}, {})
    assert (first.launch, second.launch) == (True, False)
    assert second.why == "waiting for 2 CPUs: 0 of 2 free" and second.position == 2
    one_free = schedule([run(3)], [Running(2, Ask(cpus=1, devices=1))], {0: TWO}, {})
    assert one_free[0].why == "waiting for 2 CPUs: 1 of 2 free"


def test_a_run_made_for_a_larger_machine_takes_the_whole_of_this_one() -> None:
    assert started(run(1, cpus=16)) == [1]
    assert started(run(1, cpus=16), running=(Running(1, Ask(cpus=1)),)) == []
    assert started(run(1, cpus=1), running=(Running(1, Ask(cpus=16)),)) == []


def test_priority_orders_a_team_and_waiting_raises_it() -> None:
    assert started(run(1, waited=10), run(2, priority=10)) == [2]
    assert started(run(1, waited=11 * AGEING_S), run(2, priority=10)) == [1]
    assert started(run(2), run(1)) == [1], "what is equal goes by its number"


def test_a_small_run_passes_a_large_one_until_that_has_waited_long_enough() -> None:
    half = Running(9, Ask(cpus=1, devices=1))
    assert started(run(1, waited=60), run(2, cpus=1), running=(half,)) == [2]
    decisions = schedule([run(1, waited=PATIENCE_S), run(2, cpus=1)], [half], {0: TWO}, {})
    assert launches(decisions) == []
    assert decisions[1].why == "waiting behind a run that has waited longer and needs more"
    elsewhere = schedule([run(1, waited=PATIENCE_S), run(2, cpus=1, cluster=5)], [half], {0: TWO, 5: TWO}, {})
    assert launches(elsewhere) == [2], "another cluster is not held"


def test_teams_take_turns_however_long_a_backlog_is() -> None:
    backlog = [run(key, team=1, waited=1000 - key, priority=100) for key in range(1, 20)]
    late = run(50, team=2, waited=1, priority=-100)
    assert started(*backlog, late, launched_ago_s={1: 3.0}) == [50], "team 1 has just had its turn"
    order = [decision.key for decision in schedule([*backlog, late], [], {0: TWO}, {}, {1: 3.0})]
    assert order[:3] == [50, 1, 2]
    assert started(run(1, team=1, waited=99, cpus=1), run(2, team=2, cpus=1), running=(Running(1, Ask(cpus=1, devices=1)),)) == [2]


@pytest.mark.parametrize(
    ("quota", "why"),
    [
        (Quota(most_running=1), "the team's quota: 1 running at once"),
        (Quota(hours_left=-0.5, hours=40.0), "the team's 40 device-hours of this month are used up"),
    ],
)
def test_a_quota_holds_back_its_own_team_alone(quota: Quota, why: str) -> None:
    large = Capacity(cpus=8.0)
    running = (Running(1, Ask(cpus=2)),)
    decisions = schedule([run(1, waited=PATIENCE_S * 9), run(2, team=2)], running, {0: large}, {1: quota})
    assert launches(decisions) == [2]
    assert next(item for item in decisions if item.key == 1).why == why


def test_at_most_so_many_runs_whatever_they_ask() -> None:
    few = Capacity(most_runs=1)
    decisions = schedule([run(1), run(2)], [], {0: few}, {})
    assert launches(decisions) == [1] and decisions[1].why == "waiting for a place: at most 1 run at once here"


def test_nothing_known_of_a_cluster_is_no_bound() -> None:
    assert started(run(1), run(2), run(3), capacity=Capacity()) == [1, 2, 3]


def world(seed: int) -> tuple[list[Waiting], list[Running], dict[int, Capacity], dict[int, Quota]]:
    chance = random.Random(seed)
    ask = lambda: Ask(float(chance.randint(1, 5)), float(chance.randint(0, 1)), chance.choice([0.0, 1e9]), chance.randint(1, 5))  # noqa: E731
    capacities = {
        cluster: Capacity(
            *(chance.choice([None, 1.0, 4.0, 9.0]) for _ in range(2)), chance.choice([None, 3e9]), chance.choice([None, 0, 2, 5])
        )
        for cluster in range(2)
    }
    quotas = {team: Quota(chance.choice([None, 0, 1, 3]), chance.choice([None, 0.0, 5.0]), 5.0) for team in range(3)}
    waiting = [
        Waiting(key, chance.randrange(4), chance.randint(-20, 20), chance.choice([0.0, 30.0, 4000.0]), ask(), chance.randrange(2))
        for key in range(chance.randrange(14))
    ]
    running: list[Running] = []
    return waiting, running, capacities, quotas


@pytest.mark.parametrize("block", range(8))
def test_never_more_than_there_is_or_a_team_may_have(block: int) -> None:
    for seed in range(block * 100, block * 100 + 100):
        waiting, running, capacities, quotas = world(seed)
        decisions = schedule(waiting, running, capacities, quotas)
        assert sorted(item.key for item in decisions) == sorted(item.key for item in waiting)
        assert [item.position for item in decisions] == list(range(1, len(waiting) + 1))
        assert all(item.launch == (item.why == "") for item in decisions)
        shuffled = random.Random(seed).sample(waiting, len(waiting))
        assert schedule(shuffled, running, capacities, quotas) == decisions, "the order of the input does not matter"
        chosen = [item for item in waiting if item.key in set(launches(decisions))]
        for cluster, there in capacities.items():
            here = [item.ask.within(there) for item in chosen if item.cluster == cluster]
            for name in RESOURCES:
                limit = getattr(there, name)
                assert limit is None or sum(getattr(ask, name) for ask in here) <= limit + 1e-9
            assert there.most_runs is None or len(here) <= there.most_runs
        for team, quota in quotas.items():
            count = sum(item.team == team for item in chosen)
            assert quota.most_running is None or count <= quota.most_running
            assert quota.hours_left is None or quota.hours_left > 0 or count == 0


@pytest.mark.parametrize("seed", range(6))
def test_nobody_waits_for_ever_under_a_steady_stream_of_others(seed: int) -> None:
    """One low run of the whole machine, while another team and its own keep sending small, urgent ones."""
    chance = random.Random(seed)
    waiting = [run(0, team=1, priority=-20, cpus=4)]
    running: dict[int, tuple[float, Running]] = {}
    launched_at: dict[int, float] = {}
    now, key, four = 0.0, 1, Capacity(cpus=4.0)
    while now < 40 * 3600:
        for team in (1, 2, 3):
            waiting.append(run(key, team=team, priority=20 if team == 1 else 0, cpus=chance.choice([1, 1, 2])))
            key += 1
        running = {name: entry for name, entry in running.items() if entry[0] > now}
        ago = {team: now - at for team, at in launched_at.items()}
        chosen = set(launches(schedule(waiting, [entry[1] for entry in running.values()], {0: four}, {}, ago)))
        for item in [item for item in waiting if item.key in chosen]:
            running[item.key] = (now + chance.uniform(200, 900), Running(item.team, item.ask))
            launched_at[item.team] = now
        if 0 in chosen:
            return
        # A long backlog is cut to its oldest, so that the simulation stays small; what is cut would have come later anyway
        waiting = [replace(item, waited_s=item.waited_s + 120) for item in waiting if item.key not in chosen][:40]
        now += 120.0
    pytest.fail("the large run never started")
