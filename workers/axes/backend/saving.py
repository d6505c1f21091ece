"""The trainer's share of a checkpoint: safetensors and JSON, nothing pickled. The caller makes the folder whole and renames it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from workers.axes.backend.optimizer import Stepper
from workers.axes.lora.base import Adapters
from workers.contract.errors import CheckpointError

WEIGHTS, OPTIMIZER, COUNTERS = "adapter_model.safetensors", "optimizer.safetensors", "trainer.json"


def save(folder: Path, adapters: Adapters, stepper: Stepper, base: str, counters: dict[str, Any]) -> dict[str, Any]:
    """Writes adapters (float32, PEFT's names), optimizer and counters. Called between two batches. Returns the counters."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: master.detach().contiguous() for name, master in adapters.masters.items()}, folder / WEIGHTS, metadata={"format": "pt"}
    )
    adapters.save_config(folder, base)
    tensors, steps = stepper.state()
    save_file(tensors, folder / OPTIMIZER)
    saved = {**counters, "optimizer": steps}
    (folder / COUNTERS).write_text(json.dumps(saved, indent=1) + "\n", encoding="utf-8")
    return saved


def restore(folder: Path, adapters: Adapters, stepper: Stepper) -> dict[str, Any]:
    """Reads what `save` wrote, bit for bit. Raises CheckpointError where it is torn or belongs to another model."""
    try:
        weights, optimizer = load_file(folder / WEIGHTS), load_file(folder / OPTIMIZER)
        counters: dict[str, Any] = json.loads((folder / COUNTERS).read_text(encoding="utf-8"))
        steps = counters["optimizer"]
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        raise CheckpointError(f"the checkpoint is not readable: {error}", value=str(folder), cure="resume from an older one") from error
    shapes = {name: tuple(value.shape) for name, value in weights.items()}
    expected = {name: tuple(master.shape) for name, master in adapters.masters.items()}
    if shapes != expected:
        cure = "resume with the model and the lora.rank it was saved with"
        raise CheckpointError("the checkpoint's adapters do not fit this model", value=str(folder), cure=cure)
    with torch.no_grad():
        for name, master in adapters.masters.items():
            master.copy_(weights[name])
    adapters.refresh()
    stepper.load(optimizer, steps)
    return counters
