"""Pages of runs."""

from django.urls import path

from headrace.experiments import control_views, guide, lesson, new_run, sweep_views, views

app_name = "experiments"

urlpatterns = [
    path("", views.home, name="home"),
    path("runs/new/", new_run.new_run, name="new"),
    path("runs/new/check.json", new_run.check, name="check"),
    path("runs/new/forecast.json", new_run.predict, name="predict"),
    path("sweeps/", sweep_views.sweep_list, name="sweeps"),
    path("sweeps/<str:public_id>/", sweep_views.sweep, name="sweep"),
    path("sweeps/<str:public_id>/cancel/", sweep_views.cancel, name="cancel-sweep"),
    path("runs/<str:public_id>/", views.run_detail, name="run"),
    path("runs/<str:public_id>/config.json", views.config_json, name="config"),
    path("runs/<str:public_id>/cancel/", control_views.cancel, name="cancel"),
    path("runs/<str:public_id>/resume/", control_views.resume, name="resume"),
    path("runs/<str:public_id>/checkpoint/", control_views.checkpoint, name="checkpoint"),
    path("runs/<str:public_id>/stop/", control_views.stop, name="stop"),
    path("runs/<str:public_id>/pause/", control_views.pause, name="pause"),
    path("runs/<str:public_id>/go-on/", control_views.go_on, name="go-on"),
    path("runs/<str:public_id>/budget/", control_views.budget, name="budget"),
    path("runs/<str:public_id>/control.json", control_views.control_json, name="control"),
    path("runs/<str:public_id>/resume.json", control_views.resume_json, name="resume-preview"),
    path("runs/<str:public_id>/edit/", views.edit, name="edit"),
    path("runs/<str:public_id>/delete/", views.delete, name="delete"),
    path("help/async/", lesson.lesson_page, name="async"),
    path("help/async/run.json", lesson.lesson_json, name="async-run"),
    path("help/axes/", guide.axes_page, name="axes"),
    path("help/losses/", guide.losses_page, name="losses"),
    path("help/presets/", guide.presets_page, name="presets"),
    path("help/add-a-kind/", guide.add_page, name="add-a-kind"),
]
