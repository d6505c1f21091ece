"""recycle: an aborted sample begins again from its prompt."""

from __future__ import annotations

from dataclasses import replace

from workers.axes.partial.keep_going import Continue
from workers.records import Rollout, SampleRequest


class Recycle(Continue):
    """Its tokens are thrown away, its id stays."""

    def again(self, request: SampleRequest, rollout: Rollout) -> SampleRequest | None:
        return replace(
            request, prefix_ids=[], prefix_logprobs=[], prefix_versions=[], prefix_support=None, prefix_routing=None, parked_on=""
        )
