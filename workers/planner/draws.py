"""What a scenario's samples turn out to be: lengths, seconds, rewards and failures, each drawn from the sample's own key."""

from __future__ import annotations

from dataclasses import replace

from workers.contract.config import RunConfig
from workers.planner.lengths import drawn, share_of
from workers.planner.scenario import Scenario
from workers.records import EngineStatus, Manifest, Rollout, SampleRequest, UpdateReport
from workers.requests import stream_key
from workers.rollout.base import Generator


class Draws:
    """By the id of a sample, so that what comes later in its life needs no request."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._grain = scenario.grain

    def tokens(self, key: int) -> float:
        """Of a completion, before it is cut."""
        return sum(drawn(self._scenario.lengths, self._scenario.seed, "length", key))

    def agents(self, key: int) -> list[float]:
        """The same, agent by agent."""
        return drawn(self._scenario.lengths, self._scenario.seed, "length", key)

    def cut(self, tokens: float) -> float:
        return min(tokens, self._scenario.max_new_tokens)

    def grains(self, request: SampleRequest) -> int:
        """The length in simulated tokens, uncut: the engine cuts it at `max_new_tokens`."""
        tokens = self.tokens(request.key)
        if tokens > self._scenario.max_new_tokens:
            return request.max_new_tokens + 1
        return max(1, round(tokens / self._grain))

    def judged_s(self, rollout: Rollout) -> float:
        judging, seconds = self._scenario.judging, 0.0
        for name, distribution in (("environment", judging.environment_s), ("scoring", judging.scoring_s)):
            if distribution is not None:
                seconds += sum(drawn(distribution, self._scenario.seed, name, rollout.id))
        return seconds

    @property
    def judges(self) -> bool:
        return self._scenario.judging.environment_s is not None or self._scenario.judging.scoring_s is not None

    def reward(self, rollout: Rollout) -> float | None:
        """Right and wrong in turn, so that every group can teach, but for the declared share of groups whose rewards are equal."""
        if self._scenario.failures.scoring and share_of(self._scenario.seed, "unscored", rollout.id) < self._scenario.failures.scoring:
            return None
        equal = self._scenario.judging.equal_groups
        return 1.0 if equal and share_of(self._scenario.seed, "equal", rollout.group_id) < equal else float(rollout.index % 2)

    @property
    def any_fail(self) -> bool:
        return self._scenario.failures.request > 0

    def fails(self, request: SampleRequest) -> float | None:
        """How far a request gets before it fails, as a share of its length. None: it does not."""
        share = self._scenario.failures.request
        if not share or request.prefix_ids or share_of(self._scenario.seed, "failing", request.id) >= share:
            return None
        return share_of(self._scenario.seed, "failing at", request.id)

    def sample_key(self, config: RunConfig, group: int, index: int) -> int:
        """The key that the flow gives to sample `index` of the group dispatched as number `group`, from 1."""
        return stream_key(config.seed, "sample", f"g{group}", f"p:{group - 1}", index)


class Failing:
    """An engine some of whose requests are lost on the way: what they had drawn is gone, and they are generated again."""

    def __init__(self, engine: Generator, draws: Draws) -> None:
        self._engine = engine
        self._draws = draws

    async def generate(self, request: SampleRequest) -> Rollout:
        share = self._draws.fails(request)
        if share is not None:
            reached = max(1, round(share * min(self._draws.grains(request), request.max_new_tokens)))
            await self._engine.generate(replace(request, max_new_tokens=reached))
        return await self._engine.generate(request)

    async def update(self, manifest: Manifest) -> UpdateReport:
        return await self._engine.update(manifest)

    async def status(self) -> EngineStatus:
        return await self._engine.status()

    async def stop(self) -> None:
        await self._engine.stop()
