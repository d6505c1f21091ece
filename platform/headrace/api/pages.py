"""The API's help page, made from its own OpenAPI description, so that it says what is true. Behind the login, as the description is."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from headrace.experiments.guide import PAGES

TITLES = {
    "runs": "Runs",
    "history": "What a run did",
    "files": "Weights and files",
    "several runs": "Queue, sweeps, races, views",
    "configs": "Configs and presets",
    "team": "You and your team",
    "uploads": "Uploads",
    "attempts": "For drivers",
}


@require_safe
def reference(request: HttpRequest) -> HttpResponse:
    """Every operation by topic, the client and the command line."""
    context = {"section": "help", "page": "api", "pages": PAGES, "groups": groups(), "server": settings.BASE_URL, "commands": commands()}
    return render(request, "help/api.html", context)


def groups() -> list[dict[str, Any]]:
    """[{title, anchor, operations}] of the OpenAPI description."""
    from headrace.api.urls import api  # the routers import pages' neighbours

    schema = api.get_openapi_schema()
    found: dict[str, list[dict[str, Any]]] = {tag: [] for tag in TITLES}
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            tag = (operation.get("tags") or ["team"])[0]
            found.setdefault(tag, []).append(_operation(schema, path, method, operation))
    return [
        {"title": TITLES.get(tag, tag.capitalize()), "anchor": tag.replace(" ", "-"), "operations": rows}
        for tag, rows in found.items()
        if rows
    ]


def _operation(schema: dict[str, Any], path: str, method: str, operation: dict[str, Any]) -> dict[str, Any]:
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    name = body.get("$ref", "").rpartition("/")[2]
    fields = schema["components"]["schemas"].get(name, {}).get("properties", {}) if name else {}
    required = set(schema["components"]["schemas"].get(name, {}).get("required", []))
    return {
        "method": method.upper(),
        "path": path,
        "summary": operation.get("summary", ""),
        "text": operation.get("description", "").strip(),
        "parameters": [
            {"name": row["name"], "where": row["in"], "required": row.get("required", False)} for row in operation.get("parameters", [])
        ],
        "fields": [{"name": field, "required": field in required, "text": shape.get("description", "")} for field, shape in fields.items()],
    }


def commands() -> list[dict[str, str]]:
    """The command line's own words."""
    import typer

    from headrace.cli import app

    group: Any = typer.main.get_command(app)
    return [{"name": name, "text": (command.help or "").strip().splitlines()[0]} for name, command in group.commands.items()]
