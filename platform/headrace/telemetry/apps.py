from django.apps import AppConfig


class TelemetryConfig(AppConfig):
    name = "headrace.telemetry"
    label = "telemetry"

    def ready(self) -> None:
        from headrace.telemetry import receivers

        receivers.connect()
