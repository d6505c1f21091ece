"""Samples and log, read for people: filters, order, pages, groups, bounds; what no other team sees; what a driver may send."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import AsyncClient, Client

from headrace.telemetry.models import Sample
from headrace.telemetry.samples import LIST_TEXT
from tests.platform_tests.telemetry_rig import SAMPLE, T0, Rig, new_rig, push

ROUTES = ["samples/", "samples.json", "samples/groups.json", "samples/facets.json", "samples/1/1.json", "logs.json", "log.txt"]
ESCAPES = "\x1b[31mred\x1b[0m \x1b]0;title\x07 \u202egnp\x07"


def made(group: int, index: int, **more: Any) -> tuple[str, dict[str, Any]]:
    return "sample", {**SAMPLE, "group": f"g{group}", "index": index, **more}


@pytest.fixture
def rig(db: None) -> Rig:
    """Steps 1 to 6, two completions a prompt; one dropped, one failed; log lines between."""
    rig = new_rig()
    events: list[tuple[str, dict[str, Any]]] = []
    for group in range(3):
        for index in range(2):
            events.append(made(group, index, reward=group / 4 + index / 2, advantage=index - 0.5, completion=f"answer {group} {index}"))
    events.append(
        made(3, 0, outcome="dropped", drop_reason="stale", reward=None, advantage=None, version_trained=None, finish_reason="length")
    )
    events.append(made(4, 0, outcome="failed", drop_reason="scoring_failed", reward=None, advantage=None, version_trained=None))
    events += [
        ("log", {"level": level, "message": f"{level} line", "source": source}) for level, source in (("debug", "a"), ("error", "b"))
    ]
    events.append(("log", {"level": "info", "message": ESCAPES, "source": "a"}))
    push(rig.attempt, events)
    return rig


@pytest.fixture
def client(rig: Rig) -> Client:
    client = Client()
    client.force_login(rig.user)
    return client


def get(client: Client, rig: Rig, route: str) -> Any:
    reply = client.get(f"/runs/{rig.run.public_id}/{route}")
    assert reply.status_code == 200, reply.content[:300]
    return reply.json()


def seqs(found: Any) -> list[int]:
    return [row["seq"] for row in found["samples"]]


@pytest.mark.parametrize("route", ROUTES)
def test_nobody_outside_the_team_sees_anything(route: str, rig: Rig, client: Client) -> None:
    address = f"/runs/{rig.run.public_id}/{route}"
    assert client.get(address).status_code == 200
    assert Client().get(address).status_code in (302, 401)
    stranger = Client()
    stranger.force_login(new_rig().user)
    assert stranger.get(address).status_code == 404
    assert client.post(address).status_code == 405


@pytest.mark.parametrize(
    "query, expected",
    [
        ("", [8, 7, 6, 5, 4, 3, 2, 1]),
        ("sort=oldest", [1, 2, 3, 4, 5, 6, 7, 8]),
        ("sort=-reward", [6, 4, 5, 2, 3, 1, 8, 7]),
        ("sort=reward", [1, 3, 5, 2, 4, 6, 8, 7]),
        ("sort=-lag&outcome=trained", [6, 5, 4, 3, 2, 1]),
        ("outcome=dropped", [7]),
        ("reason=scoring_failed", [8]),
        ("finish=length", [7]),
        ("reward_min=0.5&reward_max=0.75", [5, 4, 2]),
        ("q=ANSWER+1", [4, 3]),
        ("group=g2", [6, 5]),
        ("step=3", [3]),
        ("version=2&step=1", [1]),
        ("version=3", []),
        ("versions=2&step=1", [1]),
        ("versions=3", []),
        (f"until={T0 + 2}", [2, 1]),
        ("attempt=2", []),
    ],
)
def test_filters_and_orders(query: str, expected: list[int], rig: Rig, client: Client) -> None:
    found = get(client, rig, f"samples.json?{query}")
    assert seqs(found) == expected
    assert found["count"] == len(expected) and found["next"] is None


@pytest.mark.parametrize("sort", ["newest", "oldest", "reward", "-reward", "advantage", "-advantage", "length", "-length", "lag", "-lag"])
def test_pages_hold_every_sample_once_also_while_more_come(sort: str, rig: Rig, client: Client) -> None:
    whole = seqs(get(client, rig, f"samples.json?sort={sort}"))
    read: list[int] = []
    cursor = ""
    for turn in range(10):
        found = get(client, rig, f"samples.json?sort={sort}&limit=3&cursor={cursor}")
        read += seqs(found)
        cursor = found["next"]
        if turn == 0:
            push(rig.attempt, [made(9, 0, reward=99.0, advantage=99.0)], first=12)
        if cursor is None:
            break
    assert [seq for seq in read if seq != 12] == whole
    assert len(read) == len(set(read))


def test_prompts_have_their_completions_beside_them(rig: Rig, client: Client) -> None:
    found = get(client, rig, "samples/groups.json?outcome=trained&sort=-reward")
    assert [row["group"] for row in found["groups"]] == ["g2", "g1", "g0"] and found["count"] == 3
    best = found["groups"][0]
    assert best["mean"] == 0.75 and best["spread"] == 0.25 and (best["low"], best["high"], best["n"]) == (0.5, 1.0, 2)
    assert [row["index"] for row in best["samples"]] == [0, 1]
    read: list[str] = []
    cursor = ""
    while cursor is not None:
        page = get(client, rig, f"samples/groups.json?limit=2&sort=spread&cursor={cursor}")
        read += [row["group"] for row in page["groups"]]
        cursor = page["next"]
    assert sorted(read) == ["g0", "g1", "g2", "g3", "g4"] and len(read) == 5


def test_the_steps_beside_are_those_that_have_something(rig: Rig, client: Client) -> None:
    found = get(client, rig, "samples.json?step=7&outcome=trained")
    assert found["samples"] == [] and found["step_before"] == 6 and found["step_after"] is None


def test_facets_say_what_there_is(rig: Rig, client: Client) -> None:
    rig.run.config.data["loss"] = {"policy": "ppo", "clip_low": 0.2, "clip_high": 0.28, "corrections": []}
    type(rig.run.config).unscoped.filter(pk=rig.run.config_id).update(
        data={"loss": rig.run.config.data["loss"], "batch": {"group_size": 8}}
    )
    found = get(client, rig, "samples/facets.json")
    assert {(row["outcome"], row["drop_reason"]): row["n"] for row in found["outcomes"]} == {
        ("trained", ""): 6,
        ("dropped", "stale"): 1,
        ("failed", "scoring_failed"): 1,
    }
    assert found["finishes"] == ["length", "stop"] and found["attempts"] == [1] and (found["step_min"], found["step_max"]) == (1, 8)
    assert found["group_size"] == 8 and found["bounds"] == {"of": "the clip", "low": 0.8, "high": 1.28}


def test_one_sample_with_its_group(rig: Rig, client: Client) -> None:
    found = get(client, rig, "samples/1/2.json")
    assert found["data"]["tokens"]["versions"] == [1, 2] and found["tokens_total"] == 2
    assert found["group"]["n"] == 2 and [row["seq"] for row in found["group"]["samples"]] == [1, 2]
    assert get(client, rig, "samples/1/2.json?first=1&tokens=1")["data"]["tokens"]["ids"] == [6]
    for missing in ("samples/1/9.json", "samples/1/99.json", "samples/2/1.json", f"samples/1/{2**70}.json", f"samples/{2**40}/1.json"):
        assert client.get(f"/runs/{rig.run.public_id}/{missing}").status_code == 404


def test_replies_are_bounded_whatever_was_sent(rig: Rig, client: Client) -> None:
    count = 5000
    odd = {
        "ids": list(range(count)),
        "text": ["x" * 999] * count,
        "logprobs": ["NaN", {}, [1], True] * (count // 4),
        "support": [[1]] * count,
    }
    odd |= {f"column{at}": [1] for at in range(10)}
    push(rig.attempt, [made(5, 0, completion="y" * 150_000, prompt="p" * 5000, tokens=odd, extra={"deep": [1] * 9000})], first=12)
    row = get(client, rig, "samples.json?limit=1")["samples"][0]
    assert len(row["completion"]) == LIST_TEXT and set(row["cut"]) == {"completion", "prompt"}
    reply = client.get(f"/runs/{rig.run.public_id}/samples/1/12.json")
    found = reply.json()
    assert len(reply.content) < 1_200_000
    assert found["tokens_total"] == count and len(found["data"]["tokens"]["ids"]) == 2048 and len(found["data"]["tokens"]["text"][0]) == 200
    assert found["data"]["tokens"]["logprobs"][:4] == ["NaN", None, None, True] and found["data"]["tokens"]["support"][0] is None
    assert len(found["data"]["completion"]) == 100_000 and found["texts_cut"] == ["completion"] and "extra" not in found["data"]
    assert len(client.get(f"/runs/{rig.run.public_id}/snapshot.json").content) < 60_000


@pytest.mark.parametrize(
    "route, field",
    [
        ("samples.json?sort=prettiest", "sort"),
        ("samples.json?cursor=1", "cursor"),
        ("samples.json?cursor=nan_1_1", "cursor"),
        ("samples.json?cursor=1_1_99999999999999999999", "cursor"),
        ("samples.json?cursor=1e999_1_1", "cursor"),
        ("samples.json?reward_min=high", "reward_min"),
        ("samples.json?version=-1", "version"),
        ("samples.json?limit=201", "limit"),
        ("samples.json?until=nan", "until"),
        ("samples/groups.json?sort=lag", "sort"),
        ("samples/groups.json?limit=41", "limit"),
        ("samples/1/1.json?tokens=4096", "tokens"),
        ("logs.json?level=loud", "level"),
        ("logs.json?before=1&after=2", "before"),
        ("logs.json?at=noon", "at"),
    ],
)
def test_a_query_that_cannot_be_used_is_named(route: str, field: str, rig: Rig, client: Client) -> None:
    reply = client.get(f"/runs/{rig.run.public_id}/{route}")
    assert reply.status_code == 400 and reply.json()["field"] == field and reply.json()["cure"]


def test_text_that_no_database_takes_finds_nothing(rig: Rig, client: Client) -> None:
    for text in ("%00", "%ED%A0%80", "%25", "_", "'%20OR%201=1--"):
        assert get(client, rig, f"samples.json?q={text}&outcome=failed")["count"] in (0, 1)


def messages(found: Any) -> list[str]:
    return [line["message"] for line in found["logs"]]


def test_the_log_by_level_source_text_and_time(rig: Rig, client: Client) -> None:
    assert messages(get(client, rig, "logs.json?level=error")) == ["error line"]
    assert messages(get(client, rig, "logs.json?source=b")) == ["error line"]
    assert messages(get(client, rig, "logs.json?q=DEBUG")) == ["debug line"]
    assert messages(get(client, rig, f"logs.json?at={T0 + 10}&limit=1")) == ["error line"]
    assert messages(get(client, rig, f"logs.json?at={T0 + 900}"))[-1].startswith("red")
    assert get(client, rig, "logs.json?q=nothing")["logs"] == []


def test_the_log_pages_back_and_forth_without_a_hole(rig: Rig, client: Client) -> None:
    for batch in range(5):
        lines = [("log", {"level": "info", "message": f"line {batch * 10 + at}", "source": "c"}) for at in range(10)]
        push(rig.attempt, lines, first=12 + batch * 10)
    wanted = [f"line {at}" for at in range(50)]
    back: list[str] = []
    place: int | None = None
    while True:
        found = get(client, rig, f"logs.json?source=c&limit=7{'' if place is None else f'&before={place}'}")
        back = messages(found) + back
        place = found["older"]
        if place is None:
            break
    assert back == wanted
    forth: list[str] = []
    place = 0
    while place is not None:
        found = get(client, rig, f"logs.json?source=c&limit=7&after={place}")
        forth += messages(found)
        place = found["newer"]
    assert forth == wanted


def test_no_line_moves_a_cursor_or_turns_text_around(rig: Rig, client: Client) -> None:
    last = messages(get(client, rig, "logs.json"))[-1]
    assert last == "red  <U+202E>gnp<U+0007>"
    reply = client.get(f"/runs/{rig.run.public_id}/log.txt")
    text = b"".join(reply.streaming_content).decode()  # type: ignore[attr-defined]
    assert "\x1b" not in text and "<U+202E>" in text and text.count("\n") == 3
    assert reply["Content-Disposition"].startswith("attachment") and reply["X-Content-Type-Options"] == "nosniff"
    assert "sandbox" in reply["Content-Security-Policy"] and reply["Content-Type"].startswith("text/plain")
    for route in ("log.txt?attempt=7", "log.txt?attempt=x"):
        assert client.get(f"/runs/{rig.run.public_id}/{route}").status_code == 404


@pytest.mark.django_db(transaction=True)
async def test_the_log_streams_under_asgi() -> None:
    from asgiref.sync import sync_to_async

    rig = await sync_to_async(new_rig)()
    await sync_to_async(push)(rig.attempt, [("log", {"level": "info", "message": "hello", "source": "driver"})])
    client = AsyncClient()
    await client.aforce_login(rig.user)
    reply = await client.get(f"/runs/{rig.run.public_id}/log.txt")
    assert reply.is_async
    text = b"".join([piece async for piece in reply.streaming_content])  # type: ignore[attr-defined, union-attr]
    assert b"info    [driver] step 1: hello\n" in text


def test_the_page_of_samples_is_a_frame(rig: Rig, client: Client) -> None:
    Sample.unscoped.all().delete()
    page = client.get(f"/runs/{rig.run.public_id}/samples/").content.decode()
    assert 'id="sample-filters"' in page and 'id="samples-permalink"' not in page
