"""A bug planted in the store itself: an acknowledgement of what was never kept is found by the checker of faults."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.telemetry import ingest, selectors
from tests.faults.checker import check
from tests.faults.history import History, Life
from tests.platform_tests.telemetry_rig import document, metric, new_rig, push
from workers.contract import loading

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("planted", [False, True])
def test_an_acknowledgement_of_what_was_dropped_is_found(monkeypatch: pytest.MonkeyPatch, planted: bool) -> None:
    rig = new_rig()
    batches = [[metric(number + place / 10) for place in range(3)] for number in range(3)]
    acked = 0
    for number, events in enumerate(batches):
        if planted and number == 1:
            monkeypatch.setattr(ingest.EventBatch.unscoped, "create", lambda **_: None)
        acked = push(rig.attempt, events, first=acked + 1).ingested_through
        monkeypatch.undo()
    told: list[dict[str, Any]] = []
    for number, events in enumerate(batches):
        sent = document(events, first=3 * number + 1)
        for place, (kind, data) in enumerate(events):
            told.append({"seq": 3 * number + 1 + place, "t": sent["t"][place], "step": sent["step"][place], "kind": kind, "data": data})
    life = Life(told, acked=acked, stored=selectors.events(rig.attempt, 0, 100))
    found = {broken.invariant for broken in check(History(loading.resolve(preset="demo"), [life]))}
    assert found == ({"M"} if planted else set())
