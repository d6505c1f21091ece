"""Pages of alerts."""

from django.urls import path

from headrace.alerts import views

app_name = "alerts"

urlpatterns = [
    path("alerts/", views.alerts, name="alerts"),
    path("alerts/ready-made/", views.ready_made, name="ready-made"),
    path("alerts/rules/new/", views.rule_new, name="rule-new"),
    path("alerts/rules/<str:public_id>/", views.rule_edit, name="rule"),
    path("alerts/rules/<str:public_id>/delete/", views.rule_delete, name="rule-delete"),
    path("alerts/rules/<str:public_id>/switch/", views.rule_switch, name="rule-switch"),
    path("alerts/channels/new/", views.channel_new, name="channel-new"),
    path("alerts/channels/<str:public_id>/", views.channel_edit, name="channel"),
    path("alerts/channels/<str:public_id>/test/", views.channel_test, name="channel-test"),
    path("alerts/channels/<str:public_id>/delete/", views.channel_delete, name="channel-delete"),
    path("runs/<str:public_id>/alerts.json", views.of_run, name="of-run"),
]
