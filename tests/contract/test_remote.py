"""What a run with remote engines may ask for."""

from __future__ import annotations

import json

import pytest

from workers.contract import loading
from workers.contract.errors import ConfigError

URLS = ["http://east:8000", "https://west.example/v/"]
GOOD = [
    "rollout.engine=remote",
    "rollout.engines=2",
    f"rollout.remote={json.dumps({'urls': URLS})}",
    "transport.kind=filesystem",
    "interrupt.kind=retract",
    "interrupt.kv_after=recompute",
]


def faults(*sets: str) -> list[str | None]:
    return [fault.field for fault in loading.problems(sets=[*GOOD, *sets])]


def remote(**changes: object) -> str:
    return f"rollout.remote={json.dumps({'urls': URLS, **changes})}"


def test_two_servers_are_two_engines() -> None:
    assert faults() == []
    assert faults("rollout.engines=1") == ["rollout.engines"]
    assert faults("rollout.remote=null") == ["rollout.remote"]
    assert faults(remote(urls=[URLS[1], URLS[1].rstrip("/")])) == ["rollout.remote.urls"]


@pytest.mark.parametrize(
    "url", ["ftp://host", "host:8000", "http://", "http://me:pw@host", "http://host/?key=1", "http://host/#a", "http://ho st", "http://h:x"]
)
def test_what_is_no_address_is_refused(url: str) -> None:
    found = loading.problems(sets=[*GOOD, remote(urls=[url, URLS[0]])])
    assert [fault.field for fault in found] == ["rollout.remote.urls.0"] and found[0].cure
    assert "pw" not in str(found[0])


@pytest.mark.parametrize(
    ("sets", "field"),
    [
        (["transport.kind=http"], "transport.kind"),
        (["transport.payload=delta", "lora.kind=off"], "transport.payload"),
        (["interrupt.kind=keep"], "interrupt.kind"),
        (["interrupt.kind=forward_pass"], "interrupt.kind"),
        (["interrupt.kind=abort", "interrupt.kv_after=flush", 'partial=["save_resume"]'], "partial"),
        (["replay.sampling_mask=true", "sampling.top_k=5"], "replay.sampling_mask"),
        (["replay.routing=r3"], "replay.routing"),
        (["lora.moe_experts=true"], "lora.moe_experts"),
        ([remote(flavour="sglang"), "sampling.top_p=0.9"], "sampling"),
        (["determinism=strict", "model.dtype=float32"], "determinism"),
    ],
)
def test_what_servers_cannot_do_is_refused_with_a_cure(sets: list[str], field: str) -> None:
    assert field in faults(*sets)


@pytest.mark.parametrize("token", ["../etc/shadow", "A", "a/b", ""])
def test_a_token_is_named_and_is_no_path(token: str) -> None:
    with pytest.raises(ConfigError) as refused:
        loading.resolve(sets=[*GOOD, remote(token=token)])
    assert refused.value.field == "rollout.remote.token"
