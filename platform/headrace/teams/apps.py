from django.apps import AppConfig


class TeamsConfig(AppConfig):
    name = "headrace.teams"
    label = "teams"

    def ready(self) -> None:
        from headrace import checks  # registers the system checks
        from headrace.teams import receivers

        self.parts = (checks, receivers)
