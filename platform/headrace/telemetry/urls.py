"""The run page's JSON. Included at the root of the URLconf."""

from django.urls import path

from headrace.telemetry import views, views_samples, views_travel

app_name = "telemetry"

urlpatterns = [
    path("runs/<str:public_id>/snapshot.json", views.snapshot, name="snapshot"),
    path("runs/<str:public_id>/then.json", views_travel.then, name="then"),
    path("runs/<str:public_id>/axis.json", views_travel.axis, name="axis"),
    path("runs/<str:public_id>/series.json", views.series_columns, name="series"),
    path("runs/<str:public_id>/events.json", views.events, name="events"),
    path("runs/<str:public_id>/lag.json", views.lag, name="lag"),
    path("runs/<str:public_id>/samples/", views_samples.samples_page, name="samples-page"),
    path("runs/<str:public_id>/samples.json", views_samples.sample_list, name="samples"),
    path("runs/<str:public_id>/samples/groups.json", views_samples.sample_groups, name="sample-groups"),
    path("runs/<str:public_id>/samples/facets.json", views_samples.sample_facets, name="sample-facets"),
    path("runs/<str:public_id>/samples/<int:number>/<int:seq>.json", views_samples.sample, name="sample"),
    path("runs/<str:public_id>/logs.json", views_samples.logs, name="logs"),
    path("runs/<str:public_id>/log.txt", views_samples.log_file, name="log-file"),
]
