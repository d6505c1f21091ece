"""What is run: projects, experiments, immutable configs, runs and their attempts.

`Run.state` and `Attempt.state` are written by `lifecycle.py` alone: save(), update() and bulk_update() refuse them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from django.conf import settings
from django.db import models
from django.utils import timezone

from headrace.experiments.states import AttemptState, RunState, StateGuarded, StateGuardedManager
from headrace.identifiers import WithPublicId
from headrace.teams.models import Team
from headrace.teams.scoping import TeamScopedManager, UnscopedManager

if TYPE_CHECKING:
    from django_stubs_ext.db.models.manager import RelatedManager


class Project(WithPublicId):
    """A team's folder of experiments and runs."""

    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="projects")
    name = models.CharField(max_length=200)
    slug = models.SlugField(max_length=60)
    note = models.TextField(blank=True, default="")
    created_at = models.DateTimeField(auto_now_add=True)
    archived_at = models.DateTimeField(null=True, blank=True)

    unscoped = UnscopedManager["Project"]()
    objects = TeamScopedManager["Project"]()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["team", "slug"], name="project_slug_once")]

    def __str__(self) -> str:
        return self.name


class Experiment(WithPublicId):
    """A question that several runs answer together."""

    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="experiments")
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="experiments")
    name = models.CharField(max_length=200)
    note = models.TextField(blank=True, default="")
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    archived_at = models.DateTimeField(null=True, blank=True)

    unscoped = UnscopedManager["Experiment"]()
    objects = TeamScopedManager["Experiment"]()

    def __str__(self) -> str:
        return self.name


class ConfigIsImmutable(TypeError):
    """A stored config was to be changed. Make a new one and name the old one as its parent."""


class Config(WithPublicId):
    """A resolved run config. Never changed; equal configs of a team are one row (same digest)."""

    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="configs")
    digest = models.CharField(max_length=64)
    schema_version = models.PositiveIntegerField()
    preset = models.CharField(max_length=100, blank=True, default="")
    data = models.JSONField()
    parent = models.ForeignKey("self", on_delete=models.SET_NULL, null=True, blank=True, related_name="children")
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    unscoped = UnscopedManager["Config"]()
    objects = TeamScopedManager["Config"]()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["team", "digest"], name="config_digest_once")]

    def __str__(self) -> str:
        return self.digest[:12]

    def save(self, *args: Any, **kwargs: Any) -> None:
        if not self._state.adding:
            raise ConfigIsImmutable(f"config {self.public_id} is stored and cannot change -> create a new config with this one as parent")
        super().save(*args, **kwargs)


class Sweep(WithPublicId):
    """One config run several times: over seeds, and over a few values of a few fields. Its state follows from its runs'."""

    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="sweeps")
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="sweeps")
    config = models.ForeignKey(Config, on_delete=models.PROTECT, related_name="sweeps")
    name = models.CharField(max_length=200)
    axes = models.JSONField(default=list, help_text="What is varied: a list of {path, values}.")
    seeds = models.JSONField(default=list)
    idempotency_key = models.CharField(max_length=200)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="+")
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    if TYPE_CHECKING:
        team_id: int
        project_id: int
        config_id: int
        runs: RelatedManager[Run]

    unscoped = UnscopedManager["Sweep"]()
    objects = TeamScopedManager["Sweep"]()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["team", "idempotency_key"], name="sweep_idempotency_once")]
        indexes = [models.Index(fields=["team", "-created_at"])]

    def __str__(self) -> str:
        return f"{self.name} ({self.public_id})"


class Run(WithPublicId, StateGuarded):
    """One config, run once: the queue entry, its state and what became of it. Restarts are attempts."""

    INITIAL_STATE: ClassVar[str] = RunState.QUEUED

    class Source(models.TextChoices):
        WEB = "web", "Browser"
        API = "api", "API"
        CLI = "cli", "Command line"
        DEMO = "demo", "Demo"
        UPLOAD = "upload", "Upload"

    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="runs")
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="runs")
    experiment = models.ForeignKey(Experiment, on_delete=models.SET_NULL, null=True, blank=True, related_name="runs")
    config = models.ForeignKey(Config, on_delete=models.PROTECT, related_name="runs")
    sweep = models.ForeignKey(Sweep, on_delete=models.SET_NULL, null=True, blank=True, related_name="runs")
    parent = models.ForeignKey("self", on_delete=models.SET_NULL, null=True, blank=True, related_name="children")
    forked_from = models.ForeignKey("Artifact", on_delete=models.SET_NULL, null=True, blank=True, related_name="forks")
    name = models.CharField(max_length=200)
    group = models.CharField(max_length=100, blank=True, default="")
    seed = models.PositiveBigIntegerField()
    preset = models.CharField(max_length=100, blank=True, default="", help_text="name@version")
    priority = models.SmallIntegerField(default=0)
    source = models.CharField(max_length=8, choices=Source.choices, default=Source.WEB)
    idempotency_key = models.CharField(max_length=200)
    state = models.CharField(max_length=10, choices=RunState.choices, default=RunState.QUEUED, editable=False)
    state_since = models.DateTimeField(default=timezone.now, editable=False)
    control = models.JSONField(default=dict, blank=True, help_text="What the driver is asked to do: workers.contract.events.Control.")
    summary = models.JSONField(default=dict, blank=True)
    outcome_cause = models.JSONField(null=True, blank=True)
    forecast = models.JSONField(
        null=True, blank=True, help_text="What was predicted of it at its launch, and from which run. Null: nothing."
    )
    note = models.TextField(blank=True, default="")
    tags = models.JSONField(default=list, blank=True)
    keep = models.BooleanField(default=False, help_text="Kept for ever: retention takes nothing of it.")
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="+")
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    archived_at = models.DateTimeField(null=True, blank=True)
    deleted_at = models.DateTimeField(null=True, blank=True)

    if TYPE_CHECKING:
        team_id: int
        project_id: int
        config_id: int
        forked_from_id: int | None
        attempts: RelatedManager[Attempt]
        transitions: RelatedManager[RunTransition]

    unscoped = StateGuardedManager["Run"]()
    objects = TeamScopedManager["Run"]()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["team", "idempotency_key"], name="run_idempotency_once"),
            models.CheckConstraint(condition=models.Q(state__in=RunState.values), name="run_state_known"),
        ]
        indexes = [models.Index(fields=["team", "-created_at"]), models.Index(fields=["state", "state_since"])]

    def __str__(self) -> str:
        return f"{self.name} ({self.public_id})"

    @property
    def is_over(self) -> bool:
        return self.state in RunState.over()


class Attempt(WithPublicId, StateGuarded):
    """One try of a run: its own folder, token, fence and event numbers from 1."""

    INITIAL_STATE: ClassVar[str] = AttemptState.PENDING

    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="attempts")
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="attempts")
    number = models.PositiveIntegerField()
    fence = models.PositiveIntegerField(help_text="Ingest refuses an attempt whose fence is not the run's highest.")
    state = models.CharField(max_length=10, choices=AttemptState.choices, default=AttemptState.PENDING, editable=False)
    state_since = models.DateTimeField(default=timezone.now, editable=False)
    cluster = models.ForeignKey("dispatch.Cluster", on_delete=models.SET_NULL, null=True, blank=True, related_name="attempts")
    submission_id = models.CharField(max_length=100, blank=True, default="")
    resumed_from = models.ForeignKey("Artifact", on_delete=models.SET_NULL, null=True, blank=True, related_name="resumed_attempts")
    resumed_from_attempt = models.ForeignKey("self", on_delete=models.SET_NULL, null=True, blank=True, related_name="successors")
    token_hash = models.CharField(max_length=64, blank=True, default="", db_index=True)
    token_expires = models.DateTimeField(null=True, blank=True)
    ingested_through = models.PositiveBigIntegerField(default=0)
    heartbeat_at = models.DateTimeField(null=True, blank=True)
    started_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    out_dir = models.CharField(max_length=1000, blank=True, default="")
    exit_cause = models.JSONField(null=True, blank=True)
    provenance = models.JSONField(default=dict, blank=True)
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    if TYPE_CHECKING:
        team_id: int
        run_id: int

    unscoped = StateGuardedManager["Attempt"]()
    objects = TeamScopedManager["Attempt"]()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["run", "number"], name="attempt_number_once"),
            models.UniqueConstraint(fields=["run", "fence"], name="attempt_fence_once"),
            models.CheckConstraint(condition=models.Q(state__in=AttemptState.values), name="attempt_state_known"),
        ]
        indexes = [models.Index(fields=["state", "heartbeat_at"])]

    def __str__(self) -> str:
        return f"attempt {self.number} of run {self.run_id}"

    @property
    def is_over(self) -> bool:
        return self.state in AttemptState.over()


class RunTransition(models.Model):
    """One change of a run's state, with its cause. Written with the change, in the same transaction."""

    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="run_transitions")
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="transitions")
    attempt = models.ForeignKey(Attempt, on_delete=models.SET_NULL, null=True, blank=True, related_name="transitions")
    from_state = models.CharField(max_length=10, choices=RunState.choices)
    to_state = models.CharField(max_length=10, choices=RunState.choices)
    cause = models.JSONField(default=dict)
    actor = models.CharField(max_length=254, help_text="E-mail of a person, or the name of the part that acted.")
    at = models.DateTimeField(default=timezone.now, editable=False)

    unscoped = UnscopedManager["RunTransition"]()
    objects = TeamScopedManager["RunTransition"]()

    class Meta:
        indexes = [models.Index(fields=["run", "at"])]

    def __str__(self) -> str:
        return f"{self.from_state} -> {self.to_state}"


class Artifact(WithPublicId):
    """A file or folder an attempt left behind: a checkpoint, an export, an upload."""

    class Kind(models.TextChoices):
        CHECKPOINT = "checkpoint", "Checkpoint"
        EXPORT = "export", "Export"
        UPLOAD = "upload", "Upload"

    class State(models.TextChoices):
        COMPLETE = "complete", "Complete"
        MISSING = "missing", "Missing"
        DELETED = "deleted", "Deleted"

    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="artifacts")
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="artifacts")
    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, null=True, blank=True, related_name="artifacts")
    kind = models.CharField(max_length=12, choices=Kind.choices)
    state = models.CharField(max_length=10, choices=State.choices, default=State.COMPLETE)
    path = models.CharField(max_length=1000)
    bytes = models.PositiveBigIntegerField(default=0)
    sha256 = models.CharField(max_length=64, blank=True, default="")
    step = models.BigIntegerField(null=True, blank=True)
    version = models.BigIntegerField(null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    unscoped = UnscopedManager["Artifact"]()
    objects = TeamScopedManager["Artifact"]()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["attempt", "kind", "path"], name="artifact_path_once")]

    def __str__(self) -> str:
        return f"{self.kind} {self.path}"
