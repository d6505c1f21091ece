"""`python -m workers probe SPEC.json`: what a checkpoint answers to anybody's prompt, beside what its base model answers.

SPEC: {"model": a model as `model.path` names it, or the config's whole `model` block; "checkpoint": folder or null; "prompts": up to
eight texts; "max_new_tokens"; "sampling": {temperature, top_k, top_p, min_p, seed}; "system_prompt"; "out": where the answer goes}.
Only model, prompts and out are needed; what is left out is as in the checkpoint's own run.
"""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from workers import models, registry, starting
from workers.axes.backend.threads import cores
from workers.axes.transport.base import Receiver
from workers.contract.config import RunConfig
from workers.contract.errors import ConfigError, HeadraceError
from workers.contract.task import Model
from workers.environments.rendering import Renderer
from workers.folder import write_json
from workers.records import Manifest, Rollout, SampleRequest
from workers.requests import stream_key

MAX_PROMPTS, MAX_NEW_TOKENS, MAX_PROMPT_CHARACTERS, MAX_SPEC_BYTES = 8, 512, 20_000, 1024 * 1024
SIDES = ("base", "trained")
Say = Callable[[str], None]


class Drawing(BaseModel):
    """How tokens are drawn. None: as in the run that made the checkpoint."""

    model_config = ConfigDict(extra="forbid")

    temperature: float | None = Field(None, ge=0, le=10)  # 0: always the likeliest token
    top_k: int | None = Field(None, ge=0, le=1_000_000)
    top_p: float | None = Field(None, gt=0, le=1)
    min_p: float | None = Field(None, ge=0, lt=1)
    seed: int = Field(7, ge=0, le=2**31 - 1)


class Spec(BaseModel):
    """See the module's words."""

    model_config = ConfigDict(extra="forbid")

    model: str | Model
    checkpoint: str | None = None
    prompts: list[str] = Field(min_length=1, max_length=MAX_PROMPTS)
    max_new_tokens: int = Field(128, ge=1, le=MAX_NEW_TOKENS)
    sampling: Drawing = Field(default_factory=Drawing)
    system_prompt: str | None = Field(None, max_length=MAX_PROMPT_CHARACTERS)
    out: str = Field(min_length=1, max_length=4096)


@dataclass(frozen=True)
class Plan:
    """What is settled before anything large is loaded. config: of an engine that serves the base, then the checkpoint."""

    spec: Spec
    config: RunConfig
    folder: Path
    checkpoint: Path | None
    requests: list[SampleRequest]


class FromFile(Receiver):
    """For one engine: the payload is a checkpoint's own file."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def receive(self, manifest: Manifest) -> dict[str, Any]:
        from safetensors.torch import load_file

        return dict(load_file(self._file))


def run(path: Path, say: Say) -> dict[str, Any]:
    """Called by the command. The answer, written whole to `out`; so is an error, as {"error": ...}, before it is raised."""
    out: Path | None = None
    try:
        raw = _read(path)
        out = _out(raw)
        spec = _checked(raw)
        plan = _plan(spec)
        began = time.perf_counter()
        answers, seconds = asyncio.run(_generate(plan, say))
        if plan.checkpoint is not None:
            say("comparing both models token by token")
            _compare(plan, answers)
        found = {
            "answers": answers,
            "model": plan.config.model.path,
            "checkpoint": str(plan.checkpoint) if plan.checkpoint else None,
            "dtype": plan.config.model.dtype,
            **seconds,
            "seconds": round(time.perf_counter() - began, 3),
        }
        write_json(out, found)
        return found
    except HeadraceError as error:
        _tell(out, error.as_dict())
        raise
    except (OSError, RuntimeError, ValueError) as error:  # memory, a damaged file, a model that cannot be built
        problem = HeadraceError(f"the probe failed: {type(error).__name__}: {error}", cure="see that the model fits this machine")
        _tell(out, problem.as_dict())
        raise problem from error


def _tell(out: Path | None, error: dict[str, Any]) -> None:
    if out is not None and out.parent.is_dir():
        write_json(out, {"error": error})


def _read(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > MAX_SPEC_BYTES:
            raise ConfigError("is too large", field="SPEC", value=str(path), cure=f"at most {MAX_SPEC_BYTES} bytes")
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"cannot be read: {error}", field="SPEC", value=str(path), cure="give a JSON file") from error
    if not isinstance(raw, dict):
        raise ConfigError("is no object", field="SPEC", value=str(path), cure='write {"model": ..., "prompts": [...], "out": ...}')
    return raw


def _out(raw: dict[str, Any]) -> Path:
    out = raw.get("out")
    if not isinstance(out, str) or not out or not Path(out).parent.is_dir():
        raise ConfigError("names no place for the answer", field="out", value=out, cure="a file in a folder that is there")
    return Path(out)


def _checked(raw: dict[str, Any]) -> Spec:
    try:
        spec = Spec.model_validate(raw)
    except ValidationError as error:
        fault = error.errors()[0]
        where = ".".join(str(part) for part in fault["loc"])
        raise ConfigError(
            fault["msg"], field=where or "SPEC", value=fault.get("input"), cure="see `python -m workers probe --help`"
        ) from error
    for index, prompt in enumerate(spec.prompts):
        if not prompt.strip() or len(prompt) > MAX_PROMPT_CHARACTERS:
            cure = f"1 to {MAX_PROMPT_CHARACTERS} characters"
            raise ConfigError("is empty or too long", field=f"prompts.{index}", value=len(prompt), cure=cure)
    return spec


def _plan(spec: Spec) -> Plan:
    """Raises ConfigError or EnvironmentMissing naming the field."""
    given = spec.model if isinstance(spec.model, Model) else Model(path=spec.model)
    checkpoint = None if spec.checkpoint is None else starting.look(Path(spec.checkpoint), "checkpoint")
    before = RunConfig() if checkpoint is None else checkpoint.config
    folder = models.locate(given.path)
    if checkpoint is not None:
        starting.same_model(checkpoint, given.path, models.digest(folder))
    whole = before.lora.kind == "off"
    config = RunConfig().model_copy(
        update={
            "model": given if isinstance(spec.model, Model) else before.model.model_copy(update={"path": given.path, "init_from": None}),
            "lora": before.lora if whole else before.lora.model_copy(update={"kind": "adapter_only"}),
            "transport": before.transport.model_copy(update={"payload": "full" if whole else "adapter"}),
            "rollout": RunConfig().rollout.model_copy(update={"threads": cores(), "max_running": MAX_PROMPTS}),
            "environment": before.environment,
        }
    )
    system = spec.system_prompt if spec.system_prompt is not None else (before.environment.system_prompt if checkpoint else "")
    renderer, drawing, usual = Renderer(folder, system), spec.sampling, before.sampling
    requests = []
    for index, prompt in enumerate(spec.prompts):
        ids = renderer.render(prompt)
        if isinstance(renderer.max_positions, int) and len(ids) + spec.max_new_tokens > renderer.max_positions:
            raise ConfigError(
                f"has {len(ids)} tokens; with {spec.max_new_tokens} new ones it exceeds the model's {renderer.max_positions}",
                field=f"prompts.{index}",
                value=len(ids),
                cure="shorten it, or ask for fewer tokens",
            )
        requests.append(
            SampleRequest(
                id=f"probe/{index}",
                group_id=f"probe/{index}",
                index=index,
                prompt_ids=ids,
                key=stream_key(drawing.seed, "probe", index),  # both models draw with the same random numbers
                max_new_tokens=spec.max_new_tokens,
                temperature=usual.temperature if drawing.temperature is None else drawing.temperature,
                top_k=usual.top_k if drawing.top_k is None else drawing.top_k,
                top_p=usual.top_p if drawing.top_p is None else drawing.top_p,
                min_p=usual.min_p if drawing.min_p is None else drawing.min_p,
                stop_ids=renderer.stop_ids,
            )
        )
    return Plan(spec, config, folder, checkpoint.folder if checkpoint else None, requests)


async def _generate(plan: Plan, say: Say) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Both models' completions by the engine that training uses; the base is loaded once, the checkpoint is put beside it."""
    renderer = Renderer(plan.folder, "")
    file = plan.checkpoint / starting.FILES[plan.config.lora.kind] if plan.checkpoint else Path()
    seconds: dict[str, float] = {}
    answers: list[dict[str, Any]] = [{"prompt": prompt, "base": None, "trained": None} for prompt in plan.spec.prompts]
    began = time.perf_counter()
    engine = registry.resolve("rollout", "torch")(plan.config, "probe", FromFile(file))
    seconds["load_s"] = round(time.perf_counter() - began, 3)
    say(f"the model is loaded ({seconds['load_s']:.1f} s)")
    try:
        for side in SIDES if plan.checkpoint else SIDES[:1]:
            if side == "trained":
                payload = plan.config.transport.payload
                await engine.update(Manifest(1, "", file.stat().st_size, payload, "file", {}))
            began = time.perf_counter()
            rollouts = await asyncio.gather(*(engine.generate(request) for request in plan.requests))
            seconds[f"{side}_s"] = round(time.perf_counter() - began, 3)
            tokens = sum(len(rollout.token_ids) for rollout in rollouts)
            say(f"{side}: {tokens} tokens ({seconds[f'{side}_s']:.1f} s)")
            for answer, rollout in zip(answers, rollouts, strict=True):
                answer[side] = _side(rollout, renderer)
    finally:
        await engine.stop()
    return answers, seconds


def _side(rollout: Rollout, renderer: Renderer) -> dict[str, Any]:
    return {
        "completion": renderer.decode(rollout.token_ids),
        "finish_reason": rollout.finish_reason,
        "seconds": round(rollout.seconds, 3),
        "tokens": {
            "ids": rollout.token_ids,
            "text": renderer.tokens(rollout.token_ids),
            "logprobs": [round(value, 6) for value in rollout.logprobs],
        },
    }


def _compare(plan: Plan, answers: list[dict[str, Any]]) -> None:
    """Adds base_logprobs and trained_logprobs to each side's tokens: at the sampling temperature, over the whole vocabulary."""
    from workers.comparing import Comparison

    gc.collect()  # the engine has gone: never two copies of the model at once
    assert plan.checkpoint is not None
    comparison = Comparison(plan.config, plan.folder, plan.checkpoint)
    for who in SIDES:
        with comparison.as_(who):
            for answer, request in zip(answers, plan.requests, strict=True):
                for side in SIDES:
                    tokens = answer[side]["tokens"]
                    tokens[f"{who}_logprobs"] = comparison.logprobs(request.prompt_ids, tokens["ids"], request.temperature)
