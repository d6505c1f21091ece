from django.apps import AppConfig


class TeamsConfig(AppConfig):
    name = "headrace.teams"
    label = "teams"
