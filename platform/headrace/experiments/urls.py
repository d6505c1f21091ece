"""Pages of runs."""

from django.urls import path

from headrace.experiments import guide, new_run, views

app_name = "experiments"

urlpatterns = [
    path("", views.home, name="home"),
    path("runs/", views.run_list, name="runs"),
    path("runs/new/", new_run.new_run, name="new"),
    path("runs/<str:public_id>/", views.run_detail, name="run"),
    path("runs/<str:public_id>/config.json", views.config_json, name="config"),
    path("runs/<str:public_id>/cancel/", views.cancel, name="cancel"),
    path("runs/<str:public_id>/resume/", views.resume, name="resume"),
    path("runs/<str:public_id>/checkpoint/", views.checkpoint, name="checkpoint"),
    path("runs/<str:public_id>/stop/", views.stop, name="stop"),
    path("runs/<str:public_id>/edit/", views.edit, name="edit"),
    path("runs/<str:public_id>/delete/", views.delete, name="delete"),
    path("help/axes/", guide.axes_page, name="axes"),
    path("help/losses/", guide.losses_page, name="losses"),
    path("help/presets/", guide.presets_page, name="presets"),
    path("help/add-a-kind/", guide.add_page, name="add-a-kind"),
]
