"""What experiments' services refuse, and why. Views and API turn them into answers by their class."""

from workers.contract.errors import HeadraceError


class BadInput(HeadraceError, ValueError):
    """A value that cannot be stored as given (HTTP 400)."""


class IdempotencyConflict(HeadraceError):
    """The same idempotency key with another content (HTTP 409)."""


class WrongState(HeadraceError):
    """The run's state does not allow this now (HTTP 409)."""


class QuotaReached(WrongState):
    """The team may not have more of this at once (HTTP 409); later it may."""
