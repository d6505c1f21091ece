"""Every URL of the server."""

from django.contrib import admin
from django.urls import include, path

from headrace import health

urlpatterns = [
    path("healthz/live", health.live),
    path("healthz/ready", health.ready),
    path("api/v1/", include("headrace.api.urls")),
    path("admin/", admin.site.urls),
    path("", include("headrace.telemetry.urls")),
    path("", include("headrace.teams.urls")),
    path("", include("headrace.compare.urls")),
    path("", include("headrace.alerts.urls")),
    path("", include("headrace.experiments.urls")),
]
