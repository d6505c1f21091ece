"""System checks: what would go wrong later, said at start, with what to do. `python manage.py check --deploy` runs all of them."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.db import connections

from headrace.environment import LOOPBACK
from headrace.sqlite import MINIMUM_VERSION
from workers.contract import failpoints


@register(Tags.database)
def sqlite_is_sound(databases: list[str] | None = None, **_: Any) -> list[CheckMessage]:
    """The library under the connection that is in use, whatever module it came from."""
    found: list[CheckMessage] = []
    for alias in databases or []:
        connection = connections[alias]
        if connection.vendor != "sqlite":
            continue
        with connection.cursor() as cursor:
            version = cursor.execute("select sqlite_version()").fetchone()[0]
        if tuple(int(part) for part in version.split(".")) < MINIMUM_VERSION:
            wanted = ".".join(map(str, MINIMUM_VERSION))
            message = f"SQLite {version} may corrupt a WAL database; at least {wanted} is needed."
            found.append(Error(message, hint="pip install 'pysqlite3>=0.6.1'", id="headrace.E001"))
    return found


@register()
def data_folder(**_: Any) -> list[CheckMessage]:
    """The data folder exists or can be made, can be written, and is nobody else's to read."""
    folder = Path(settings.DATA_DIR)
    if not folder.exists():
        parent = next((p for p in folder.parents if p.exists()), None)
        if parent is None or not os.access(parent, os.W_OK):
            return [
                Error(f"{folder} does not exist and cannot be made.", hint="Set HEADRACE_DATA_DIR to a folder you own.", id="headrace.E002")
            ]
        return []
    if not os.access(folder, os.W_OK | os.X_OK):
        return [Error(f"{folder} cannot be written.", hint="Set HEADRACE_DATA_DIR to a folder you own.", id="headrace.E003")]
    if folder.stat().st_mode & (stat.S_IROTH | stat.S_IWOTH):
        return [Warning(f"{folder} is open to every user of this machine.", hint=f"chmod 700 {folder}", id="headrace.W004")]
    return []


@register(Tags.security, deploy=True)
def https_beyond_loopback(**_: Any) -> list[CheckMessage]:
    """Plain http is for this machine alone: passwords and tokens would cross the network in the open."""
    host = urlsplit(settings.BASE_URL).hostname or ""
    if settings.HTTPS or host in LOOPBACK:
        return []
    return [Error(f"BASE_URL is plain http on {host}.", hint="Set HEADRACE_BASE_URL to an https address.", id="headrace.E005")]


@register(Tags.security, deploy=True)
def no_failpoints(**_: Any) -> list[CheckMessage]:
    """Armed, they make processes kill themselves at named places."""
    if not os.environ.get(failpoints.VARIABLE):
        return []
    return [Error("Failpoints are armed.", hint=f"Unset {failpoints.VARIABLE}: it is for tests alone.", id="headrace.E008")]


@register(deploy=True)
def shared_channel_layer(**_: Any) -> list[CheckMessage]:
    """Without Valkey nothing is dispatched and pages of other processes are not told."""
    if settings.VALKEY_URL:
        return []
    hint = "Set HEADRACE_VALKEY_URL, for example unix:///path/valkey.sock; `headrace up` does."
    return [
        Warning(
            "No Valkey: runs are queued but not launched at once, and only one process sees live events.", hint=hint, id="headrace.W006"
        )
    ]


@register(Tags.security)
def secret_files(**_: Any) -> list[CheckMessage]:
    """Files that hold secrets are readable by their owner only."""
    found: list[CheckMessage] = []
    for variable in ("HEADRACE_SECRET_KEY_FILE", "HEADRACE_RAY_TOKEN_FILE"):
        name = os.environ.get(variable)
        if name and Path(name).exists() and Path(name).stat().st_mode & 0o077:
            found.append(Warning(f"{variable}: {name} can be read by others.", hint=f"chmod 600 {name}", id="headrace.W007"))
    return found
