"""Decode rate of the torch engine on the real model, prefill and scheduling included. Prints one JSON object.

    OMP_WAIT_POLICY=passive python -m tests.benchmarks.bench_decode [--slots 64] [--new 48] [--threads 2] [--waves 3]

tokens_per_cpu_s counts processor seconds of this process: with OMP_WAIT_POLICY=passive it hardly depends on what else runs.
The first wave warms up and is left out. Every wave is `slots` requests of `slots / 8` prompts, with a LoRA adapter on all
seven linears; lengths are ragged, so requests join and leave throughout.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

import torch

from workers import registry
from workers.axes.backend.threads import cores
from workers.axes.transport.base import Link
from workers.contract.config import RunConfig
from workers.records import SampleRequest
from workers.rollout.torch.generator import TorchGenerator

RUN = "benchdecode00"


def adapter_tensors(generator: TorchGenerator, rank: int) -> dict[str, torch.Tensor]:
    """Random adapters in PEFT's names; B small, so that the model still speaks."""
    shape = generator._shape
    wide, hidden, query, kv = shape.intermediate, shape.hidden, shape.query_rows, shape.kv_rows
    sizes = {
        "self_attn.q_proj": (hidden, query),
        "self_attn.k_proj": (hidden, kv),
        "self_attn.v_proj": (hidden, kv),
        "self_attn.o_proj": (query, hidden),
        "mlp.gate_proj": (hidden, wide),
        "mlp.up_proj": (hidden, wide),
        "mlp.down_proj": (wide, hidden),
    }
    tensors = {}
    for layer in range(shape.layers):
        for module, (inputs, outputs) in sizes.items():
            name = f"base_model.model.model.layers.{layer}.{module}"
            tensors[f"{name}.lora_A.weight"] = torch.randn(rank, inputs) / inputs**0.5
            tensors[f"{name}.lora_B.weight"] = torch.randn(outputs, rank) * 1e-4
    return tensors


async def wave(generator: TorchGenerator, number: int, slots: int, new: int, per_prompt: int) -> int:
    """One admission wave and what follows it, until the last sample is done. Returns the tokens made."""
    text = torch.Generator().manual_seed(number)
    prompts = [torch.randint(100, 40_000, (48 + index % 9,), generator=text).tolist() for index in range(-(-slots // per_prompt))]
    requests = [
        SampleRequest(f"w{number}/{index}", f"w{number}", index, prompts[index // per_prompt], 1000 * number + index, new - index % 5, 1.0)
        for index in range(slots)
    ]
    done = await asyncio.gather(*map(generator.generate, requests))
    return sum(len(rollout.token_ids) for rollout in done)


async def measure(arguments: argparse.Namespace) -> dict[str, object]:
    config = RunConfig.model_validate(
        {"model": {"path": arguments.model}, "rollout": {"max_running": arguments.slots, "threads": arguments.threads}}
    )
    with tempfile.TemporaryDirectory() as folder:
        transport = registry.resolve("transport", "shared_memory")(Link(RUN, Path(folder), "generator/0", config.transport))
        begun = time.perf_counter()
        generator = TorchGenerator(config, "generator/0", transport)
        load_s = time.perf_counter() - begun
        tensors = adapter_tensors(generator, config.lora.rank)
        pauses, transfers, rates, decode_rates, prefills, per_cpu = [], [], [], [], [], []
        try:
            for number in range(arguments.waves + 1):
                before, begun, used = generator.counters, time.perf_counter(), time.process_time()
                running = asyncio.create_task(wave(generator, number, arguments.slots, arguments.new, 8))
                while generator.counters["decode_steps"] < before["decode_steps"] + 4:
                    await asyncio.sleep(0.005)
                if number in (0, arguments.waves):  # the adapter at first; its pause under load at last, outside the rates
                    report = await generator.update(transport.send(tensors, number + 1, "adapter", ["generator/0"]))
                    pauses.append(report.pause_s)
                    transfers.append(report.transfer_s)
                tokens, wall = await running, time.perf_counter() - begun
                after = generator.counters
                if 0 < number < arguments.waves or arguments.waves == 1:
                    rates.append(tokens / wall)
                    per_cpu.append(tokens / (time.process_time() - used))
                    prefills.append(after["prefill_s"] - before["prefill_s"])
                    decode_rates.append((tokens - arguments.slots) / (after["decode_s"] - before["decode_s"]))
            status = await generator.status()
        finally:
            await generator.stop()
            transport.close()
    return {
        "decode_tokens_per_s": round(statistics.median(rates), 1),
        "decode_only_tokens_per_s": round(statistics.median(decode_rates), 1),
        "tokens_per_cpu_s": round(statistics.median(per_cpu), 1),
        "prefill_s": round(statistics.median(prefills), 4),
        "slots": arguments.slots,
        "new_tokens": arguments.new,
        "threads": torch.get_num_threads(),
        "swap_pause_s": round(pauses[-1], 6),
        "swap_transfer_s": round(transfers[-1], 4),
        "load_s": round(load_s, 2),
        "rss_bytes": status.rss,
        "torch": torch.__version__,
        "wait_policy": os.environ.get("OMP_WAIT_POLICY", "default"),
        "load_average": [round(value, 2) for value in os.getloadavg()],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--new", type=int, default=48)
    parser.add_argument("--threads", type=int, default=cores(), help="default: every core, as no trainer runs beside")
    parser.add_argument("--waves", type=int, default=3)
    print(json.dumps(asyncio.run(measure(parser.parse_args()))))


if __name__ == "__main__":
    main()
