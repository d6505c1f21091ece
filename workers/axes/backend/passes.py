"""The forward pass of a micro-batch, and the check that a model may be run in this layout at all."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from workers.axes.backend.layout import Item, MicroBatch, build, rows_of
from workers.axes.backend.logprobs import token_logprobs
from workers.axes.backend.routing import replayed
from workers.contract.errors import EnvironmentMissing


def forward(model: Any, micro: MicroBatch, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probs, with gradient, and entropies of the completion tokens, (N,) each. model: a transformers causal LM, adapters inside.

    Hidden states are gathered before the head, so logits exist only where a completion token is predicted. Where the micro-batch
    carries them, the experts are those recorded, and the log-probs are over what sampling had left to choose from.
    """
    body, head = model.base_model, model.get_output_embeddings()
    with replayed(model, micro.routing):
        hidden = body(
            input_ids=micro.input_ids, attention_mask=micro.attention, position_ids=micro.position_ids, use_cache=False
        ).last_hidden_state
    return token_logprobs(hidden.reshape(-1, hidden.shape[-1])[micro.source], head, micro.targets, temperature, micro.support)


def check_layout(model: Any, given: str) -> None:
    """Called once, at start. Compares a shared row with ordinary ones through the model's own head.

    Raises EnvironmentMissing for architectures whose logits are scaled or capped after the head, or that take no 4D mask.
    """
    count = int(model.get_output_embeddings().weight.shape[0])
    ids = [(7 * number * number + 13 * number + 5) % count for number in range(1, 12)]
    prompt, completions = ids[:5], [ids[5:8], ids[8:11]]
    items = [Item(str(k), k, prompt, tokens, [0.0] * 3, 0.0) for k, tokens in enumerate(completions)]
    with torch.no_grad():
        micro = build(rows_of(items, 1000), 0)
        shared = micro.spread(forward(model, micro, 1.0)[0])
        logits = model(input_ids=torch.tensor([prompt + tokens for tokens in completions]), use_cache=False).logits
        plain = logits[:, len(prompt) - 1 : -1].float().log_softmax(-1).gather(2, torch.tensor(completions)[:, :, None])[:, :, 0]
    gap = float((shared - plain).abs().mean())
    if not gap < (0.3 if model.dtype == torch.bfloat16 else 1e-3):
        raise EnvironmentMissing(
            f"this architecture gives other log-probs in the trainer's layout (mean gap {gap:.3g})",
            field="model.path",
            value=given,
            cure="use a Llama-like model: full attention, and a plain linear head without scaling or capping",
        )
