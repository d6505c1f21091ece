"""One message, sent by a process of its own: `python -m headrace.alerts.sender`, the job as JSON on stdin, the outcome on stdout.

Why a process: nothing of the server's environment (proxies, tokens) is in it, the guard cannot be undone in it, an endless reply meets
its memory limit and a slow one is killed from outside. Imports no Django. Secrets come by stdin, never in arguments or environment.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import re
import resource
import sys
import time
from typing import Any

from headrace.alerts import guard

TIMEOUT_S = 8.0
MEMORY = 1024 * 1024 * 1024
_STATUS = re.compile(r"error=(\d{3})")
SIGNATURE, TIMESTAMP = "X-Headrace-Signature", "X-Headrace-Timestamp"


def sign(secret: str, timestamp: str, body: bytes) -> str:
    """`v1=` and hex of HMAC-SHA256 over timestamp, a dot and the body: what a receiver works out again and compares."""
    return "v1=" + hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()


def main() -> int:
    """Reads the job, sends, tells. Exit status 0 whatever came of it: the outcome is in the answer."""
    job: dict[str, Any] = json.load(sys.stdin)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    send = _webhook if job["kind"] == "webhook" else _apprise
    if send is _apprise:
        import apprise  # noqa: F401  # loaded before the door closes

    ports = guard.MAIL_PORTS if job["kind"] == "email" else guard.WEB_PORTS
    refused = guard.install(job.get("allowed", []), ports)
    try:
        outcome = send(job)
    except Exception as error:  # whatever a client library raises is an outcome, told without its text: it may hold the address
        outcome = {"ok": False, "again": True, "words": f"it could not be sent ({type(error).__name__})"}
    if refused and not outcome["ok"]:
        outcome = {"ok": False, "again": False, "words": f"refused: {refused[0]}"}
    json.dump(outcome, sys.stdout)
    return 0


def _webhook(job: dict[str, Any]) -> dict[str, Any]:
    """POST of JSON, signed; a redirect is not followed and the reply's body is not read."""
    import httpx

    body = json.dumps(job["payload"], separators=(",", ":")).encode()
    stamp = str(int(time.time()))
    headers = {"Content-Type": "application/json", "User-Agent": "Headrace", TIMESTAMP: stamp, SIGNATURE: sign(job["secret"], stamp, body)}
    with (
        httpx.Client(trust_env=False, follow_redirects=False, timeout=TIMEOUT_S) as client,
        client.stream("POST", job["url"], content=body, headers=headers) as reply,
    ):
        code = reply.status_code
    if 200 <= code < 300:
        return {"ok": True, "again": False, "words": f"answered {code}"}
    if 300 <= code < 400:
        return {"ok": False, "again": False, "words": f"answered {code}: redirects are not followed"}
    return {"ok": False, "again": code >= 500 or code in (408, 429), "words": f"answered {code}"}


def _apprise(job: dict[str, Any]) -> dict[str, Any]:
    """Everything else: e-mail and the chats. apprise says in its log what went wrong; only the status code is taken from it."""
    import apprise

    said: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    log = logging.getLogger("apprise")
    log.addHandler(Listener(logging.WARNING))
    log.propagate = False
    asset = apprise.AppriseAsset(app_id="Headrace", app_desc="Headrace", http_redirects=False, storage_mode="memory")
    target = apprise.Apprise.instantiate(job["url"], asset=asset, suppress_exceptions=True)
    if target is None:
        return {"ok": False, "again": False, "words": "the address is not one that this kind of channel knows"}
    target.socket_connect_timeout = target.socket_read_timeout = TIMEOUT_S
    levels = {"info": apprise.NotifyType.INFO, "warning": apprise.NotifyType.WARNING, "critical": apprise.NotifyType.FAILURE}
    sent = target.notify(
        title=job["title"], body=job["body"], notify_type=levels.get(job["severity"], apprise.NotifyType.INFO), body_format="text"
    )
    if sent:
        return {"ok": True, "again": False, "words": "taken"}
    codes = [int(found.group(1)) for found in map(_STATUS.search, said) if found]
    if codes:
        return {"ok": False, "again": codes[-1] >= 500 or codes[-1] == 429, "words": f"answered {codes[-1]}"}
    return {"ok": False, "again": True, "words": "it did not answer, or refused the message"}


if __name__ == "__main__":
    sys.exit(main())
