"""The OpenAPI description with what ninja cannot know: every operation's refusals, all of one shape."""

from __future__ import annotations

from typing import Any

from ninja import NinjaAPI
from ninja.openapi.schema import OpenAPISchema

from headrace.api.schemas import Problem

_REFUSALS = {
    "400": "A value that cannot be used; `field`, `value` and `cure` say which and what to do.",
    "401": "No valid session or token.",
    "403": "The role or the token does not allow it.",
    "404": "There is no such thing, or not for the caller.",
    "409": "The state of things does not allow it now, or the key was used for something else.",
    "413": "More bytes or events than one request may hold.",
    "422": "The request does not have the shape that is described here, or the config has faults: `problems`.",
    "429": "Too many requests; Retry-After says for how long to wait.",
}


class DescribedAPI(NinjaAPI):
    """An API whose description names every status that it answers with."""

    def get_openapi_schema(self, **options: Any) -> OpenAPISchema:
        """Called for openapi.json, the help page and the tests."""
        schema = super().get_openapi_schema(**options)
        schema["components"]["schemas"]["Problem"] = Problem.model_json_schema()
        for path, methods in schema["paths"].items():
            for method, operation in methods.items():
                for status in refusals(path, method, operation):
                    operation["responses"].setdefault(status, _answer(status))
        return schema


def refusals(path: str, method: str, operation: dict[str, Any]) -> list[str]:
    """The statuses beside its success that an operation may answer with."""
    found = ["401", "403", "429"]
    if "{" in path:
        found.append("404")
    if operation.get("parameters") or "requestBody" in operation:
        found += ["400", "422"]
    if method != "get" or path.endswith("/download"):
        found.append("409")
    if "/attempts/" in path and method == "post":
        found.append("413")
    return sorted(found)


def _answer(status: str) -> dict[str, Any]:
    told: dict[str, Any] = {
        "description": _REFUSALS[status],
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
    if status == "429":
        told["headers"] = {"Retry-After": {"required": True, "schema": {"type": "integer", "minimum": 1}}}
    return told


def file_answer(*kinds: str) -> dict[str, Any]:
    """`openapi_extra` of an operation that answers with a file of one of these types."""
    schema = {"type": "string", "format": "binary"}
    return {"responses": {200: {"description": "The file.", "content": {kind: {"schema": schema} for kind in kinds}}}}
