from typing import Any

from django.contrib import admin

from headrace.teams.admin import ReadOnly
from headrace.telemetry.models import EventBatch, LatestState, LogChunk, Moment, Sample, Series, SeriesChunk

EventBatch._meta.verbose_name_plural = "event batches"


class OfAttempt(ReadOnly):
    """Large tables: no filter that would read all of them, found by the run's id."""

    list_select_related = ("attempt__run",)
    search_fields = ("=attempt__run__public_id", "=attempt__public_id")
    search_help_text = "The id of a run or of an attempt"
    exclude: Any = ("body",)

    def place(self, obj: Any) -> str:
        return f"/runs/{obj.attempt.run.public_id}/"

    @admin.display(description="Run")
    def run(self, obj: Any) -> str:
        return str(obj.attempt.run)


@admin.register(EventBatch)
class EventBatchAdmin(OfAttempt):
    list_display = ("first_seq", "last_seq", "run", "attempt", "count", "codec", "received_at", "page")


@admin.register(Series)
class SeriesAdmin(OfAttempt):
    list_display = ("name", "run", "attempt", "count", "last_step", "last_value", "page")
    search_fields = (*OfAttempt.search_fields, "=name")
    search_help_text = "The id of a run or of an attempt, or the name of a series"
    exclude = ()


@admin.register(SeriesChunk)
class SeriesChunkAdmin(OfAttempt):
    list_display = ("series", "level", "index", "n", "first_step", "last_step", "sealed", "run")
    list_select_related = ("series", "attempt__run")


@admin.register(Sample)
class SampleAdmin(OfAttempt):
    list_display = ("seq", "run", "attempt", "step", "group", "index", "outcome", "reward", "page")
    exclude = ()


@admin.register(LogChunk)
class LogChunkAdmin(OfAttempt):
    list_display = ("first_seq", "last_seq", "run", "attempt", "count", "worst_level", "page")


@admin.register(LatestState)
class LatestStateAdmin(OfAttempt):
    list_display = ("attempt", "run", "seq", "step", "updated_at", "page")
    exclude = ()


@admin.register(Moment)
class MomentAdmin(OfAttempt):
    list_display = ("seq", "t", "step", "run", "attempt", "page")
    exclude = ()
