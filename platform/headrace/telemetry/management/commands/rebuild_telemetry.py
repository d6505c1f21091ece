"""`manage.py rebuild_telemetry RUN [RUN ...]`: derive series, samples, logs and latest values again from the stored events.

For use after a release that derives more or differently. Each attempt is one transaction; readers see the old rows until it is done.
"""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from headrace.experiments.models import Attempt, Run
from headrace.telemetry.ingest import rebuild
from headrace.telemetry.problems import EventsGone


class Command(BaseCommand):
    help = "Derive series, samples, logs and latest values again from the stored events."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("runs", nargs="*", help="public ids of runs")
        parser.add_argument("--all", action="store_true", help="every run")

    def handle(self, *args: Any, **options: Any) -> None:
        if not options["runs"] and not options["all"]:
            raise CommandError("runs: none named -> give public ids of runs, or --all")
        unknown = set(options["runs"]) - set(Run.unscoped.filter(public_id__in=options["runs"]).values_list("public_id", flat=True))
        if unknown:
            raise CommandError(f"runs: there is no run {sorted(unknown)[0]!r} -> the id is the last part of the run page's address")
        attempts = Attempt.unscoped.select_related("run").order_by("run_id", "number")
        for attempt in attempts if options["all"] else attempts.filter(run__public_id__in=options["runs"]):
            try:
                batches = rebuild(attempt)
            except EventsGone as fault:
                self.stderr.write(f"{attempt.run.public_id} attempt {attempt.number}: not rebuilt, {fault.message} -> {fault.cure}")
                continue
            self.stdout.write(f"{attempt.run.public_id} attempt {attempt.number}: {batches} batches")
