"""One strict run, killed at twenty points of its flow and resumed after each: it ends with the bits of the run that nothing interrupted."""

from __future__ import annotations

import json
from pathlib import Path

from tests.faults.checker import check
from tests.faults.history import digests
from tests.faults.real_runs import ASYNCIO, DIED, KILLED, NEVER, STRICT, history_of, live, spec_of, trained_prompts

STEPS = 40
# Each is reached in the named process; "@2": after a step with a checkpoint of its own, so that every life gets somewhere.
CUTS = [
    "spool.write=kill@30",
    "spool.sync=kill@20",
    "batch.gathered=kill@2",
    "train.stepped=kill@2",
    "step.trained=kill@2",
    "step.counted=kill@2",
    "group.admitted=kill@5",
    "publish.written=kill@3",
    "publish.sent=kill@2",
    "receive.begun=kill@3",
    "receive.served=kill@3",
    "publish.served=kill@2",
    "publish.told=kill@2",
    "save.begun=kill@2",
    "save.trainer=kill@2",
    "save.files=kill@2",
    "save.manifest=kill@2",
    "save.named=kill@2",
    "save.told=kill@2",
    "end.summary=kill",
    "end.told=kill",
]


def test_cut_at_twenty_points_it_ends_with_the_same_bits(model: Path, tmp_path: Path) -> None:
    blocks = {**ASYNCIO, **STRICT, "checkpoint": {"every_steps": 1}, "budget": {"steps": STEPS}, "evaluation": NEVER}
    spec = spec_of(tmp_path, model, **blocks)
    assert live(spec, tmp_path / "whole")[0] == 0
    whole = history_of(tmp_path / "whole", state="succeeded")
    assert [str(broken) for broken in check(whole)] == []
    prompts = trained_prompts(whole.lives)

    out = tmp_path / "cut"
    for cut in CUTS:
        code, said = live(spec, out, cut)
        assert code in DIED, f"{cut} was not reached: exit code {code}\n{said}"
        if code == KILLED:
            assert f"failpoint {cut.partition('=')[0]}" in said, said
        else:  # one of the pool was killed, and the driver told it
            cause = json.loads((out / "summary.json").read_text())["cause"]
            assert "SIGKILL" in cause["message"], f"{cut}: {cause}"
    assert live(spec, out)[0] == 0
    cut_run = history_of(out, state="succeeded", reference=digests(whole), prompts=lambda k: prompts.get(k, "beyond"))
    assert len(cut_run.lives) >= len(CUTS)
    assert [str(broken) for broken in check(cut_run)] == []
    last = f"checkpoints/step-{STEPS:06d}"
    for name in ("adapter_model.safetensors", "optimizer.safetensors", "trainer.json"):
        assert (out / last / name).read_bytes() == (tmp_path / "whole" / last / name).read_bytes(), name
    mine, theirs = (json.loads((folder / last / "driver.json").read_text()) for folder in (out, tmp_path / "whole"))
    assert mine["source"] == theirs["source"] and mine["progress"]["rewards"] == theirs["progress"]["rewards"]
