"""Account pages."""

from django.urls import path

from headrace.teams import views

app_name = "teams"

urlpatterns = [
    path("setup/<str:token>/", views.setup, name="setup"),
    path("login/", views.Login.as_view(), name="login"),
    path("account/", views.account, name="account"),
    path("account/tokens/<str:public_id>/revoke/", views.revoke_token, name="revoke-token"),
    path("account/team/", views.choose_team, name="choose-team"),
    path("team/", views.members, name="members"),
    path("logout/", views.Logout.as_view(), name="logout"),
]
