"""Account and team pages."""

from django.urls import path

from headrace.teams import views, views_account, views_audit, views_invite, views_team

app_name = "teams"

urlpatterns = [
    path("setup/<str:token>/", views.setup, name="setup"),
    path("invite/<str:secret>/", views_invite.invite, name="invite"),
    path("login/", views.Login.as_view(), name="login"),
    path("logout/", views.Logout.as_view(), name="logout"),
    path("account/", views_account.account, name="account"),
    path("account/profile/", views_account.edit_profile, name="profile"),
    path("account/password/", views_account.change_password, name="password"),
    path("account/sessions/end-others/", views_account.end_other_sessions, name="end-other-sessions"),
    path("account/sessions/<str:public_id>/end/", views_account.end_session, name="end-session"),
    path("account/tokens/<str:public_id>/revoke/", views_account.revoke_token, name="revoke-token"),
    path("account/tokens/<str:public_id>/rotate/", views_account.rotate_token, name="rotate-token"),
    path("account/team/", views.choose_team, name="choose-team"),
    path("team/", views_team.members, name="members"),
    path("team/leave/", views_team.leave, name="leave"),
    path("team/invitations/", views_team.invitation_list, name="invitations"),
    path("team/invitations/<str:public_id>/revoke/", views_team.revoke_invitation, name="revoke-invitation"),
    path("team/tokens/", views_team.tokens, name="team-tokens"),
    path("team/tokens/<str:public_id>/revoke/", views_team.revoke_token, name="revoke-team-token"),
    path("team/audit/", views_audit.audit_page, name="audit"),
    path("team/audit/verify/", views_audit.verify, name="audit-verify"),
    path("team/audit/export.csv", views_audit.export, name="audit-export"),
    path("team/settings/", views_team.settings_page, name="team-settings"),
]
