"""What every section of a config is: frozen, unknown keys refused.

`level` in a field's schema says where the form shows it: "main" in the open, "more" behind a fold.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


class Block(BaseModel):
    """A section of the config."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


def main(**extra: Any) -> dict[str, Any]:
    """The schema extra of a field that the form shows in the open."""
    return {"level": "main", **extra}
