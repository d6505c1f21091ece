"""Headrace's own inference engine: an asynchronous front on a decode thread."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from workers import models, registry
from workers.axes.backend.threads import share
from workers.axes.transport.base import Transport
from workers.contract.config import RunConfig
from workers.contract.errors import EngineError
from workers.records import EngineStatus, Manifest, Rollout, SampleRequest, UpdateReport
from workers.rollout.torch.adapter import Adapter, build_adapter
from workers.rollout.torch.loop import DecodeLoop, Staged
from workers.rollout.torch.model import Model
from workers.rollout.torch.native import kernels_for
from workers.rollout.torch.recording import begin, check_recording
from workers.rollout.torch.scheduler import Scheduler, Sequence, check_request
from workers.rollout.torch.shape import read_shape
from workers.rollout.torch.weights import load_weights


class TorchGenerator:
    """See `workers.rollout.base.Generator`. Loading happens in the constructor; the decode thread runs from then on."""

    def __init__(self, config: RunConfig, name: str, transport: Transport) -> None:
        strict = config.determinism == "strict"
        torch.set_num_threads(share(config, config.rollout.threads))
        self._dtype = torch.float32 if strict else {"bfloat16": torch.bfloat16, "float32": torch.float32}[config.model.dtype]
        self._scaling = config.lora.alpha / config.lora.rank
        self._transport = transport
        folder = Path(models.locate(config.model.path))
        self._shape = read_shape(folder)
        check_recording(config.replay, self._shape)
        self._replay = config.replay
        model = Model(
            self._shape,
            load_weights(folder, self._shape, self._dtype),
            self._dtype,
            kernels_for(self._shape, self._dtype),
            keep_routing=config.replay.routing == "r3",
        )
        self._scheduler = Scheduler(config.rollout.max_running)
        interrupt = registry.resolve("interrupt", config.interrupt.kind)(config.interrupt.kv_after)
        self._loop = DecodeLoop(model, self._scheduler, interrupt, name, isolated=strict)
        self._updating = asyncio.Lock()
        self._loop.start()

    @property
    def counters(self) -> dict[str, float]:
        """Totals since start: generated_tokens, decode_steps, decode_s, prefill_tokens, prefill_s."""
        totals = self._loop.counters
        return {name: getattr(totals, name) for name in totals.__slots__}

    async def generate(self, request: SampleRequest) -> Rollout:
        check_request(request, self._shape.vocab, self._shape.max_positions)
        answered: asyncio.Future[Rollout] = asyncio.get_running_loop().create_future()
        sequence = Sequence(request, _resolver(answered))
        begin(sequence, self._replay)
        self._loop.submit(sequence)
        try:
            return await answered
        except asyncio.CancelledError:
            self._loop.cancel(sequence)
            raise

    async def update(self, manifest: Manifest) -> UpdateReport:
        async with self._updating:
            serving = self._loop.adapter.version
            if manifest.version < serving:
                raise EngineError(
                    "an older version than the one that serves", field="version", value=manifest.version, cure=f"publish above {serving}"
                )
            started = time.perf_counter()
            adapter = await asyncio.to_thread(self._receive, manifest)
            staged_at = time.perf_counter()
            flipped: asyncio.Future[tuple[float, float]] = asyncio.get_running_loop().create_future()
            answer = _resolver(flipped)
            self._loop.stage(Staged(adapter, staged_at, lambda apply_s, pause_s: answer((apply_s, pause_s)), answer))
            apply_s, pause_s = await flipped
            return UpdateReport(manifest.version, manifest.digest, staged_at - started, apply_s, pause_s)

    async def status(self) -> EngineStatus:
        self._loop.check()
        totals = self._loop.counters
        return EngineStatus(
            version=self._loop.adapter.version,
            running=len(self._scheduler.running),
            waiting=self._scheduler.waiting,
            slots=self._scheduler.max_running,
            generated_tokens=totals.generated_tokens,
            decode_s=totals.decode_s,
            rss=_resident_bytes(),
        )

    async def stop(self) -> None:
        await asyncio.to_thread(self._loop.stop)

    def _receive(self, manifest: Manifest) -> Adapter:
        """Beside the decode thread: the payload, checked by the transport, becomes an adapter that only waits for its turn."""
        tensors = self._transport.receive(manifest)
        with torch.inference_mode():
            return build_adapter(tensors, self._shape, self._scaling, manifest.version, self._dtype)


def _resolver(future: asyncio.Future[Any]) -> Callable[[Any], None]:
    """Settles a future of the calling event loop from another thread: exceptions are raised, all else is the result."""
    loop = future.get_loop()

    def settle(answer: Any) -> None:
        if future.done():
            return
        if isinstance(answer, BaseException):
            future.set_exception(answer)
        else:
            future.set_result(answer)

    def from_any_thread(answer: Any) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, answer)

    return from_any_thread


def _resident_bytes() -> int:
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
