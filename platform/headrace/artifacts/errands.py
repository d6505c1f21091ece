"""The reconciler's part in probes and exports. One fault in here must not end its pass."""

from __future__ import annotations

import logging
from collections.abc import Callable

from django.db import close_old_connections

from headrace.artifacts import exporting, probing
from headrace.dispatch.lease import LeaseLost

log = logging.getLogger(__name__)


def advance(guard: Callable[[], None]) -> None:
    """Called once a pass with the lease held; `guard` renews it before every act on the world, or raises LeaseLost."""
    for what, act in (("probes", probing.advance), ("exports", exporting.advance)):
        try:
            act(guard)
        except LeaseLost:
            raise
        except Exception:  # the next pass tries again
            log.exception("the look at %s failed", what)
            close_old_connections()
