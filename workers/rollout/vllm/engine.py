"""Starting vLLM: its arguments from a run's config, its processes with the environment they need, and what it says of its steps."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import torch
from vllm import AsyncEngineArgs
from vllm.config import WeightTransferConfig
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.metrics.loggers import StatLoggerBase

from workers.axes.backend.threads import share
from workers.contract.config import RunConfig
from workers.rollout.vllm import inside
from workers.rollout.vllm.guard import PARENT
from workers.rollout.vllm.support import TIED

CACHE_SHARE = 0.15  # of the machine's free memory, for keys and values where there is no GPU
CACHE_AT_LEAST = 256 * 1024 * 1024


class Meter(StatLoggerBase):  # type: ignore[misc]
    """Told by vLLM once a step. Totals since start; `busy` says whether a step is expected to follow."""

    def __init__(self) -> None:
        self.steps = self.tokens = 0
        self.seconds = self.longest = 0.0
        self.last = time.perf_counter()
        self.running = 0
        self.kv_used = 0.0  # share of the cache that running samples hold

    def record(self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0) -> None:
        now = time.perf_counter()
        if iteration_stats is not None and iteration_stats.num_generation_tokens:
            if self.running:  # otherwise this step began with a request's arrival, which vLLM does not tell
                self.seconds += now - self.last
                self.longest = max(self.longest, now - self.last)
            self.steps += 1
            self.tokens += iteration_stats.num_generation_tokens
        self.last = now
        if scheduler_stats is not None:
            self.running, self.kv_used = scheduler_stats.num_running_reqs, scheduler_stats.kv_cache_usage

    def rest(self) -> None:
        """Called when the engine stands still: the next step is not measured from the last one's end."""
        self.running = 0

    def log_engine_initialized(self) -> None:
        """Nothing to say."""


def start(config: RunConfig, folder: Path, meter: Meter) -> AsyncLLM:
    """Returns once the model is loaded. Raises whatever vLLM raises."""
    gpu, routes = torch.cuda.is_available(), config.replay.routing == "r3"
    arguments = AsyncEngineArgs(
        model=str(folder),
        dtype=config.model.dtype,
        max_num_seqs=config.rollout.max_running,
        enforce_eager=not gpu,
        seed=config.seed % 2**31,
        skip_tokenizer_init=True,
        generation_config="vllm",  # none of the model's own sampling defaults: a request says everything
        logprobs_mode="processed_logprobs",  # of the distribution drawn from, after temperature and truncation
        max_logprobs=config.sampling.top_k + TIED,
        distributed_executor_backend="mp",
        worker_extension_cls=f"{inside.Extension.__module__}.{inside.Extension.__qualname__}",
        weight_transfer_config=WeightTransferConfig(backend=inside.BACKEND),
        enable_return_routed_experts=routes and gpu,
        enable_prefix_caching=False if routes else None,  # nobody chooses experts for a token that is not computed
        # On CPU vLLM cannot take back a draw of a request with a seed, as it must after each part of a prompt but the last.
        enable_chunked_prefill=gpu,
        kv_cache_memory_bytes=None if gpu else _cache_bytes(),
    )
    with _environment(config, gpu):
        settled = arguments.create_engine_config()
        return AsyncLLM(
            vllm_config=settled,
            executor_class=inside.GuardedExecutor,
            log_stats=True,
            log_requests=False,
            stat_loggers=[lambda _config, _index: meter],
        )


def _cache_bytes() -> int:
    return max(CACHE_AT_LEAST, int(psutil.virtual_memory().available * CACHE_SHARE))


@contextlib.contextmanager
def _environment(config: RunConfig, gpu: bool) -> Iterator[None]:
    """What vLLM's processes inherit; this process has its own environment back afterwards."""
    given = {
        PARENT: str(os.getpid()),
        "VLLM_WORKER_MULTIPROCESSING_METHOD": "spawn",  # this process has threads
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "ERROR"),
    }
    if not gpu:
        # Unbound: pinned to cores, threads of engine and trainer could not get out of each other's way.
        given |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(share(config, config.rollout.threads))}
        given["TORCHDYNAMO_DISABLE"] = "1"  # otherwise the first sample waits for a compiler that gains nothing
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
