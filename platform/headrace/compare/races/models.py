"""A race and its entries. What runs is in `spec` (plan.RaceSpec as JSON); the state of an entry is the state of its run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.conf import settings
from django.db import models
from django.utils import timezone

from headrace.experiments.models import Config, Project, Run
from headrace.identifiers import WithPublicId
from headrace.teams.models import Team
from headrace.teams.scoping import TeamScopedManager, UnscopedManager

if TYPE_CHECKING:
    from django_stubs_ext.db.models.manager import RelatedManager


class Race(WithPublicId):
    """Several presets, one workload, one stop rule. `asked` is what people want; `closed_at` is set when nothing is left to do."""

    class Asked(models.TextChoices):
        GO = "go", "Go on"
        PAUSE = "pause", "Start nothing more"
        CANCEL = "cancel", "Cancel"

    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="races")
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="races")
    name = models.CharField(max_length=200)
    note = models.TextField(blank=True, default="")
    spec = models.JSONField()
    key = models.CharField(max_length=200, help_text="The form that made it: sent twice, it makes one race.")
    asked = models.CharField(max_length=8, choices=Asked.choices, default=Asked.GO)
    problem = models.JSONField(null=True, blank=True, help_text="Why the next entry could not be started.")
    try_again_at = models.DateTimeField(null=True, blank=True)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="+")
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    closed_at = models.DateTimeField(null=True, blank=True)

    if TYPE_CHECKING:
        team_id: int
        project_id: int
        entries: RelatedManager[RaceEntry]

    unscoped = UnscopedManager["Race"]()
    objects = TeamScopedManager["Race"]()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["team", "key"], name="race_key_once")]
        indexes = [models.Index(fields=["closed_at"]), models.Index(fields=["team", "-created_at"])]

    def __str__(self) -> str:
        return f"{self.name} ({self.public_id})"


class RaceEntry(models.Model):
    """One contender with one seed. `launched` counts the runs started for it; `reused`: its run was there before."""

    race = models.ForeignKey(Race, on_delete=models.CASCADE, related_name="entries")
    place = models.PositiveIntegerField(help_text="Order of the start.")
    contender = models.PositiveIntegerField(help_text="Position in the spec's contenders.")
    seed = models.PositiveBigIntegerField()
    config = models.ForeignKey(Config, on_delete=models.RESTRICT, related_name="race_entries")
    run = models.ForeignKey(Run, on_delete=models.SET_NULL, null=True, blank=True, related_name="race_entries")
    reused = models.BooleanField(default=False)
    launched = models.PositiveIntegerField(default=0)
    retries_left = models.PositiveIntegerField(default=0)

    if TYPE_CHECKING:
        race_id: int
        config_id: int
        run_id: int | None

    unscoped = UnscopedManager["RaceEntry"]()
    objects = TeamScopedManager["RaceEntry"]("race__team")

    class Meta:
        verbose_name_plural = "race entries"
        ordering = ("race", "place")
        constraints = [
            models.UniqueConstraint(fields=["race", "place"], name="race_place_once"),
            models.UniqueConstraint(fields=["race", "contender", "seed"], name="race_entry_once"),
        ]

    def __str__(self) -> str:
        return f"entry {self.place} of race {self.race_id}"
