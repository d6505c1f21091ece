from django.apps import AppConfig


class DispatchConfig(AppConfig):
    name = "headrace.dispatch"
    label = "dispatch"
