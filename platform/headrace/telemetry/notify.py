"""Sends to a run's channel group after a commit. Never raises, never holds ingest up: the database already has the events."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer
from django.db import transaction

from headrace.telemetry.frames import group_name

log = logging.getLogger(__name__)

TIMEOUT_S = 0.5
REST_AFTER_FAILURE_S = 2.0  # a dead Valkey costs one timeout per rest, not one per batch

_silent_until = 0.0


def on_commit(run_public_id: str, message: dict[str, Any]) -> None:
    """Send `message` to the run's group once the transaction around the caller has committed."""
    transaction.on_commit(lambda: send(run_public_id, message))


def send(run_public_id: str, message: dict[str, Any]) -> bool:
    """Send now, from synchronous code. False: not delivered, and the pages will find the gap by themselves."""
    global _silent_until
    layer = get_channel_layer()
    if layer is None or time.monotonic() < _silent_until:
        return False
    try:
        async_to_sync(_send)(layer, run_public_id, message)
    except Exception as error:  # whatever the channel layer's client raises: none of it may fail an ingest
        _silent_until = time.monotonic() + REST_AFTER_FAILURE_S
        log.warning("live updates are off for %s s: %s: %s", REST_AFTER_FAILURE_S, type(error).__name__, error)
        return False
    return True


async def _send(layer: Any, run_public_id: str, message: dict[str, Any]) -> None:
    await asyncio.wait_for(layer.group_send(group_name(run_public_id), message), TIMEOUT_S)
