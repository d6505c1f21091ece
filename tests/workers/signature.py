"""What a run's own events say of its design. Every check reads events and summary alone, as a user could."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from workers.contract.bounds import most_groups
from workers.contract.config import RunConfig

Event = dict[str, Any]


@dataclass(frozen=True)
class Story:
    """One finished run: its config, its events in order, its summary."""

    config: RunConfig
    events: list[Event]
    summary: dict[str, Any]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event["data"] for event in self.events if event["kind"] == kind]

    def values(self, metric: str) -> list[float]:
        return [data["values"][metric] for data in self.of("metrics") if metric in data["values"]]

    @property
    def trained(self) -> list[dict[str, Any]]:
        return [sample for sample in self.of("sample") if sample["outcome"] == "trained"]

    @property
    def effects(self) -> dict[str, int]:
        return dict(self.summary["sample_ledger"]["effects"])

    @property
    def dropped(self) -> dict[str, int]:
        return dict(self.summary["sample_ledger"]["dropped"])

    @property
    def busy_together_s(self) -> float:
        """Seconds in which an engine generated while the trainer trained, by the stretches that the run told."""
        spans = [span for told in self.of("spans") for span in told["spans"]]
        training = [(began, ended) for lane, what, began, ended in spans if lane == "trainer" and what == "train"]
        decoding = [(began, ended) for lane, what, began, ended in spans if lane != "trainer" and what in ("generate", "straggler_tail")]
        return float(sum(max(0.0, min(ended, stop) - max(began, start)) for began, ended in training for start, stop in decoding))

    @property
    def versions(self) -> list[set[int]]:
        """The policy versions within each trained sample that was shown."""
        return [set(sample["tokens"]["versions"]) for sample in self.trained]


def books_close(story: Story) -> None:
    ledger = story.summary["sample_ledger"]
    parts = ledger["trained"] + ledger["buffered"] + ledger["in_flight"] + sum(ledger["dropped"].values()) + ledger["lost"]
    assert ledger["dispatched"] == parts
    working = story.summary["wall_s"]
    for lane, causes in story.summary["time_ledger"].items():
        assert abs(sum(causes.values()) - working) <= 0.01 * working + 0.05, lane


def weights_travel_as_said(story: Story) -> None:
    """Every publish took the configured road, in the configured form (a delta may have fallen back to full)."""
    config, syncs = story.config, story.of("sync")
    assert syncs and {sync["transport"] for sync in syncs} == {config.transport.kind}
    allowed = {config.transport.payload} | ({"full"} if config.transport.payload == "delta" else set())
    assert {sync["payload"] for sync in syncs} <= allowed
    # One more at the end where the last steps had no publish due: the last weights are always published.
    steps = story.summary["steps"]
    assert len(syncs) <= -(-steps // config.sync.every_steps)
    if config.staleness.over_limit != "wait":
        assert len(syncs) == -(-steps // config.sync.every_steps)


def bounds_hold(story: Story) -> None:
    """Lag, buffer depth and what is under way never exceed what the config promises."""
    config = story.config
    if config.staleness.over_limit in ("drop", "wait", "recycle"):
        for sample in story.trained:
            if config.staleness.lag_from == "oldest_token":
                assert sample["version_trained"] - sample["version_min"] <= config.staleness.max_lag
    limit = most_groups(config)
    for state in story.of("state"):
        capacity = state["buffer"]["capacity"]
        assert capacity is None or state["buffer"]["depth"] <= max(capacity, config.batch.group_size)
        if limit is not None:
            under_way = state["samples"]["in_flight"] + state["samples"]["buffered"]
            # A batch that is being trained is still among the buffered.
            assert under_way <= (limit + config.batch.prompts) * config.batch.group_size


def interrupts_show(story: Story) -> None:
    """What a weight change did to running samples is what the interrupt's kind says."""
    kind, partial = story.config.interrupt.kind, set(story.config.partial)
    if kind in ("drain", "batch") or partial & {"none", "recycle"}:
        assert all(len(versions) == 1 for versions in story.versions), "no sample survives a weight change"
    if kind == "abort":
        assert story.effects.get("resubmitted", 0) > 0 or story.dropped.get("aborted", 0) > 0
        assert ("none" in partial) == ("aborted" in story.dropped)
    if kind in ("keep", "retract") and story.busy_together_s > 0:
        stopped = [max(sync["pause_s"].values()) for sync in story.of("sync") if max(sync["pause_s"].values()) > 0]
        fetched = [sync["phases"]["transfer_s"] for sync in story.of("sync") if max(sync["pause_s"].values()) > 0]
        assert all(pause >= transfer for pause, transfer in zip(stopped, fetched, strict=True)), "decoding stood still for the transfer"


CHECKS = (books_close, weights_travel_as_said, bounds_hold, interrupts_show)


# -- what single designs are known for ---------------------------------------------------------------------------------------------


def never_overlaps(story: Story) -> None:
    assert story.busy_together_s <= 0.01 * story.summary["wall_s"]
    assert all(versions == {sample["version_trained"]} for versions, sample in zip(story.versions, story.trained, strict=True))


def overlaps(story: Story) -> None:
    assert story.busy_together_s > 0


def several_versions_in_a_sample(story: Story) -> None:
    """Of all trained samples, not of the few that are shown."""
    assert max(story.values("lag/versions_per_sample")) > 1


def no_pause_longer_than_a_decode_step(story: Story) -> None:
    longest = max(story.values("time/decode_step_longest_s"))
    assert max(max(sync["pause_s"].values()) for sync in story.of("sync")) <= longest


def drains_first(story: Story) -> None:
    """The bubble: a publish lasts longer than its own work, because running samples are waited for, and the engine runs empty."""
    waited = [sync["latency_s"] - sum(sync["phases"].values()) for sync in story.of("sync")]
    assert max(waited) > 0
    assert any(lane.get("straggler_tail", 0) + lane.get("wait_sync", 0) > 0 for lane in story.summary["time_ledger"].values())


def drops_by_age(story: Story) -> None:
    assert story.dropped.get("stale", 0) > 0


def restarts_its_engine(story: Story) -> None:
    steps = [event["step"] for event in story.events if event["kind"] == "sync"]
    assert steps[:2] == [story.config.sync.every_steps, 2 * story.config.sync.every_steps]
    pauses = [max(sync["pause_s"].values()) for sync in story.of("sync")]
    assert min(pauses) > 0.5, "a new process has to load the model"


def goes_on_from_its_prefix(story: Story) -> None:
    assert story.effects["resubmitted"] > 0 and story.effects.get("tokens_discarded", 0) == 0
    several_versions_in_a_sample(story)


def begins_again(story: Story) -> None:
    assert story.effects["resubmitted"] > 0 and story.effects["tokens_discarded"] > 0


def loses_what_was_running(story: Story) -> None:
    assert story.dropped["aborted"] > 0


def gives_up_old_groups(story: Story) -> None:
    assert story.dropped["cancelled"] > 0


def publishes_every(steps: int) -> Any:
    def check(story: Story) -> None:
        published = [event["step"] for event in story.events if event["kind"] == "sync"]
        assert published == [*range(steps, story.summary["steps"] + 1, steps)] or published[:-1] == [
            *range(steps, story.summary["steps"], steps)
        ]

    return check


def overwrites_the_oldest(story: Story) -> None:
    assert story.dropped["overwritten"] > 0


def story_of(config: RunConfig, events: Iterator[Event], summary: dict[str, Any]) -> Story:
    return Story(config, list(events), summary)
