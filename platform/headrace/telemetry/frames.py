"""What the run's channel group carries: one pre-encoded message a batch, which sockets join and forward without parsing.

A message is a hint with sequence numbers. Losing one is harmless: the page sees the gap and refetches from the database.
"""

from __future__ import annotations

import json
from typing import Any

from headrace.telemetry.codec import Columns

LARGEST_FRAME = 256 * 1024  # a larger batch is announced as a gap: fetching it is cheaper than pushing it to every socket
_HEAVY = frozenset({"tokens"})  # token columns of a sample, read from the database when somebody opens the sample


def group_name(run_public_id: str) -> str:
    """The channel group of one run."""
    return f"run.{run_public_id}"


def events_message(attempt_number: int, columns: Columns) -> dict[str, Any]:
    """The channel message for newly stored events."""
    parts = []
    for event in columns.events():
        row = event.as_dict()
        if event.kind == "sample" and _HEAVY & event.data.keys():
            row["data"] = {key: value for key, value in event.data.items() if key not in _HEAVY}
        parts.append(json.dumps(row, separators=(",", ":")))
    text = ",".join(parts)
    message = {"type": "run.events", "attempt": attempt_number, "first": columns.first_seq, "last": columns.last_seq}
    return {**message, "events": text if len(text) <= LARGEST_FRAME else None}


def run_message(state: dict[str, Any]) -> dict[str, Any]:
    """The channel message for a change of the run itself, such as its state."""
    return {"type": "run.changed", "text": json.dumps({"run": state}, separators=(",", ":")), "state": state}


def events_frame(attempt: int, first: int, last: int, texts: list[str]) -> str:
    """One socket frame of messages that follow each other."""
    return f'{{"attempt":{attempt},"first":{first},"last":{last},"events":[{",".join(texts)}]}}'


def gap_frame(attempt: int, through: int) -> str:
    """Tells the page to refetch: events up to `through` exist and were not sent."""
    return json.dumps({"gap": True, "attempt": attempt, "through": through}, separators=(",", ":"))
