"""/api/v1/: puts routers, auth and error answers together. Included by headrace.urls under that prefix."""

from __future__ import annotations

from django.contrib.auth.decorators import login_not_required
from django.urls import URLPattern, URLResolver

from headrace.api import answers, attempts, configs, files, history, runs, several, team
from headrace.api.auth import ApiTokenAuth, BrowserAuth
from headrace.api.description import DescribedAPI

BEHIND_LOGIN = frozenset({"openapi-json", "openapi-view", "api-root"})

api = DescribedAPI(
    title="Headrace",
    version="1",
    description="Runs of disaggregated reinforcement learning: start them, watch them, ship their events.",
    auth=[ApiTokenAuth(), BrowserAuth()],
    docs_url=None,  # the stock viewer loads scripts from elsewhere, which the content security policy forbids
    openapi_url="/openapi.json",
    urls_namespace="api",
)
api.add_router("/attempts", attempts.router)
api.add_router("/runs", runs.router)
api.add_router("/runs", history.router)
api.add_router("/runs", files.router)
api.add_router("/uploads", runs.uploads)
api.add_router("", configs.router)
api.add_router("", team.router)
api.add_router("", several.router)
answers.install(api)


def _patterns() -> list[URLResolver | URLPattern]:
    """The API's routes answer 401 themselves; its description stays behind the login page."""
    found = api.urls[0]
    for pattern in found:
        if isinstance(pattern, URLPattern) and pattern.name not in BEHIND_LOGIN:
            pattern.callback = login_not_required(pattern.callback)
    return found


app_name = "api"
urlpatterns = _patterns()
