"""A real vLLM server in processes of its own, on CPU, by its address: samples, whole weights by path, adapters by path, a retract."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import torch

from tests.workers.engine_rig import NAME, PROMPTS, RUN, adapted, base_model, logprobs_of, publish, request, send
from tests.workers.tiny_model import make_tiny_model
from workers import registry
from workers.axes.transport.base import Link
from workers.axes.transport.filesystem import FilesystemTransport
from workers.contract.config import RunConfig
from workers.contract.errors import EngineError
from workers.records import Manifest
from workers.rollout.remote.generator import RemoteGenerator
from workers.rollout.vllm import install
from workers.spool import read_spool

PATIENCE_S = 300
TOKEN = "a-token-of-the-test"
LENGTH = 450


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its output weights are its own: on a CPU vLLM keeps the old ones of a tied model, and such a run is refused."""
    folder = make_tiny_model(tmp_path_factory.mktemp("tiny"), seed=4, hidden=128)
    model = base_model(folder)
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(0.9 * model.lm_head.weight.detach())
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def started(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server as a user would start it. It takes adapters; whole weights are put into it after those."""
    install.require()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder), "--host", "127.0.0.1"]
    command += ["--port", str(port), "--dtype", "float32", "--enforce-eager", "--max-num-seqs", "8", "--kv-cache-memory-bytes", "268435456"]
    command += ["--logprobs-mode", "processed_logprobs"]
    command += ["--enable-lora", "--max-lora-rank", "8"]
    given = {
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "VLLM_API_KEY": TOKEN,
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "TORCHDYNAMO_DISABLE": "1",
    }
    log = tmp_path_factory.mktemp("vllm") / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(command, env={**os.environ, **given}, stdout=file, stderr=file, start_new_session=True)
    address = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not _healthy(address):
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.5)
        yield address
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture(scope="module", params=["adapter", "full"])
def server(request: pytest.FixtureRequest, started: str) -> tuple[str, str]:
    """The payload, and the server's address."""
    return request.param, started


def _healthy(address: str) -> bool:
    try:
        return httpx.get(f"{address}/health", timeout=2, trust_env=False).is_success
    except httpx.HTTPError:
        return False


async def generated(client: httpx.AsyncClient) -> float:
    """Tokens that the server has generated since it started, by its own count."""
    text = (await client.get("/metrics", timeout=10)).text
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith("vllm:generation_tokens_total{"))


def engine(address: str, folder: Path, scratch: Path, kind: str, payload: str) -> RemoteGenerator:
    settings = RunConfig.model_validate(
        {
            "model": {"path": str(folder), "dtype": "float32"},
            "lora": {"kind": kind, "rank": 4, "alpha": 8.0},
            "sampling": {"top_k": 3},
            "rollout": {
                "engine": "remote",
                "max_running": 3,
                "remote": {"urls": [address], "token": "test", "timeout_s": 60.0, "retries": 0},
            },
            "transport": {"kind": "filesystem", "payload": payload},
            "interrupt": {"kind": "retract", "kv_after": "recompute"},
        }
    )
    return registry.resolve("rollout", "remote")(settings, NAME, FilesystemTransport(Link(RUN, scratch, NAME, settings.transport)))


async def test_a_real_server_obeys_the_door(server: tuple[str, str], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    payload, address = server
    (tmp_path / "test").write_text(TOKEN)
    monkeypatch.setenv("HEADRACE_ENGINE_TOKENS", str(tmp_path))
    own = await asyncio.to_thread(engine, address, folder, tmp_path, "off" if payload == "full" else "adapter_only", payload)
    models: list[torch.nn.Module] = [base_model(folder)]
    if payload == "full":
        for factor in (1.05, 0.95):
            scaled = base_model(folder)
            for parameter in scaled.parameters():
                parameter.data *= factor
            models.append(scaled)
    else:
        with torch.no_grad():
            models += [adapted(folder, seed=1), adapted(folder, seed=2)]

    def sent(version: int) -> Manifest:
        model = models[version]
        tensors = {name: tensor.detach() for name, tensor in model.named_parameters()}
        return send(tensors, tmp_path, version, "full") if payload == "full" else publish(model, tmp_path, version)

    manifests = {version: sent(version) for version in (1, 2)}

    async def put(version: int) -> None:
        manifest = manifests[version]
        report = await own.update(manifest)
        assert (report.version, report.digest) == (version, manifest.digest) and report.apply_s > 0

    async def faithful(version: int) -> None:
        """A long prompt, twice, would be found in a prefix cache of old weights."""
        for prompt in ([7 + index % 60 for index in range(300)], PROMPTS[1]):
            for _ in range(2):
                done = await own.generate(request(prompt, version, 12))
                assert done.versions == [version] * 12
                assert torch.allclose(torch.tensor(done.logprobs), logprobs_of(models[version], prompt, done.token_ids), atol=2e-4)

    if payload == "full":  # the server is still what it was started with
        await faithful(0)
    await put(1)
    await faithful(1)
    async with httpx.AsyncClient(base_url=address, trust_env=False) as client:
        before = await generated(client)
        tasks = [asyncio.create_task(own.generate(request(PROMPTS[index], index, LENGTH))) for index in range(5)]
        while await generated(client) < before + LENGTH // 10:  # of five times LENGTH: some are in the middle, and none has ended
            await asyncio.sleep(0)
    await put(2)
    done = await asyncio.gather(*tasks)
    mixed = 0
    for rollout in done:
        flip = rollout.versions.count(1)
        assert rollout.versions == [1] * flip + [2] * (LENGTH - flip) and rollout.finish_reason == "length"
        given = torch.tensor(rollout.logprobs)
        for model, part in ((models[1], slice(0, flip)), (models[2], slice(flip, None))):
            assert torch.allclose(given[part], logprobs_of(model, PROMPTS[rollout.index], rollout.token_ids)[part], atol=2e-4)
        mixed += 0 < flip < LENGTH
    assert mixed, f"{[rollout.versions.count(1) for rollout in done]}: those that ran were ended with their tokens, and went on"
    cut = await own.generate(request(PROMPTS[3], 0, 20, top_k=1))
    assert max(map(abs, cut.logprobs)) < 1e-6, "log-probs are of the truncated distribution"
    assert not own.failures and (await own.status()).version == 2
    await own.stop()
    if payload == "full":
        tied = make_tiny_model(tmp_path / "tied", seed=4)
        with pytest.raises(EngineError, match="old output weights of a tied model"):
            await asyncio.to_thread(engine, address, tied, tmp_path, "off", "full")
    (tmp_path / "test").write_text("another")
    with pytest.raises(EngineError, match="http_401"):
        await asyncio.to_thread(engine, address, folder, tmp_path, "off", "full")


# That whole weights arrive, and serve, is seen above in every suite.
@pytest.mark.parametrize("server", ["adapter", pytest.param("full", marks=pytest.mark.full)], indirect=True)
def test_a_run_trains_on_it(server: tuple[str, str], folder: Path, tmp_path: Path) -> None:
    """Through the driver. The server still holds what the test before gave it: version 0 is the model's own all the same."""
    payload, address = server
    (tmp_path / "tokens").mkdir()
    (tmp_path / "tokens" / "test").write_text(TOKEN)
    questions = tmp_path / "vowels.jsonl"
    questions.write_text("\n".join(json.dumps({"prompt": f"Say e, {number}.", "answer": "e"}) for number in range(64)))
    sets = [
        f"model.path={folder}",
        f"environment.dataset={questions}",
        "environment.answer=whole",
        "environment.verifier=contains",
        "model.dtype=float32",
        "rollout.engine=remote",
        "rollout.remote=" + json.dumps({"urls": [address], "token": "test"}),
        "transport.kind=filesystem",
        f"transport.payload={payload}",
        f"lora.kind={'off' if payload == 'full' else 'adapter_only'}",
        "lora.rank=4",
        "interrupt.kind=retract",
        "interrupt.kv_after=recompute",
        "batch.prompts=2",
        "sampling.max_new_tokens=24",
        "evaluation.prompts=4",
        "budget.steps=2",
    ]
    command = [sys.executable, "-m", "workers", "run", "--quiet", "--out", str(tmp_path / "run")]
    done = subprocess.run(
        [*command, *(part for one in sets for part in ("--set", one))],
        env={**os.environ, "HEADRACE_ENGINE_TOKENS": str(tmp_path / "tokens")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["outcome"] == "succeeded" and summary["steps"] == 2
    events = [event for event, _ in read_spool(tmp_path / "run" / "spool") if event]
    told = [event["data"]["values"] for event in events if event["kind"] == "metrics"]
    gaps = [values["loss/probability_gap_max"] for values in told if "loss/probability_gap_max" in values]
    assert len(gaps) == 2 and gaps[0] < 1e-4, "version 0 is the same policy on both sides; the second step may train samples of before"
    assert any("engine/generator/0/failed_calls" in values for values in told)
