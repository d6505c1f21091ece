"""The run page's JSON. Included at the root of the URLconf."""

from django.urls import path

from headrace.telemetry import views

app_name = "telemetry"

urlpatterns = [
    path("runs/<str:public_id>/snapshot.json", views.snapshot, name="snapshot"),
    path("runs/<str:public_id>/series.json", views.series_columns, name="series"),
    path("runs/<str:public_id>/events.json", views.events, name="events"),
    path("runs/<str:public_id>/lag.json", views.lag, name="lag"),
    path("runs/<str:public_id>/samples.json", views.samples, name="samples"),
    path("runs/<str:public_id>/samples/<int:number>/<int:seq>.json", views.sample, name="sample"),
    path("runs/<str:public_id>/logs.json", views.logs, name="logs"),
]
