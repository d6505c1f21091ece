"""The loss block of a config as one function of a micro-batch. Formulas and sources: workers.learn."""

from __future__ import annotations

from torch import Tensor

from workers.axes.backend.layout import MicroBatch
from workers.contract.config import RunConfig
from workers.learn.aggregation import Denominators, aggregate
from workers.learn.corrections import token_tis
from workers.learn.losses import TokenLoss, ppo, reinforce_is


class Objective:
    """Constructed once a run. Holds no state between batches."""

    def __init__(self, config: RunConfig) -> None:
        self._block = config.loss

    def loss(self, micro: MicroBatch, new: Tensor, old: Tensor, counts: Denominators) -> tuple[Tensor, int]:
        """This micro-batch's share of the loss, a scalar with gradient, and how many tokens lost theirs. new, old: (B, T)."""
        block = self._block
        result: TokenLoss
        if block.policy == "reinforce_is":
            # Its own truncated weight to the engine's policy is the whole correction.
            result = reinforce_is(new, micro.rollout, micro.advantages, micro.mask, block.cap)
            value = result.value
        else:
            anchor = micro.rollout if block.anchor == "rollout" else old
            result = ppo(new, anchor, micro.advantages, micro.mask, block.clip_low, block.clip_high, block.dual_clip)
            value = result.value
            for correction in block.corrections:
                if correction.hi is not None:
                    value = value * token_tis(old, micro.rollout, micro.mask, correction.hi)
        return aggregate(value, micro.mask, block.aggregation, counts), int(result.clipped.sum())
