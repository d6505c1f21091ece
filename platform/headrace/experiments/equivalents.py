"""The same run by other doors: the command line and the API, each with only what differs from the preset."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any

from headrace.schema_form import fields_of, lookup
from workers.contract import loading, presets
from workers.contract.config import RunConfig

# Written for one dataset: another one drops them, so they are always said beside it.
_OF_ONE_DATASET = ("environment.options", "environment.system_prompt", "environment.answer")


def base_of(config: RunConfig) -> str:
    """The preset that the commands begin with: the config's own, else the default one."""
    name = (config.preset or "").partition("@")[0]
    return name if name in presets.names() else presets.DEFAULT


def changes(config: RunConfig, preset: str) -> dict[str, Any]:
    """{path: value} of every field that differs from the preset, in the order of the form."""
    before, after = loading.resolve(None, preset=preset).as_json(), config.as_json()
    known = fields_of(RunConfig.model_json_schema())
    found = {path: lookup(after, path) for path in known if lookup(before, path) != lookup(after, path)}
    if "environment.dataset" not in found:
        return found
    task = {path: lookup(after, path) for path in ("environment.dataset", *_OF_ONE_DATASET)}
    return {**task, **found}


def sets(config: RunConfig, preset: str) -> list[str]:
    """`path=value` as `--set` reads it."""
    return [f"{path}={_written(value)}" for path, value in changes(config, preset).items()]


def nested(config: RunConfig, preset: str) -> dict[str, Any]:
    """The differences as a partial config, as the API takes it."""
    table: dict[str, Any] = {}
    for path, value in changes(config, preset).items():
        *parents, last = path.split(".")
        target = table
        for key in parents:
            target = target.setdefault(key, {})
        target[last] = value
    return table


def commands(config: RunConfig, name: str, url: str) -> list[dict[str, str]]:
    """What the page shows with a copy button each: title, sentence, text."""
    preset = base_of(config)
    options = [f"--preset {shlex.quote(preset)}", *(f"--set {shlex.quote(item)}" for item in sets(config, preset))]
    folder = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:60] or "run"
    body: Mapping[str, Any] = {
        "name": name,
        "preset": preset,
        "config": nested(config, preset),
        "idempotency_key": f"api-{config.digest()[:16]}",
    }
    call = [
        f"curl -X POST {shlex.quote(url.rstrip('/') + '/api/v1/runs')}",
        '-H "Authorization: Bearer $HEADRACE_TOKEN"',
        "-H 'Content-Type: application/json'",
        f"-d {shlex.quote(json.dumps(body, indent=1, ensure_ascii=False))}",
    ]
    return [
        {
            "key": "launch",
            "title": "headrace",
            "help": "On this server.",
            "text": _lines(["headrace launch", *options, f"--name {shlex.quote(name)}"]),
        },
        {
            "key": "workers",
            "title": "No server",
            "help": "The same training on any machine; its folder can be shipped here afterwards.",
            "text": _lines(["python -m workers run", *options, f"--out runs/{folder}"]),
        },
        {
            "key": "api",
            "title": "API",
            "help": "With a token of yours that may write. The same key never makes a second run.",
            "text": _lines(call),
        },
    ]


def _lines(parts: list[str]) -> str:
    return " \\\n  ".join(parts)


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
