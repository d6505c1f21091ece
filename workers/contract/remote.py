"""Engines that run elsewhere: the block that names them, and what a run that uses them may not ask for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from pydantic import Field

from workers.contract.block import Block
from workers.contract.errors import ConfigError

if TYPE_CHECKING:
    from workers.contract.config import RunConfig

INTERRUPTS = ("abort", "batch", "drain", "retract")  # nothing runs on the server while its weights change
PAYLOADS = ("adapter", "full", "merged_adapter")


class Remote(Block):
    """Servers of vLLM or SGLang that somebody else starts and ends. Each is one engine."""

    urls: list[str] = Field(min_length=1, max_length=1024, title="Addresses", description="One http or https address an engine.")
    flavour: Literal["auto", "vllm", "sglang"] = Field("auto", title="Flavour", description="What runs there. auto: the server is asked.")
    token: str | None = Field(
        None,
        pattern="^[a-z0-9_-]{1,64}$",
        title="Name of the token",
        description="Of the file in ~/.config/headrace/engine-tokens (or $HEADRACE_ENGINE_TOKENS) whose content is sent as bearer token,"
        " on the machine of the engines' clients. Empty: none is sent.",
    )
    timeout_s: float = Field(600.0, gt=0, le=86_400, title="Patience", description="For one call: a whole sample, a load of weights.")
    retries: int = Field(4, ge=0, le=100, title="Retries", description="Of a call that failed in a way that may pass.")
    health_s: float = Field(5.0, gt=0, le=3600, title="Asked for its health every", description="Seconds between two looks at a server.")


def fault_of(url: str) -> str | None:
    """Why this is no address of a server; None if it is one."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        return str(error)
    if parts.scheme not in ("http", "https") or not host:
        return "an address begins with http:// or https:// and names a host"
    if parts.username is not None or parts.password is not None:
        return "an address holds no user and no password: configs are shown to people"
    if parts.query or parts.fragment or any(letter.isspace() or not letter.isprintable() for letter in url):
        return "an address ends with its path, and has no spaces"
    return None


def _addresses(config: RunConfig) -> Iterator[ConfigError]:
    remote, engines = config.rollout.remote, config.rollout.engines
    if remote is None:
        yield ConfigError(
            "a remote engine has an address",
            field="rollout.remote",
            value=None,
            cure='set rollout.remote to {"urls": ["http://host:8000"]}, or rollout.engine to torch',
        )
        return
    for index, url in enumerate(remote.urls):
        fault = fault_of(url)
        if fault is not None:
            shown = "a text with @" if "@" in url else url  # what may hold a password is not repeated
            cure = "give an address such as https://host:8000, and a secret by rollout.remote.token"
            yield ConfigError(fault, field=f"rollout.remote.urls.{index}", value=shown, cure=cure)
    if len({url.rstrip("/") for url in remote.urls}) != len(remote.urls):
        yield ConfigError("a server stands twice", field="rollout.remote.urls", value=remote.urls, cure="name each address once")
    if len(remote.urls) != engines:
        yield ConfigError(
            f"{len(remote.urls)} addresses for {engines} engines: each server is one engine",
            field="rollout.engines",
            value=engines,
            cure=f"set it to {len(remote.urls)}",
        )


def rules(config: RunConfig) -> Iterator[ConfigError]:
    """Each row is something that a server reached over HTTP cannot do, or not so that versions and log-probs stay exact."""
    if config.rollout.engine != "remote":
        return
    yield from _addresses(config)
    replay, sampling, lora, transport = config.replay, config.sampling, config.lora, config.transport
    sglang = config.rollout.remote is not None and config.rollout.remote.flavour == "sglang"
    whole = (sampling.top_k, sampling.top_p, sampling.min_p) == (0, 1.0, 0.0)
    rows = (
        ("transport.kind", transport.kind, transport.kind == "filesystem", "servers read weights by their path", "filesystem"),
        ("transport.payload", transport.payload, transport.payload in PAYLOADS, "they take whole files", "full or merged_adapter"),
        (
            "interrupt.kind",
            config.interrupt.kind,
            config.interrupt.kind in INTERRUPTS,
            "servers do not tell by which weights each token was drawn, so none may run while these change",
            "retract, abort, drain or batch",
        ),
        ("partial", list(config.partial), "save_resume" not in config.partial, "a server parks no cache", '["abort_prefix"]'),
        ("determinism", config.determinism, config.determinism != "strict", "a server's arithmetic hangs on what else runs", "fast"),
        ("replay.sampling_mask", True, not replay.sampling_mask, "servers do not tell which tokens truncation left", "false"),
        ("replay.routing", "r3", replay.routing != "r3", "servers do not tell which experts they chose", "off or r2"),
        ("lora.moe_experts", True, not (lora.moe_experts and lora.kind == "adapter_only"), "servers take no such adapters", "false"),
        (
            "sampling",
            {"top_k": sampling.top_k, "top_p": sampling.top_p, "min_p": sampling.min_p},
            whole or not sglang,
            "SGLang's log-probs are of the whole distribution, not of the truncated one",
            "top_k 0, top_p 1, min_p 0",
        ),
    )
    for field, value, holds, why, wanted in rows:
        if not holds:
            yield ConfigError(
                f"a remote engine cannot do this: {why}",
                field=field,
                value=value,
                cure=f"set {field} to {wanted}, or rollout.engine to torch",
            )
