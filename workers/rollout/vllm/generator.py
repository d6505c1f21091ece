"""vLLM behind Headrace's door of engines: a queue of our own before vLLM's, and weights put in at vLLM's pause.

Each sample is one request of vLLM.

Where vLLM differs from the torch engine: a sample's random numbers come from a generator of its own, seeded by the request's key and
the length of its prefix, and not from a hash of each position; min-p is applied before top-k and top-p, and not after them; adapters
are merged (see `weights`); new weights are loaded while nothing is decoded, whatever the interrupt.
"""

from __future__ import annotations

import asyncio
import base64
import os
import time
from pathlib import Path
from typing import Any

import psutil
import torch
from vllm import SamplingParams
from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest
from vllm.sampling_params import RequestOutputKind

from workers import models, registry
from workers.axes.transport.base import Transport
from workers.background import in_background
from workers.contract.config import RunConfig
from workers.contract.errors import EngineError
from workers.records import EngineStatus, Manifest, Rollout, SampleRequest, UpdateReport
from workers.rollout.fronted import Fronted
from workers.rollout.torch.scheduler import Sequence
from workers.rollout.vllm.change import Change
from workers.rollout.vllm.engine import Meter, start
from workers.rollout.vllm.support import asked, kept
from workers.rollout.vllm.weights import Staging

_SEEDS = 2**63


class VllmGenerator(Fronted[Change]):
    """See `workers.rollout.base.Generator`. vLLM runs in processes of its own."""

    def __init__(self, config: RunConfig, name: str, transport: Transport) -> None:
        super().__init__(config, name, transport)
        self._payload = registry.resolve("payload", config.transport.payload)(config.transport.payload)
        folder = Path(models.locate(config.model.path))
        self._staging = Staging(folder, config.lora, getattr(torch, config.model.dtype))
        self._meter = Meter()
        self._vllm = start(config, folder, self._meter)
        self._labelled = False  # whether vLLM has been told which version it serves
        self._prepared: asyncio.Task[None] | None = None
        self._tells_routing = bool(self._vllm.vllm_config.aux_output_config.enable_return_routed_experts)

    async def status(self) -> EngineStatus:
        self._check()
        meter, cache = self._meter, self._vllm.vllm_config.cache_config
        room = (cache.num_gpu_blocks or 0) * cache.block_size
        return EngineStatus(
            version=self._version,
            running=len(self._scheduler.running),
            waiting=self._scheduler.waiting,
            slots=self._scheduler.max_running,
            generated_tokens=meter.tokens,
            decode_s=meter.seconds,
            rss=_resident_bytes(),
            decode_steps=meter.steps,
            longest_decode_s=meter.longest,
            kv_tokens=round(meter.kv_used * room) if room else None,
            kv_capacity=room or None,
        )

    async def stop(self) -> None:
        """Samples go out with the tokens they have; those that have none are refused."""
        self._stopped = self._closed = True
        if not self._vllm.errored:
            await self._vllm.engine_core.pause_scheduler_async(mode="abort", clear_cache=False)
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._answer_waiting()
        await asyncio.to_thread(self._vllm.shutdown)

    # -- samples ----------------------------------------------------------------------------------

    def _bounds(self) -> tuple[int, int]:
        settings = self._vllm.model_config
        return settings.get_vocab_size(), settings.max_model_len

    async def _ready(self) -> None:
        if self._prepared is None:
            self._prepared = asyncio.create_task(self._prepare())
        await asyncio.shield(self._prepared)

    async def _prepare(self) -> None:
        if self._replay.routing == "r3" and not self._tells_routing:
            await self._vllm.collective_rpc("note_routing")
        if not self._labelled:
            await self._vllm.update_weight_version(str(self._version))

    def _admitted(self) -> None:
        if self._change is not None:
            self._change.busy = True

    async def _run(self, sequence: Sequence) -> None:
        answer: Rollout | BaseException
        try:
            await self._complete(sequence)
            answer = sequence.rollout(self._name) if sequence.tokens or not self._stopped else self._over()
        except asyncio.CancelledError:
            answer = sequence.rollout(self._name)
        except EngineError as error:
            answer = error
        except Exception as error:
            answer = EngineError(
                f"vLLM failed a request: {type(error).__name__}: {error}", field="rollout", value=self._name, cure="see the engine's log"
            )
        del self._tasks[sequence.arrival]
        if sequence in self._scheduler.running:
            self._scheduler.leave(sequence)
        if not self._scheduler.running:
            self._meter.rest()
        sequence.answer(answer)
        self._left.set()
        self._admit()

    async def _complete(self, sequence: Sequence) -> None:
        request, prefix = sequence.request, len(sequence.tokens)
        # Prompts computed under old weights are found under the old version's salt only.
        prompt = {"prompt_token_ids": sequence.context, "cache_salt": str(self._version)}
        name = f"{request.id}#{sequence.arrival}"
        recorded = sequence.support is not None and request.temperature > 0
        vocabulary = self._vllm.model_config.get_vocab_size()
        settings = _sampling(request, prefix, asked(request.top_k, vocabulary) if recorded else 0)
        (output,) = [output async for output in self._vllm.generate(prompt, settings, name)]
        (done,) = output.outputs
        if sequence.routing is not None:
            sequence.routing.add(0, await self._routing(name, done, len(prompt["prompt_token_ids"]) + len(done.token_ids) - 1))
        if not done.token_ids:
            return  # aborted before its first token
        told = done.logprobs
        logprobs = [0.0] * len(done.token_ids) if request.temperature == 0 else [told.logprobs[start] for start in told.start_indices]
        left = kept(told, request, vocabulary) if recorded else [[token] for token in done.token_ids]
        versions = [int(span.version) for span in done.weight_versions for _ in range(span.start, span.end)]
        for token, logprob, version, ids in zip(done.token_ids, logprobs, versions, left, strict=True):
            sequence.append(token, logprob, version, ids)

    async def _routing(self, name: str, done: Any, positions: int) -> torch.Tensor:
        """The experts of so many tokens, from the prompt's first on, (positions, layers x k), uint8."""
        if self._tells_routing:
            found = torch.from_numpy(done.routed_experts).to(torch.uint8) if done.routed_experts is not None else torch.empty(0, 1)
        else:
            ((count, told),) = (await self._vllm.collective_rpc("take_routing", args=(name,)))[:1]
            found = torch.frombuffer(bytearray(base64.b64decode(told)), dtype=torch.uint8).view(count, -1) if count else torch.empty(0, 1)
        if len(found) < positions and done.token_ids:
            raise EngineError(
                f"vLLM told the experts of {len(found)} tokens of {positions}",
                field="replay.routing",
                value=name,
                cure="see the engine's log",
            )
        return found[:positions].flatten(1)

    # -- weights ----------------------------------------------------------------------------------

    def _new_change(self) -> Change:
        return Change(self._scheduler)

    async def _put_in(self, manifest: Manifest, change: Change) -> UpdateReport:
        """transfer_s: fetching, checking, merging and laying out in shared memory; apply_s: from there until the new version served,
        vLLM's load among it; pause_s: see `Change.pause`."""
        await self._room_made(change)
        stopped = self._interrupt.stops
        still_since = await self._pause(change) if stopped else 0.0
        started = time.perf_counter()
        path = await in_background(self._fetch, manifest)
        staged = time.perf_counter()
        try:
            if not stopped:
                change.busy = change.running > 0
                still_since = await self._pause(change)
            await self._vllm.start_weight_update()
            await self._vllm.update_weights(WeightTransferUpdateRequest(update_info={"path": str(path)}))
            self._labelled = True
            await self._vllm.finish_weight_update(str(manifest.version))
        finally:
            path.unlink(missing_ok=True)
        self._version = manifest.version
        self._interrupt.flipped(change)
        await self._vllm.reset_prefix_cache(reset_running_requests=change.recompute)
        await asyncio.shield(self._release())
        ended = time.perf_counter()
        pause = change.pause(stopped, still_since, ended)
        return UpdateReport(manifest.version, manifest.digest, staged - started, ended - staged, pause)

    async def _pause(self, change: Change) -> float:
        """vLLM stands still after the step under way. Returns when that step ended."""
        self._closed = True
        # Taken out before the first is answered: its caller may send it again at once.
        left = self._scheduler.empty() if change.aborting else []
        mode = "abort" if change.aborting else "keep"
        await self._vllm.engine_core.pause_scheduler_async(mode=mode, clear_cache=False)
        for sequence in left:
            if sequence.arrival in self._tasks:
                await asyncio.wait({self._tasks[sequence.arrival]})
            else:
                sequence.answer(sequence.rollout(self._name))
        self._meter.rest()
        return self._meter.last

    async def _release(self) -> None:
        if self._change is None:
            return
        self._change = None
        if self._stopped:
            return
        if self._closed:
            await self._vllm.engine_core.resume_scheduler_async()
            self._closed = False
        self._admit()

    def _fetch(self, manifest: Manifest) -> Path:
        """Beside vLLM's decoding: the payload, checked by the transport, becomes a file that only waits to be loaded."""
        whole = self._payload.unpack(self._transport.receive(manifest), manifest)
        return self._staging.write(whole, manifest.version)

    def _check(self) -> None:
        super()._check()
        if self._vllm.errored:
            raise EngineError("vLLM's processes have died", field="rollout", value=self._name, cure="see the engine's log")


def _sampling(request: SampleRequest, prefix: int, likeliest: int) -> SamplingParams:
    """Each request says everything of its draws; a sample gone on with gets another stream than the one that drew its prefix.

    likeliest: how many log-probs a token are told beside the drawn one's.
    """
    return SamplingParams(
        temperature=request.temperature,
        top_k=request.top_k,
        top_p=request.top_p,
        min_p=request.min_p,
        seed=(request.key + prefix * 0x9E3779B97F4A7C15) % _SEEDS,
        max_tokens=request.max_new_tokens - prefix,
        stop_token_ids=list(request.stop_ids),
        ignore_eos=True,  # the request's stop ids hold it, where it is one
        logprobs=likeliest,
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def _resident_bytes() -> int:
    """Of this process and those of vLLM."""
    own = psutil.Process(os.getpid())
    total = 0
    for process in (own, *own.children(recursive=True)):
        try:
            total += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total
