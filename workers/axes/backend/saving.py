"""The trainer's share of a checkpoint: safetensors and JSON, nothing pickled. The caller makes the folder whole and renames it.

Names and shapes are those of one process, however many ranks saved it or will read it: pieces are put together tensor by tensor,
and a rank that restores cuts its own out of each.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from workers.axes.backend.optimizer import STATE, Stepper
from workers.axes.backend.spread import Spread
from workers.axes.backend.tensorfile import Entry, write
from workers.axes.lora.base import Adapters
from workers.contract.errors import CheckpointError, EngineError
from workers.contract.failpoints import reached

OPTIMIZER, COUNTERS = "optimizer.safetensors", "trainer.json"


def save(folder: Path, adapters: Adapters, stepper: Stepper, base: str, counters: dict[str, Any]) -> dict[str, Any]:
    """Writes masters (float32), optimizer and counters. Called on rank 0, between two batches. Returns the counters."""
    folder.mkdir(parents=True, exist_ok=True)
    spread, masters = stepper.spread, adapters.masters
    entries = {name: Entry(master.dtype, spread.shape(name, master)) for name, master in masters.items()}
    write(folder / adapters.file, entries, lambda name: spread.whole("master", name, masters[name].detach()))
    adapters.save_config(folder, base)
    reached("save.trainer")
    states: dict[str, Entry] = {}
    if stepper.has_state:
        for name, entry in entries.items():
            states |= {f"{key}/{name}": Entry(torch.float32, ()) if key == "step" else entry for key in STATE}

    def state(full: str) -> torch.Tensor:
        key, _, name = full.partition("/")
        return stepper.whole_state(key, name)

    write(folder / OPTIMIZER, states, state)
    saved = {**counters, "optimizer": stepper.counters()}
    (folder / COUNTERS).write_text(json.dumps(saved, indent=1) + "\n", encoding="utf-8")
    return saved


def restore(folder: Path, adapters: Adapters, stepper: Stepper) -> dict[str, Any]:
    """Reads what `save` wrote, bit for bit; called on every rank. Raises CheckpointError where it is torn or of another model."""
    spread, masters = stepper.spread, adapters.masters
    try:
        counters: dict[str, Any] = json.loads((folder / COUNTERS).read_text(encoding="utf-8"))
        steps = counters["optimizer"]
        with safe_open(folder / adapters.file, "pt") as weights, safe_open(folder / OPTIMIZER, "pt") as states:
            if not _fits(weights, masters, spread):
                raise CheckpointError(
                    "the checkpoint's weights do not fit this model",
                    value=str(folder),
                    cure="resume with the model, the lora.kind and the lora.rank it was saved with",
                )
            known = list(states.keys())
            stepper.load(known, lambda full: states.get_tensor(full), steps)
            _take(weights, masters, spread)
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        raise CheckpointError(f"the checkpoint is not readable: {error}", value=str(folder), cure="resume from an older one") from error
    adapters.refresh()
    return counters


def begin(folder: Path, adapters: Adapters, spread: Spread) -> None:
    """Called once on every rank of a run that starts from another run's checkpoint: its weights alone, the optimizer stays fresh.

    Raises EngineError (field `model.init_from`) where the file is missing, unreadable or of another shape.
    """
    try:
        with safe_open(folder / adapters.file, "pt") as weights:
            if not _fits(weights, adapters.masters, spread):
                raise EngineError(
                    "the checkpoint's weights do not fit this model",
                    field="model.init_from",
                    value=str(folder),
                    cure="start from it with the model, lora.kind, lora.rank and lora.moe_experts that it was trained with",
                )
            _take(weights, adapters.masters, spread)
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        raise EngineError(
            f"the checkpoint to start from is not readable: {error}",
            field="model.init_from",
            value=str(folder),
            cure=f"choose a complete checkpoint: it holds {adapters.file}",
        ) from error
    adapters.refresh()


def _fits(weights: Any, masters: Mapping[str, torch.Tensor], spread: Spread) -> bool:
    shapes = {name: tuple(weights.get_slice(name).get_shape()) for name in weights.keys()}  # noqa: SIM118 - no mapping
    return shapes == {name: spread.shape(name, master) for name, master in masters.items()}


def _take(weights: Any, masters: Mapping[str, torch.Tensor], spread: Spread) -> None:
    with torch.no_grad():
        for name, master in masters.items():
            master.copy_(spread.cut(name, weights.get_tensor(name)))
