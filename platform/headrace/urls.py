"""Every URL of the server."""

from django.contrib import admin
from django.urls import include, path

from headrace import health, metrics, search
from headrace.api import pages

urlpatterns = [
    path("healthz/live", health.live),
    path("healthz/ready", health.ready),
    path("metrics", metrics.metrics),
    path("search.json", search.search),
    path("api/v1/", include("headrace.api.urls")),
    path("help/api/", pages.reference),
    path("admin/", admin.site.urls),
    path("", include("headrace.telemetry.urls")),
    path("", include("headrace.artifacts.urls")),
    path("", include("headrace.telemetry.chart_urls")),
    path("team/projects/", include("headrace.experiments.project_urls")),
    path("team/storage/", include("headrace.dispatch.storage_urls")),
    path("", include("headrace.teams.urls")),
    path("", include("headrace.compare.urls")),
    path("", include("headrace.alerts.urls")),
    path("", include("headrace.dispatch.urls")),
    path("", include("headrace.experiments.urls")),
]
