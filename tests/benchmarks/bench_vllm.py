"""vLLM on this machine with the adapter merged into the weights, as Headrace does it, and applied beside them by vLLM itself.

    python -m tests.benchmarks.bench_vllm [--samples 16 32 64] [--rounds 2] [--publishes 5] [--quick]

LoRA of rank 16 on all seven linears of SmolLM2-135M, bfloat16, shared memory, interrupt forward_pass. Both engines are in memory and take
turns. Decode rate: tokens over the seconds of decode steps, prefill left out; medians of the rounds. Publish, in ms, medians, the first
left out: transfer (checked and laid out, beside decoding), apply (loaded and served), pause (decoding stood still).
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import itertools
import json
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

from peft import LoraConfig
from safetensors.torch import save_file
from vllm.lora.request import LoRARequest

from tests.benchmarks.bench_sync import RANK, adapter
from tests.benchmarks.shown import circumstances, table
from workers import models, registry
from workers.axes.transport.base import Link
from workers.axes.transport.leftovers import SEGMENTS
from workers.contract.config import RunConfig
from workers.records import Manifest, SampleRequest, UpdateReport
from workers.rollout.torch.shape import read_shape
from workers.rollout.vllm import engine
from workers.rollout.vllm.generator import VllmGenerator
from workers.tiny import make_tiny_model

RUN = "benchadapter"
PROMPT = list(range(100, 148))
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


class Swapping(VllmGenerator):
    """vLLM's own adapters: the same update, but its load is a swap in place."""

    def __init__(self, config: RunConfig, name: str, transport: Any) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix=f"hr-{RUN}-", dir=SEGMENTS))
        settings = LoraConfig(r=RANK, lora_alpha=config.lora.alpha, target_modules=TARGETS).to_dict() | {"target_modules": TARGETS}
        (self._folder / "adapter_config.json").write_text(json.dumps(settings, default=str))
        with mock.patch.object(
            engine,
            "AsyncEngineArgs",
            functools.partial(engine.AsyncEngineArgs, enable_lora=True, max_lora_rank=RANK, max_loras=1),
        ):
            super().__init__(config, name, transport)
        whole = self._vllm
        named = LoRARequest("current", 1, str(self._folder))

        async def nothing() -> None:
            pass

        async def swap(_request: Any) -> None:
            await whole.add_lora(LoRARequest("current", 1, str(self._folder), load_inplace=True))

        whole.start_weight_update, whole.update_weights = nothing, swap
        whole.finish_weight_update = whole.update_weight_version
        whole.generate = functools.partial(whole.generate, lora_request=named)

    def _fetch(self, manifest: Manifest) -> Path:
        path = self._folder / "adapter_model.safetensors"
        save_file(dict(self._payload.unpack(self._transport.receive(manifest), manifest)), path)
        return path

    async def stop(self) -> None:
        await super().stop()
        shutil.rmtree(self._folder)


class Player:
    """One way, publishing to itself."""

    def __init__(self, kind: type[VllmGenerator], config: RunConfig, folder: Path, model: Path, number: int) -> None:
        self._name = f"generator/{number}"
        self._sender = registry.resolve("transport", "shared_memory")(Link(RUN, folder / str(number), "trainer", config.transport))
        road = registry.resolve("transport", "shared_memory")(Link(RUN, folder / str(number), self._name, config.transport))
        self.engine = kind(config, self._name, road)
        self._shape = read_shape(model)
        self._versions = itertools.count(1)
        self._turns = itertools.count()

    async def publish(self) -> UpdateReport:
        tensors = {name: tensor * (100 if "lora_B" in name else 1) for name, tensor in adapter(self._shape).items()}
        return await self.engine.update(self._sender.send(tensors, next(self._versions), "adapter", [self._name]))

    async def sample(self, number: int, new: int, temperature: float = 1.0) -> list[int]:
        name = f"s{number}.{next(self._turns)}"
        done = await self.engine.generate(SampleRequest(name, f"p{number}", number, PROMPT, number, new, temperature))
        return done.token_ids

    async def rate(self, samples: int, new: int) -> float:
        before = await self.engine.status()
        await asyncio.gather(*(self.sample(number, new) for number in range(samples)))
        after = await self.engine.status()
        # The first tokens come from prefills, which the meter does not time.
        return samples * (new - 1) / (after.decode_s - before.decode_s)

    async def publishes(self, count: int, samples: int) -> list[float]:
        """Milliseconds of transfer, apply and pause, while that many samples are decoded."""
        tasks = [asyncio.create_task(self._endless(number)) for number in range(samples)]
        taken = []
        for _ in range(count + 1):
            if samples:
                await self._steps(3)
            report = await self.publish()
            taken.append((report.transfer_s, report.apply_s, report.pause_s))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return [1e3 * statistics.median(column) for column in zip(*taken[1:], strict=True)]

    async def close(self) -> None:
        await self.engine.stop()
        self._sender.close()

    async def _endless(self, number: int) -> None:
        while True:
            await self.sample(number, 400)

    async def _steps(self, count: int) -> None:
        wanted = (await self.engine.status()).decode_steps + count
        while (await self.engine.status()).decode_steps < wanted:
            await asyncio.sleep(0.02)


async def measure(model: Path, options: argparse.Namespace) -> None:
    config = RunConfig.model_validate(
        {
            "model": {"path": str(model), "dtype": "bfloat16"},
            "lora": {"rank": RANK},
            "rollout": {"engine": "vllm", "max_running": max(options.samples)},
        }
    )
    players: dict[str, Player] = {}
    with tempfile.TemporaryDirectory() as folder:
        try:
            for number, (way, kind) in enumerate((("merged", VllmGenerator), ("swapped", Swapping))):
                players[way] = Player(kind, config, Path(folder), model, number)
                told = [await players[way].sample(0, 16, 0.0)] if way == "merged" else []
                for _ in range(2):
                    await players[way].publish()
                    told.append(await players[way].sample(0, 16, 0.0))
                if all(tokens == told[0] for tokens in told):
                    raise SystemExit(f"{way}: a publish changed nothing")
            await show(players, options)
        finally:
            for player in players.values():
                await player.close()


async def show(players: dict[str, Player], options: argparse.Namespace) -> None:
    print(f"# vLLM: adapter swapped or merged\n\n{circumstances()}\n", flush=True)
    rows: list[list[object]] = []
    for samples in options.samples if options.rounds else ():
        rates: dict[str, list[float]] = {way: [] for way in players}
        for _, way in itertools.product(range(options.rounds), players):
            rates[way].append(await players[way].rate(samples, options.new))
        merged, swapped = (statistics.median(rates[way]) for way in ("merged", "swapped"))
        rows.append([samples, merged, swapped, merged / swapped])
    print(table(["samples", "merged tokens/s", "swapped tokens/s", "ratio"], rows), "\n", flush=True)
    rows = []
    for samples, way in itertools.product((0, max(options.samples)), players):
        rows.append([way, samples, *(await players[way].publishes(options.publishes, samples))])
    print(table(["way", "samples decoded", "transfer ms", "apply ms", "pause ms"], rows), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", nargs="+", type=int, default=[16, 32, 64])
    parser.add_argument("--new", type=int, default=12, help="tokens of each sample")
    parser.add_argument("--rounds", type=int, default=2, help="0: publishes alone")
    parser.add_argument("--publishes", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="a tiny random model and few samples: proves that it runs")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.quick:
            options.samples, options.new, options.rounds, options.publishes = [2], 4, 1, 1
            model = make_tiny_model(Path(folder) / "model", layers=2, hidden=128)
        else:
            model = models.locate(models.BUILT_IN)
        asyncio.run(measure(model, options))


if __name__ == "__main__":
    main()
