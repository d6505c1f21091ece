"""Headrace's own inference engine: an asynchronous front on a decode thread."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import torch

from workers import models, registry
from workers.axes.backend.threads import share
from workers.axes.transport.base import Receiver
from workers.background import in_background
from workers.contract.config import RunConfig
from workers.records import EngineStatus, Manifest, Rollout, SampleRequest, UpdateReport
from workers.rollout.answers import refuse_older, settle
from workers.rollout.torch.decoder import Decoder
from workers.rollout.torch.install import Installer
from workers.rollout.torch.loop import DecodeLoop
from workers.rollout.torch.model import Model
from workers.rollout.torch.native import kernels_for
from workers.rollout.torch.recording import begin, check_recording
from workers.rollout.torch.scheduler import Scheduler, Sequence, check_request
from workers.rollout.torch.shape import read_shape
from workers.rollout.torch.update import Served, Update
from workers.rollout.torch.weights import load_weights

T = TypeVar("T")


class TorchGenerator:
    """See `workers.rollout.base.Generator`. Loading happens in the constructor; the decode thread runs from then on."""

    def __init__(self, config: RunConfig, name: str, transport: Receiver) -> None:
        strict = config.determinism == "strict"
        torch.set_num_threads(share(config, config.rollout.threads))
        dtype = torch.float32 if strict else {"bfloat16": torch.bfloat16, "float32": torch.float32}[config.model.dtype]
        self._name = name
        self._transport = transport
        self._payload = registry.resolve("payload", config.transport.payload)(config.transport.payload)
        folder = Path(models.locate(config.model.path))
        self._shape = read_shape(folder)
        check_recording(config.replay, self._shape)
        self._replay = config.replay
        model = Model(
            self._shape,
            load_weights(folder, self._shape, dtype),
            dtype,
            kernels_for(self._shape, dtype),
            keep_routing=config.replay.routing == "r3",
        )
        self._scheduler = Scheduler(config.rollout.max_running)
        interrupt = registry.resolve("interrupt", config.interrupt.kind)(config.interrupt.kv_after)
        self._installer = Installer(config.lora, self._shape, dtype)
        self._decoder = Decoder(model, name, isolated=strict, parks="save_resume" in config.partial)
        self._loop = DecodeLoop(self._decoder, self._scheduler, interrupt, name)
        self._updating = asyncio.Lock()
        self._fetching = threading.Lock()  # an abandoned fetch ends before the next one begins
        self._loop.start()

    @property
    def counters(self) -> dict[str, float]:
        """Totals since start, by the names of `decoder.Counters`."""
        totals = self._decoder.counters
        return {name: getattr(totals, name) for name in totals.__slots__}

    async def generate(self, request: SampleRequest) -> Rollout:
        check_request(request, self._shape.vocab, self._shape.max_positions)
        answered: asyncio.Future[Rollout] = asyncio.get_running_loop().create_future()
        sequence = Sequence(request, _resolver(answered))
        begin(sequence, self._replay)
        if sequence.ended is not None:  # the prefix is complete
            return sequence.rollout(self._name)
        self._loop.submit(sequence)
        try:
            return await answered
        except asyncio.CancelledError:
            self._loop.cancel(sequence)
            raise

    async def update(self, manifest: Manifest) -> UpdateReport:
        """transfer_s: fetching, putting together and building, from when the interrupt had made room; apply_s: from there until the
        new version served; pause_s: see `Update.pause`. One update at a time; others wait here."""
        async with self._updating:
            refuse_older(manifest, self._decoder.adapter.version)
            events = asyncio.get_running_loop()
            cleared: asyncio.Future[None] = events.create_future()
            over: asyncio.Future[tuple[float, float]] = events.create_future()
            update = Update(_resolver(cleared), _resolver(over))
            self._loop.announce(update)
            try:
                await _before(cleared, over)
                started = time.perf_counter()
                served = await _before(asyncio.ensure_future(in_background(self._fetch, manifest)), over)
                self._loop.stage(update, served)
                apply_s, pause_s = await over
                if update.replaced is not None:
                    self._installer.take_back(update.replaced)
            finally:
                self._loop.withdraw(update)
            return UpdateReport(manifest.version, manifest.digest, update.staged_at - started, apply_s, pause_s)

    async def status(self) -> EngineStatus:
        self._loop.check()
        totals = self._decoder.counters
        return EngineStatus(
            version=self._decoder.adapter.version,
            running=len(self._scheduler.running),
            waiting=self._scheduler.waiting,
            slots=self._scheduler.max_running,
            generated_tokens=totals.generated_tokens,
            decode_s=totals.decode_s,
            rss=_resident_bytes(),
            decode_steps=totals.decode_steps,
            longest_decode_s=totals.longest_decode_s,
            kv_tokens=sum(sequence.length for sequence in list(self._scheduler.running)),
            kv_capacity=self._decoder.kv_capacity,
        )

    async def stop(self) -> None:
        await asyncio.to_thread(self._loop.stop)

    def _fetch(self, manifest: Manifest) -> Served:
        """Beside the decode thread: the payload, checked by the transport, becomes weights that only wait for their turn."""
        torch.get_num_threads()  # to ask makes the kernels take torch's number of threads in this thread, where it was one a core
        with self._fetching, self._received(manifest) as received:
            whole = self._payload.unpack(received, manifest)
            return self._installer.build(whole, manifest.version, self._decoder.weights)

    def _received(self, manifest: Manifest) -> AbstractContextManager[Mapping[str, torch.Tensor]]:
        """Borrowed, but for payloads that remember what they received: that must be certain before they do."""
        return nullcontext(self._transport.receive(manifest)) if self._payload.remembers else self._transport.borrow(manifest)


async def _before(wanted: asyncio.Future[T], over: asyncio.Future[Any]) -> T:
    """What is waited for, unless the update ends first: that raises the engine's error, and nothing waits any longer."""
    try:
        await asyncio.wait({wanted, over}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        wanted.cancel()  # without effect where it is done
    return await (over if over.done() else wanted)  # over, at this point, holds an error


def _resolver(future: asyncio.Future[Any]) -> Callable[[Any], None]:
    """Settles a future of the calling event loop from another thread."""
    loop = future.get_loop()

    def from_any_thread(answer: Any) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, future, answer)

    return from_any_thread


def _resident_bytes() -> int:
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
