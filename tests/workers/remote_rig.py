"""A remote engine by its server's address, models that differ, and what may befall a server's answer."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import torch

from tests.workers.engine_rig import NAME, RUN, base_model
from workers import registry
from workers.axes.transport.base import Link
from workers.axes.transport.filesystem import FilesystemTransport
from workers.contract.config import RunConfig
from workers.rollout.remote.generator import RemoteGenerator


def engine(url: str, folder: Path, scratch: Path, **changes: object) -> RemoteGenerator:
    blocks: dict = {
        "model": {"path": str(folder), "dtype": "float32"},
        "lora": {"rank": 4, "alpha": 8.0},
        "rollout": {"engine": "remote", "max_running": 3, "remote": {"urls": [url], "timeout_s": 20.0, "retries": 2}},
        "transport": {"kind": "filesystem"},
        "interrupt": {"kind": "retract", "kv_after": "recompute"},
    }
    for name, value in changes.items():
        blocks[name] = {**blocks.get(name, {}), **value} if isinstance(value, dict) else value
    settings = RunConfig.model_validate(blocks)
    return registry.resolve("rollout", "remote")(settings, NAME, FilesystemTransport(Link(RUN, scratch, NAME, settings.transport)))


def remote(url: str, **changes: object) -> dict:
    return {"remote": {"urls": [url], "retries": 2, **changes}}


def scaled(folder: Path, factor: float) -> torch.nn.Module:
    model = base_model(folder)
    for parameter in model.parameters():
        parameter.data *= factor
    return model


def spoil(answer: Any, fault: str, flavour: str) -> tuple[int, Any]:
    """The answer as the fault leaves it: its status, and what its body is made from."""
    status, body = answer if isinstance(answer, tuple) else (200, answer)
    if fault in ("500", "429", "401"):
        return int(fault), {"error": {"message": "as ordered"}}
    if fault == "html":
        return 200, "<html>a proxy's page</html>"
    if fault in ("count", "vocabulary", "nan", "infinite", "positive", "reason", "early", "shape"):
        if flavour == "vllm":
            choice = body["choices"][0]
            ids, logprobs = choice["token_ids"], choice["logprobs"]["token_logprobs"]
        else:
            pairs = body["meta_info"]["output_token_logprobs"]
        if fault == "shape":
            return 200, {"choices": [], "meta_info": {}}
        if fault in ("reason", "early"):
            word = {"reason": "content_filter", "early": "length"}[fault]
            if flavour == "vllm":
                choice["finish_reason"] = word
                if fault == "early":
                    ids.pop(), logprobs.pop()
            else:
                body["meta_info"]["finish_reason"]["type"] = word
                if fault == "early":
                    pairs.pop()
                    body["meta_info"]["completion_tokens"] -= 1
        elif flavour == "vllm":
            if fault == "count":
                logprobs.pop()
            elif fault == "vocabulary":
                ids[0] = 10**6
            else:
                logprobs[0] = {"nan": float("nan"), "infinite": -9999.0, "positive": 0.5}[fault]
        elif fault == "count":
            pairs.pop()
        elif fault == "vocabulary":
            pairs[0][1] = 10**6
        else:
            pairs[0][0] = {"nan": float("nan"), "infinite": -9999.0, "positive": 0.5}[fault]
    return status, body


async def reply(send: Any, status: int, body: Any, fault: str) -> None:
    if fault == "slow":
        await asyncio.sleep(5)
    text = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    headers = [(b"content-type", b"text/html" if fault == "html" else b"application/json")]
    if fault == "429":
        headers.append((b"retry-after", b"7"))
    if fault == "cut":
        headers.append((b"content-length", str(len(text)).encode()))
        text = text[: len(text) // 2]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    if fault == "huge":
        for _ in range(40):
            await send({"type": "http.response.body", "body": b" " * (1 << 20), "more_body": True})
    await send({"type": "http.response.body", "body": text})
