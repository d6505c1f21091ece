from django.apps import AppConfig


class ArtifactsConfig(AppConfig):
    name = "headrace.artifacts"
    label = "artifacts"
