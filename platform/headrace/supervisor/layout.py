"""Where one installation keeps its things: folders, sockets, secrets and ports."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import socket
import stat
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from workers.contract.errors import EnvironmentMissing

LOOPBACK = "127.0.0.1"
SOCKET_PATH_LIMIT = 100  # the kernel's limit is 108 on Linux and 104 on macOS


def default_data_dir() -> Path:
    """HEADRACE_DATA_DIR, else the folder that settings use too."""
    given = os.environ.get("HEADRACE_DATA_DIR")
    return Path(given).expanduser().resolve() if given else Path.home() / ".local" / "share" / "headrace"


def free_ports(count: int) -> list[int]:
    """Distinct loopback ports that are free now, below the range that outgoing connections are given on Linux."""
    found: list[int] = []
    for _ in range(1000):
        if len(found) == count:
            return found
        port = 20000 + secrets.randbelow(12000)
        if port not in found and port_is_free(port):
            found.append(port)
    raise EnvironmentMissing("no free ports on 127.0.0.1 between 20000 and 32000", cure="stop programs that hold them, then start again")


def port_is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # Without it a port in TIME_WAIT, as after a quick restart, would look busy.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


@dataclass
class Layout:
    """The folders of one data folder. `runtime` holds sockets and Ray's session: short, private, removed at the end."""

    data: Path
    port: int
    ports: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.mark = hashlib.sha256(str(self.data).encode()).hexdigest()[:12]
        root = Path("/tmp") if Path("/tmp").is_dir() else Path(tempfile.gettempdir())
        self.runtime = root / f"headrace-{self.mark}"
        if not self.ports:
            names = ("ray_gcs", "ray_client", "ray_dashboard", "ray_agent")
            self.ports = dict(zip(names, free_ports(len(names)), strict=True))

    @property
    def logs(self) -> Path:
        return self.data / "logs"

    @property
    def runs(self) -> Path:
        return self.data / "runs"

    @property
    def models(self) -> Path:
        return self.data / "models"

    @property
    def pidfile(self) -> Path:
        return self.data / "headrace.pid"

    @property
    def secret_key(self) -> Path:
        return self.data / "secret_key"

    @property
    def ray_token(self) -> Path:
        return self.data / "ray_token"

    @property
    def valkey_socket(self) -> Path:
        inside = self.data / "valkey.sock"
        return inside if len(os.fsencode(inside)) <= SOCKET_PATH_LIMIT else self.runtime / "valkey.sock"

    @property
    def ray_dir(self) -> Path:
        return self.runtime / "ray"

    @property
    def base_url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def ray_url(self) -> str:
        return f"http://{LOOPBACK}:{self.ports['ray_dashboard']}"

    def make(self) -> None:
        """Makes the private folders. A runtime folder that belongs to somebody else is refused: its name can be guessed."""
        for folder in (self.data, self.logs, self.runs):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.runtime.mkdir(mode=0o700, exist_ok=True)
        found = self.runtime.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
            raise EnvironmentMissing(
                "the folder for sockets belongs to somebody else or is open to others",
                field="runtime folder",
                value=str(self.runtime),
                cure="remove it, or choose another --data-dir",
            )

    def write_signing_key(self) -> None:
        """Made once; sessions stay valid over restarts."""
        if not self.secret_key.exists():
            write_private(self.secret_key, secrets.token_urlsafe(64))

    def write_secrets(self) -> None:
        """The signing key, and a Ray token that is new with every start (Ray's tokens never expire by themselves)."""
        self.write_signing_key()
        write_private(self.ray_token, secrets.token_hex(32))

    def clear(self) -> None:
        """Removes what must not outlive the processes."""
        shutil.rmtree(self.runtime, ignore_errors=True)
        for path in (self.valkey_socket, self.ray_token, self.pidfile):
            path.unlink(missing_ok=True)


def write_private(path: Path, text: str) -> None:
    """Writes a file that nobody else can read, not even for a moment."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.unlink(missing_ok=True)
    handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    aside.replace(path)
