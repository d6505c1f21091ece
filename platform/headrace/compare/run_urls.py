"""Pages that compare runs, and saved views."""

from typing import Any

urlpatterns: list[Any] = []
