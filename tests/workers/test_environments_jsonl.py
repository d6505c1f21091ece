"""JSONL tasks: every fault names its line, and no prompt is on both sides."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.workers.tiny_model import make_tiny_model
from workers.contract.errors import ConfigError, DataError, HeadraceError
from workers.contract.loading import resolve
from workers.environments import jsonl
from workers.environments.build import build, make_task
from workers.environments.jsonl import JsonlTask

GOOD = [{"prompt": f"{n} + 1", "answer": n + 1} for n in range(200)]


def write(folder: Path, rows: list[Any]) -> Path:
    file = folder / "sums.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def task(file: Path, **options: Any) -> JsonlTask:
    made = make_task(resolve({"environment": {"dataset": str(file), "options": options, "verifier": "number"}}))
    assert isinstance(made, JsonlTask)
    return made


def test_all_rows_are_used_and_some_prompts_are_held_out(tmp_path: Path) -> None:
    made = task(write(tmp_path, GOOD))
    held_out = made.held_out(1000)
    assert made.size + len(held_out) == 200 and 5 <= len(held_out) <= 40
    assert not {made.entry(index).question for index in range(made.size)} & {entry.question for entry in held_out}
    assert made.score(made.entry(0), f"{made.entry(0).answer}.0") == 1.0
    assert made.name == "sums"


def test_a_prompt_stays_on_its_side_whatever_else_the_file_holds(tmp_path: Path) -> None:
    more = {entry.question for entry in task(write(tmp_path, GOOD)).held_out(1000)}
    fewer = {entry.question for entry in task(write(tmp_path, GOOD[:120])).held_out(1000)}
    assert fewer <= more


def test_columns_are_named_by_options(tmp_path: Path) -> None:
    rows = [{"question": row["prompt"], "solution": str(row["answer"]), "key": n} for n, row in enumerate(GOOD)]
    assert task(write(tmp_path, rows), prompt="question", answer="solution", id="key").size > 100
    for options in ({"promt": "x"}, {"prompt": 3}, {"held_out_share": 1.0}, {"held_out_share": True}, {"id": ""}):
        with pytest.raises(ConfigError) as caught:
            task(write(tmp_path, rows), **options)
        assert str(caught.value.field).startswith("environment.options.") and caught.value.cure


def test_numbers_keep_their_spelling(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"prompt": "a", "answer": 1.50}\n{"prompt": "b", "answer": 12345678901234567890123}\n')
    made = task(file)
    entries = [made.entry(0), *made.held_out(9)]
    assert {entry.answer for entry in entries} == {"1.50", "12345678901234567890123"}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "no rows"),
        (b"\n\n", "no rows"),
        (b'{"prompt": "a", "answer": "b"}\n{"prompt": "a"', "line 2: not valid JSON"),
        (b'{"prompt": "a", "answer": "b"}\n[1]', "line 2: the line is not a JSON object"),
        (b'{"prompt": "a", "answer": "b"}\n{"prompt": "c"}', "line 2: there is no column 'answer'; the line has: prompt"),
        (b'{"prompt": "", "answer": "b"}', "line 1: column 'prompt'"),
        (b'{"prompt": null, "answer": "b"}', "line 1: column 'prompt'"),
        (b'{"prompt": "a", "answer": true}', "line 1: column 'answer'"),
        (b'{"prompt": "a", "answer": NaN}', "NaN is not JSON"),
        (b'{"prompt": "a\\u0000", "answer": "b"}', "NUL"),
        (b'{"prompt": "a\\ud800", "answer": "b"}', "half a character"),
        ('{"prompt": "é", "answer": "b"}'.encode("latin-1"), "line 1: not UTF-8 (byte 12"),
        ('{"prompt": "a", "answer": "b"}'.encode("utf-16"), "UTF-16"),
        (b'{"prompt": "a", "answer": "b"}', "only one prompt"),
        (
            b'{"id": 1, "prompt": "a", "answer": "b"}\n\n{"id": 1, "prompt": "c", "answer": "d"}',
            "line 3: the id '1' stands already in line 1",
        ),
        (b"[" * 100_000, "line 1: not valid JSON"),
        (b"x" * (jsonl.MAX_LINE_BYTES + 2), "line 1: the line is longer"),
        (json.dumps({"prompt": "x" * 100_001, "answer": "b"}).encode(), "line 1: the prompt is longer"),
    ],
)
def test_a_fault_names_its_line(tmp_path: Path, data: bytes, words: str) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(data)
    with pytest.raises(DataError) as caught:
        task(file)
    assert words in str(caught.value) and caught.value.field == "environment.dataset" and caught.value.cure


def test_a_byte_order_mark_of_utf8_does_no_harm(tmp_path: Path) -> None:
    file = write(tmp_path, GOOD)
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert task(file).size > 100


def test_what_is_no_plain_file_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "folder.jsonl"
    folder.mkdir()
    for path in (folder, tmp_path / "none.jsonl"):
        with pytest.raises(DataError):
            task(path)


@pytest.mark.parametrize(("name", "value", "words"), [("MAX_BYTES", 100, "larger than"), ("MAX_ROWS", 10, "more than 10 rows")])
def test_files_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: int, words: str) -> None:
    monkeypatch.setattr(jsonl, name, value)
    with pytest.raises(DataError, match=words):
        task(write(tmp_path, GOOD))


ROW = st.dictionaries(st.sampled_from(["prompt", "answer", "id", "x"]), st.text(max_size=4) | st.integers() | st.none(), max_size=4)
LINE = ROW.map(lambda row: json.dumps(row).encode()) | st.binary(max_size=40)


@settings(max_examples=200, deadline=None)
@given(st.lists(LINE, max_size=6))
def test_whatever_the_file_holds_it_is_a_task_or_a_named_fault(tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]) -> None:
    file = tmp_path_factory.getbasetemp() / "fuzz.jsonl"
    file.write_bytes(b"\n".join(lines))
    try:
        made = task(file)
    except HeadraceError as error:
        assert error.field == "environment.dataset" and error.cure
    else:
        assert made.size >= 1 and made.held_out(10)


def test_a_question_that_is_too_long_is_passed_over_and_told_once(tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    rows = [{"prompt": f"question {number}", "answer": str(number)} for number in range(20)]
    rows[3]["prompt"] = "long " * 400
    data.write_text("\n".join(json.dumps(row) for row in rows))
    told: list[str] = []
    config = resolve(sets=[f"environment.dataset={data}", "evaluation.prompts=2", "batch.prompts=2", "rollout.max_running=8"])
    made = build(config, make_tiny_model(tmp_path / "model"), told.append)
    drawn = [made.source.next().text for _ in range(60)]
    assert not any(text.startswith("long") for text in drawn)
    assert len(told) <= 1  # not at all where the long one is among the held-out
    assert all("sampling.max_new_tokens" in message for message in told)
