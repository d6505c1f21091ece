"""What cannot work together, and what works but is pointless. Called on every resolved config, before anything starts."""

from __future__ import annotations

from workers.contract import pointless, refusals
from workers.contract.config import RunConfig
from workers.contract.errors import HeadraceError


def check(config: RunConfig) -> list[HeadraceError]:
    """Every combination that cannot work, each naming field, value and cure. Empty: the run may start."""
    return [fault for rule in refusals.RULES for fault in rule(config)]


def warnings(config: RunConfig) -> list[HeadraceError]:
    """Combinations that run but do not do what one might think. Shown before launch; they refuse nothing."""
    return [fault for rule in pointless.RULES for fault in rule(config)]
