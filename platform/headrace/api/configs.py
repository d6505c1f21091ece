"""The words of configs: the JSON Schema that forms are built from, the presets, and a check without a launch."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from ninja import Router

from headrace.api.schemas import CheckIn, CheckOut
from workers.contract import compat, loading, presets
from workers.contract.config import RunConfig

router = Router(tags=["configs"])


@router.get("/config/schema", summary="JSON Schema of RunConfig")
def schema(request: HttpRequest) -> dict[str, Any]:
    """The schema that the form, `--set` and this API share."""
    return RunConfig.model_json_schema()


@router.post("/config/check", response=CheckOut, summary="Resolve a config without starting it")
def check(request: HttpRequest, payload: CheckIn) -> dict[str, Any]:
    """The resolved config with its digest and warnings, or 422 with every fault."""
    config = loading.resolve(payload.config, payload.preset, payload.set)
    return {"config": config.as_json(), "digest": config.digest(), "warnings": [row.as_dict() for row in compat.warnings(config)]}


@router.get("/presets", summary="Published designs as data")
def list_presets(request: HttpRequest) -> dict[str, Any]:
    """Every preset with its provenance and stated approximations."""
    return {"presets": presets.describe()}
