"""How often one caller may ask in a minute: a person or a token, an attempt's driver, an address whose credentials fail.

Counted in the cache, by whole minutes. A loop gone wild is told to wait; nobody who works is.
"""

from __future__ import annotations

import time

from django.core.cache import cache

from headrace.identifiers import hash_secret
from workers.contract.errors import HeadraceError

WINDOW_S = 60
PER_CALLER = 1_200
PER_ATTEMPT = 30_000  # 500 batches a second, each of up to 2,000 events
FAILURES_PER_ADDRESS = 300


class TooMany(HeadraceError):
    """More requests than a minute allows (HTTP 429)."""

    def __init__(self, most: int, wait_s: int) -> None:
        super().__init__(
            f"more than {most} requests in {WINDOW_S} s",
            field="requests",
            value=most + 1,
            cure=f"wait {wait_s} s, then ask less often",
            retryable=True,
        )
        self.wait_s = wait_s


def spend(who: str, most: int) -> None:
    """Called once a request. Raises TooMany when `who` has asked more than `most` times in this minute."""
    now = time.time()
    window = int(now // WINDOW_S)
    key = f"rate-{hash_secret(who)[:32]}-{window}"
    cache.add(key, 0, 2 * WINDOW_S)
    try:
        count = cache.incr(key)
    except ValueError:  # the cache was full and dropped it
        return
    if count > most:
        raise TooMany(most, max(1, int((window + 1) * WINDOW_S - now)))
