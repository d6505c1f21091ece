"""Data of the run page's charts and timeline. Included at the root of the URLconf."""

from django.urls import path

from headrace.telemetry import views_charts

app_name = "charts"

urlpatterns = [
    path("runs/<str:public_id>/catalogue.json", views_charts.catalogue, name="catalogue"),
    path("runs/<str:public_id>/timeline.json", views_charts.lanes, name="timeline"),
    path("runs/<str:public_id>/syncs.json", views_charts.syncs, name="syncs"),
    path("runs/<str:public_id>/seeds.json", views_charts.seeds, name="seeds"),
    path("runs/<str:public_id>/series.csv", views_charts.series_csv, name="series-csv"),
]
