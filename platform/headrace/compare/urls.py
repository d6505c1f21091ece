"""Pages of comparisons, saved views and races."""

from typing import Any

from django.urls import include, path

app_name = "compare"

urlpatterns: list[Any] = [
    path("", include("headrace.compare.run_urls")),
    path("races/", include("headrace.compare.race_urls")),
]
