from typing import Any

from django.contrib import admin

from headrace.compare.models import SavedView
from headrace.compare.races.admin import RaceAdmin as RaceAdmin  # registers itself
from headrace.compare.races.models import RaceEntry
from headrace.teams.admin import ReadOnly


@admin.register(SavedView)
class SavedViewAdmin(ReadOnly):
    list_display = ("name", "view_of", "team", "created_by", "created_at", "page_link")
    list_filter = ("page", "team")
    list_select_related = ("team", "created_by")
    search_fields = ("name",)

    @admin.display(description="Of", ordering="page")
    def view_of(self, obj: Any) -> str:
        return str(obj.get_page_display())

    @admin.display(description="Page")
    def page_link(self, obj: Any) -> str:
        return self.page(obj)

    def place(self, obj: Any) -> str:
        return f"/{obj.page}/?{obj.query}" if obj.query else f"/{obj.page}/"


@admin.register(RaceEntry)
class RaceEntryAdmin(ReadOnly):
    list_display = ("race", "place_in_race", "contender", "seed", "run", "reused", "launched", "retries_left")
    list_select_related = ("race", "run")
    search_fields = ("=race__public_id", "=run__public_id")

    @admin.display(description="Place", ordering="place")
    def place_in_race(self, obj: Any) -> int:
        return int(obj.place)

    def place(self, obj: Any) -> str:
        return f"/races/{obj.race.public_id}/"
