"""Account pages."""

from django.urls import path

from headrace.teams import views

app_name = "teams"

urlpatterns = [
    path("setup/<str:token>/", views.setup, name="setup"),
    path("login/", views.Login.as_view(), name="login"),
    path("logout/", views.Logout.as_view(), name="logout"),
]
