"""What a probe's answer may hold: none, broken, too large, a link."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.artifacts import results


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"answers": []}', '{"answers": 3}', '{"error": {"message": "no <b>memory</b>", "cure": "c"}}', "[" * 100_000]
)
def test_an_answer_that_is_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(results.Unreadable) as fault:
        results.read(tmp_path / "result.json")
    assert fault.value.cure


def test_an_answer_is_brought_into_bounds(tmp_path: Path) -> None:
    side = {
        "completion": "x" * 99_999,
        "finish_reason": 3,
        "tokens": {"ids": [1] * 9999, "text": [None, 5, "a\x00"], "logprobs": ["NaN", True, -1], "evil": [1]},
    }
    (tmp_path / "result.json").write_text(json.dumps({"answers": [{"prompt": "p", "base": side, "trained": "none"}, 3] * 40, "seconds": 2}))
    found = results.read(tmp_path / "result.json")
    assert len(found["answers"]) == 8 and found["answers"][0]["trained"] is None and found["facts"] == {"seconds": 2}
    base = found["answers"][0]["base"]
    assert len(base["completion"]) == 20_000 and len(base["tokens"]["ids"]) == 1024 and set(base["tokens"]) == {"ids", "text", "logprobs"}
    assert base["tokens"]["logprobs"] == ["NaN", None, -1] and base["tokens"]["text"] == [None, 5, "a\ufffd"]
    (tmp_path / "link.json").symlink_to(tmp_path / "result.json")
    with pytest.raises(results.Unreadable):
        results.read(tmp_path / "link.json")
