"""A server that cannot be brought to a stand gets no weights, and its samples go on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch

from tests.workers.engine_rig import PROMPTS, adapted, base_model, logprobs_of, publish, request, until
from tests.workers.remote_double import Double, serving
from tests.workers.remote_rig import engine
from tests.workers.tiny_model import make_tiny_model
from workers.contract.errors import EngineError

LENGTH = 300


@pytest.mark.parametrize("flavour", ["vllm", "sglang"])
async def test_samples_go_on_where_the_pause_fails(flavour: str, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "tiny", seed=4)
    async with serving(Double(flavour, folder, tmp_path / "double")) as double:
        own = await asyncio.to_thread(engine, double.url, folder, tmp_path)
        tasks = [asyncio.create_task(own.generate(request(PROMPTS[index], index, LENGTH))) for index in range(5)]
        await until(lambda: len(double.samples) == 3)
        double.refuses_pause = True
        with pytest.raises(EngineError, match="http_400"):
            await own.update(publish(adapted(folder, seed=1), tmp_path, 1))
        done = await asyncio.wait_for(asyncio.gather(*tasks), 60)
        for rollout in done:
            assert rollout.versions == [0] * LENGTH
            wanted = logprobs_of(base_model(folder), PROMPTS[rollout.index], rollout.token_ids)
            assert torch.allclose(torch.tensor(rollout.logprobs), wanted, atol=1e-4)
        assert double.given_up == 3 and own.failures == {"http_400": 1}
        double.refuses_pause = False
        assert (await own.update(publish(adapted(folder, seed=1), tmp_path, 1))).version == 1
        assert (await own.generate(request(PROMPTS[0], 0, 4))).versions == [1] * 4
        await own.stop()
