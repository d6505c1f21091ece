"""http: the trainer serves its last two payloads on loopback, behind a token; engines fetch them in one stream.

The token is made anew by each sender and travels in the manifest, on the run's private carrier. It is never logged.
"""

from __future__ import annotations

import hmac
import os
import secrets
import socket
import threading
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import IO, Any

import httpx
import torch

from workers.axes.transport.base import Link, Transport
from workers.axes.transport.payload import private_file, unpack, write_file
from workers.contract.errors import EngineError
from workers.records import Manifest

GENERATIONS_KEPT = 2  # an engine may still be reading the last but one
PATIENCE_S = 30.0  # for each read and write on a connection


class HttpTransport(Transport):
    """The road over a TCP connection on loopback: trainer and engines on one host."""

    def __init__(self, link: Link) -> None:
        self._server: _Server | None = None

    def send(self, tensors: Mapping[str, torch.Tensor], version: int, payload: str, receivers: list[str]) -> Manifest:
        """Called by the trainer at each publish; the first one opens the port. The last two publishes stay readable."""
        started = time.perf_counter()
        file = private_file()
        try:
            start, contents = write_file(tensors, file)
        except BaseException:
            file.close()
            raise
        if self._server is None:
            self._server = _Server()
        handle = {"url": self._server.offer(file, version), "token": self._server.token}
        size = start + contents.bytes
        return Manifest(version, contents.digest, size, payload, "http", handle, export_s=time.perf_counter() - started)

    def receive(self, manifest: Manifest) -> dict[str, torch.Tensor]:
        """Called by each engine. Raises DigestMismatch on cut or flipped bytes, EngineError where the trainer does not give them."""
        url = str(manifest.handle["url"])
        headers = {"Authorization": f"Bearer {manifest.handle['token']}", "Accept-Encoding": "identity"}
        try:
            # No proxy and no .netrc of the environment may come between, and nobody may send us elsewhere.
            with (
                httpx.Client(trust_env=False, timeout=PATIENCE_S, follow_redirects=False) as client,
                client.stream("GET", url, headers=headers) as answer,
            ):
                if answer.status_code != 200:
                    raise _unreadable(f"the trainer answered {answer.status_code}", url)
                return unpack(_Stream(answer).read, manifest)
        except httpx.HTTPError as error:
            raise _unreadable(f"{type(error).__name__}: {error}", url) from error

    def close(self) -> None:
        """Called at the end on both sides; the sender's port is closed, and connections that are under way are cut."""
        if self._server is not None:
            self._server.end()
            self._server = None


class _Stream:
    """The body of an answer, as far as it has come."""

    def __init__(self, answer: httpx.Response) -> None:
        self._chunks = answer.iter_raw()
        self._unread = memoryview(b"")

    def read(self, view: memoryview) -> int:
        while not len(self._unread):
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._unread = memoryview(chunk)
        count = min(len(view), len(self._unread))
        view[:count] = self._unread[:count]
        self._unread = self._unread[count:]
        return count


class _Server(ThreadingHTTPServer):
    """One thread listens, and one more serves each connection; every answer ends its connection."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.token = secrets.token_urlsafe(32)
        self.offers: dict[str, IO[bytes]] = {}
        self._open: set[socket.socket] = set()
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, name="weights-http", daemon=True)
        self._thread.start()

    def offer(self, file: IO[bytes], version: int) -> str:
        """Returns the address at which `file` can be read from now on."""
        path = f"/weights/{version}-{secrets.token_hex(4)}"
        self.offers[path] = file
        while len(self.offers) > GENERATIONS_KEPT:
            # Not closed: a connection that reads it holds on to it, and its memory is freed with its last reader.
            del self.offers[next(iter(self.offers))]
        return f"http://127.0.0.1:{self.server_address[1]}{path}"

    def end(self) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()
        for connection in list(self._open):
            _cut(connection)
        self.offers.clear()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that breaks is the reader's to tell: it refuses what it got."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version, sys_version = "headrace", ""
    timeout = PATIENCE_S

    def do_GET(self) -> None:
        """The whole payload, or 401 (wrong token), 404 (no such version, or it was tidied up). Ranges are not served."""
        given = self.headers.get("Authorization", "").encode("utf-8", "replace")
        if not hmac.compare_digest(given, f"Bearer {self.server.token}".encode()):
            self._refuse(401)
            return
        file = self.server.offers.get(self.path)
        if file is None:
            self._refuse(404)
            return
        size = os.fstat(file.fileno()).st_size
        self.send_response(200)
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Content-Length", str(size))
        self.end_headers()
        self.connection.sendfile(file, 0, size)  # by position: several connections read the same file

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is logged: addresses and headers are secrets."""

    def _refuse(self, status: int) -> None:
        self.send_response(status)
        if status == 401:
            self.send_header("WWW-Authenticate", "Bearer")
        self.send_header("Content-Length", "0")
        self.end_headers()


def _cut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:  # it has ended by itself
        return


def _unreadable(why: str, url: str) -> EngineError:
    return EngineError(
        f"the published weights cannot be read: {why}",
        field="transport.kind",
        value=url,
        cure="engines on other hosts need transport.kind filesystem; publish again if it was tidied up",
        retryable=True,
    )
