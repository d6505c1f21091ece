"""Pages of races, under /races/."""

from typing import Any

urlpatterns: list[Any] = []
