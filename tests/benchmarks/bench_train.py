"""Optimizer steps of the trainer alone on the demo's model: seconds a step, tokens a second, peak memory, and an operator profile.

    python -m tests.benchmarks.bench_train [--threads 2] [--groups 8] [--size 8] [--prompt 42] [--tokens 18] [--steps 5] [--profile]
                                           [--micro 2048] [--set PATH=VALUE ...]

Token ids are random, rewards alternate, so every row has a gradient. The first step is left out. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from tests.workers.trainer_rig import road
from workers.axes.backend.single import SingleProcessTrainer
from workers.contract import loading
from workers.records import Batch, Group, Prompt, Rollout, Sample


def batch(step: int, groups: int, size: int, prompt: int, tokens: int, vocabulary: int) -> Batch:
    """Completions of `tokens` tokens give or take a third, prompts of exactly `prompt`."""
    source = random.Random(step)

    def draw(count: int) -> list[int]:
        return [source.randrange(3, vocabulary) for _ in range(count)]

    made = []
    for g in range(groups):
        group = Group(f"{step}.{g}", Prompt(f"p{g}", g, "", draw(prompt)), 0)
        for k in range(size):
            count = max(1, tokens + source.randint(-(tokens // 3), tokens // 3))
            rollout = Rollout(f"{group.id}/{k}", group.id, k, draw(count), [-11.0] * count, [0] * count, "stop")
            group.samples.append(Sample(rollout, reward=float(k % 2)))
        made.append(group)
    return Batch(step, 0, made)


def timed(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    for name, value in {"threads": 2, "groups": 8, "size": 8, "prompt": 42, "tokens": 18, "steps": 5, "micro": 2048}.items():
        options.add_argument(f"--{name}", type=int, default=value)
    options.add_argument("--set", dest="sets", action="append", default=[])
    options.add_argument("--profile", action="store_true")
    given = options.parse_args()
    config = loading.resolve(preset="demo", sets=[f"batch.micro_tokens={given.micro}", f"backend.threads={given.threads}", *given.sets])
    with tempfile.TemporaryDirectory() as folder:
        trainer = SingleProcessTrainer(config, Path(folder), road(Path(folder)))
        vocabulary = min(49000, trainer._model.config.vocab_size)
        work = [batch(step, given.groups, given.size, given.prompt, given.tokens, vocabulary) for step in range(1, given.steps + 2)]
        resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        trainer.train(work[0])
        seconds = [timed(lambda one=one: trainer.train(one)) for one in work[1:]]
        if given.profile:
            with profile(activities=[ProfilerActivity.CPU]) as seen:
                trainer.train(work[-1])
            print(seen.key_averages().table(sort_by="self_cpu_time_total", row_limit=30, max_name_column_width=50), file=sys.stderr)
    tokens = sum(len(sample.rollout.token_ids) for one in work[1:] for group in one.groups for sample in group.samples) / given.steps
    median = statistics.median(seconds)
    print(
        json.dumps(
            {
                **vars(given),
                "seconds": [round(value, 3) for value in seconds],
                "samples_per_s": round(given.groups * given.size / median, 1),
                "completion_tokens_per_s": round(tokens / median),
                "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
                "loaded_mb": resident // 1024,
                "torch": torch.__version__,
            }
        )
    )


if __name__ == "__main__":
    main()
