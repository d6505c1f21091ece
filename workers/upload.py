"""Registers a run that was trained with no server, so that its spool can be shipped there."""

from __future__ import annotations

import json
from pathlib import Path

import httpx

from workers.contract.errors import ConfigError, EnvironmentMissing
from workers.ship import AttemptFile

UPLOADED = "upload.json"


def register(folder: Path, server: str, token_file: Path | None, name: str | None) -> AttemptFile:
    """Makes a run on the server (once a folder: the answer is kept in upload.json, mode 0600) and returns where to ship."""
    kept = folder / UPLOADED
    if kept.is_file():
        return AttemptFile.read(kept)
    if token_file is None:
        raise ConfigError("an API token is needed", field="--token-file", cure="make one on the server's page and save it in a file")
    config = json.loads((folder / "config.json").read_text())
    try:
        reply = httpx.post(
            f"{server.rstrip('/')}/api/v1/uploads",
            json={"name": name or folder.resolve().name, "config": config},
            headers={"Authorization": f"Bearer {token_file.read_text().strip()}"},
            timeout=20,
            trust_env=False,
        )
    except (httpx.HTTPError, OSError) as error:
        raise EnvironmentMissing(
            f"the server cannot be reached: {error}", field="--server", value=server, cure="start it", retryable=True
        ) from error
    if reply.status_code >= 400:
        raise ConfigError(
            f"the server refused the run: {reply.text[:300]}", field="--server", value=reply.status_code, cure="see the message"
        )
    data = {"server": server.rstrip("/"), "number": 1, "fence": 1, **reply.json()}
    kept.touch(mode=0o600)
    kept.write_text(json.dumps(data))
    return AttemptFile.read(kept)
