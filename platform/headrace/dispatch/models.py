"""Where runs are sent, how long their traces are kept, and who reconciles."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.db import models

from headrace.identifiers import WithPublicId
from headrace.teams.models import Team
from headrace.teams.scoping import TeamScopedManager, UnscopedManager


class Cluster(WithPublicId):
    """A Ray cluster. Everyone who may launch on a cluster trusts everyone else who may: give teams their own."""

    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="clusters", null=True, blank=True)
    name = models.CharField(max_length=100)
    address = models.CharField(max_length=500, help_text="Base URL of the dashboard, where the Jobs API listens.")
    token_file = models.CharField(max_length=1000, blank=True, default="", help_text="Path of the cluster token, mode 0600.")
    is_default = models.BooleanField(default=False)
    capacity = models.JSONField(default=dict, blank=True, help_text="{cpus, gpus, memory_bytes}. What is absent is found out.")
    found = models.JSONField(default=dict, blank=True, editable=False, help_text="The same, as Ray last told it.")
    price_per_device_hour = models.DecimalField(max_digits=12, decimal_places=4, null=True, blank=True, help_text="Empty: not known.")
    currency = models.CharField(max_length=3, default="EUR", help_text="Three letters, as ISO 4217 writes it.")
    last_seen_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    if TYPE_CHECKING:
        team_id: int | None

    unscoped = UnscopedManager["Cluster"]()
    objects = TeamScopedManager["Cluster"]()

    class Meta:
        # Two rules because SQLite counts every null as different from every other.
        constraints = [
            models.UniqueConstraint(fields=["team", "name"], name="cluster_name_once"),
            models.UniqueConstraint(fields=["name"], condition=models.Q(team=None), name="shared_cluster_name_once"),
        ]

    def __str__(self) -> str:
        return self.name


class TeamQuota(models.Model):
    """How much a team may have under way. Null: no bound."""

    team = models.OneToOneField(Team, on_delete=models.CASCADE, related_name="quota")
    most_running = models.PositiveIntegerField(null=True, blank=True)
    most_queued = models.PositiveIntegerField(null=True, blank=True)
    device_hours_month = models.DecimalField(max_digits=12, decimal_places=2, null=True, blank=True)
    updated_at = models.DateTimeField(auto_now=True)

    if TYPE_CHECKING:
        team_id: int

    unscoped = UnscopedManager["TeamQuota"]()
    objects = TeamScopedManager["TeamQuota"]()

    def __str__(self) -> str:
        return f"quota of {self.team_id}"


class RetentionPolicy(models.Model):
    """How many days a team's traces are kept. Null: for ever."""

    team = models.OneToOneField(Team, on_delete=models.CASCADE, related_name="retention")
    events_days = models.PositiveIntegerField(null=True, blank=True)
    samples_days = models.PositiveIntegerField(null=True, blank=True)
    logs_days = models.PositiveIntegerField(null=True, blank=True)
    checkpoints_days = models.PositiveIntegerField(null=True, blank=True)
    updated_at = models.DateTimeField(auto_now=True)

    unscoped = UnscopedManager["RetentionPolicy"]()
    objects = TeamScopedManager["RetentionPolicy"]()

    def __str__(self) -> str:
        return f"retention of {self.team_id}"


class ReconcilerLease(models.Model):
    """Who reconciles now. Taken by compare-and-set; the fence grows with every change of holder."""

    name = models.CharField(max_length=40, unique=True, default="reconciler")
    holder = models.CharField(max_length=200, blank=True, default="")
    fence = models.PositiveBigIntegerField(default=0)
    acquired_at = models.DateTimeField(null=True, blank=True)
    expires_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"{self.name} held by {self.holder or 'nobody'} (fence {self.fence})"
