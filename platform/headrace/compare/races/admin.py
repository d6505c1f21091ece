"""Races in Django's admin: to look at, with the way to their pages. Services write them."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.utils.html import format_html
from django.utils.safestring import SafeString

from headrace.compare.races.models import Race, RaceEntry
from headrace.teams.admin import ReadOnly


class EntriesInline(admin.TabularInline):
    model = RaceEntry
    fields = ("place", "contender", "seed", "run", "reused", "launched", "retries_left")
    readonly_fields = fields
    extra = 0
    can_delete = False

    def has_add_permission(self, request: Any, obj: Any = None) -> bool:
        return False


@admin.register(Race)
class RaceAdmin(ReadOnly):
    list_display = ("name", "team", "asked", "created_by", "created_at", "closed_at", "page")
    list_filter = ("asked", "team")
    search_fields = ("public_id", "name")
    inlines = (EntriesInline,)

    @admin.display(description="Page")
    def page(self, race: Race) -> SafeString:
        return format_html('<a href="/races/{}/">open</a>', race.public_id)
