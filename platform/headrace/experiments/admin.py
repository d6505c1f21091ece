from django.contrib import admin

from headrace.experiments.models import Artifact, Attempt, Config, Experiment, Project, Run, RunTransition
from headrace.teams.admin import ReadOnly


@admin.register(Project)
class ProjectAdmin(admin.ModelAdmin):
    list_display = ("name", "team", "created_at", "archived_at")
    readonly_fields = ("public_id", "created_at")


@admin.register(Experiment)
class ExperimentAdmin(admin.ModelAdmin):
    list_display = ("name", "project", "team", "created_at")
    readonly_fields = ("public_id", "created_at")


@admin.register(Config)
class ConfigAdmin(ReadOnly):
    list_display = ("public_id", "digest", "preset", "team", "created_at")


@admin.register(Run)
class RunAdmin(ReadOnly):
    list_display = ("public_id", "name", "state", "team", "project", "created_by", "created_at")
    list_filter = ("state", "source", "team")
    search_fields = ("public_id", "name")


@admin.register(Attempt)
class AttemptAdmin(ReadOnly):
    list_display = ("public_id", "run", "number", "fence", "state", "submission_id", "heartbeat_at", "ingested_through")
    list_filter = ("state",)
    exclude = ("token_hash",)


@admin.register(RunTransition)
class RunTransitionAdmin(ReadOnly):
    list_display = ("at", "run", "from_state", "to_state", "actor")


@admin.register(Artifact)
class ArtifactAdmin(ReadOnly):
    list_display = ("public_id", "run", "kind", "state", "step", "bytes", "created_at")
