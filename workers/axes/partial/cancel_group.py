"""cancel_group: groups in flight that have grown too old are given up."""

from __future__ import annotations

from workers.axes.partial.keep_going import Continue


class CancelGroup(Continue):
    """A group dispatched more than `max_lag` versions ago could only be dropped later; its slots are freed now."""

    def cancels(self, lag: int, max_lag: int) -> bool:
        return lag > max_lag
