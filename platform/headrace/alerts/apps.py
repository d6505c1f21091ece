from django.apps import AppConfig


class AlertsConfig(AppConfig):
    name = "headrace.alerts"
    label = "alerts"
