from django.apps import AppConfig


class CompareConfig(AppConfig):
    name = "headrace.compare"
    label = "compare"
