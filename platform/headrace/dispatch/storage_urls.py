"""Pages about what is kept."""

from django.urls import path

from headrace.dispatch import views_storage

app_name = "storage"

urlpatterns = [
    path("", views_storage.storage_page, name="storage"),
    path("runs/<str:public_id>/keep/", views_storage.keep, name="keep"),
    path("runs/<str:public_id>/restore/", views_storage.restore, name="restore"),
]
