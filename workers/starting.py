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
    """A complete checkpoint, the config it was trained with, and the digest of the model (None: it does not say)."""

    folder: Path
    checkpoint: Checkpoint
    config: RunConfig
    state: dict[str, Any]
    model_digest: str | None

    def provenance(self) -> dict[str, Any]:
        """What its attempt ran on, from the attempt's folder; {} where only the checkpoint was kept."""
        return _beside(self.folder, "provenance.json")

    def evaluations(self) -> list[dict[str, Any]]:
        """Held-out scores up to this checkpoint. One at its very step may be known to the attempt's summary alone."""
        known = list(self.state.get("progress", {}).get("evaluations") or [])
        later = _beside(self.folder, "summary.json").get("evaluations") or []
        return known + [row for row in later[len(known) :] if row.get("step", 0) <= self.checkpoint.step]

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


def look(folder: Path, field: str) -> Start:
    """A checkpoint by its folder, every file compared with its manifest. Raises ConfigError under `field`."""
    if not folder.is_dir():
        raise ConfigError("there is no such folder on this machine", field=field, value=str(folder), cure="choose a checkpoint still kept")
    try:
        made = open_checkpoint(folder)
        state = made.driver_state()
        config = RunConfig.model_validate(upgraded(state["config"]))
    except (CheckpointError, ValueError, KeyError, TypeError) as error:
        message = f"this is no complete checkpoint of a run: {error}"
        raise ConfigError(message, field=field, value=str(folder), cure="choose a folder step-... with a MANIFEST.json") from error
    file = FILES[config.lora.kind]
    if not (folder / file).is_file():
        raise ConfigError(f"it holds no {file}", field=field, value=str(folder), cure="choose another: only safetensors are read")
    return Start(folder, made, config, state, _digest(folder, state))


def same_model(start: Start, path: str, digest: str) -> None:
    """Raises ConfigError where the checkpoint was trained on another model than the one of this path and digest."""
    theirs = start.config.model.path
    if start.model_digest != digest if start.model_digest else theirs != path:
        raise ConfigError("the checkpoint was trained on another model", field="model.path", value=path, cure=f"set model.path to {theirs}")


def check(config: RunConfig, model_digest: str) -> Start | None:
    """None where the run starts from the model itself. Raises ConfigError with the field that does not fit and what would."""
    if config.model.init_from is None:
        return None
    folder = Path(config.model.init_from)
    start = look(folder, "model.init_from")
    before = start.config
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
    same_model(start, config.model.path, model_digest)
    return start


def _digest(folder: Path, state: dict[str, Any]) -> str | None:
    """Of the model it was trained on: in the checkpoint itself, else beside it in its attempt's folder."""
    if state.get("model_digest"):
        return str(state["model_digest"])
    found = _beside(folder, "provenance.json").get("model_digest")
    return None if found is None else str(found)


def _beside(folder: Path, name: str) -> dict[str, Any]:
    """A file of the attempt's folder; {} where only the checkpoint was kept."""
    try:
        found = json.loads((folder.parent.parent / name).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _refused(message: str, folder: Path, cure: str) -> ConfigError:
    return ConfigError(message, field="model.init_from", value=str(folder), cure=cure)
