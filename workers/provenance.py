"""What an attempt ran on: enough to repeat it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

from workers import models
from workers.contract.config import RunConfig
from workers.environments.base import Environment
from workers.requests import stream_key

PACKAGES = ("headrace", "torch", "transformers", "peft", "ray", "vllm", "reasoning-gym", "safetensors", "numpy", "pydantic")


def provenance(config: RunConfig, model_folder: Path, environment: Environment) -> dict[str, Any]:
    """Versions, digests, hardware, command and commit."""
    return {
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "cpu": {"count": os.cpu_count(), "model": _cpu_model()},
        "memory_bytes": psutil.virtual_memory().total,
        "model_digest": models.digest(model_folder),
        "data_digest": environment.data_digest,
        "template_hash": environment.template_hash,
        "streams": {name: stream_key(config.seed, name) for name in ("data", "sample", "evaluation", "init")},
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "git_commit": _commit(),
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)


def _commit() -> str | None:
    root = Path(__file__).resolve().parent.parent
    try:
        done = subprocess.run(["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=False)
    except OSError:
        return None
    return done.stdout.strip() or None
