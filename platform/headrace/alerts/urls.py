"""Pages of alerts."""

from typing import Any

app_name = "alerts"

urlpatterns: list[Any] = []
