"""What the loss block's words mean in formulas, with sources; read by the product's page of axes. The code is workers/learn.

Notation: r = exp(new - anchor), w = exp(old - rollout), rho = exp(new - rollout), sg[.] without gradient, A the advantage, R the
reward, n_i a sample's loss tokens, S their sum over the optimizer batch, N its samples, p = exp(new), q = exp(rollout).
"""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict


class Entry(TypedDict):
    """corrections: of a named recipe, what to write into loss.corrections."""

    formula: str
    source: str
    corrections: NotRequired[list[dict[str, Any]]]


class Difference(TypedDict):
    """Why two libraries give two numbers under the same name, and what Headrace does."""

    topic: str
    verl: str
    trl: str
    here: str


def _entries(*rows: tuple[str, str, str]) -> dict[str, Entry]:
    return {kind: Entry(formula=formula, source=source) for kind, formula, source in rows}


def _recipe(formula: str, source: str, **fields: Any) -> Entry:
    plain = {
        "ratio": "old_over_rollout",
        "level": "token",
        "lo": None,
        "hi": None,
        "action": "clip",
        "only": "all",
        "denominator": "original",
    }
    return Entry(formula=formula, source=source, corrections=[{**plain, **fields}])


FORMULAS: dict[str, dict[str, Entry]] = {
    "loss.policy": _entries(
        (
            "ppo",
            "max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high));"
            " dual_clip c: at most -c A where A < 0; ratio_cap d: min(r, d) for the first r",
            "arXiv:1707.06347; dual clip arXiv:1912.09729; clip-higher arXiv:2503.14476; ratio cap: TRL's delta",
        ),
        ("gspo", "PPO's clip on s = exp(mean over the sample of new - anchor), each token with its own gradient", "arXiv:2507.18071"),
        ("cispo", "-sg[clip(r, 1 - clip_low, cap)] A new; cap empty: 1 + clip_high", "arXiv:2506.13585"),
        ("topr", "A >= 0: -A new; A < 0: -A sg[min(product over the sample of rho, cap)] new; cap empty: 1", "arXiv:2503.14286"),
        ("kimi", "by sample: -A sum new + tau / 2 (sum of new - anchor)^2", "arXiv:2501.12599"),
        (
            "dppo",
            "-keep A rho; dropped where A > 0 and p - q > drop_high, or A < 0 and q - p > drop_low (tv);"
            " kl: KL(Bernoulli(q) || Bernoulli(p)) in place of the difference",
            "arXiv:2602.04879",
        ),
        ("ipo", "-keep A rho; dropped where |p - q| > drop_high", "PRIME-RL, trainer/rl/loss.py"),
        ("sapo", "-A sigmoid(tau (r - 1)) 4 / tau; tau_negative where A < 0", "arXiv:2511.20347"),
        ("reinforce_is", "-A sg[min(rho, cap)] new; cap empty: none", "arXiv:1802.01561"),
    ),
    "loss.advantage": _entries(
        ("grpo", "(R - mean of the group) / (std of the group + eps), std unbiased", "arXiv:2402.03300"),
        ("dr_grpo", "R - mean of the group", "arXiv:2503.20783"),
        ("rloo", "R - mean of the others in the group", "arXiv:2402.14740"),
        ("batch_std", "(R - mean of the group) / (std of the batch + eps), std unbiased", 'TRL, scale_rewards="batch"'),
        ("reinforce_pp", "(R - mean) / sqrt(var + eps^2), over all loss tokens of the batch, var unbiased", "arXiv:2501.03262"),
        ("reinforce_pp_baseline", "R - mean of the group, then as reinforce_pp", "arXiv:2501.03262"),
        ("opo", "R - sum(length R) / sum(length) of the group", "arXiv:2505.23585"),
        ("max_rl", "(R - mean of the group) / (mean of the group + eps)", "SkyRL, maxrl advantage estimator"),
    ),
    "loss.singletons": _entries(
        ("zero", "A = 0 where no other sample of the group was scored", "SkyRL's and this rloo"),
        ("raw", "A = R there", "verl and SkyRL grpo: mean 0 and std 1"),
    ),
    "loss.aggregation": _entries(
        ("token_mean", "sum(L) / S", "arXiv:2503.14476; verl token-mean, TRL dapo"),
        ("sequence_mean", "1 / N sum_i (1 / n_i) sum_t L", "arXiv:2402.03300; verl seq-mean-token-mean, TRL grpo"),
        ("sequence_sum", "1 / N sum_i sum_t L", "verl seq-mean-token-sum, TRL luspo"),
        ("sequence_sum_constant", "sum(L) / (samples x max_new_tokens)", "arXiv:2503.20783; TRL dr_grpo"),
        ("token_sum", "sum(L)", "verl token-sum, Tinker"),
        ("prompt_mean", "mean over prompts of sum(L) / the prompt's tokens", "SkyRL"),
    ),
    "loss.empty_samples": _entries(
        ("skip", "N counts samples with a loss token", "verl, OpenRLHF"),
        ("count", "N counts every scored sample", "TRL, SkyRL"),
    ),
    "loss.anchor": _entries(
        ("old", "r = exp(new - old)", "arXiv:1707.06347"),
        ("rollout", "r = exp(new - rollout) = rho", "verl's bypass mode, TRL's asynchronous trainer"),
        ("decoupled", "sg[exp(prox - rollout)] times the loss with r = exp(new - prox)", "arXiv:2110.00641; AReaL, arXiv:2505.24298"),
    ),
    "loss.proximal": _entries(
        ("recompute", "prox = the trainer's log-probs at the start of the batch", "arXiv:2505.24298"),
        (
            "loglinear",
            "prox = rollout + alpha sg[new - rollout], alpha = lag / (lag + 1), lag = version trained - version of the token",
            "AReaL, prox_logp_method loglinear",
        ),
    ),
    "loss.divergence": _entries(
        ("tv", "|p - q|", "arXiv:2602.04879"), ("kl", "q log(q / p) + (1 - q) log((1 - q) / (1 - p))", "arXiv:2602.04879")
    ),
    "loss.kl.estimator": _entries(
        ("k1", "x = new - reference; as a loss its gradient has mean zero", "Schulman 2020"),
        ("k2", "x^2 / 2; its gradient is the reverse KL's", "Schulman 2020"),
        ("k3", "exp(-x) - 1 + x; its gradient is the forward KL's", "Schulman 2020"),
        ("k3_plus", "the value of k3, the gradient of k2", "verl, low_var_kl+"),
        ("k3_weighted", "r (exp(-x) - 1 + x), r = exp(new - old) with gradient", "arXiv:2512.02556; TRL's default"),
    ),
    "loss.kl.where": _entries(
        ("loss", "L + coefficient x estimate", "arXiv:2402.03300"),
        ("reward", "A - coefficient x sg[estimate at old], by token", "arXiv:2501.03262, without its sum over later tokens"),
    ),
    "loss.distillation.kind": _entries(
        ("reverse_kl", "A + coefficient x sg[teacher - old], by token", "arXiv:2306.13649; slime, PRIME-RL"),
        (
            "jsd",
            "L + coefficient x (beta KL(T || M) + (1 - beta) KL(S || M)), M = (1 - beta) S + beta T;"
            " beta 0: KL(T || S), beta 1: KL(S || T)",
            "arXiv:2306.13649",
        ),
    ),
    "loss.corrections.ratio": _entries(
        ("old_over_rollout", "w = exp(old - rollout)", "Yao et al. 2025"), ("new_over_rollout", "sg[rho]", "arXiv:2512.02556")
    ),
    "loss.corrections.level": _entries(
        ("token", "each token's own ratio", "Yao et al. 2025"),
        ("sequence", "product over the sample's loss tokens", "verl, TRL, SkyRL, slime"),
        ("geometric", "exp(mean over the sample's loss tokens of the log-ratio)", "arXiv:2507.18071; AReaL"),
    ),
    "loss.corrections.action": _entries(
        ("clip", "times clip(w, lo, hi)", "Yao et al. 2025"),
        ("mask", "times w where lo <= w <= hi, else 0", "Ring-1T report"),
        ("gate", "times 1 where lo <= w <= hi, else 0", "AReaL, verl rejection sampling"),
        ("drop_row", "times 1, or 0 for the whole sample where any value is outside", "arXiv:2512.02556; verl's veto"),
    ),
    "loss.corrections.only": _entries(
        ("all", "every sample", "Yao et al. 2025"), ("negative", "samples whose mean advantage is under 0", "arXiv:2512.02556")
    ),
    "loss.corrections.denominator": _entries(
        ("original", "rejected tokens stay in S, n_i and N", "AReaL, slime, OpenRLHF, TRL"),
        ("survivors", "rejected tokens leave S, n_i and N, and every other term of the loss", "verl, which changes its response mask"),
    ),
    "corrections": {
        "is": _recipe("w", "importance sampling, no bound"),
        "tis": _recipe("min(w, 2)", "Yao et al. 2025; this config's default", hi=2.0),
        "mis": _recipe("w where lo <= w <= hi, else 0", "slime's mis", lo=0.0, hi=2.0, action="mask"),
        "icepop": _recipe("w where 0.5 <= w <= 5, else 0", "Ring-1T report", lo=0.5, hi=5.0, action="mask"),
        "seq_mask": _recipe(
            "product of w over the sample where it is at most 3, else 0", "TRL, sequence_mask", hi=3.0, action="mask", level="sequence"
        ),
        "opsm": _recipe(
            "sample dropped where A < 0 and mean(rollout - new) > delta; lo = exp(-delta), here delta 0.1",
            "arXiv:2512.02556",
            ratio="new_over_rollout",
            level="geometric",
            lo=0.904837418,
            action="drop_row",
            only="negative",
        ),
        "veto": _recipe("sample dropped where any w is outside 1e-4 .. 1e4", "verl, token veto", lo=1e-4, hi=1e4, action="drop_row"),
    },
}

DIFFERENCES: list[Difference] = [
    Difference(
        topic="Denominator",
        verl="token-mean divides by the tokens of the optimizer batch; means over samples leave out samples without loss tokens.",
        trl="dapo divides by the tokens of the optimizer batch, bnpo by those of the micro-batch, grpo by all samples, empty ones too.",
        here="Always of the whole optimizer batch; loss.aggregation says which mean, loss.empty_samples whether empty samples count.",
    ),
    Difference(
        topic="Dual clip",
        verl="Always on, with c = 3: the loss of a negative advantage never exceeds 3 |A|.",
        trl="There is none: one token with a negative advantage and a ratio of 400 has a loss of 400 |A|.",
        here="Off, until loss.dual_clip is set (3 is verl's).",
    ),
    Difference(
        topic="Ratio cap",
        verl="There is none in PPO. CISPO's bound is written as 1 + clip_ratio_high.",
        trl="delta cuts the ratio before the clip, for both signs. CISPO's epsilon_high is the bound itself.",
        here="loss.ratio_cap is TRL's delta. loss.cap is CISPO's bound itself; left empty it is 1 + clip_high.",
    ),
    Difference(
        topic="Rejected tokens",
        verl="They leave the response mask, so the denominator shrinks and the rest weighs more.",
        trl="They are multiplied by 0 and stay in the denominator.",
        here="Each correction says which: denominator original or survivors.",
    ),
    Difference(
        topic="Direction and bounds of the importance weight",
        verl="Truncated (TIS) weights of old over rollout; its rejection bounds on k1 are of rollout over old.",
        trl="Whole sequences whose product of old over rollout exceeds 3 get weight 0 (sequence_mask), and nothing is cut below.",
        here="Always trainer over engine; a correction names level, both bounds and action.",
    ),
    Difference(
        topic="KL estimator",
        verl="k3 (low_var_kl), with a gradient that is the forward KL's; k3+ takes k2's. Log-ratios clamped to 20, values to 10.",
        trl="k3 times the ratio to the old policy, with gradient through it, and no clamp.",
        here="loss.kl.estimator: k3, k3_plus or k3_weighted; loss.kl.clamp.",
    ),
    Difference(
        topic="Lonely samples",
        verl="A group of one gets its raw reward as advantage: mean 0 and deviation 1 are put in.",
        trl="The mean is the reward itself, so the advantage is 0.",
        here="loss.singletons: zero or raw.",
    ),
    Difference(
        topic="Epsilon of the deviation",
        verl="1e-6 is added to the unbiased standard deviation.",
        trl="1e-4 is added to the unbiased standard deviation.",
        here="loss.advantage_eps, 1e-4 unless set.",
    ),
    Difference(
        topic="Holes in rows",
        verl="Tokens of tools are masked; REINFORCE++ carries the running return across them, SkyRL starts it anew.",
        trl="Tokens of tools are masked; every advantage is one number a sample, so a hole changes nothing.",
        here="Outcome rewards with discount 1: every loss token of a sample has the same return, so a hole changes nothing.",
    ),
    Difference(
        topic="Overflow guard",
        verl="Log-ratios are clamped to 20, with no gradient beyond; to 10 for GSPO.",
        trl="There is none.",
        here="loss.log_ratio_clamp, 20 unless set; empty turns it off.",
    ),
]
