"""What is kept of comparing: saved views of the runs table and of the comparison page."""

from __future__ import annotations

from django.conf import settings
from django.db import models

from headrace.identifiers import WithPublicId
from headrace.teams.models import Team
from headrace.teams.scoping import TeamScopedManager, UnscopedManager


class SavedView(WithPublicId):
    """A named permalink: the page and the exact query string it is opened with."""

    class Page(models.TextChoices):
        RUNS = "runs", "Runs table"
        COMPARE = "compare", "Comparison"

    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="saved_views")
    page = models.CharField(max_length=10, choices=Page.choices)
    name = models.CharField(max_length=200)
    query = models.CharField(max_length=4000, blank=True, default="", help_text="Query string of the page, without the question mark.")
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    unscoped = UnscopedManager["SavedView"]()
    objects = TeamScopedManager["SavedView"]()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["team", "page", "name"], name="saved_view_name_once")]

    def __str__(self) -> str:
        return self.name


from headrace.compare.races.models import Race as Race  # noqa: E402
from headrace.compare.races.models import RaceEntry as RaceEntry  # noqa: E402
