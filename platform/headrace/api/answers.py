"""Error answers: every one is JSON that names the field, the value and the cure."""

from __future__ import annotations

from typing import Any

from django.db import DatabaseError
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from ninja import NinjaAPI
from ninja.errors import AuthenticationError, HttpError, ValidationError

from headrace import trouble
from headrace.api import limits
from headrace.experiments.problems import BadInput, IdempotencyConflict, WrongState
from headrace.teams.services import NotAllowed
from headrace.telemetry.problems import IngestProblem
from workers.contract.errors import ConfigError, HeadraceError

_STATUS: list[tuple[type[HeadraceError], int, str]] = [
    (NotAllowed, 403, "not_allowed"),
    (IdempotencyConflict, 409, "idempotency_conflict"),
    (WrongState, 409, "wrong_state"),
    (BadInput, 400, "bad_input"),
    (ConfigError, 422, "bad_config"),
]


def install(api: NinjaAPI) -> None:
    """Called once, when the API is put together."""
    handlers: dict[type[Exception], Any] = {
        AuthenticationError: _unauthenticated,
        ValidationError: _invalid,
        limits.TooMany: _too_many,
        IngestProblem: _ingest,
        HeadraceError: _headrace,
        HttpError: _http,
        Http404: _missing,
        **dict.fromkeys(trouble.KINDS, _database),
    }
    for kind, handler in handlers.items():
        api.add_exception_handler(kind, handler)


def problem(status: int, code: str, message: str, **named: Any) -> HttpResponse:
    """One error answer."""
    body = {"code": code, "message": message, "field": None, "value": None, "cure": None, "retryable": False, **named}
    return JsonResponse(body, status=status)


def _unauthenticated(request: HttpRequest, error: Exception) -> HttpResponse:
    try:
        limits.spend(f"address|{request.META.get('REMOTE_ADDR', '')}", limits.FAILURES_PER_ADDRESS)
    except limits.TooMany as fault:
        return _too_many(request, fault)
    answer = problem(401, "unauthenticated", "sign in or send a valid token", field="Authorization", cure="Authorization: Bearer <token>")
    answer.headers["WWW-Authenticate"] = "Bearer"
    return answer


def _invalid(request: HttpRequest, error: ValidationError) -> HttpResponse:
    first = error.errors[0] if error.errors else {"loc": (), "msg": "invalid request"}
    # ninja puts the source and the parameter's name first: body.payload.name -> name
    parts = [str(part) for part in first["loc"]]
    field = ".".join(parts[2:] if parts[:1] == ["body"] and len(parts) > 2 else parts[1:]) or "body"
    return problem(422, "invalid", str(first["msg"]), field=field, cure="see /api/v1/openapi.json")


def _ingest(request: HttpRequest, error: IngestProblem) -> HttpResponse:
    return JsonResponse(error.body(), status=error.status)


def _too_many(request: HttpRequest, error: limits.TooMany) -> HttpResponse:
    answer = JsonResponse({"code": "too_many", **error.as_dict()}, status=429)
    answer.headers["Retry-After"] = str(error.wait_s)
    return answer


def _headrace(request: HttpRequest, error: HeadraceError) -> HttpResponse:
    status, code = next(((status, code) for kind, status, code in _STATUS if isinstance(error, kind)), (400, "invalid"))
    body: dict[str, Any] = {"code": code, **error.as_dict()}
    if isinstance(error, ConfigError):
        body["problems"] = [fault.as_dict() for fault in error.problems]
    return JsonResponse(body, status=status)


def _http(request: HttpRequest, error: HttpError) -> HttpResponse:
    return problem(error.status_code, "bad_request", str(error), cure="send a JSON body as /api/v1/openapi.json describes")


def _database(request: HttpRequest, error: DatabaseError) -> HttpResponse:
    return trouble.as_json(error)


def _missing(request: HttpRequest, error: Exception) -> HttpResponse:
    return problem(404, "not_found", "there is no such thing, or not for you")
