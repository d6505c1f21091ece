from typing import Any

from django.contrib import admin

from headrace.experiments.models import Artifact, Attempt, Config, Experiment, Project, Run, RunTransition, Sweep
from headrace.teams.admin import ReadOnly


@admin.register(Project)
class ProjectAdmin(ReadOnly):
    list_display = ("name", "team", "slug", "created_at", "archived_at", "page")
    list_filter = ("team",)
    list_select_related = ("team",)
    search_fields = ("name", "slug", "public_id")

    def place(self, obj: Any) -> str:
        return f"/team/projects/{obj.public_id}/"


@admin.register(Experiment)
class ExperimentAdmin(ReadOnly):
    list_display = ("name", "project", "team", "created_by", "created_at", "page")
    list_filter = ("team",)
    list_select_related = ("project", "team", "created_by")
    search_fields = ("name", "public_id")

    def place(self, obj: Any) -> str:
        return f"/team/projects/{obj.project.public_id}/"


@admin.register(Config)
class ConfigAdmin(ReadOnly):
    list_display = ("public_id", "digest", "preset", "team", "created_by", "created_at")
    list_filter = ("team",)
    list_select_related = ("team", "created_by")
    search_fields = ("public_id", "digest", "preset")


@admin.register(Sweep)
class SweepAdmin(ReadOnly):
    list_display = ("public_id", "name", "team", "project", "created_by", "created_at", "page")
    list_filter = ("team",)
    list_select_related = ("team", "project", "created_by")
    search_fields = ("public_id", "name")

    def place(self, obj: Any) -> str:
        return f"/sweeps/{obj.public_id}/"


@admin.register(Run)
class RunAdmin(ReadOnly):
    list_display = ("public_id", "name", "state", "team", "project", "preset", "created_by", "created_at", "keep", "page")
    list_filter = ("state", "source", "keep", "team")
    list_select_related = ("team", "project", "created_by")
    search_fields = ("public_id", "name", "preset")
    date_hierarchy = "created_at"

    def place(self, obj: Any) -> str:
        return "" if obj.deleted_at else f"/runs/{obj.public_id}/"


class OfRun(ReadOnly):
    """Rows that belong to a run lead to its page."""

    list_select_related = ("run",)
    search_fields = ("run__public_id", "run__name")

    def place(self, obj: Any) -> str:
        return f"/runs/{obj.run.public_id}/"


@admin.register(Attempt)
class AttemptAdmin(OfRun):
    list_display = ("public_id", "run", "number", "fence", "state", "submission_id", "heartbeat_at", "ingested_through", "page")
    list_filter = ("state", "team")
    exclude = ("token_hash",)


@admin.register(RunTransition)
class RunTransitionAdmin(OfRun):
    list_display = ("at", "run", "from_state", "to_state", "actor", "page")
    list_filter = ("to_state", "team")


@admin.register(Artifact)
class ArtifactAdmin(OfRun):
    list_display = ("public_id", "run", "kind", "state", "step", "bytes", "created_at", "page")
    list_filter = ("kind", "state", "team")
