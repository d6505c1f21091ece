"""Where a decode step of the torch engine spends its time, operator by operator, on the real model. See bench_decode for rates.

    python -m tests.benchmarks.decode_profile [--slots 64] [--new 48] [--threads 2] [--no-adapter]

Operators are timed from Python, one after the other, so `the rest` is Python, bookkeeping and what torch itself computes between
them. The second of two waves is told.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.benchmarks.bench_decode import wave
from tests.benchmarks.bench_sync import adapter
from tests.benchmarks.shown import circumstances, table
from workers import models
from workers.axes.backend.threads import cores
from workers.records import SampleRequest
from workers.rollout.torch import adapter as adapters
from workers.rollout.torch import decoder as decoders
from workers.rollout.torch.kernels import PlainKernels
from workers.rollout.torch.linear import Linear
from workers.rollout.torch.model import Model
from workers.rollout.torch.native import NativeKernels, kernels_for
from workers.rollout.torch.scheduler import Sequence
from workers.rollout.torch.shape import read_shape
from workers.rollout.torch.weights import load_weights

SPENT: Counter[str] = Counter()
CALLS: Counter[str] = Counter()


def timed(owner: Any, name: str, label: Callable[[Any], str]) -> None:
    """From now on `owner.name` counts; label is told the first argument."""
    inner = getattr(owner, name)

    def outer(first: Any, *rest: Any, **named: Any) -> Any:
        began = time.perf_counter()
        try:
            return inner(first, *rest, **named)
        finally:
            SPENT[label(first)] += time.perf_counter() - began
            CALLS[label(first)] += 1

    setattr(owner, name, outer)


def watch() -> None:
    for name in ("__call__", "added_to"):
        timed(Linear, name, lambda linear: f"product {linear.inputs} to {linear.outputs}, adapter within")
    for kernels in (NativeKernels, PlainKernels):
        for name in ("rms_norm", "silu_mul", "attend", "step"):
            timed(kernels, name, lambda _, name=name: name)
    timed(decoders, "draw", lambda _: "draw")


def told(title: str, seconds: float, steps: int) -> str:
    rows: list[list[object]] = [[name, str(CALLS[name] // steps), 1000 * spent / steps] for name, spent in SPENT.most_common()]
    rows.append(["the rest", None, 1000 * (seconds - sum(SPENT.values())) / steps])
    rows.append(["all", None, 1000 * seconds / steps])
    SPENT.clear()
    CALLS.clear()
    return f"{title}\n\n{table(['operator', 'calls', 'ms'], rows)}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--new", type=int, default=48)
    parser.add_argument("--threads", type=int, default=cores())
    parser.add_argument("--no-adapter", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    watch()
    folder = Path(models.locate(arguments.model))
    shape = read_shape(folder)
    with torch.inference_mode():
        model = Model(shape, load_weights(folder, shape, torch.bfloat16), torch.bfloat16, kernels_for(shape, torch.bfloat16))
        decoder = decoders.Decoder(model, "profile", isolated=False, parks=False)
        if not arguments.no_adapter:
            decoder.adapter = adapters.build_adapter(adapter(shape), shape, 2.0, 1, torch.bfloat16)
        for number in range(2):
            prompts, _ = wave(number, arguments.slots, arguments.new, shape.vocab)
            running = [
                Sequence(SampleRequest(f"{index}", "p", index, prompt, index, arguments.new, 1.0), lambda _: None, slot=index)
                for index, prompt in enumerate(prompts)
            ]
            SPENT.clear()
            CALLS.clear()
            began = time.perf_counter()
            decoder.prefill(running, arguments.slots)
            prefill = told("Prefill of the wave", time.perf_counter() - began, 1)
            began = time.perf_counter()
            for _ in range(arguments.new - 1):
                decoder.decode(running)
            decode = told("A decode step", time.perf_counter() - began, arguments.new - 1)
    print(f"{arguments.slots} sequences, {arguments.threads} threads; {circumstances()}\n\n{prefill}\n{decode}")


if __name__ == "__main__":
    main()
