"""Starting from another run's checkpoint: whether its weights can be this run's version 0, asked before any pool is started."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workers.checkpoint import Checkpoint, open_checkpoint
from workers.contract.config import RunConfig
from workers.contract.errors import CheckpointError, ConfigError
from workers.contract.loading import upgraded

FILES = {"adapter_only": "adapter_model.safetensors", "merged": "adapter_model.safetensors", "off": "model.safetensors"}


@dataclass(frozen=True)
class Start:
    """A checkpoint that fits, and the config it was trained with."""

    folder: Path
    checkpoint: Checkpoint
    config: RunConfig

    def facts(self) -> dict[str, Any]:
        """For the attempt's provenance."""
        made = self.checkpoint
        return {
            "path": str(self.folder),
            "step": made.step,
            "version": made.version,
            "sha256": made.sha256,
            "config_digest": made.config_digest,
        }


def without(config: RunConfig) -> RunConfig:
    """The same config, beginning from the model as it is."""
    return config.model_copy(update={"model": config.model.model_copy(update={"init_from": None})})


def check(config: RunConfig, model_digest: str) -> Start | None:
    """None where the run starts from the model itself. Raises ConfigError with the field that does not fit and what would."""
    if config.model.init_from is None:
        return None
    folder = Path(config.model.init_from)
    if not folder.is_dir():
        raise _refused("there is no such folder on this machine", folder, "choose a checkpoint that is still kept")
    try:
        made = open_checkpoint(folder)
        state = made.driver_state()
        before = RunConfig.model_validate(upgraded(state["config"]))
    except (CheckpointError, ValueError, KeyError, TypeError) as error:
        raise _refused(
            f"this is no complete checkpoint of a run: {error}", folder, "choose a folder step-... with a MANIFEST.json"
        ) from error
    full, adapted = before.lora.kind == "off", config.lora.kind != "off"
    if full and adapted:
        raise _refused(
            "it holds whole weights, and this run trains an adapter", folder, f"set model.path to {folder} and leave model.init_from empty"
        )
    if not full and not adapted:
        raise _refused("it holds an adapter, and this run trains every weight", folder, f"set lora.kind to {before.lora.kind}")
    if not full:
        for name in ("rank", "alpha", "moe_experts"):
            theirs, ours = getattr(before.lora, name), getattr(config.lora, name)
            if theirs != ours:
                raise ConfigError(
                    f"the checkpoint to start from was trained with {theirs}",
                    field=f"lora.{name}",
                    value=ours,
                    cure=f"set lora.{name} to {theirs}, or leave model.init_from empty",
                )
    theirs = _digest(folder, state)
    if theirs != model_digest if theirs else before.model.path != config.model.path:
        raise ConfigError(
            "the checkpoint to start from was trained on another model",
            field="model.path",
            value=config.model.path,
            cure=f"set model.path to {before.model.path}, or leave model.init_from empty",
        )
    if not (folder / FILES[config.lora.kind]).is_file():
        raise _refused(f"it holds no {FILES[config.lora.kind]}", folder, "choose another checkpoint: only safetensors are read")
    return Start(folder, made, before)


def _digest(folder: Path, state: dict[str, Any]) -> str | None:
    """Of the model it was trained on: in the checkpoint itself, else beside it in its attempt's folder."""
    if state.get("model_digest"):
        return str(state["model_digest"])
    try:
        return str(json.loads((folder.parent.parent / "provenance.json").read_text())["model_digest"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _refused(message: str, folder: Path, cure: str) -> ConfigError:
    return ConfigError(message, field="model.init_from", value=str(folder), cure=cure)
