"""The engine's side of bench_sync: an engine in a process of its own that answers each line on its input with one of JSON.

A manifest is taken, and answered with the engine's report and its decode steps; `{"decode": n}` keeps n samples running.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.benchmarks.sync_digest import without_digest
from workers import registry
from workers.axes.transport.base import Link
from workers.contract.config import RunConfig
from workers.records import Manifest, SampleRequest, from_wire, to_wire
from workers.rollout.torch.generator import TorchGenerator

RUN = "benchsync0000"
PROMPT = list(range(100, 148))


async def serve(config: RunConfig, folder: Path) -> None:
    """Until the input ends. Decoding goes on between two lines."""
    transport = registry.resolve("transport", config.transport.kind)(Link(RUN, folder, "generator/0", config.transport))
    engine = TorchGenerator(config, "generator/0", transport)
    samples: list[asyncio.Task[Any]] = []
    try:
        print("ready", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            asked = json.loads(line)
            if "decode" in asked:
                samples += [asyncio.create_task(_again_and_again(engine, number)) for number in range(asked["decode"])]
                await asyncio.sleep(1)  # prefilled by then
                answer: Any = {}
            else:
                before = engine.counters
                answer = to_wire(await engine.update(from_wire(Manifest, asked)))
                answer["running"] = (await engine.status()).running
                answer["steps_before"] = {name: before[name] for name in ("decode_steps", "decode_s")}
            print(json.dumps(answer), flush=True)
    finally:
        for sample in samples:
            sample.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*samples, return_exceptions=True)
        await engine.stop()
        transport.close()


async def _again_and_again(engine: TorchGenerator, number: int) -> None:
    for turn in itertools.count():
        await engine.generate(SampleRequest(f"s{number}.{turn}", f"p{number // 8}", number, PROMPT, number, 400, 1.0))


def main() -> None:
    config, folder, digest = sys.argv[1:]
    if digest == "without":
        without_digest()
    if os.environ.get("RAY_ADDRESS"):
        from workers import cluster  # noqa: F401, settles Ray's settings before it is imported

        import ray  # isort: skip

        ray.init(address=os.environ["RAY_ADDRESS"], log_to_driver=False, logging_level=logging.ERROR)
    asyncio.run(serve(RunConfig.model_validate_json(config), Path(folder)))


if __name__ == "__main__":
    main()
