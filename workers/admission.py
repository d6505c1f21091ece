"""What enters the buffer: the pure question behind a group whose samples are all back."""

from __future__ import annotations

from dataclasses import dataclass

from workers.contract.config import Rewards
from workers.records import Group, Sample

_ENDS = {"abort": "aborted", "deadline": "deadline", "failed": "engine_failed"}


@dataclass(frozen=True)
class Verdict:
    """kept: samples that can teach; left: those that leave the group, by reason; refuse: why the whole group goes, if it does."""

    kept: list[Sample]
    left: dict[str, list[Sample]]
    refuse: str | None


def judge(rewards: Rewards, group: Group) -> Verdict:
    """A sample without a reward never stays; what becomes of the others is `rewards` settles."""
    kept: list[Sample] = []
    left: dict[str, list[Sample]] = {}
    for sample in group.samples:
        reason = _reason(rewards, sample)
        if reason is None:
            kept.append(sample)
        else:
            left.setdefault(reason, []).append(sample)
    failed = left.keys() - {"truncated"}
    refuse = None
    if len(kept) < 2 or (failed and rewards.group_completeness == "complete"):
        refuse = "group_incomplete"
    elif rewards.zero_variance != "keep" and len({sample.reward for sample in kept}) == 1:
        refuse = "zero_variance"
    return Verdict(kept, left, refuse)


def _reason(rewards: Rewards, sample: Sample) -> str | None:
    if sample.reward is None:
        return _ENDS.get(sample.rollout.finish_reason, "scoring_failed" if sample.rollout.token_ids else "empty")
    return "truncated" if sample.truncated and rewards.on_truncated == "drop" else None
