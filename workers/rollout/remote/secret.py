"""Bearer tokens of servers, by name. The config holds the name alone; only the client of the server ever reads the content."""

from __future__ import annotations

import os
from pathlib import Path

from workers.contract.errors import EnvironmentMissing


def folder() -> Path:
    """Where tokens lie, a file each: $HEADRACE_ENGINE_TOKENS, else ~/.config/headrace/engine-tokens."""
    given = os.environ.get("HEADRACE_ENGINE_TOKENS")
    return Path(given).expanduser() if given else Path.home() / ".config" / "headrace" / "engine-tokens"


def read(name: str | None) -> str | None:
    """The token of that name; None where no name is given. Raises EnvironmentMissing, which never repeats what the file holds."""
    if name is None:
        return None
    path = folder() / name
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise _missing(f"the token cannot be read: {type(error).__name__}", path) from None
    if not token or not token.isprintable() or " " in token:
        raise _missing("the file holds no token", path)
    return token


def _missing(message: str, path: Path) -> EnvironmentMissing:
    return EnvironmentMissing(
        message, field="rollout.remote.token", value=path.name, cure=f"write the server's token, and nothing else, to {path} (mode 0600)"
    )
