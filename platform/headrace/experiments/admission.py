"""What a new run must satisfy besides its config: its priority, its team's quota, and that it reads nothing of another team's.

Called by `services` inside the transaction that makes the run; every refusal names the field, the value and the cure.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.conf import settings

from headrace.dispatch.models import Cluster, TeamQuota
from headrace.experiments.models import Artifact, Config, Run
from headrace.experiments.problems import BadInput, QuotaReached
from headrace.experiments.states import RunState
from headrace.schema_form import lookup
from headrace.teams.models import Team, User
from headrace.teams.services import require

HIGHEST = 100
# What the form and the queue offer; any number between -HIGHEST and HIGHEST may be sent.
PRIORITIES = ((20, "Urgent"), (10, "High"), (0, "Normal"), (-10, "Low"))
INIT_FROM = "model.init_from"
_PATHS = ("model.path", INIT_FROM, "environment.dataset")


def check_priority(team: Team, user: User | None, priority: int) -> int:
    """Normal or lower for everybody who may start runs; higher ones for those who may edit the queue."""
    if not isinstance(priority, int) or isinstance(priority, bool) or not -HIGHEST <= priority <= HIGHEST:
        raise BadInput("is not a priority", field="priority", value=priority, cure=f"give a whole number from -{HIGHEST} to {HIGHEST}")
    if priority > 0 and user is not None:
        require(user, "queue.edit", team)
    return priority


def check_quota(team: Team, count: int = 1) -> None:
    """Whether so many more runs may be queued. Raises QuotaReached."""
    row = TeamQuota.objects.for_team(team).select_for_update(of=("self",)).first()
    if row is None or row.most_queued is None:
        return
    queued = Run.objects.for_team(team).filter(state=RunState.QUEUED, deleted_at=None).exclude(source=Run.Source.UPLOAD).count()
    if queued + count > row.most_queued:
        raise QuotaReached(
            f"the team may have {row.most_queued} runs queued, and has {queued}",
            field="quota",
            value=queued + count,
            cure="wait until some have started, cancel some, or ask an owner for a larger quota",
            retryable=True,
        )


def cluster_for(team: Team) -> Cluster | None:
    """The team's own default cluster; None: the one that settings name."""
    return Cluster.objects.for_team(team).filter(is_default=True).order_by("pk").first()


def check_paths(team: Team, config: Config, forked_from: Artifact | None) -> None:
    """A path into the server's folder of runs must be one of this team's: files know no teams, so it is asked here."""
    home = Path(settings.RUNS_DIR).resolve()
    for field in _PATHS:
        value = lookup(config.data, field)
        if not isinstance(value, str) or not value.startswith(("/", ".", "~")):
            continue
        path = Path(value).expanduser().resolve()
        if not path.is_relative_to(home) or path == home:
            continue
        owner = path.relative_to(home).parts[0]
        if not Run.objects.for_team(team).filter(public_id=owner, deleted_at=None).exists():
            raise BadInput("is not of a run of this team", field=field, value=value, cure="choose a checkpoint of one of this team's runs")
    if forked_from is not None:
        # Locked until the run is stored: retention takes no checkpoint that an active run starts from
        held = Artifact.objects.for_team(team).select_for_update(of=("self",)).filter(pk=forked_from.pk)
        if not held.filter(state=Artifact.State.COMPLETE).exists():
            raise BadInput("is not there any more", field="forked_from", value=forked_from.public_id, cure="choose another checkpoint")
    if forked_from is not None and lookup(config.data, INIT_FROM) != folder_of(forked_from):
        raise BadInput("the config does not start from this checkpoint", field="forked_from", value=forked_from.public_id, cure=_CURE)


_CURE = f"set {INIT_FROM} to the checkpoint's folder, or send no forked_from"


def folder_of(artifact: Artifact) -> str:
    """The checkpoint's folder on the server's disk; an artifact's path stands in its attempt's folder unless it is absolute."""
    attempt = artifact.attempt
    folder = Path(attempt.out_dir) / artifact.path if attempt is not None and attempt.out_dir else Path(artifact.path)
    return str(folder.absolute())


def same_start(existing: Run, fields: dict[str, Any]) -> bool:
    """Whether a repeated request asks for the run that its key has made."""
    given = (fields["config"].pk, fields["project"].pk, fields["name"], fields["source"])
    fork = fields.get("forked_from")
    same_fork = existing.forked_from_id == (fork.pk if fork else None)
    return (existing.config_id, existing.project_id, existing.name, existing.source) == given and same_fork
