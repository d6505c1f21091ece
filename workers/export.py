"""`python -m workers export CHECKPOINT --out DIR`: what other tools load, and a card that says where it comes from.

An adapter is written as PEFT reads it; weights that were trained whole, or merged, as transformers reads them. Optimizer, data
cursor and samples stay behind.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

from workers import models, starting
from workers.card import card
from workers.contract.errors import ConfigError, EnvironmentMissing

CARD = "README.md"
ADAPTER = ("adapter_model.safetensors", "adapter_config.json")
LEFT_BEHIND = ("optimizer.safetensors", "trainer.json", "driver.json", "MANIFEST.json")
OF_A_MODEL = (
    "generation_config.json",
    "tokenizer*",
    "vocab*",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template*",
)


def run(checkpoint: Path, out: Path) -> list[str]:
    """Called by the command. The names written. Whole or not at all; raises ConfigError, EnvironmentMissing, EngineError."""
    checkpoint, out = checkpoint.resolve(), out.absolute()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError("is there already", field="--out", value=str(out), cure="name a folder that is not there yet, or is empty")
    start = starting.look(checkpoint, "CHECKPOINT")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
        try:
            _write(start, aside)
            (aside / CARD).write_text(card(start), encoding="utf-8")
            names = sorted(item.name for item in aside.iterdir())
            aside.chmod(0o755)
            if out.exists():
                out.rmdir()
            aside.rename(out)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    except OSError as error:
        raise EnvironmentMissing(
            f"cannot be written: {error}", field="--out", value=str(out), cure="free space, or name another"
        ) from error
    return names


def _write(start: starting.Start, target: Path) -> None:
    kind = start.config.lora.kind
    if kind == "adapter_only":
        for name in ADAPTER:
            shutil.copyfile(start.folder / name, target / name)
    elif kind == "off":
        for item in start.folder.iterdir():
            if item.is_file() and item.name not in LEFT_BEHIND:
                shutil.copyfile(item, target / item.name)
    else:
        _merge(start, target)


def _merge(start: starting.Start, target: Path) -> None:
    """The very weights that the engines sampled from: base and adapter merged, rounded once to the model's type."""
    from safetensors.torch import save_file

    from workers import comparing

    folder = models.locate(start.config.model.path)
    starting.same_model(start, start.config.model.path, models.digest(folder))
    adapters = comparing.trained(start.config, comparing.load(start.config, folder), start.folder)
    save_file({name: tensor.clone() for name, tensor in adapters.payload().items()}, target / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config.pop("torch_dtype", None)
    (target / "config.json").write_text(json.dumps({**config, "dtype": start.config.model.dtype}, indent=2) + "\n", encoding="utf-8")
    for pattern in OF_A_MODEL:
        for item in folder.glob(pattern):
            shutil.copyfile(item, target / item.name)
