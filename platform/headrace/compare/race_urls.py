"""Pages of races, under /races/."""

from typing import Any

from django.urls import path, re_path

from headrace.compare.races import views

_ID = r"(?P<public_id>[a-z2-7]{12})"

urlpatterns: list[Any] = [
    path("", views.race_list, name="races"),
    path("new/", views.new_race, name="race-new"),
    path("preview/", views.preview, name="race-preview"),
    re_path(rf"^{_ID}/$", views.race_detail, name="race"),
    re_path(rf"^{_ID}/live\.json$", views.live_json, name="race-live"),
    re_path(rf"^{_ID}/results\.json$", views.results_json, name="race-results"),
    re_path(rf"^{_ID}/report\.html$", views.report_html, name="race-report"),
    re_path(rf"^{_ID}/report\.csv$", views.results_csv, name="race-csv"),
    re_path(rf"^{_ID}/(?P<action>pause|resume|cancel|again)/$", views.control, name="race-control"),
]
