from django.apps import AppConfig


class ExperimentsConfig(AppConfig):
    name = "headrace.experiments"
    label = "experiments"
