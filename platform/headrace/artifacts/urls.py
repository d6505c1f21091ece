"""A run's files and probes. Included at the root of the URLconf."""

from django.urls import path

from headrace.artifacts import views

app_name = "artifacts"

urlpatterns = [
    path("runs/<str:public_id>/artifacts/", views.files_page, name="files"),
    path("runs/<str:public_id>/artifacts/<str:artifact_id>/download/", views.download, name="download"),
    path("runs/<str:public_id>/artifacts/<str:artifact_id>/export/", views.export, name="export"),
    path("runs/<str:public_id>/artifacts/<str:artifact_id>/verify/", views.verify, name="verify"),
    path("runs/<str:public_id>/artifacts/<str:artifact_id>/delete/", views.delete, name="delete"),
    path("runs/<str:public_id>/probes.json", views.probes, name="probes"),
    path("runs/<str:public_id>/probes/", views.ask, name="ask"),
    path("runs/<str:public_id>/probes/<str:probe_id>.json", views.probe, name="probe"),
    path("runs/<str:public_id>/probes/<str:probe_id>/cancel/", views.cancel, name="cancel"),
]
