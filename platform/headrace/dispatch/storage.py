"""Who uses how much: bytes of a team by kind and by run, in the database and on this machine's disk. Measured, then kept for a while."""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.cache import cache
from django.db.models import Count, Sum
from django.db.models.functions import TruncDate
from django.utils import timezone

from headrace.dispatch.retention import DELETED_GRACE, SIZES
from headrace.experiments.models import Artifact, Run
from headrace.teams.models import Team
from headrace.telemetry.models import EventBatch, LogChunk, Sample, SeriesChunk

KEPT_S, AT_MOST_EVERY_S = 300, 10
TOP = 20
MOST_FILES = 200_000
GROWTH_DAYS = 30
WARN_SHARE = 0.10
TABLES: dict[str, Any] = {"events": EventBatch, "series": SeriesChunk, "samples": Sample, "logs": LogChunk}
FOLDERS = {"checkpoints": "checkpoints", "exports": "exports", "probes": "probes"}
ON_DISK = ("checkpoints", "exports", "probes", "spools", "other files")
NOTES = {
    "events": "what drivers sent; the truth behind everything else",
    "series": "what charts read; kept whatever the policy says",
    "samples": "prompts and completions, estimated",
    "logs": "log lines, compressed",
    "checkpoints": "weights and optimizer states of runs on this machine",
    "exports": "adapters made for download; each goes with its checkpoint",
    "probes": "what models were asked, and their answers",
    "spools": "the drivers' own copies of their events",
    "other files": "specs and whatever else runs wrote",
}


@dataclass
class RunUse:
    """One run's bytes."""

    public_id: str
    name: str
    state: str
    keep: bool
    deleted: bool
    database: int = 0
    disk: int = 0

    @property
    def total(self) -> int:
        return self.database + self.disk


@dataclass
class Use:
    """A team's bytes. `complete` False: there were more files than are counted."""

    database: dict[str, int] = field(default_factory=dict)
    items: dict[str, int] = field(default_factory=dict)
    disk: dict[str, int] = field(default_factory=dict)
    runs: list[RunUse] = field(default_factory=list)
    growth: list[tuple[date, int]] = field(default_factory=list)
    complete: bool = True
    at: datetime = field(default_factory=timezone.now)

    @property
    def total(self) -> int:
        return sum(self.database.values()) + sum(self.disk.values())


@dataclass(frozen=True)
class Disk:
    """The disk that holds the data folder."""

    total: int
    free: int

    @property
    def tight(self) -> bool:
        return self.free < WARN_SHARE * self.total

    @property
    def used_share(self) -> float:
        return 1 - self.free / max(1, self.total)


def disk() -> Disk:
    """Of the machine that serves the pages."""
    found = shutil.disk_usage(settings.DATA_DIR)
    return Disk(found.total, found.free)


def use_of(team: Team, *, again: bool = False) -> Use:
    """The last measurement, or a new one: older than KEPT_S, or asked for again and older than AT_MOST_EVERY_S."""
    key = f"storage-use-{team.pk}"
    kept: tuple[float, Use] | None = cache.get(key)
    longest = AT_MOST_EVERY_S if again else KEPT_S
    if kept is not None and time.time() - kept[0] < longest:
        return kept[1]
    measured = measure(team)
    cache.set(key, (time.time(), measured), KEPT_S)
    return measured


def measure(team: Team) -> Use:
    """Reads the database, a query a table, and walks the folders of the team's runs."""
    use = Use()
    rows = {run.pk: run for run in Run.objects.for_team(team).only("public_id", "name", "state", "keep", "deleted_at")}
    found = {pk: RunUse(run.public_id, run.name, run.state, run.keep, run.deleted_at is not None) for pk, run in rows.items()}
    for kind, model in TABLES.items():
        told = model.objects.for_team(team).order_by().values("attempt__run_id").annotate(items=Count("pk"), bytes=Sum(SIZES[model]))
        use.database[kind] = use.items[kind] = 0
        for row in told:
            use.database[kind] += row["bytes"] or 0
            use.items[kind] += row["items"]
            if row["attempt__run_id"] in found:
                found[row["attempt__run_id"]].database += row["bytes"] or 0
    use.disk = dict.fromkeys(ON_DISK, 0)
    left = MOST_FILES
    for run in found.values():
        sizes, seen = folder_sizes(settings.RUNS_DIR / run.public_id, left)
        left -= seen
        run.disk = sum(sizes.values())
        for kind, size in sizes.items():
            use.disk[kind] += size
    use.complete = left > 0
    use.runs = sorted((run for run in found.values() if run.total), key=lambda run: -run.total)[:TOP]
    use.growth = growth(team)
    return use


def growth(team: Team) -> list[tuple[date, int]]:
    """Bytes that came in by day, events and checkpoints, over the last GROWTH_DAYS days; days without any are 0."""
    today = timezone.now().date()
    since = timezone.now() - timedelta(days=GROWTH_DAYS)
    by_day: defaultdict[date, int] = defaultdict(int)
    came = EventBatch.objects.for_team(team).filter(received_at__gte=since).order_by().annotate(day=TruncDate("received_at"))
    for row in came.values("day").annotate(bytes=Sum(SIZES[EventBatch])):
        by_day[row["day"]] += row["bytes"] or 0
    made = Artifact.objects.for_team(team).filter(created_at__gte=since).order_by().annotate(day=TruncDate("created_at"))
    for row in made.values("day").annotate(size=Sum("bytes")):
        by_day[row["day"]] += row["size"] or 0
    days = [today - timedelta(days=back) for back in range(GROWTH_DAYS - 1, -1, -1)]
    return [(day, by_day[day]) for day in days]


def folder_sizes(folder: Path, most_files: int = MOST_FILES) -> tuple[Counter[str], int]:
    """Bytes by kind below a run's folder, and how many files were looked at. Links are not followed and count nothing."""
    sizes: Counter[str] = Counter()
    seen = 0
    for here, _, names in os.walk(folder):
        parts = Path(here).relative_to(folder).parts
        kind = next((FOLDERS[part] for part in parts if part in FOLDERS), "other files")
        for name in names:
            seen += 1
            if seen > most_files:
                return sizes, seen
            path = os.path.join(here, name)
            if not os.path.islink(path):
                sizes["spools" if name.endswith(".spool") else kind] += _size(path)
    return sizes, seen


def deleted_runs(team: Team) -> list[dict[str, Any]]:
    """Runs that were deleted and can still be brought back, with the moment they go for good."""
    rows = Run.objects.for_team(team).exclude(deleted_at=None).order_by("-deleted_at")[:100]
    return [{"run": run, "gone_at": run.deleted_at + DELETED_GRACE} for run in rows if run.deleted_at]


def orphans() -> list[tuple[str, int]]:
    """Folders below the runs' folder that no run knows, of any team, with their bytes; at most 100, largest first."""
    root: Path = settings.RUNS_DIR
    names = sorted(path.name for path in root.iterdir() if path.is_dir() and not path.is_symlink()) if root.is_dir() else []
    known: set[str] = set()
    for start in range(0, len(names), 500):
        known.update(Run.unscoped.filter(public_id__in=names[start : start + 500]).values_list("public_id", flat=True))
    lost = [(name, sum(folder_sizes(root / name, 20_000)[0].values())) for name in names if name not in known][:100]
    return sorted(lost, key=lambda pair: -pair[1])


def _size(path: str) -> int:
    try:
        return os.stat(path, follow_symlinks=False).st_size
    except OSError:  # a run at work removes files while we look
        return 0
