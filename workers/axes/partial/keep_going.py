"""continue: a running sample goes on under the new weights; each token keeps the version that produced it."""

from __future__ import annotations

from workers.records import Rollout, SampleRequest


class Continue:
    """In-flight samples survive every weight change; one that was aborted for another reason is dropped."""

    def again(self, request: SampleRequest, rollout: Rollout) -> SampleRequest | None:
        return None

    def cancels(self, lag: int, max_lag: int) -> bool:
        return False
