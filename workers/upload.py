"""Registers a run that was trained with no server, so that its spool can be shipped there."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import httpx

from workers.contract.errors import ConfigError, EnvironmentMissing
from workers.ship import AttemptFile
from workers.spool import sync_folder

UPLOADED = "upload.json"


def register(folder: Path, server: str, token_file: Path | None, name: str | None) -> AttemptFile:
    """Makes a run on the server (once a folder: the answer is kept in upload.json, mode 0600) and returns where to ship."""
    kept = folder / UPLOADED
    server = server.rstrip("/")
    if kept.is_file():
        attempt = AttemptFile.read(kept)
        if attempt.server != server:
            raise ConfigError(
                f"this folder is a run of {attempt.server}", field="--server", value=server, cure=f"ship it there, or remove {kept}"
            )
        return attempt
    if token_file is None:
        raise ConfigError("an API token is needed", field="--token-file", cure="make one on the server's page and save it in a file")
    try:
        token = token_file.read_text().strip()
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the token cannot be read: {error}", field="--token-file", value=str(token_file), cure="name its file"
        ) from error
    try:
        config = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"there is no run in this folder: {error}", field="DIR", value=str(folder), cure="name the --out folder of a run"
        ) from error
    reply = _post(server, token, {"name": name or folder.resolve().name, "config": config})
    _keep(kept, {"server": server, "number": 1, "fence": 1, **reply})
    return AttemptFile.read(kept)


def _post(server: str, token: str, body: dict[str, Any]) -> dict[str, Any]:
    try:
        reply = httpx.post(f"{server}/api/v1/uploads", json=body, headers={"Authorization": f"Bearer {token}"}, timeout=20, trust_env=False)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:  # ValueError: a token that no header can carry
        raise EnvironmentMissing(
            f"the server cannot be reached: {error}", field="--server", value=server, cure="start it", retryable=True
        ) from error
    if reply.status_code >= 400:
        raise ConfigError(
            f"the server refused the run: {reply.text[:300]}", field="--server", value=reply.status_code, cure="see the message"
        )
    try:
        answer = dict(reply.json())
        return {name: answer[name] for name in ("run", "attempt", "token")} | answer
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(
            "the answer is not one of the server", field="--server", value=reply.text[:120], cure="name the address of its first page"
        ) from error


def _keep(kept: Path, data: dict[str, Any]) -> None:
    """Whole or not at all: half an answer would lose the only copy of the token."""
    draft = kept.with_suffix(".tmp")
    draft.unlink(missing_ok=True)
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(data, file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(kept)
    sync_folder(kept.parent)
