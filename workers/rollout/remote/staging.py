"""A published file as a folder that vLLM and SGLang can load by its path, once its digest has been checked."""

from __future__ import annotations

import json
import os
import shutil
from collections import deque
from collections.abc import Iterable
from pathlib import Path

from safetensors import safe_open

from workers import models
from workers.contract.config import Lora
from workers.contract.errors import EngineError
from workers.records import Manifest

KEPT = 2  # the folder that serves and the one before it


class Staging:
    """Constructed once an engine, of the model's folder. Writes beside the published file, which servers must see by the same path."""

    def __init__(self, model: Path, options: Lora, name: str) -> None:
        self._model = model
        self._options = options
        self._name = name.replace("/", "-")
        self._made: deque[Path] = deque()

    def stage(self, manifest: Manifest, names: Iterable[str]) -> Path:
        """Called with the names of a checked payload's tensors. Raises EngineError where they are not the model's, or nothing can be
        written."""
        names = list(names)
        adapter = manifest.payload == "adapter"
        if not adapter:
            self._whole(names)
        source = Path(manifest.handle["path"])
        folder = source.parent / f"served-{self._name}" / f"version-{manifest.version}"
        try:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            _place(source, folder / ("adapter_model.safetensors" if adapter else "model.safetensors"))
            if adapter:
                (folder / "adapter_config.json").write_text(json.dumps(self._adapter(names), indent=1))
            else:
                shutil.copyfile(self._model / "config.json", folder / "config.json")
        except OSError as error:
            raise EngineError(
                f"the weights cannot be laid out for the server: {error.strerror or error}",
                field="transport.kind",
                value=str(folder),
                cure="free disk space, or choose a writable output folder",
            ) from error
        self._made.append(folder)
        while len(self._made) > KEPT:
            shutil.rmtree(self._made.popleft(), ignore_errors=True)
        return folder

    def clear(self) -> None:
        while self._made:
            shutil.rmtree(self._made.popleft(), ignore_errors=True)

    def _whole(self, names: list[str]) -> None:
        """A server would load what it knows of a payload and keep old weights for the rest."""
        known: set[str] = set()
        for file in models.weight_files(self._model):
            with safe_open(file, framework="pt") as opened:
                known |= set(opened.keys())
        strange = sorted((known ^ set(names)) - {"lm_head.weight"})  # which a model that ties it stores or not
        if strange:
            raise EngineError(
                "the payload does not hold exactly the model's tensors",
                field="transport.payload",
                value=strange[0],
                cure="trainer and servers need the same model",
            )

    def _adapter(self, names: list[str]) -> dict[str, object]:
        """PEFT's adapter_config.json of what the trainer learns; the modules are those that the payload holds."""
        return {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": str(self._model),
            "r": self._options.rank,
            "lora_alpha": self._options.alpha,
            "lora_dropout": 0.0,
            "bias": "none",
            "target_modules": sorted({name.split(".")[-3] for name in names}),
        }


def _place(source: Path, target: Path) -> None:
    """The very bytes that were checked: another name for them, or a copy where the file system has none."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
