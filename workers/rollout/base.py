"""The door of the inference pool. A generator lives in its own process; the driver reaches it through an orchestration."""

from __future__ import annotations

from typing import Protocol

from workers.records import EngineStatus, Manifest, Rollout, SampleRequest, UpdateReport


class Generator(Protocol):
    """One inference engine. Constructed as `Engine(config: RunConfig, name: str, transport: Transport)`, which loads the model.

    Requests join and leave at every decode step; nothing here knows groups, rewards or training.
    """

    async def generate(self, request: SampleRequest) -> Rollout:
        """Called once a completion slot; returns when it is full. Requests with equal prompts share one prefill.

        A request with a prefix is gone on with after it, with the random numbers of those positions; the rollout holds both, the
        prefix just as it was given. `max_new_tokens` counts the prefix; a complete one returns at once. Where `parked_on` is this
        engine's name and it still has the cache it parked, nothing is prefilled.

        Finish reason "abort": a weight change (interrupt abort) or the end of the engine came first. The rollout holds what there
        is so far, which is nothing for one that waited. Raises EngineError; a request that cannot be served is an error, never
        an empty rollout. A caller that is cancelled leaves its slot before the next decode step.
        """
        ...

    async def update(self, manifest: Manifest) -> UpdateReport:
        """Called after each publish. Announces the version to the interrupt, which makes room; fetches the payload, checks its
        digest and builds beside the decoding; flips between two forward passes. Several are done one after the other.

        Raises DigestMismatch or EngineError, after which the old version still serves and all that was held up goes on: samples
        that were retracted or aborted stay so. `pause_s` of the report is the time by which the update widened the gap between
        two forward passes of this engine: the flip alone where decoding went on until then; otherwise all the time from the end
        of the last pass since the announcement (of the announcement, if there was none since) to the flip's end. An engine that
        had no sample in a slot counts from the first request that had to wait; 0 if none did.
        """
        ...

    async def status(self) -> EngineStatus:
        """Called about once a second; must not wait for a decode step."""
        ...

    async def stop(self) -> None:
        """Called once, at the end; running requests end with finish reason "abort" between two decode steps."""
        ...
