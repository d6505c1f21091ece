"""abort_prefix: an aborted sample is sent again with its tokens as a prefix."""

from __future__ import annotations

from dataclasses import replace

from workers.axes.partial.keep_going import Continue
from workers.records import Rollout, SampleRequest


class AbortPrefix(Continue):
    """Any engine prefills prompt and prefix under its weights; tokens, log-probs and versions stay as they were drawn."""

    def again(self, request: SampleRequest, rollout: Rollout) -> SampleRequest | None:
        return replace(
            request,
            prefix_ids=rollout.token_ids,
            prefix_logprobs=rollout.logprobs,
            prefix_versions=rollout.versions,
            prefix_support=rollout.support,
            prefix_routing=rollout.routing,
            parked_on="",
        )
