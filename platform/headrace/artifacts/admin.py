from django.contrib import admin

from headrace.artifacts.models import Export, Probe
from headrace.teams.admin import ReadOnly


@admin.register(Probe)
class ProbeAdmin(ReadOnly):
    list_display = ("public_id", "run", "checkpoint", "state", "created_by", "created_at")
    list_filter = ("state", "team")


@admin.register(Export)
class ExportAdmin(ReadOnly):
    list_display = ("public_id", "artifact", "state", "created_by", "created_at")
    list_filter = ("state", "team")
