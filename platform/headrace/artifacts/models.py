"""Work on a run's weights that somebody asked for: a probe of them, an export. Checkpoints themselves are `experiments.Artifact`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.conf import settings
from django.db import models
from django.utils import timezone

from headrace.experiments.models import Artifact, Run
from headrace.identifiers import WithPublicId
from headrace.teams.models import Team
from headrace.teams.scoping import TeamScopedManager, UnscopedManager


class JobState(models.TextChoices):
    """`stopping`: it is to be cancelled and its processes still have to be ended."""

    QUEUED = "queued", "Queued"
    RUNNING = "running", "Running"
    STOPPING = "stopping", "Stopping"
    DONE = "done", "Done"
    FAILED = "failed", "Failed"
    CANCELLED = "cancelled", "Cancelled"


ACTIVE = (JobState.QUEUED, JobState.RUNNING, JobState.STOPPING)


class Probe(WithPublicId):
    """The base model and a checkpoint of the run, asked the same prompts."""

    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="probes")
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="probes")
    artifact = models.ForeignKey(Artifact, on_delete=models.SET_NULL, null=True, blank=True, related_name="probes")
    checkpoint = models.CharField(max_length=100, blank=True, default="", help_text="Its name, for when the row is gone.")
    prompts = models.JSONField(default=list)
    sampling = models.JSONField(default=dict)
    state = models.CharField(max_length=10, choices=JobState.choices, default=JobState.QUEUED)
    state_since = models.DateTimeField(default=timezone.now)
    submission_id = models.CharField(max_length=100, blank=True, default="")
    result = models.JSONField(null=True, blank=True)
    problem = models.JSONField(null=True, blank=True, help_text="message, field, value, cure of what went wrong.")
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="+")
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    started_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)

    if TYPE_CHECKING:
        team_id: int
        run_id: int

    unscoped = UnscopedManager["Probe"]()
    objects = TeamScopedManager["Probe"]()

    class Meta:
        indexes = [models.Index(fields=["run", "-created_at"]), models.Index(fields=["state", "state_since"])]

    def __str__(self) -> str:
        return f"probe {self.public_id} ({self.state})"


class Export(WithPublicId):
    """An adapter being made ready to take away. `result` is the zip, once it is done; `card` the model card inside it."""

    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="exports")
    artifact = models.OneToOneField(Artifact, on_delete=models.CASCADE, related_name="export")
    result = models.OneToOneField(Artifact, on_delete=models.SET_NULL, null=True, blank=True, related_name="export_of")
    state = models.CharField(max_length=10, choices=JobState.choices, default=JobState.QUEUED)
    state_since = models.DateTimeField(default=timezone.now)
    card = models.TextField(blank=True, default="")
    problem = models.JSONField(null=True, blank=True)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="+")
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    if TYPE_CHECKING:
        team_id: int

    unscoped = UnscopedManager["Export"]()
    objects = TeamScopedManager["Export"]()

    class Meta:
        indexes = [models.Index(fields=["state", "state_since"], name="export_state")]

    def __str__(self) -> str:
        return f"export {self.public_id} ({self.state})"
