"""Keep Routing: a mixture-of-experts model trains on the experts that were chosen before, not on those it would choose now.

r3 (arXiv:2510.11370) replays the engine's choice, r2 (GSPO, arXiv:2507.18071) the trainer's own at the start of the batch. Only
the choice is replayed: the gates are the router's probabilities of today at those ids, renormalised where the model does so,
and the gradient flows through them. Expert ids belong to input tokens; those of position t shape the logits of token t + 1.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from workers.axes.backend.layout import Item, MicroBatch
from workers.contract.errors import ConfigError, EngineError
from workers.records import Rollout


def routers(model: Any) -> list[Any]:
    """The routers of a transformers model, from the first layer to the last; none in a dense model.

    A router is a module that holds top_k and num_experts and returns (logits, gates, ids), rows by token, as Qwen3-MoE's does.
    """
    return [module for module in model.modules() if hasattr(module, "norm_topk_prob") and hasattr(module, "num_experts")]


def check_replay(model: Any, kind: str) -> None:
    """Called once, at start. Raises ConfigError where routing is to be replayed in a model that does not route."""
    if kind != "off" and not routers(model):
        raise ConfigError(
            "the model has no router whose choice could be kept",
            field="replay.routing",
            value=kind,
            cure="set replay.routing to off, or choose a mixture-of-experts model (Qwen3MoeForCausalLM)",
        )


@contextmanager
def replayed(model: Any, routing: Tensor | None) -> Iterator[None]:
    """For one forward pass: the routers choose `routing` (rows, layers x k) where it is not negative. None: they choose freely."""
    if routing is None:
        yield
        return
    chosen = routing.to(torch.int64)
    found = routers(model)
    width = sum(router.top_k for router in found)
    if chosen.shape[1] != width:
        raise EngineError(
            f"{chosen.shape[1]} expert ids a token were recorded, this model chooses {width}",
            field="replay.routing",
            cure="trainer and engine need the same model",
        )
    parts = torch.split(chosen, [router.top_k for router in found], dim=1)
    hooks = [router.register_forward_hook(_choosing(ids)) for router, ids in zip(found, parts, strict=True)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _choosing(ids: Tensor) -> Any:
    """A forward hook that puts `ids` (rows, k) in the place of the router's choice. Rows of -1 stay as they are."""
    free = (ids < 0).any(dim=1, keepdim=True)

    def hook(router: Any, given: Any, output: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        logits, _, own = output
        taken = torch.where(free, own, ids)
        gates = torch.softmax(logits, dim=-1, dtype=torch.float32).gather(1, taken)
        if router.norm_topk_prob:
            gates = gates / gates.sum(dim=-1, keepdim=True)
        return logits, gates.to(logits.dtype), taken

    return hook


@contextmanager
def recorded(model: Any, wanted: bool = True) -> Iterator[list[Tensor]]:
    """For one forward pass: the list fills with each router's choice, (rows, k), layer by layer; it stays empty where not wanted."""
    seen: list[Tensor] = []
    if not wanted:
        yield seen
        return
    hooks = [router.register_forward_hook(lambda _, __, output: seen.append(output[2].detach())) for router in routers(model)]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def choices(micro: MicroBatch, seen: list[Tensor]) -> dict[int, Tensor]:
    """What `recorded` saw in a micro-batch's forward pass, by item index, in the shape of Item.routing."""
    if not seen:
        return {}
    table = torch.cat(seen, dim=1).to(torch.uint8)
    width = micro.input_ids.shape[1]
    found: dict[int, Tensor] = {}
    for item, places in zip(micro.items, torch.split(micro.source, [len(item.tokens) for item in micro.items]), strict=True):
        prompt = int(places[0]) // width * width + torch.arange(len(item.prompt))
        found[item.index] = table[torch.cat((prompt, places[1:]))]
    return found


def recalled(items: Sequence[Item], kept: Mapping[int, Tensor]) -> Sequence[Item]:
    """r2: the items with the trainer's own choice, by item index; where there is none, as they were."""
    return [replace(item, routing=kept[item.index]) if item.index in kept else item for item in items]


def decode(rollout: Rollout, prompt: int) -> Tensor:
    """Item.routing of a rollout whose prompt has this many tokens. Raises EngineError where the engine recorded none, or too few."""
    positions = prompt + len(rollout.token_ids) - 1
    try:
        data = base64.b64decode(rollout.routing or "", validate=True)
    except (binascii.Error, ValueError):
        data = b""
    if not data or len(data) % positions:
        raise EngineError(
            f"a rollout of {positions} input tokens came with {len(data)} recorded expert ids",
            field="replay.routing",
            value=rollout.id,
            cure="r3 needs an engine that records its routing, for a mixture-of-experts model",
        )
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(positions, -1)


def of_group(items: Sequence[Item], rollouts: Mapping[str, Rollout]) -> list[Item]:
    """The items of one prompt with what their rollouts recorded, by id.

    The prompt's routing is the first item's for all of them: engines may have computed the prompt once for each weight version,
    but the trainer computes it once, and wherever rows are cut, the result is the same.
    """
    found = [decode(rollouts[item.id], len(item.prompt)) for item in items]
    return [
        replace(item, routing=torch.cat((found[0][: len(item.prompt)], one[len(item.prompt) :])))
        for item, one in zip(items, found, strict=True)
    ]
