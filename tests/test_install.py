"""deploy/install.sh: what pip has been told where to find packages, uv is told too, or is not used."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SETTINGS = '. deploy/install.sh; VENV="$1"; settings_of_pip'


def settings(tmp_path: Path, **variables: str) -> dict[str, str] | None:
    """uv's variables, where these are pip's and no file adds to them. None: uv is not to be used."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
    environment = {**clean, **variables, "PIP_CONFIG_FILE": os.devnull, "HOME": str(tmp_path), "ROOT": str(ROOT)}
    command = ["sh", "-c", SETTINGS, "sh", str(Path(sys.executable).parent.parent)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        return None
    exports = shlex.split(done.stdout.replace(";", " "))
    return dict(word.split("=", 1) for word in exports if word != "export")


def test_a_mirror_is_handed_over(tmp_path: Path) -> None:
    told = settings(
        tmp_path,
        PIP_INDEX_URL="https://mirror/simple",
        PIP_EXTRA_INDEX_URL="https://a/simple https://b/simple",
        PIP_FIND_LINKS="/one /two",
        PIP_CERT="/of/the/house.pem",
        PIP_ROOT_USER_ACTION="ignore",
    )
    assert told is not None
    assert told["UV_DEFAULT_INDEX"] == "https://mirror/simple"
    assert told["UV_INDEX"] == "https://a/simple https://b/simple"
    assert told["UV_FIND_LINKS"] == "/one,/two"
    assert told["SSL_CERT_FILE"] == "/of/the/house.pem"


@pytest.mark.parametrize("name", ["PIP_TRUSTED_HOST", "PIP_PROXY", "PIP_REQUIRE_HASHES"])
def test_what_uv_cannot_be_told_leaves_the_work_to_pip(tmp_path: Path, name: str) -> None:
    assert settings(tmp_path, **{name: "1"}) is None
