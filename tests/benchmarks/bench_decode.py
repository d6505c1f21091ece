"""Decode rate of the torch engine on the real model, beside vLLM on the same cores where it is given. Prefill and scheduling included.

    python -m tests.benchmarks.bench_decode [--slots 64] [--new 24 48] [--threads 2] [--rounds 4]
        [--quick] [--vllm PYTHON [--way {async,in-process}] [--graph {eager,compiled}] [--bind auto 0-1 nobind] [--preload PATH]]

A wave is `slots` requests of `slots / 8` prompts of about 52 tokens, sent at once, at temperature 1, answered with log-probs; lengths
are ragged, so requests leave throughout. Waves of all engines take turns; the first round warms up and is left out. Ours plays with
an un-merged adapter of rank 16 on all seven linears, and without; vLLM without, which is its faster way: Headrace's vLLM engine
merges adapters. --vllm runs vllm_player.py under that Python, once for each VLLM_CPU_OMP_THREADS_BIND of --bind; ours is compared
with the fastest of them. Medians over rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from tests.benchmarks.bench_sync import adapter
from tests.benchmarks.shown import circumstances, table
from workers import models, registry
from workers.axes.backend.threads import cores
from workers.axes.transport.base import Link, Transport
from workers.contract.config import RunConfig
from workers.records import SampleRequest
from workers.rollout.torch.generator import TorchGenerator
from workers.tiny import make_tiny_model

RUN = "benchdecode00"
PER_PROMPT = 8
Results = dict[tuple[str, int], list[dict[str, float]]]  # answers of `play`, by engine and length
PLAYER = Path(__file__).with_name("vllm_player.py")
ADAPTED, PLAIN, VLLM = "Headrace, adapter", "Headrace, no adapter", "vLLM"


def wave(number: int, slots: int, new: int, vocabulary: int) -> tuple[list[list[int]], list[int]]:
    """One prompt and one length a request."""
    text = torch.Generator().manual_seed(number)
    prompts = [
        torch.randint(100, min(vocabulary, 40_000), (48 + index % 9,), generator=text).tolist() for index in range(-(-slots // PER_PROMPT))
    ]
    return [prompts[index // PER_PROMPT] for index in range(slots)], [new - index % 5 for index in range(slots)]


async def play(generator: TorchGenerator, number: int, prompts: list[list[int]], lengths: list[int]) -> dict[str, float]:
    requests = [
        SampleRequest(f"w{number}/{index}", f"w{number}", index, prompt, 1000 * number + index, new, 1.0)
        for index, (prompt, new) in enumerate(zip(prompts, lengths, strict=True))
    ]
    before, begun, used = generator.counters, time.perf_counter(), time.process_time()
    done = await asyncio.gather(*map(generator.generate, requests))
    tokens = sum(len(rollout.token_ids) for rollout in done)
    assert all(len(rollout.logprobs) == len(rollout.token_ids) for rollout in done)
    seconds, after = time.perf_counter() - begun, generator.counters
    return {
        "tokens": tokens,
        "seconds": seconds,
        "prefill_s": after["prefill_s"] - before["prefill_s"],
        "step_ms": 1000 * (after["decode_s"] - before["decode_s"]) / (after["decode_steps"] - before["decode_steps"]),
        "cpu_s": time.process_time() - used,
    }


@contextlib.contextmanager
def players(arguments: argparse.Namespace) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """vLLM's, ready, one for each binding, by name; none where no Python is given. They have ended afterwards."""
    given = {"OMP_NUM_THREADS": str(arguments.threads), "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
    given |= {"VLLM_CPU_KVCACHE_SPACE": "1"} | ({"LD_PRELOAD": arguments.preload} if arguments.preload else {})
    command = [arguments.vllm, str(PLAYER), str(models.locate(arguments.model)), str(arguments.slots), arguments.way, arguments.graph]
    started = {}
    try:
        for bind in arguments.bind if arguments.vllm else ():
            environment = os.environ | given | {"VLLM_CPU_OMP_THREADS_BIND": bind}
            started[f"{VLLM}, bind {bind}"] = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
            )
        for name, player in started.items():
            print(f"{name}: {told(player)['vllm']}, {arguments.way}, {arguments.graph}, preload {arguments.preload}")
        yield started
    finally:
        for player in started.values():
            assert player.stdin is not None
            player.stdin.close()
        for player in started.values():
            try:
                player.wait(20)
            except subprocess.TimeoutExpired:
                player.kill()


def told(player: subprocess.Popen[str]) -> dict[str, Any]:
    assert player.stdout is not None
    line = player.stdout.readline()
    if not line:
        raise SystemExit(f"vLLM's player ended with {player.wait()}: see its words above")
    answer: dict[str, Any] = json.loads(line)
    return answer


def ask(player: subprocess.Popen[str], prompts: list[list[int]], lengths: list[int]) -> dict[str, float]:
    assert player.stdin is not None
    print(json.dumps({"prompts": prompts, "new": lengths}), file=player.stdin, flush=True)
    return told(player)


async def measure(arguments: argparse.Namespace, others: dict[str, subprocess.Popen[str]]) -> Results:
    config = RunConfig.model_validate(
        {"model": {"path": arguments.model}, "rollout": {"max_running": arguments.slots, "threads": arguments.threads}}
    )
    results: Results = {}
    with tempfile.TemporaryDirectory() as folder:
        transport: Transport = registry.resolve("transport", "shared_memory")(Link(RUN, Path(folder), "generator/0", config.transport))
        engines = {name: TorchGenerator(config, "generator/0", transport) for name in (ADAPTED, PLAIN)}
        try:
            tensors = adapter(engines[ADAPTED]._shape)
            await engines[ADAPTED].update(transport.send(tensors, 1, "adapter", ["generator/0"]))
            for number in range(arguments.rounds + 1):
                for new in arguments.new:
                    prompts, lengths = wave(number, arguments.slots, new, engines[PLAIN]._shape.vocab)
                    answers = {name: await play(engine, number, prompts, lengths) for name, engine in engines.items()}
                    for name, player in others.items():
                        answers[name] = await asyncio.to_thread(ask, player, prompts, lengths)
                    for name, answer in answers.items():
                        results.setdefault((name, new), []).extend([answer] if number else [])
                    told_now = ", ".join(f"{name} {answer['tokens'] / answer['seconds']:.0f}" for name, answer in answers.items())
                    print(f"round {number}, {new} new tokens: {told_now}", file=sys.stderr)
        finally:
            for engine in engines.values():
                await engine.stop()
            transport.close()
    return results


def rates(answers: list[dict[str, float]]) -> list[float]:
    return [answer["tokens"] / answer["seconds"] for answer in answers]


def report(results: Results) -> str:
    """One row for each engine and length. over vLLM: median of the rounds' ratios to the fastest binding's rate, and the lowest."""
    rows = []
    for (name, new), answers in results.items():
        ours = rates(answers)
        rivals = [rates(found) for (rival, length), found in results.items() if rival.startswith(VLLM) and length == new]
        theirs = max(rivals, key=statistics.median, default=[])
        ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)] if theirs else []
        row: list[object] = [name, new, statistics.median(ours), f"{min(ours):.0f} to {max(ours):.0f}"]
        row += [statistics.median(ratios), min(ratios)] if ratios else [None, None]
        row += [statistics.median(answer[key] for answer in answers) if key in answers[0] else None for key in ("step_ms", "prefill_s")]
        rows.append(row)
    return table(["engine", "new tokens", "tokens/s", "range", "over vLLM", "lowest", "ms a decode step", "prefill s"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--new", type=int, nargs="+", default=[24, 48])
    parser.add_argument("--threads", type=int, default=cores(), help="default: every core, as no trainer runs beside")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--vllm", metavar="PYTHON", help="a Python that has vLLM")
    parser.add_argument("--way", choices=["async", "in-process"], default="async")
    parser.add_argument("--graph", choices=["eager", "compiled"], default="eager")
    parser.add_argument("--bind", nargs="+", default=["auto"], help="one player each, all in turn")
    parser.add_argument("--preload", help="a library for vLLM's processes, such as its libiomp5.so")
    parser.add_argument("--quick", action="store_true", help="a tiny random model, one short round: proves that it runs")
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        if arguments.quick:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            arguments.model = str(make_tiny_model(Path(folder) / "model"))
            arguments.slots, arguments.new, arguments.rounds = 8, [8], 1
        results = asyncio.run(measure(arguments, stack.enter_context(players(arguments))))
    print(
        f"{arguments.slots} sequences, {arguments.threads} threads, OMP_WAIT_POLICY {os.environ.get('OMP_WAIT_POLICY', 'not set')}, ",
        end="",
    )
    print(f"torch {torch.__version__}; {circumstances()}\n\n{report(results)}")


if __name__ == "__main__":
    main()
