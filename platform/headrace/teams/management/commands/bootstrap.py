"""`bootstrap`: the rows a server needs before anybody can sign in. Safe to run at every start."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand
from django.db import transaction

from headrace.experiments.models import Project
from headrace.teams.models import Team
from headrace.teams.services import issue_setup_link, needs_first_admin

NAME = "demo"


class Command(BaseCommand):
    """Makes team and project `demo`; while there is no admin, prints a new one-use set-up link (24 hours)."""

    help = __doc__

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="print one JSON object")

    def handle(self, *args: Any, **options: Any) -> None:
        with transaction.atomic():
            team, _ = Team.objects.get_or_create(slug=NAME, defaults={"name": "Demo"})
            project, _ = Project.unscoped.get_or_create(team=team, slug=NAME, defaults={"name": "Demo"})
            url = f"{settings.BASE_URL}/setup/{issue_setup_link(team)}/" if needs_first_admin() else None
        if options["json"]:
            self.stdout.write(json.dumps({"team": team.public_id, "project": project.public_id, "setup_url": url}))
        elif url:
            self.stdout.write(url)
        else:
            self.stdout.write(f"{settings.BASE_URL}/")
