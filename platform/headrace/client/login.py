"""Where the command line finds its server and token: options, then environment, then what `headrace login` stored (mode 0600)."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from workers.contract.errors import ExitCode, HeadraceError


class NotLoggedIn(HeadraceError):
    """No server or no token is known."""

    exit_code = ExitCode.USAGE


@dataclass(frozen=True, slots=True)
class Login:
    """A server and the token that opens it."""

    server: str
    token: str

    def __repr__(self) -> str:
        return f"Login({self.server!r})"  # a token is in no log


def path() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "headrace" / "login.json"


def find(server: str | None = None, token_file: Path | None = None) -> Login:
    """Raises NotLoggedIn with the cure."""
    stored = read()
    address = server or os.environ.get("HEADRACE_SERVER") or (stored.server if stored else None)
    file = token_file or (Path(os.environ["HEADRACE_TOKEN_FILE"]) if os.environ.get("HEADRACE_TOKEN_FILE") else None)
    kept = stored.token if stored and stored.server == address else ""
    token = kept if file is None else read_secret(file)
    if not address or not token:
        raise NotLoggedIn("no server to talk to", field="server", value=address, cure="headrace login http://127.0.0.1:8700")
    return Login(address.rstrip("/"), token)


def read() -> Login | None:
    """What is stored, or None. Raises NotLoggedIn for a file that cannot be understood."""
    try:
        found = json.loads(path().read_text(encoding="utf-8"))
        return Login(str(found["server"]), str(found["token"]))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise NotLoggedIn(
            f"{path()} cannot be read ({type(error).__name__})", field="login", value=str(path()), cure="log in again"
        ) from error


def store(login: Login) -> Path:
    """Written beside and moved, never readable by others for a moment."""
    target = path()
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    part = target.with_name(target.name + ".part")
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as sink:
        json.dump({"server": login.server, "token": login.token}, sink)
    part.replace(target)
    return target


def forget() -> bool:
    """True: something was stored."""
    there = path().exists()
    path().unlink(missing_ok=True)
    return there


def read_secret(file: Path) -> str:
    """A token from a file. Raises NotLoggedIn."""
    try:
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise NotLoggedIn(
            f"the file cannot be read ({type(error).__name__})", field="token_file", value=str(file), cure="check its path"
        ) from error
    if not token:
        raise NotLoggedIn("the file is empty", field="token_file", value=str(file), cure="put an API token into it")
    return token
