"""Rules over runs, the channels they tell, what fired and what became of each message."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.conf import settings
from django.db import models
from django.utils import timezone

from headrace.alerts.kinds import second_of
from headrace.experiments.models import Run
from headrace.identifiers import WithPublicId
from headrace.teams.models import Team
from headrace.teams.scoping import TeamScopedManager, UnscopedManager


class Severity(models.TextChoices):
    INFO = "info", "For information"
    WARNING = "warning", "Warning"
    CRITICAL = "critical", "Critical"


class AlertChannel(WithPublicId):
    """A way out of the house. Its address and passwords are sealed: written, used, never shown again."""

    class Kind(models.TextChoices):
        WEBHOOK = "webhook", "Signed webhook"
        EMAIL = "email", "E-mail"
        SLACK = "slack", "Slack"
        DISCORD = "discord", "Discord"
        TEAMS = "teams", "Microsoft Teams"
        NTFY = "ntfy", "ntfy"
        CHAT = "chat", "Another chat"

    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="alert_channels")
    name = models.CharField(max_length=100)
    kind = models.CharField(max_length=10, choices=Kind.choices)
    sealed = models.TextField(help_text="Encrypted JSON: everything that `sender` needs.")
    hint = models.CharField(max_length=200, help_text="What may be shown of the address: its host.")
    enabled = models.BooleanField(default=True)
    last_ok_at = models.DateTimeField(null=True, blank=True)
    last_error = models.CharField(max_length=300, blank=True, default="")
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    if TYPE_CHECKING:
        team_id: int

    unscoped = UnscopedManager["AlertChannel"]()
    objects = TeamScopedManager["AlertChannel"]()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["team", "name"], name="alert_channel_name_once")]

    def __str__(self) -> str:
        return f"{self.name} ({self.kind})"


class AlertRule(WithPublicId):
    """When to tell whom. `options` are those of its kind (`kinds.py`). Scope: one run, or the team's runs by preset and tag."""

    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="alert_rules")
    name = models.CharField(max_length=100)
    kind = models.CharField(max_length=12)
    options = models.JSONField(default=dict)
    run = models.ForeignKey(Run, on_delete=models.CASCADE, null=True, blank=True, related_name="alert_rules")
    preset = models.CharField(max_length=100, blank=True, default="", help_text="Name of a preset, without its version.")
    tag = models.CharField(max_length=60, blank=True, default="")
    channels = models.ManyToManyField(AlertChannel, blank=True, related_name="rules")
    severity = models.CharField(max_length=8, choices=Severity.choices, default=Severity.WARNING)
    cooldown_s = models.PositiveIntegerField(default=900)
    tell_resolved = models.BooleanField(default=True)
    hold_run = models.BooleanField(default=False, help_text="Pause the run and write a checkpoint when it fires.")
    enabled = models.BooleanField(default=True)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    if TYPE_CHECKING:
        team_id: int
        run_id: int | None

    unscoped = UnscopedManager["AlertRule"]()
    objects = TeamScopedManager["AlertRule"]()

    class Meta:
        indexes = [models.Index(fields=["team", "enabled"], name="alert_rule_live")]

    def __str__(self) -> str:
        return self.name


class Alert(WithPublicId):
    """One firing of one rule for one run: open while it holds, then resolved. At most one is open for a rule and a run."""

    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="alerts")
    rule = models.ForeignKey(AlertRule, on_delete=models.SET_NULL, null=True, blank=True, related_name="alerts")
    rule_name = models.CharField(max_length=100)
    kind = models.CharField(max_length=12)
    severity = models.CharField(max_length=8, choices=Severity.choices)
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="alerts")
    title = models.CharField(max_length=200)
    detail = models.CharField(max_length=500, blank=True, default="")
    value = models.FloatField(null=True, blank=True)
    step = models.BigIntegerField(null=True, blank=True)
    t = models.FloatField(help_text="Unix seconds on the run's clock.")
    count = models.PositiveIntegerField(default=1, help_text="How often it fired, those within the cooldown included.")
    held_run = models.BooleanField(default=False)
    opened_at = models.DateTimeField(default=timezone.now)
    last_at = models.DateTimeField(default=timezone.now)
    resolved_at = models.DateTimeField(null=True, blank=True)

    if TYPE_CHECKING:
        team_id: int
        run_id: int

    unscoped = UnscopedManager["Alert"]()
    objects = TeamScopedManager["Alert"]()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["rule", "run"], condition=models.Q(resolved_at=None), name="alert_open_once")]
        indexes = [
            models.Index(fields=["team", "-opened_at"], name="alert_newest"),
            models.Index(fields=["run", "-opened_at"], name="alert_of_run"),
        ]

    def __str__(self) -> str:
        return self.title

    @property
    def second(self) -> str:
        """`?t=` of the run's page."""
        return second_of(self.t)


class AlertDelivery(models.Model):
    """One message to one channel: sent once, tried again where trying helps."""

    class Purpose(models.TextChoices):
        FIRED = "fired", "Fired"
        RESOLVED = "resolved", "Resolved"
        TEST = "test", "Test"

    class State(models.TextChoices):
        WAITING = "waiting", "Waiting"
        SENDING = "sending", "Being sent"
        SENT = "sent", "Sent"
        FAILED = "failed", "Failed"

    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="alert_deliveries")
    alert = models.ForeignKey(Alert, on_delete=models.CASCADE, null=True, blank=True, related_name="deliveries")
    channel = models.ForeignKey(AlertChannel, on_delete=models.SET_NULL, null=True, blank=True, related_name="deliveries")
    channel_name = models.CharField(max_length=100)
    purpose = models.CharField(max_length=8, choices=Purpose.choices)
    state = models.CharField(max_length=8, choices=State.choices, default=State.WAITING)
    tries = models.PositiveSmallIntegerField(default=0)
    words = models.CharField(max_length=300, blank=True, default="", help_text="What came of it. Never a reply's body, never an address.")
    due_at = models.DateTimeField(default=timezone.now)
    created_at = models.DateTimeField(default=timezone.now)
    done_at = models.DateTimeField(null=True, blank=True)

    unscoped = UnscopedManager["AlertDelivery"]()
    objects = TeamScopedManager["AlertDelivery"]()

    class Meta:
        indexes = [models.Index(fields=["state", "due_at"], name="alert_delivery_due")]

    def __str__(self) -> str:
        return f"{self.purpose} to {self.channel_name}: {self.state}"
