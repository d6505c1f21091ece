"""Installs vLLM beside Headrace: the build that fits this machine, without touching a package that is there already."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from workers.contract.errors import EnvironmentMissing

COMMAND = "python -m workers install-engine vllm"


def installed() -> bool:
    """Whether vLLM can be imported by this Python. Imports nothing."""
    return find_spec("vllm") is not None


def require() -> None:
    """Called before anything starts. Raises EnvironmentMissing naming the command that installs vLLM."""
    if not installed():
        raise EnvironmentMissing("vLLM is not installed here", field="rollout.engine", value="vllm", cure=f"run `{COMMAND}`")


def requirements(gpu: bool) -> Path:
    """The file of exact versions for this kind of machine."""
    return Path(__file__).with_name(f"requirements-{'gpu' if gpu else 'cpu'}.txt")


def has_gpu() -> bool:
    """Whether there is an NVIDIA driver: its tool stands on PATH and lists a device."""
    tool = shutil.which("nvidia-smi")
    return tool is not None and subprocess.run([tool, "-L"], capture_output=True, check=False).stdout.startswith(b"GPU")


def install(gpu: bool | None = None) -> Path:
    """Installs what fits this machine (`gpu` None: as found out) and returns the file of versions. Raises EnvironmentMissing.

    Without dependencies: vLLM declares older versions of transformers and numpy than Headrace is tested with, and works with these.
    """
    chosen = requirements(has_gpu() if gpu is None else gpu)
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-q", "--no-deps", "-r", str(chosen)]
    if subprocess.run(command, check=False).returncode != 0:
        raise EnvironmentMissing(
            "vLLM could not be installed; pip's words stand above",
            field="rollout.engine",
            value="vllm",
            cure=f"see that the package index can be reached, then run `{COMMAND}` again",
        )
    return chosen
