"""Whether the server works. Open to everybody; says nothing else."""

from __future__ import annotations

import logging

from django.contrib.auth.decorators import login_not_required
from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor
from django.http import HttpRequest, JsonResponse
from django.views.decorators.http import require_safe

log = logging.getLogger(__name__)


@login_not_required
@require_safe
def live(request: HttpRequest) -> JsonResponse:
    """The process answers. A supervisor restarts it when this fails."""
    return JsonResponse({"live": True})


@login_not_required
@require_safe
def ready(request: HttpRequest) -> JsonResponse:
    """Requests can be served: the database answers and is migrated. 503 otherwise; why is in the log, not in the answer."""
    try:
        executor = MigrationExecutor(connection)
        waiting = bool(executor.migration_plan(executor.loader.graph.leaf_nodes()))
    except DatabaseError as error:
        log.warning("the database does not answer: %s", error)
        waiting = True
    return JsonResponse({"ready": not waiting}, status=503 if waiting else 200)
