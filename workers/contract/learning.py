"""How the trainer learns: optimizer, loss, corrections, KL, distillation, adapters, replay, backend. Formulas: workers/learn."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from workers.contract import axes
from workers.contract.block import Block, main


class Optimizer(Block):
    """AdamW on what is trained."""

    learning_rate: float = Field(2e-4, gt=0, le=1, title="Learning rate", description="Peak step size of AdamW.", json_schema_extra=main())
    beta1: float = Field(0.9, ge=0, lt=1, title="Beta 1", description="Decay of the gradient's mean.")
    beta2: float = Field(0.999, ge=0, lt=1, title="Beta 2", description="Decay of the gradient's square.")
    eps: float = Field(1e-8, gt=0, le=1, title="Epsilon", description="Added to the denominator.")
    weight_decay: float = Field(0.0, ge=0, le=1, title="Weight decay", description="Decoupled (AdamW).")
    warmup_steps: int = Field(
        0, ge=0, le=1_000_000, title="Warm-up steps", description="The learning rate rises linearly over these steps."
    )
    schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant",
        title="Schedule",
        description="How the learning rate goes after warm-up; linear and cosine end at 0 at the last step of the budget.",
    )
    max_grad_norm: float = Field(1.0, gt=0, le=1e6, title="Gradient clip", description="The global norm is scaled down to this.")
    stop_after_non_finite: int = Field(
        3,
        ge=1,
        le=1000,
        title="Non-finite steps allowed",
        description="A step with a NaN or infinite loss or gradient is skipped and counted; this many in a row stop the run.",
    )


class Correction(Block):
    """One off-policy correction: a detached weight or gate on the loss of every token. Several apply in order."""

    ratio: Literal["old_over_rollout", "new_over_rollout"] = Field(
        "old_over_rollout",
        title="Ratio",
        description="Trainer over engine, always: the trainer's policy before the batch (old), or as it is now (new).",
    )
    level: Literal["token", "sequence", "geometric"] = Field(
        "token", title="Level", description="token: each its own. sequence: the product over a sample. geometric: its geometric mean."
    )
    lo: float | None = Field(None, ge=0, le=1, title="Lower bound", description="Of the ratio. Empty: none.")
    hi: float | None = Field(2.0, ge=1, le=1e6, title="Upper bound", description="Of the ratio. Empty: none.")
    action: Literal["clip", "mask", "gate", "drop_row"] = Field(
        "clip",
        title="Action",
        description="clip: weigh by the ratio, held within the bounds (TIS). mask: weigh by it inside, 0 outside (IcePop, MIS)."
        " gate: 1 inside, 0 outside. drop_row: a sample with any value outside leaves the loss.",
    )
    only: Literal["all", "negative"] = Field("all", title="Applies to", description="negative: samples of negative advantage alone (OPSM).")
    denominator: Literal["original", "survivors"] = Field(
        "original",
        title="Denominator",
        description="original: rejected tokens stay in the mean's denominator. survivors: they leave it, so the rest weighs more.",
    )


class Kl(Block):
    """A pull towards the reference policy: the model of `model.path`, also where training starts from another run's checkpoint."""

    estimator: Literal["k1", "k2", "k3", "k3_plus", "k3_weighted"] = Field(
        "k3",
        title="Estimator",
        description="k1, k2, k3 as values; k3_plus has k3's value and k2's gradient; k3_weighted is k3 times the ratio to old.",
    )
    coefficient: float = Field(0.001, ge=0, le=100, title="Coefficient", description="Weight of the KL term.")
    where: Literal["loss", "reward"] = Field(
        "loss", title="Where", description="loss: a term of the loss. reward: subtracted from each token's advantage, detached."
    )
    clamp: float | None = Field(
        None, gt=0, le=1000, title="Clamp", description="Log-ratios and values are held within this. Empty: not at all."
    )


class Distillation(Block):
    """A teacher scores the very tokens that were sampled."""

    teacher: str = Field(
        min_length=1, max_length=500, title="Teacher", description="A model with the same vocabulary: name, folder or hub id."
    )
    kind: Literal["reverse_kl", "jsd"] = Field(
        "reverse_kl",
        title="Kind",
        description="reverse_kl: teacher minus student log-prob is added to each token's advantage (on-policy distillation)."
        " jsd: generalised Jensen-Shannon divergence over the full vocabulary, a term of the loss (GKD).",
    )
    coefficient: float = Field(1.0, gt=0, le=100, title="Coefficient", description="Weight of the teacher.")
    beta: float = Field(0.5, ge=0, le=1, title="Beta", description="Of jsd: 0 is KL(teacher || student), 1 is KL(student || teacher).")
    replace_reward: bool = Field(False, title="Teacher alone", description="The rewards' advantages are left out.")


class Loss(Block):
    """The policy loss. Formulas and sources: workers/learn."""

    policy: Literal["ppo", "gspo", "cispo", "topr", "kimi", "dppo", "ipo", "sapo", "reinforce_is"] = Field(
        "ppo",
        title="Policy loss",
        description="What is done with ratio and advantage; the losses page has each formula and its paper.",
        json_schema_extra=main(),
    )
    advantage: Literal["grpo", "dr_grpo", "rloo", "batch_std", "reinforce_pp", "reinforce_pp_baseline", "opo", "max_rl"] = Field(
        "grpo",
        title="Advantage",
        description="How a reward is compared: with its group's mean and standard deviation (grpo), mean only (dr_grpo), the others"
        " (rloo), group mean and batch deviation (batch_std), whitened over all tokens (reinforce_pp, with group baseline:"
        " reinforce_pp_baseline), a length-weighted baseline (opo), or relative to the group mean (max_rl).",
        json_schema_extra=main(),
    )
    advantage_eps: float = Field(1e-4, gt=0, le=1, title="Advantage epsilon", description="Added to the standard deviation.")
    singletons: Literal["zero", "raw"] = Field(
        "zero",
        title="Lonely survivors",
        description="Advantage of a sample whose group has no other scored one: zero, or the raw reward (verl, SkyRL).",
    )
    aggregation: Literal["token_mean", "sequence_mean", "sequence_sum", "sequence_sum_constant", "token_sum", "prompt_mean"] = Field(
        "token_mean",
        title="Aggregation",
        description="token_mean: all tokens of the batch weigh the same (DAPO). sequence_mean: all samples do (GRPO). sequence_sum: mean"
        " over samples of token sums. sequence_sum_constant: divided by samples x max_new_tokens (Dr. GRPO). token_sum: no"
        " division. prompt_mean: all prompts weigh the same.",
    )
    empty_samples: Literal["skip", "count"] = Field(
        "skip",
        title="Samples without loss tokens",
        description="Whether they count in the denominator of means over samples: skip (verl, OpenRLHF) or count (TRL, SkyRL).",
    )
    anchor: Literal["old", "rollout", "decoupled"] = Field(
        "old",
        title="Ratio's anchor",
        description="The ratio's denominator: the trainer's own log-probs at the start of the batch (old), the engine's (rollout),"
        " or old with the loss weighed by old over rollout (decoupled PPO, AReaL).",
    )
    proximal: Literal["recompute", "loglinear"] = Field(
        "recompute",
        title="Proximal policy",
        description="decoupled only: recompute old by a forward pass, or interpolate it between engine and trainer by version.",
    )
    clip_low: float = Field(
        0.2, ge=0, le=1, title="Clip below", description="Ratios under 1 - this have no gradient where the advantage is negative."
    )
    clip_high: float = Field(
        0.2, ge=0, le=100, title="Clip above", description="Ratios over 1 + this have no gradient where the advantage is positive."
    )
    dual_clip: float | None = Field(
        None, gt=1, le=100, title="Dual clip", description="Bounds the loss of negative advantages at this ratio. Empty: off."
    )
    ratio_cap: float | None = Field(
        None, gt=1, le=1e6, title="Ratio cap", description="ppo: the ratio is cut here before the clip, whatever the sign (TRL's delta)."
    )
    cap: float | None = Field(
        None,
        gt=0,
        le=1e6,
        title="Weight cap",
        description="Largest detached weight of cispo (empty: 1 + clip above), topr (empty: 1) and reinforce_is (empty: none).",
    )
    drop_low: float = Field(
        0.2,
        ge=0,
        le=100,
        title="Drop below",
        description="dppo: a negative token is dropped where the policy has fallen by more than this.",
    )
    drop_high: float = Field(
        0.2, ge=0, le=100, title="Drop above", description="dppo: a positive token is dropped where it has risen by more. ipo: either way."
    )
    divergence: Literal["tv", "kl"] = Field(
        "tv", title="Divergence", description="dppo: measured as difference of probabilities (tv) or binary KL."
    )
    tau: float = Field(
        1.0, gt=0, le=1000, title="Tau", description="sapo: temperature of positive advantages. kimi: weight of the squared log-ratio."
    )
    tau_negative: float = Field(1.05, gt=0, le=1000, title="Tau, negative", description="sapo: temperature of negative advantages.")
    log_ratio_penalty: float = Field(
        0.0, ge=0, le=100, title="Log-ratio penalty", description="Times (new - rollout) squared, on every loss token (PRIME-RL's kl_tau)."
    )
    log_ratio_clamp: float | None = Field(
        20.0, gt=0, le=80, title="Log-ratio clamp", description="Log-ratios are held within this before exp. Empty: not at all."
    )
    corrections: list[Correction] = Field(
        default=[Correction()],
        max_length=8,
        title="Corrections",
        description="For samples of older policies and for the gap between engine and trainer; applied in order.",
        json_schema_extra={"widget": "json"},
    )
    kl: Kl | None = Field(None, title="KL", description="A pull towards the model before training. Empty: none.")
    distillation: Distillation | None = Field(None, title="Distillation", description="A teacher model. Empty: none.")


class Lora(Block):
    """Low-rank adapters (PEFT), or the whole model."""

    kind: axes.LoraKind = Field("adapter_only", title="LoRA", description="What learns, and how it reaches the engine.")
    rank: int = Field(16, ge=1, le=512, title="Rank", description="Inner width of each adapter.", json_schema_extra=main())
    alpha: float = Field(32.0, gt=0, le=4096, title="Alpha", description="Adapters are scaled by alpha / rank.")
    moe_experts: bool = Field(False, title="Adapters on experts", description="Mixture-of-experts models: adapt the experts' layers, too.")


class Replay(Block):
    """What the engine did is done again in training, so that both compute the same policy."""

    routing: Literal["off", "r2", "r3"] = Field(
        "off",
        title="Keep routing",
        description="Mixture-of-experts models. r3: the engine's expert choice is replayed in training. r2: the trainer's own at the"
        " start of the batch; with one optimizer step a batch that changes nothing.",
    )
    sampling_mask: bool = Field(
        False,
        title="Keep sampling mask",
        description="With top-k, top-p or min-p: the trainer's log-probs are over the tokens that the engine had left to choose from.",
    )


class Backend(Block):
    """The training pool."""

    kind: axes.BackendKind = Field("single", title="Backend", description="How training is spread over processes.")
    ranks: int = Field(1, ge=1, le=1024, title="Ranks", description="Processes of the training pool.")
    sharded_optimizer: bool = Field(
        False, title="Sharded optimizer", description="ddp: each rank keeps and steps its share of the optimizer's state (ZeRO-1)."
    )
    threads: int = Field(0, ge=0, le=1024, title="Threads of the trainer", description="CPU threads. 0: shared out over the cores.")
