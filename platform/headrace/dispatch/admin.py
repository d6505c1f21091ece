from django.contrib import admin

from headrace.dispatch.models import Cluster, ReconcilerLease
from headrace.teams.admin import ReadOnly


@admin.register(Cluster)
class ClusterAdmin(admin.ModelAdmin):
    list_display = ("name", "team", "address", "is_default", "last_seen_at")
    readonly_fields = ("public_id", "created_at", "last_seen_at")


@admin.register(ReconcilerLease)
class ReconcilerLeaseAdmin(ReadOnly):
    list_display = ("name", "holder", "fence", "acquired_at", "expires_at")
