"""none: no sample survives half-finished."""

from __future__ import annotations

from workers.axes.partial.keep_going import Continue


class Nothing(Continue):
    """An aborted sample is dropped and counted."""
