"""When the database cannot do what is asked of it: which trouble that is, in words, with a cure. Nothing was stored, nothing is lost."""

from __future__ import annotations

import logging
import shutil
from dataclasses import dataclass

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.conf import settings
from django.db import DatabaseError, InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.template import loader

log = logging.getLogger(__name__)

RETRY_S = 5
NO_ROOM_BYTES = 1_000_000
KINDS = (OperationalError, InterfaceError)


@dataclass(frozen=True)
class Trouble:
    """One reason for a 503."""

    code: str
    message: str
    cure: str


FULL = Trouble(
    "storage_full",
    "the disk of the database is full: nothing can be stored",
    "free some space there; runs go on meanwhile, and what they tell waits in their spools",
)
FAILING = Trouble(
    "storage_failed",
    "the disk of the database fails or may not be written",
    "see the server's log and the system's; runs go on meanwhile, and what they tell waits in their spools",
)
BUSY = Trouble("database_busy", "the database was held by another writer for too long", "try again")
AWAY = Trouble(
    "database_unavailable", "the database does not answer", "start it; runs go on meanwhile, and what they tell waits in their spools"
)
# By what SQLite and PostgreSQL say; 53100 is PostgreSQL's code of a full disk.
_WORDS = {
    "disk is full": FULL,
    "no space left on device": FULL,
    "could not extend file": FULL,
    "disk i/o error": FAILING,
    "readonly database": FAILING,
    "unable to open database": FAILING,
    "database is locked": BUSY,
}


def trouble_of(error: DatabaseError) -> Trouble:
    """What is the matter, as far as the database's own words tell."""
    if getattr(error.__cause__, "sqlstate", None) == "53100":
        return FULL
    said = str(error).lower()
    found = next((trouble for words, trouble in _WORDS.items() if words in said), AWAY)
    return FULL if found is FAILING and _is_full() else found


def _is_full() -> bool:
    """SQLite calls it an I/O error where it is its index of the log that finds no room."""
    try:
        return shutil.disk_usage(settings.DATA_DIR).free < NO_ROOM_BYTES
    except OSError:
        return False


def as_json(error: DatabaseError) -> HttpResponse:
    """The API's answer: it may be asked again."""
    log.error("the database could not do what was asked", exc_info=error)
    found = trouble_of(error)
    body = {"code": found.code, "message": found.message, "field": "database", "value": None, "cure": found.cure, "retryable": True}
    return JsonResponse(body, status=503, headers={"Retry-After": str(RETRY_S)})


def as_page(error: DatabaseError) -> HttpResponse:
    """For people. Rendered without a request: who is signed in stands in the database."""
    log.error("the database could not do what was asked", exc_info=error)
    page = loader.get_template("503.html").render({"trouble": trouble_of(error)})
    return HttpResponse(page, status=503, headers={"Retry-After": str(RETRY_S)})


class DatabaseTrouble:
    """Turns what a view raises because of the database into a page, or JSON where JSON was asked for, that says so."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response) -> None:  # type: ignore[no-untyped-def]
        self.get_response = get_response
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        return self.get_response(request)  # type: ignore[no-any-return]

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        if not isinstance(exception, KINDS):
            return None
        return as_json(exception) if request.path.endswith(".json") else as_page(exception)
