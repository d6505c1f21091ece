"""The door of partial rollouts: what becomes of a half-finished sample at a weight change. The flow asks, the engine obeys."""

from __future__ import annotations

from typing import Protocol

from workers.records import Rollout, SampleRequest


class Partial(Protocol):
    """Constructed without arguments. A config names one kind, and `cancel_group` beside it if wished."""

    def again(self, request: SampleRequest, rollout: Rollout) -> SampleRequest | None:
        """Called with each aborted rollout: the request that takes the sample up again under the same id, None to drop it."""
        ...

    def cancels(self, lag: int, max_lag: int) -> bool:
        """Called after each publish for every group in flight, with its lag from dispatch: whether it is given up."""
        ...
