from django.apps import AppConfig


class ApiConfig(AppConfig):
    name = "headrace.api"
    label = "api"
