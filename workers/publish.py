"""One publish: the trainer sends, every engine answers. A version advances only when all that live serve it."""

from __future__ import annotations

from workers.contract.errors import EngineError
from workers.contract.failpoints import reached
from workers.parts import TRAINER, Parts
from workers.records import Manifest, UpdateReport

TRIES = 3  # a cut transfer is sent again; the old version serves meanwhile


async def publish(parts: Parts, version: int) -> tuple[Manifest, dict[str, UpdateReport]]:
    """Called with the version that is to serve next. Raises the error of the last try; then the old version still serves."""
    with parts.time.during(TRAINER, "sync_pause"):
        for attempt in range(1, TRIES + 1):
            try:
                manifest = await parts.trainer.publish(version, sorted(parts.pool.engines))
                reached("publish.sent")
                updates = await parts.pool.update(manifest)
                reached("publish.served")
                return manifest, updates
            except EngineError as error:
                if not error.retryable or attempt == TRIES:
                    raise
                parts.samples.effects["publish_retries"] += 1
                parts.emit.log("warning", f"version {version} did not arrive, it is sent again: {error}", "sync")
    raise AssertionError("unreachable: every try returns or raises")
