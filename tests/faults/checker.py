"""Replays a run's history against what must hold whatever dies. Pure: it asks nobody, and every finding names its invariant.

A  an accepted run is never lost and never run twice at once; of two attempts only the newer one works
B  the buffer never holds more than its bound
M  every event exactly once, in order; what a client was told is kept is there
O  nothing of an ended run is left
R  a resume goes on at the next step with the same weights; steps have no hole and no double
S  every completion slot is dispatched once and ends in one place: trained, dropped with a reason, or still under way
V  a version is named only after every engine serves it; nothing older than its bound is trained
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tests.faults.history import Event, History, Life

OVER = {"succeeded", "failed", "cancelled", "lost"}


@dataclass(frozen=True)
class Broken:
    """One finding."""

    invariant: str
    message: str

    def __str__(self) -> str:
        return f"{self.invariant}: {self.message}"


def check(history: History) -> list[Broken]:
    """Every way in which the history breaks an invariant; empty: it holds."""
    found: list[Broken] = []
    for letter, rule in RULES.items():
        found += [Broken(letter, message) for message in rule(history)]
    return found


def accepted(history: History) -> list[str]:
    found = []
    if history.accepted and history.state and history.state not in OVER:
        found.append(f"the accepted run is {history.state} in the end")
    if history.accepted and history.state in ("failed", "lost") and not history.cause:
        found.append(f"it is {history.state} and nobody says why")
    if not history.accepted and history.lives:
        found.append("a run that nobody was told of has worked")
    for older, newer in pairwise(history.lives):
        if newer.fence <= older.fence:
            found.append(f"attempt {newer.number} has fence {newer.fence}, the one before {older.fence}")
        began = newer.of("started")
        late = [event for event in _work(older) if began and event["t"] > began[0]["t"]]
        if late:
            found.append(f"attempt {older.number} worked on after attempt {newer.number} had started: {late[0]['kind']} {late[0]['seq']}")
    return found


def exactly_once(history: History) -> list[str]:
    found = []
    expected: dict[str, int] = {}
    for life in history.lives:
        for event in life.events:
            wanted = expected.get(life.spool, 0) + 1
            if event["seq"] != wanted:
                found.append(f"attempt {life.number}: event {event['seq']} follows {wanted - 1}")
            expected[life.spool] = event["seq"]
        last = life.events[-1]["seq"] if life.events else 0
        if life.stored is None:
            continue
        held = [event["seq"] for event in life.stored]
        if held != list(range(1, len(held) + 1)):
            odd = next(seq for place, seq in enumerate(held, 1) if seq != place)
            found.append(f"attempt {life.number}: the server holds event {odd} where {held.index(odd) + 1} belongs")
        if len(held) < life.acked:
            found.append(f"attempt {life.number}: events up to {life.acked} were acknowledged, the server holds {len(held)}")
        if len(held) > last and life.events:
            found.append(f"attempt {life.number}: the server holds {len(held)} events, {last} were told")
        mine = {event["seq"]: event for event in life.events}
        other = [event["seq"] for event in life.stored if event["seq"] in mine and not _same(event, mine[event["seq"]])]
        if other:
            found.append(f"attempt {life.number}: the server holds event {other[0]} with other content")
    return found


def resumed(history: History) -> list[str]:
    found = []
    for life in history.lives:
        origin = life.resumed_from
        steps = [event["data"]["batch"]["step"] for event in life.of("groups") if event["data"]["batch"]]
        versions = [event["data"]["version"] for event in life.of("sync")]
        if steps and steps[0] != (origin["step"] if origin else 0) + 1:
            found.append(f"attempt {life.number} goes on with step {steps[0]} after step {origin['step'] if origin else 0}")
        if versions and versions[0] != (origin["version"] if origin else 0) + 1:
            found.append(f"attempt {life.number} publishes version {versions[0]} after {origin['version'] if origin else 0}")
    steps = [event["data"]["batch"]["step"] for _, event in history.counted() if event["kind"] == "groups" and event["data"]["batch"]]
    if steps != list(range(1, len(steps) + 1)):
        found.append(f"the steps that count are {steps}")
    if history.state == "succeeded" and len(steps) < history.config.budget.steps and not history.stopped_early:
        found.append(f"it succeeded after {len(steps)} of {history.config.budget.steps} steps")
    for version, digest in (history.reference or {}).items():
        for life in history.lives:
            for event in life.of("sync"):
                if event["data"]["version"] == version and event["data"]["digest"] != digest:
                    found.append(f"attempt {life.number}: version {version} has other weights than in the run that nothing interrupted")
    return found


def bounded(history: History) -> list[str]:
    found = []
    for where, state in _states(history):
        depth, capacity = state["buffer"]["depth"], state["buffer"]["capacity"]
        if capacity is not None and depth > capacity:
            found.append(f"{where}: the buffer holds {depth} of at most {capacity}")
    return found


def slots(history: History) -> list[str]:
    found = []
    for where, state in _states(history):
        told = state["samples"]
        rest = told["trained"] + told["buffered"] + told["in_flight"] + sum(told["dropped"].values()) + told["lost"]
        if rest != told["dispatched"] or min(told["trained"], told["buffered"], told["in_flight"]) < 0:
            found.append(f"{where}: {told['dispatched']} dispatched, {rest} accounted for")
    fates, asked = _fates(history)
    for (group, slot), ends in fates.items():
        if len(ends) > 1:
            found.append(f"{group}/{slot} ended {len(ends)} times: {', '.join(ends)}")
    if history.prompts is not None:
        for group, prompts in asked.items():
            wanted = history.prompts(int(group.removeprefix("g")) - 1)
            if prompts != {wanted}:
                found.append(f"{group} asked {', '.join(sorted(prompts))}; in order it was the turn of {wanted}")
    return found + (_complete(history, fates) if history.state == "succeeded" else [])


def versions(history: History) -> list[str]:
    found = []
    staleness = history.config.staleness
    for life in history.lives:
        origin = life.resumed_from
        known = origin["version"] if origin else 0
        for event in life.events:
            data = event["data"]
            where = f"attempt {life.number}, event {event['seq']}"
            if event["kind"] == "sync":
                if data["version"] != known + 1:
                    found.append(f"{where}: version {data['version']} follows {known}")
                known = data["version"]
            elif event["kind"] == "state":
                serving = data["flow"]["versions"].values()
                if serving and data["version"] > min(serving):
                    found.append(f"{where}: the flow is at version {data['version']}, an engine serves {min(serving)}")
            elif event["kind"] in ("checkpoint", "evaluation") and data["version"] > known:
                found.append(f"{where}: a {event['kind']} of version {data['version']}, published are {known}")
            elif event["kind"] == "groups" and data["batch"]:
                batch = data["batch"]
                if batch["version"] > known:
                    found.append(f"{where}: step {batch['step']} is trained at version {batch['version']}, published are {known}")
                for group, _, _, oldest, dispatched in batch["groups"]:
                    lag = batch["version"] - (dispatched if staleness.lag_from == "dispatch" else oldest)
                    if lag > staleness.max_lag and staleness.over_limit != "count_only":
                        found.append(f"{where}: {group} is trained with lag {lag}, at most {staleness.max_lag} is allowed")
    return found


def left(history: History) -> list[str]:
    return [f"left: {what}" for what in history.left]


RULES = {"A": accepted, "B": bounded, "M": exactly_once, "O": left, "R": resumed, "S": slots, "V": versions}


def _fates(history: History) -> tuple[dict[tuple[str, int], list[str]], dict[str, set[str]]]:
    """Of what counts in the end: (where each slot ended, the prompts each group asked)."""
    fates: dict[tuple[str, int], list[str]] = defaultdict(list)
    asked: dict[str, set[str]] = defaultdict(set)
    for _, event in history.counted():
        if event["kind"] != "groups":
            continue
        batch = event["data"]["batch"]
        for group, prompt, numbers, *_ in batch["groups"] if batch else []:
            asked[group].add(prompt)
            for slot in numbers:
                fates[group, slot].append(f"trained in step {batch['step']}")
        for group, prompt, numbers, reason in event["data"]["left"]:
            asked[group].add(prompt)
            for slot in numbers:
                fates[group, slot].append(reason)
    return fates, asked


def _complete(history: History, fates: dict[tuple[str, int], list[str]]) -> list[str]:
    """Of a run that came to its end: every slot of every group has ended, and the figures are those of the names."""
    found = []
    size = history.config.batch.group_size
    numbers = {int(group.removeprefix("g")) for group, _ in fates}
    for number in range(1, max(numbers, default=0) + 1):
        missing = [slot for slot in range(size) if (f"g{number}", slot) not in fates]
        if missing:
            found.append(f"g{number}: slots {missing} were dispatched and never ended")
    finished = [event for _, event in history.counted() if event["kind"] == "finished"]
    if finished:
        told = finished[-1]["data"]["summary"]["sample_ledger"]
        counts = Counter("trained" if end.startswith("trained") else end for ends in fates.values() for end in ends)
        figures = {"trained": told["trained"], **told["dropped"]}
        if counts != Counter(figures):
            found.append(f"by name {dict(counts)}, by figures {figures}")
    return found


def _states(history: History) -> list[tuple[str, dict[str, Any]]]:
    """(where it was told, what) of every state of every attempt."""
    return [(f"attempt {life.number}, event {event['seq']}", event["data"]) for life in history.lives for event in life.of("state")]


def _work(life: Life) -> list[Event]:
    return [event for event in life.events if event["kind"] in ("groups", "sync", "checkpoint")]


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    def bare(event: dict[str, Any]) -> dict[str, Any]:  # a list of events is told without the columns of tokens
        return {key: value for key, value in event["data"].items() if event["kind"] != "sample" or key != "tokens"}

    return all(one[key] == other[key] for key in ("t", "step", "kind")) and bare(one) == bare(other)
