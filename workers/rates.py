"""Rates for the picture of the flow, from counters read about once a second."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from workers.ledger import SampleLedger
from workers.records import EngineStatus

WINDOW_S = 10.0


class Rates:
    """Differences over the last ten seconds. `values` lacks a rate that cannot be told yet: no data is not zero."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}
        self.engines: dict[str, float] = {}  # tokens a second of each
        self._points: deque[tuple[float, int, float, int, int]] = deque()
        self._tokens: deque[tuple[float, dict[str, int]]] = deque()

    def update(self, now: float, statuses: Mapping[str, EngineStatus], ledger: SampleLedger) -> None:
        self._each(now, statuses)
        engines = statuses.values()
        tokens = sum(engine.generated_tokens for engine in engines)
        decode_s = sum(engine.decode_s for engine in engines)
        returned = ledger.dispatched - ledger.in_flight
        self._points.append((now, tokens, decode_s, ledger.dispatched, returned))
        while self._points[-1][0] - self._points[0][0] > WINDOW_S:
            self._points.popleft()
        (t0, tokens0, decode0, dispatched0, returned0), (t1, tokens1, decode1, dispatched1, returned1) = self._points[0], self._points[-1]
        if t1 > t0:
            self.values = {
                "generate_tokens_per_s": (tokens1 - tokens0) / (t1 - t0),
                "dispatch_rate": (dispatched1 - dispatched0) / (t1 - t0),
                "generate_samples_per_s": (returned1 - returned0) / (t1 - t0),
            }
        if decode1 > decode0:
            self.values["decode_tokens_per_s"] = (tokens1 - tokens0) / (decode1 - decode0)

    def _each(self, now: float, statuses: Mapping[str, EngineStatus]) -> None:
        self._tokens.append((now, {name: status.generated_tokens for name, status in statuses.items()}))
        while now - self._tokens[0][0] > WINDOW_S:
            self._tokens.popleft()
        began, before = self._tokens[0]
        if now > began:
            self.engines = {name: (tokens - before[name]) / (now - began) for name, tokens in self._tokens[-1][1].items() if name in before}
