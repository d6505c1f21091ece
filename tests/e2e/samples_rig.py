"""A run as a driver tells it, with what the pages of samples, log and files have to show: groups, drops, odd text, a checkpoint on disk."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

from tests.e2e.web_rig import Driver, WebServer

PAYLOADS = (
    "<img src=x onerror=alert(1)>",
    "<script>alert(2)</script>",
    '"><svg/onload=alert(3)>',
    "javascript:alert(4)//<a href=javascript:alert(4)>x</a>",
    "</textarea></pre></script><iframe srcdoc='<script>alert(5)</script>'>",
    "{{ 7*7 }}${7*7}<%= 7*7 %>",
    "\u202egnp.exe\u202c \u200bhidden\u0007bell\u001b[31mred\u001b[0m",
    "<style>*{display:none}</style><base href=//evil.example>",
)
MANAGE = """
import sys, json, django
django.setup()
from django.conf import settings
from headrace.experiments.models import Attempt, Artifact
from headrace.artifacts.models import Export, JobState, Probe
what, run = sys.argv[1], sys.argv[2]
attempt = Attempt.unscoped.filter(run__public_id=run).order_by("-number").first()
if what == "folder":
    folder = settings.RUNS_DIR / run / f"attempt-{attempt.number}"
    folder.mkdir(parents=True, exist_ok=True)
    Attempt.unscoped.filter(pk=attempt.pk).update(out_dir=str(folder))
    print(folder)
elif what == "answer":
    answer = json.loads(sys.stdin.read())
    print(Probe.unscoped.filter(run__public_id=run, state=JobState.QUEUED).update(state=JobState.DONE, result=answer))
elif what == "exported":
    from headrace.artifacts import exporting
    source = Artifact.unscoped.get(run__public_id=run, kind="checkpoint")
    def pretend(checkpoint, out):
        out.mkdir()
        (out / "adapter_model.safetensors").write_bytes(b"weights")
        (out / "README.md").write_text(sys.stdin.read())
    exporting.run_exporter = pretend
    print(exporting.make(Export.unscoped.get(artifact=source).public_id))
"""


def sample(
    step: int, place: int, index: int, completion: str, *, reward: float | None, outcome: str = "trained", **more: Any
) -> tuple[str, dict[str, Any]]:
    """One sample event, with a log-prob, a version and the trainer's log-prob for every token."""
    words = [piece for piece in completion.replace(" ", "\x01 ").split("\x01") if piece] or [""]
    count = len(words)
    engine = [-((index + 1) * 0.07 + abs(math.sin(step + at)) ** 6 * 5) for at in range(count)]
    old = max(0, step - 2)
    data = {
        "group": f"g{step}-{place}",
        "prompt_id": f"chain_sum:{place}",
        "index": index,
        "prompt": f"State the final answer to the following arithmetic problem: {step} + {place} =\n\tThink first.",
        "completion": completion,
        "answer_expected": str(step + place),
        "answer_given": words[-1].strip() if reward else None,
        "reward": reward,
        "advantage": None if outcome != "trained" else (reward or 0.0) - 0.5,
        "outcome": outcome,
        "drop_reason": None,
        "error": None,
        "version_min": old,
        "version_max": step,
        "version_trained": step if outcome == "trained" else None,
        "finish_reason": "stop" if index % 3 else "length",
        "tokens": {
            "ids": list(range(100, 100 + count)),
            "text": words,
            "logprobs": engine,
            "versions": [old + min(2, at * 3 // count) for at in range(count)] if step > 1 else [step] * count,
            "trainer_logprobs": [value + (0.6 if at == 3 else -0.9 if at == 5 else 0.003 * at) for at, value in enumerate(engine)]
            if outcome == "trained"
            else None,
        },
    }
    return "sample", {**data, **more}


def tell(server: WebServer, driver: Driver, steps: int = 4) -> Path:
    """Everything: steps of samples in groups, dropped and failed ones, payloads, a log with sources, a checkpoint that is on disk."""
    driver.started()
    for step in range(1, steps + 1):
        driver.step(step, reward=0.2 * step)
        events = [
            sample(
                step,
                group,
                index,
                f"I add {step} and {group} one by one, carry nothing, so the final answer is {step + group - index}",
                reward=1.0 - index * 0.5,
            )
            for group in range(3)
            for index in range(2)
        ]
        events.append(sample(step, 7, 0, "the same again", reward=0.0, outcome="dropped", drop_reason="zero_variance"))
        events += [("log", {"level": "debug", "message": f"packed batch {step}", "source": "trainer"})]
        driver.post(events, step)
    hostile = [
        sample(steps, 20 + at, 0, text, reward=1.0, prompt=text, answer_given=text, answer_expected=text)
        for at, text in enumerate(PAYLOADS)
    ]
    lines = [("log", {"level": "warning", "message": text, "source": text[:40]}) for text in PAYLOADS]
    failed = sample(steps, 9, 0, "", reward=None, outcome="failed", error="the verifier timed out", drop_reason="scoring_failed")
    driver.post([*hostile, *lines, failed], steps)
    folder = Path(server.ask(MANAGE, "folder", driver.run).strip())
    checkpoint(driver, folder, steps)
    return folder


def checkpoint(driver: Driver, folder: Path, step: int) -> Path:
    """A checkpoint as the engine leaves it, and its event."""
    place = folder / "checkpoints" / f"step-{step:06d}"
    place.mkdir(parents=True)
    files = {"adapter_model.safetensors": b"weights" * 1000, "adapter_config.json": b"{}", "driver.json": b"{}"}
    listed = {}
    for name, content in files.items():
        (place / name).write_bytes(content)
        listed[name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    text = json.dumps({"step": step, "version": step, "config_digest": "d", "files": listed}).encode()
    (place / "MANIFEST.json").write_bytes(text)
    facts = {
        "path": str(place),
        "step": step,
        "version": step,
        "bytes": sum(map(len, files.values())),
        "sha256": hashlib.sha256(text).hexdigest(),
    }
    driver.post([("checkpoint", facts)], step)
    return place


ANSWER = {
    "answers": [
        {
            "prompt": "3 + 4 =",
            "base": {
                "completion": "3 + 4 = 9 <img src=x onerror=alert(9)>",
                "finish_reason": "length",
                "tokens": {"ids": [1, 2, 3], "text": ["3 + 4 ", "= 9", " <img src=x onerror=alert(9)>"], "logprobs": [-0.2, -1.4, -3.0]},
            },
            "trained": {
                "completion": "7",
                "finish_reason": "stop",
                "tokens": {"ids": [4], "text": ["7"], "logprobs": [-0.01], "base_logprobs": [-2.4], "trained_logprobs": [-0.01]},
            },
        }
    ],
    "facts": {},
}
