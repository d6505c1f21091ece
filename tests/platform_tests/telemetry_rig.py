"""A team, a run and an attempt with a token: what the telemetry, API and socket tests start from."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.utils import timezone

from headrace.experiments.models import Attempt, Config, Project, Run
from headrace.identifiers import hash_secret
from headrace.teams.models import Membership, Role, Team, User
from headrace.telemetry.codec import Columns, parse_batch
from headrace.telemetry.ingest import ingest
from workers.contract.events import IngestReply

T0 = 1_700_000_000.0


@dataclass
class Rig:
    """Rows of one team."""

    team: Team
    user: User
    run: Run
    attempt: Attempt
    token: str

    def resume(self, number: int) -> Attempt:
        """A later attempt of the same run, with the same token."""
        return new_attempt(self.run, number, self.token)


def new_rig(slug: str = "") -> Rig:
    """A fresh team with one queued run."""
    slug = slug or secrets.token_hex(6)
    team = Team.objects.create(name=slug, slug=slug)
    user = User.objects.create_user(f"{slug}@example.org")
    Membership.objects.create(team=team, user=user, role=Role.OWNER)
    project = Project.objects.create(team=team, name="p", slug="p")
    config = Config.objects.create(team=team, digest=secrets.token_hex(32), schema_version=1, data={"budget": {"steps": 20}})
    run = Run.objects.create(team=team, project=project, config=config, name=slug, seed=1, idempotency_key=slug, created_by=user)
    token = f"hrw_{secrets.token_urlsafe(32)}"
    return Rig(team, user, run, new_attempt(run, 1, token), token)


def new_attempt(run: Run, number: int, token: str) -> Attempt:
    """An attempt whose fence is its number."""
    expires = timezone.now() + timedelta(days=7)
    return Attempt.objects.create(team=run.team, run=run, number=number, fence=number, token_hash=hash_secret(token), token_expires=expires)


def document(events: list[tuple[str, dict[str, Any]]], first: int = 1, fence: int = 1, step: int | None = None) -> dict[str, Any]:
    """A batch as a driver posts it; event seq has t = T0 + seq and, unless given, step = seq."""
    seqs = range(first, first + len(events))
    return {
        "fence": fence,
        "first_seq": first,
        "t": [T0 + seq for seq in seqs],
        "step": [seq if step is None else step for seq in seqs],
        "kind": [kind for kind, _ in events],
        "data": [data for _, data in events],
    }


def columns(events: list[tuple[str, dict[str, Any]]], first: int = 1, step: int | None = None) -> Columns:
    """The same, parsed."""
    return parse_batch(json.dumps(document(events, first, step=step)).encode())[1]


def push(attempt: Attempt, events: list[tuple[str, dict[str, Any]]], first: int = 1, step: int | None = None, **kwargs: Any) -> IngestReply:
    """Ingest events first.. into the attempt."""
    return ingest(attempt.public_id, attempt.fence, columns(events, first, step), **kwargs)


def metric(value: Any, name: str = "reward/mean") -> tuple[str, dict[str, Any]]:
    """A metrics event with one value."""
    return "metrics", {"values": {name: value}}


SAMPLE = {
    "group": "g12",
    "prompt_id": "p7",
    "index": 1,
    "prompt": "What is 2 + 2?",
    "completion": "4",
    "answer_expected": "4",
    "answer_given": "4",
    "reward": 1.0,
    "advantage": 0.5,
    "outcome": "trained",
    "drop_reason": None,
    "version_min": 1,
    "version_max": 2,
    "version_trained": 2,
    "finish_reason": "stop",
    "tokens": {"ids": [5, 6], "text": ["4", "<end>"], "logprobs": [-0.1, -0.2], "versions": [1, 2], "trainer_logprobs": None},
}

STATE = {"status": "running", "step": 3, "version": 3, "steps_total": 20, "flow": {"running": 4}, "buffer": {"depth": 2, "capacity": 4}}
