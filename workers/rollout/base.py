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

        Raises EngineError; a request that cannot be served is an error, never an empty rollout.
        """
        ...

    async def update(self, manifest: Manifest) -> UpdateReport:
        """Called after each publish. Reads the payload, checks its digest, applies it as the interrupt axis says.

        Raises DigestMismatch, after which the old version still serves.
        """
        ...

    async def status(self) -> EngineStatus:
        """Called about once a second; must not wait for a decode step."""
        ...

    async def stop(self) -> None:
        """Called once, at the end; running requests end with finish reason "abort" between two decode steps."""
        ...
