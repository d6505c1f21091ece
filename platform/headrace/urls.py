"""Every URL of the server. All of them ask for a login, but for those marked `login_not_required` where they are defined."""

from django.contrib import admin
from django.urls import include, path

from headrace import health

urlpatterns = [
    path("", include("headrace.telemetry.urls")),
    path("api/v1/", include("headrace.api.urls")),
    path("healthz/live", health.live, name="live"),
    path("healthz/ready", health.ready, name="ready"),
    path("admin/", admin.site.urls),
]
