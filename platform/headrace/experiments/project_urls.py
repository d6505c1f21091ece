"""Pages of projects."""

from django.urls import path

from headrace.experiments import views_projects

app_name = "projects"

urlpatterns = [
    path("", views_projects.project_list, name="projects"),
    path("<str:public_id>/", views_projects.project, name="project"),
    path("<str:public_id>/archive/", views_projects.archive_project, name="archive-project"),
    path("<str:public_id>/experiments/<str:experiment_id>/", views_projects.experiment, name="experiment"),
    path("<str:public_id>/experiments/<str:experiment_id>/archive/", views_projects.archive_experiment, name="archive-experiment"),
]
