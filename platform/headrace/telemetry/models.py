"""What attempts emit. `EventBatch` is the truth; every other table is derived from it and can be rebuilt."""

from django.db import models

from headrace.experiments.models import Attempt
from headrace.teams.scoping import TeamScopedManager, UnscopedManager


class EventBatch(models.Model):
    """One POST of a driver: events first_seq .. last_seq, compressed. Written once, never changed."""

    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="event_batches")
    first_seq = models.PositiveBigIntegerField()
    last_seq = models.PositiveBigIntegerField()
    t0 = models.FloatField(help_text="Unix seconds of the first event.")
    t1 = models.FloatField()
    count = models.PositiveIntegerField()
    codec = models.CharField(max_length=20, help_text="How `body` is packed, for example `json+zlib`.")
    body = models.BinaryField()
    sha256 = models.CharField(max_length=64, help_text="Of the canonical content, to tell a repeat from a conflict.")
    received_at = models.DateTimeField(auto_now_add=True)

    unscoped = UnscopedManager["EventBatch"]()
    objects = TeamScopedManager["EventBatch"]("attempt__team")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["attempt", "first_seq"], name="event_batch_first_once"),
            models.UniqueConstraint(fields=["attempt", "last_seq"], name="event_batch_last_once"),
            models.CheckConstraint(
                condition=models.Q(first_seq__gte=1, last_seq=models.F("first_seq") + models.F("count") - 1), name="event_batch_gap_free"
            ),
        ]
        indexes = [models.Index(fields=["attempt", "t0"], name="event_batch_time")]  # where in the log an instant is

    def __str__(self) -> str:
        return f"events {self.first_seq}..{self.last_seq} of attempt {self.attempt_id}"


class Series(models.Model):
    """One named metric of one attempt."""

    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="series")
    name = models.CharField(max_length=200)
    count = models.PositiveBigIntegerField(default=0, help_text="Points stored.")
    last_seq = models.PositiveBigIntegerField(default=0)
    last_step = models.BigIntegerField(null=True, blank=True)
    last_t = models.FloatField(null=True, blank=True)
    last_value = models.FloatField(null=True, blank=True, help_text="The last finite value.")

    unscoped = UnscopedManager["Series"]()
    objects = TeamScopedManager["Series"]("attempt__team")

    class Meta:
        verbose_name_plural = "series"
        constraints = [models.UniqueConstraint(fields=["attempt", "name"], name="series_once")]

    def __str__(self) -> str:
        return self.name


class SeriesChunk(models.Model):
    """Packed columns of one series. Level 0 holds points; higher levels hold buckets of the level below."""

    series = models.ForeignKey(Series, on_delete=models.CASCADE, related_name="chunks")
    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="series_chunks")
    level = models.PositiveSmallIntegerField(default=0)
    index = models.PositiveIntegerField(help_text="Position among the chunks of this series and level.")
    first_seq = models.PositiveBigIntegerField()
    last_seq = models.PositiveBigIntegerField()
    first_step = models.BigIntegerField()
    last_step = models.BigIntegerField()
    t0 = models.FloatField()
    t1 = models.FloatField()
    n = models.PositiveIntegerField()
    sealed = models.BooleanField(default=False, help_text="Full; the last chunk of a level is open until then.")
    body = models.BinaryField()

    unscoped = UnscopedManager["SeriesChunk"]()
    objects = TeamScopedManager["SeriesChunk"]("attempt__team")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["series", "level", "index"], name="series_chunk_once")]
        indexes = [models.Index(fields=["series", "level", "last_step"])]

    def __str__(self) -> str:
        return f"chunk {self.level}/{self.index} of series {self.series_id}"


class Sample(models.Model):
    """One judged completion. Tokens and log-probs stay in the event `seq`, which `body` of its batch holds."""

    class Outcome(models.TextChoices):
        TRAINED = "trained", "Trained"
        DROPPED = "dropped", "Dropped"
        FAILED = "failed", "Failed"
        EVALUATION = "evaluation", "Evaluation"

    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="samples")
    seq = models.PositiveBigIntegerField(help_text="The event that holds the whole sample.")
    t = models.FloatField()
    step = models.BigIntegerField()
    group = models.CharField(max_length=100)
    episode = models.CharField(max_length=100, blank=True, default="")
    prompt_id = models.CharField(max_length=100, blank=True, default="")
    index = models.PositiveIntegerField(default=0)
    outcome = models.CharField(max_length=12, choices=Outcome.choices)
    drop_reason = models.CharField(max_length=100, blank=True, default="")
    finish_reason = models.CharField(max_length=20, blank=True, default="")
    reward = models.FloatField(null=True, blank=True, help_text="Null: not judged, or judging failed. Never 0 in its place.")
    advantage = models.FloatField(null=True, blank=True)
    version_min = models.BigIntegerField(null=True, blank=True)
    version_max = models.BigIntegerField(null=True, blank=True)
    version_trained = models.BigIntegerField(null=True, blank=True)
    prompt = models.TextField(blank=True, default="")
    completion = models.TextField(blank=True, default="")
    answer_expected = models.TextField(blank=True, default="")
    answer_given = models.TextField(blank=True, default="")
    token_count = models.PositiveIntegerField(default=0)

    unscoped = UnscopedManager["Sample"]()
    objects = TeamScopedManager["Sample"]("attempt__team")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["attempt", "seq"], name="sample_once")]
        indexes = [models.Index(fields=["attempt", "step"]), models.Index(fields=["attempt", "outcome", "step"])]

    def __str__(self) -> str:
        return f"sample {self.group}/{self.index} of attempt {self.attempt_id}"


class LogChunk(models.Model):
    """Log lines of one batch, compressed."""

    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="log_chunks")
    first_seq = models.PositiveBigIntegerField()
    last_seq = models.PositiveBigIntegerField()
    t0 = models.FloatField()
    t1 = models.FloatField()
    count = models.PositiveIntegerField()
    worst_level = models.CharField(max_length=10, default="info")
    body = models.BinaryField()

    unscoped = UnscopedManager["LogChunk"]()
    objects = TeamScopedManager["LogChunk"]("attempt__team")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["attempt", "first_seq"], name="log_chunk_once")]

    def __str__(self) -> str:
        return f"log {self.first_seq}..{self.last_seq} of attempt {self.attempt_id}"


class LatestState(models.Model):
    """The last event of each kind that a page shows first, so that a snapshot reads one row."""

    attempt = models.OneToOneField(Attempt, on_delete=models.CASCADE, related_name="latest")
    seq = models.PositiveBigIntegerField(default=0)
    t = models.FloatField(null=True, blank=True)
    step = models.BigIntegerField(null=True, blank=True)
    state = models.JSONField(null=True, blank=True)
    phase = models.JSONField(null=True, blank=True)
    lag = models.JSONField(null=True, blank=True)
    sync = models.JSONField(null=True, blank=True)
    evaluation = models.JSONField(null=True, blank=True)
    checkpoint = models.JSONField(null=True, blank=True)
    finished = models.JSONField(null=True, blank=True)
    updated_at = models.DateTimeField(auto_now=True)

    unscoped = UnscopedManager["LatestState"]()
    objects = TeamScopedManager["LatestState"]("attempt__team")

    def __str__(self) -> str:
        return f"attempt {self.attempt_id} at seq {self.seq}"


class Moment(models.Model):
    """One event that is rare and worth finding by its time: a sync, an evaluation, a checkpoint, a phase, the start, the end, a lag.

    The time axis of a run is drawn from these rows, and what was last said before an instant is read from them.
    """

    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="moments")
    seq = models.PositiveBigIntegerField()
    t = models.FloatField()
    step = models.BigIntegerField()
    kind = models.CharField(max_length=12)
    data = models.JSONField()

    unscoped = UnscopedManager["Moment"]()
    objects = TeamScopedManager["Moment"]("attempt__team")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["attempt", "seq"], name="moment_once")]
        indexes = [models.Index(fields=["attempt", "kind", "seq"], name="moment_kind")]

    def __str__(self) -> str:
        return f"{self.kind} {self.seq} of attempt {self.attempt_id}"
