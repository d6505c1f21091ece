"""save_resume: an aborted sample is parked with its cache and taken up again."""

from __future__ import annotations

from dataclasses import replace

from workers.axes.partial.abort_prefix import AbortPrefix
from workers.records import Rollout, SampleRequest


class SaveResume(AbortPrefix):
    """The engine that had it goes on from the cache it kept; should that be gone, the prefix is prefilled."""

    def again(self, request: SampleRequest, rollout: Rollout) -> SampleRequest | None:
        again = super().again(request, rollout)
        return again and replace(again, parked_on=rollout.engine)
