from django.apps import AppConfig


class AlertsConfig(AppConfig):
    name = "headrace.alerts"
    label = "alerts"

    def ready(self) -> None:
        from headrace.alerts import receivers

        receivers.connect()
