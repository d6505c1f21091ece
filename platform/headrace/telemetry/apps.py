from django.apps import AppConfig


class TelemetryConfig(AppConfig):
    name = "headrace.telemetry"
    label = "telemetry"
