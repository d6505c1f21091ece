from typing import Any

from django.contrib import admin

from headrace.alerts.models import Alert, AlertChannel, AlertDelivery, AlertRule
from headrace.teams.admin import ReadOnly


class OfTeam(ReadOnly):
    """Alerts are made and changed on their page, where channels are sealed and guarded."""

    list_select_related = ("team",)

    def place(self, obj: Any) -> str:
        return "/alerts/"


@admin.register(AlertChannel)
class AlertChannelAdmin(OfTeam):
    list_display = ("name", "kind", "team", "hint", "enabled", "last_ok_at", "last_error", "page")
    list_filter = ("kind", "enabled", "team")
    search_fields = ("name", "hint")
    exclude = ("sealed",)


@admin.register(AlertRule)
class AlertRuleAdmin(OfTeam):
    list_display = ("name", "kind", "team", "severity", "enabled", "created_by", "created_at", "page")
    list_filter = ("kind", "severity", "enabled", "team")
    list_select_related = ("team", "created_by")
    search_fields = ("name",)


@admin.register(Alert)
class AlertAdmin(ReadOnly):
    list_display = ("last_at", "title", "severity", "run", "team", "count", "resolved_at", "page")
    list_filter = ("severity", "kind", "team")
    list_select_related = ("run", "team")
    search_fields = ("title", "=run__public_id")

    def place(self, obj: Any) -> str:
        return f"/runs/{obj.run.public_id}/"


@admin.register(AlertDelivery)
class AlertDeliveryAdmin(OfTeam):
    list_display = ("created_at", "channel_name", "purpose", "state", "tries", "team", "done_at")
    list_filter = ("state", "purpose", "team")
