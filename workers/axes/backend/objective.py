"""The loss block of a config as one function of a micro-batch. Formulas and sources: workers.learn."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from workers.axes.backend.layout import MicroBatch
from workers.contract.config import RunConfig
from workers.learn import corrections, losses
from workers.learn.aggregation import aggregate
from workers.learn.distillation import reverse_kl_advantage
from workers.learn.kl import kl
from workers.learn.losses import TokenLoss
from workers.learn.tensors import log_ratio, masked

REJECTING = frozenset({"mask", "gate", "drop_row"})
# A completion token in the loss; as the samples' `tokens.mask` tells it. 0 is a token without loss.
FATES = {"trained": 1, "clipped": 2, "rejected": 3}


@dataclass(frozen=True)
class Known:
    """What is settled about a micro-batch before its loss, all (B, T) and without gradient.

    old: the trainer's log-probs before the batch's first optimizer step; reference, teacher: other models' log-probs of the same
    tokens, where the loss reads them; versions: int64, of each token, where the proximal policy is interpolated; current: the
    version being trained.
    """

    old: Tensor
    reference: Tensor | None = None
    teacher: Tensor | None = None
    versions: Tensor | None = None
    current: int = 0


@dataclass(frozen=True)
class Share:
    """A micro-batch's part of an optimizer step. loss: scalar with gradient; clipped, rejected: loss tokens whose gradient the clip
    cut or removed, and those that a correction took out; from_reference: sum over loss tokens of k3 to the reference policy;
    from_teacher: likewise of student minus teacher log-prob, or of the divergence; both 0 where the loss does not read that model;
    fate: (B, T) uint8, what became of each loss token, see `FATES`."""

    loss: Tensor
    clipped: int
    rejected: int
    from_reference: float = 0.0
    from_teacher: float = 0.0
    fate: Tensor | None = None


class Objective:
    """Constructed once a run. Holds no state between batches."""

    def __init__(self, config: RunConfig) -> None:
        self._block = block = config.loss
        self.pulls = bool(block.kl is not None and block.kl.coefficient > 0)
        # Whether a sample of advantage 0 has a gradient all the same.
        self.always_teaches = self.pulls or block.log_ratio_penalty > 0 or block.distillation is not None or block.policy == "kimi"
        self.interpolates = block.anchor == "decoupled" and block.proximal == "loglinear"
        leaving = [item for item in block.corrections if item.action in REJECTING and item.denominator == "survivors"]
        # Whether the batch's denominators are known only after the batch's log-probs; and whether those must be today's.
        self.counts_survivors = bool(leaving)
        self.counts_anew = self.interpolates or any(item.ratio == "new_over_rollout" for item in leaving)

    def loss(self, micro: MicroBatch, new: Tensor, known: Known, weights: Tensor, divergence: Tensor | None = None) -> Share:
        """This micro-batch's share of the loss. new (B, T), with gradient; weights (B,): see `learn.aggregation.token_weights`;
        divergence (B, T), with gradient: the full-vocabulary distance to the teacher, where distillation.kind is jsd.

        Order: the policy loss after its clip, times the decoupled weight, times the corrections one by one; then KL, log-ratio
        penalty and divergence, which no correction weighs. A token rejected with denominator survivors leaves all of them.
        """
        block, mask = self._block, micro.mask
        advantages = self._advantages(micro, known)
        anchor = self._anchor(micro, new, known)
        result = self._policy(new, anchor, micro.rollout, advantages, mask)
        value = result.value
        if block.anchor == "decoupled":
            value = value * corrections.decoupled_weight(anchor, micro.rollout, mask, block.log_ratio_clamp)
        weight, kept, counted = self._weigh(micro, new, anchor, known, advantages)
        value = masked(value * weight, kept)
        if block.kl is not None and block.kl.where == "loss" and known.reference is not None:
            pull = kl(new, known.reference, known.old, mask, block.kl.estimator, block.kl.clamp)
            value = value + block.kl.coefficient * pull
        if block.log_ratio_penalty > 0:
            value = value + block.log_ratio_penalty * losses.log_ratio_penalty(new, micro.rollout, mask)
        if block.distillation is not None and divergence is not None:
            value = value + block.distillation.coefficient * masked(divergence, mask)
        return Share(
            loss=aggregate(value, counted, weights),
            clipped=int(result.clipped.sum()),
            rejected=int(mask.sum()) - int(kept.sum()),
            from_reference=_sum_of_k3(new, known.reference, mask),
            from_teacher=_to_teacher(known, divergence, mask),
            fate=torch.where(mask & ~kept, FATES["rejected"], torch.where(result.clipped, FATES["clipped"], FATES["trained"])).to(
                torch.uint8
            ),
        )

    def survivors(self, micro: MicroBatch, current: Tensor, known: Known) -> Tensor:
        """(B,) int64: each sample's tokens in the denominator. current (B, T): today's log-probs, or the old ones where that is enough."""
        anchor = self._anchor(micro, current, known)
        return self._weigh(micro, current, anchor, known, self._advantages(micro, known))[2].sum(dim=1)

    def _advantages(self, micro: MicroBatch, known: Known) -> Tensor:
        """(B, 1), or (B, T) where each token has its own. Read from the policy before the batch, so the same in every epoch."""
        block = self._block
        values = micro.advantages
        distillation = block.distillation
        if distillation is not None and distillation.replace_reward:
            values = torch.zeros_like(values)
        if distillation is not None and distillation.kind == "reverse_kl" and known.teacher is not None:
            values = values + distillation.coefficient * reverse_kl_advantage(known.old, known.teacher, micro.mask)
        if block.kl is not None and block.kl.where == "reward" and known.reference is not None:
            pull = kl(known.old, known.reference, known.old, micro.mask, block.kl.estimator, block.kl.clamp)
            values = values - block.kl.coefficient * pull.detach()
        return values

    def _anchor(self, micro: MicroBatch, new: Tensor, known: Known) -> Tensor:
        if self._block.anchor == "rollout":
            return micro.rollout
        if self.interpolates and known.versions is not None:
            return corrections.loglinear_proximal(new, micro.rollout, known.versions, known.current, micro.mask)
        return known.old

    def _weigh(self, micro: MicroBatch, new: Tensor, anchor: Tensor, known: Known, advantages: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, T) product of all weights; bool, tokens that no correction rejected; bool, tokens in the denominator."""
        mask = micro.mask
        weight = torch.ones_like(micro.rollout)
        kept = counted = mask
        old = anchor if self._block.anchor == "decoupled" else known.old
        for item in self._block.corrections:
            found = corrections.correction(
                new if item.ratio == "new_over_rollout" else old,
                micro.rollout,
                advantages,
                mask,
                level=item.level,
                lo=item.lo,
                hi=item.hi,
                action=item.action,
                only=item.only,
                log_ratio_clamp=self._block.log_ratio_clamp,
            )
            weight = weight * found.weight
            kept = kept & found.kept
            if item.denominator == "survivors":
                counted = counted & found.kept
        return weight, kept, counted

    def _policy(self, new: Tensor, anchor: Tensor, rollout: Tensor, advantages: Tensor, mask: Tensor) -> TokenLoss:
        block, clamp = self._block, self._block.log_ratio_clamp
        match block.policy:
            case "ppo":
                return losses.ppo(new, anchor, advantages, mask, block.clip_low, block.clip_high, block.dual_clip, block.ratio_cap, clamp)
            case "gspo":
                return losses.gspo(new, anchor, advantages, mask, block.clip_low, block.clip_high, clamp)
            case "cispo":
                cap = 1 + block.clip_high if block.cap is None else block.cap
                return losses.cispo(new, anchor, advantages, mask, block.clip_low, cap, clamp)
            case "topr":
                return losses.topr(new, rollout, advantages, mask, 1.0 if block.cap is None else block.cap, clamp)
            case "kimi":
                return losses.kimi(new, anchor, advantages, mask, block.tau, clamp)
            case "dppo":
                return losses.dppo(new, rollout, advantages, mask, block.drop_low, block.drop_high, block.divergence, clamp)
            case "ipo":
                return losses.ipo(new, rollout, advantages, mask, block.drop_high, clamp)
            case "sapo":
                return losses.sapo(new, anchor, advantages, mask, block.tau, block.tau_negative, clamp)
            case "reinforce_is":
                return losses.reinforce_is(new, rollout, advantages, mask, block.cap, clamp)


def _sum_of_k3(new: Tensor, reference: Tensor | None, mask: Tensor) -> float:
    return 0.0 if reference is None else float(kl(new.detach().double(), reference, reference, mask, "k3").sum())


def _to_teacher(known: Known, divergence: Tensor | None, mask: Tensor) -> float:
    if divergence is not None:
        return float(masked(divergence.detach(), mask).sum())
    return 0.0 if known.teacher is None else float(log_ratio(known.old.double(), known.teacher, mask).sum())
