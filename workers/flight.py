"""Groups in flight: dispatched, not yet in the buffer. Each has a task that has its samples generated and scored."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

from workers.parts import Parts
from workers.records import Group, Prompt, Sample, SampleRequest
from workers.requests import training_requests


class Flight:
    """`groups` is saved by checkpoints; `generating` counts samples that engines have and not yet returned.

    arrived(group) is awaited with each group whose samples are all back; moved() is called whenever a sample is.
    """

    def __init__(self, parts: Parts, arrived: Callable[[Group], Awaitable[None]], moved: Callable[[], None]) -> None:
        self.groups: dict[str, Group] = {}
        self.generating = 0
        self._parts = parts
        self._arrived = arrived
        self._moved = moved
        self._out: Counter[str] = Counter()  # by group: its samples that are not back
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self, tasks: asyncio.TaskGroup, group: Group) -> None:
        """Called at dispatch, and again for a group that is recycled."""
        requests = training_requests(self._parts.config, group, self._parts.environment.stop_ids)
        # Counted here and not in the task: dispatch asks again before the task has begun.
        self.generating += len(requests)
        self._out[group.id] = len(requests)
        self.groups[group.id] = group
        self._tasks[group.id] = tasks.create_task(self._run(group, requests))

    def cancel(self) -> None:
        """Called at the end of the run."""
        for task in self._tasks.values():
            task.cancel()

    def give_up(self, version: int) -> list[Group]:
        """Called after each publish: takes out and returns the groups that the partial kinds cancel. Their engines' slots are freed."""
        given_up = []
        for group in list(self.groups.values()):
            lag = version - group.dispatched_version
            if self._out[group.id] and any(kind.cancels(lag, self._parts.config.staleness.max_lag) for kind in self._parts.partial):
                self._tasks.pop(group.id).cancel()
                self.generating -= self._out.pop(group.id)
                given_up.append(self.groups.pop(group.id))
        return given_up

    async def _run(self, group: Group, requests: list[SampleRequest]) -> None:
        fresh = await asyncio.gather(*(self._fill(group.prompt, request) for request in requests))
        del self._out[group.id]
        group.samples = sorted([*group.samples, *fresh], key=lambda sample: sample.rollout.index)
        await self._arrived(group)
        del self.groups[group.id], self._tasks[group.id]

    async def _fill(self, prompt: Prompt, request: SampleRequest) -> Sample:
        """One completion slot. An aborted sample is taken up again where the partial kinds say so, under the same id."""
        effects = self._parts.samples.effects
        rollout = await self._parts.pool.generate(request)
        while rollout.finish_reason == "abort":
            offers = [kind.again(request, rollout) for kind in self._parts.partial]
            again = next((offer for offer in offers if offer is not None), None)
            effects["tokens_discarded"] += len(rollout.token_ids) - (len(again.prefix_ids) if again else 0)
            if again is None:
                break
            effects["resubmitted"] += 1
            request, rollout = again, await self._parts.pool.generate(again)
        self.generating -= 1
        self._out[request.group_id] -= 1
        self._moved()
        return await self._parts.scorer.score(prompt, rollout)
