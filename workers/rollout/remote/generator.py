"""A running vLLM or SGLang server behind Headrace's door of engines: samples by HTTP, weights by path.

What waits for a slot waits here, and no sample of this engine is on the server while its weights change: so every token's version is
exact although servers do not tell it. A sample that was retracted or aborted is sent again with its tokens as part of the prompt.

The server is not ours: it is neither started nor ended, and it may serve nobody else, because a weight change ends all that runs there.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

from workers import models, registry
from workers.axes.orchestration.wire import copy_of
from workers.axes.transport.base import Transport
from workers.background import in_background
from workers.contract.config import Remote, RunConfig
from workers.contract.errors import EngineError
from workers.records import EngineStatus, Manifest, Rollout, SampleRequest, UpdateReport
from workers.rollout.remote import secret
from workers.rollout.remote.calls import Calls, Failure
from workers.rollout.remote.change import Change
from workers.rollout.remote.ready import make_ready
from workers.rollout.remote.servers import FLAVOURS, Server
from workers.rollout.remote.staging import Staging
from workers.rollout.torch.scheduler import Scheduler, Sequence, check_request

AGAIN_S = 0.5  # a request that was on its way when the server was paused is ended by the next pause
PATIENCE_S = 5.0  # after which requests that still hang are given up, with the tokens they had before


class RemoteGenerator:
    """See `workers.rollout.base.Generator`. Used from one event loop. The constructor asks the server what it is."""

    def __init__(self, config: RunConfig, name: str, transport: Transport) -> None:
        assert config.rollout.remote is not None
        self._remote: Remote = config.rollout.remote
        self._name = name
        self._transport = transport
        folder = Path(models.locate(config.model.path))
        shape = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self._vocabulary, self._positions = int(shape["vocab_size"]), int(shape["max_position_embeddings"])
        index = int(name.rpartition("/")[2])
        self._calls = self._client(index)
        mark = f"headrace-{secrets.token_hex(4)}"
        with ThreadPoolExecutor(1) as thread:  # a loop of its own: the constructor may be called from a running one
            flavour, model = thread.submit(asyncio.run, make_ready(self._client(index), config, mark)).result()
        self._server: Server = FLAVOURS[flavour](self._calls, model, mark)
        self._staging = Staging(folder, config.lora, name)
        self._interrupt = registry.resolve("interrupt", config.interrupt.kind)(config.interrupt.kv_after)
        self._scheduler = Scheduler(config.rollout.max_running)
        self._tasks: dict[int, asyncio.Task[None]] = {}  # by arrival, of the samples on the server
        self._version = 0
        self._change: Change | None = None
        self._closed = False  # nothing is sent until the new weights serve
        self._stopped = False
        self._broken: EngineError | None = None
        self._left = asyncio.Event()  # a sample left slot or queue
        self._updating = asyncio.Lock()
        self._looked_at = 0.0
        self._tokens = 0
        self._busy_s = 0.0
        self._busy_since: float | None = None

    def _client(self, index: int) -> Calls:
        remote = self._remote
        return Calls(remote.urls[index], secret.read(remote.token), remote.timeout_s, remote.retries)

    @property
    def failures(self) -> dict[str, int]:
        """Failed calls since the start by cause, those that were made good by another try included."""
        return dict(self._calls.failures)

    async def generate(self, request: SampleRequest) -> Rollout:
        self._check()
        check_request(request, self._vocabulary, self._positions)
        answered: asyncio.Future[Rollout] = asyncio.get_running_loop().create_future()
        sequence = Sequence(request, lambda answer: _settle(answered, answer))
        if sequence.ended is not None:  # the prefix is complete
            return sequence.rollout(self._name)
        self._scheduler.submit(sequence)
        if self._change is not None:
            self._change.arrived()
        self._admit()
        try:
            return await answered
        except asyncio.CancelledError:
            sequence.cancelled = True
            self._scheduler.forget_cancelled()
            if sequence.arrival in self._tasks:
                self._tasks[sequence.arrival].cancel()  # the server ends what nobody listens to
            self._left.set()
            raise

    async def update(self, manifest: Manifest) -> UpdateReport:
        """transfer_s: reading the file for its digest and laying it out; apply_s: the server's load, until it goes on; pause_s: see
        `Change.pause`. One update at a time. The digest is checked here, over the very file that the server then reads.

        A load that the server fails leaves it with weights that nobody knows: then this engine is lost, and says so ever after.
        """
        async with self._updating:
            self._check()
            if manifest.version < self._version:
                raise EngineError(
                    "an older version than the one that serves",
                    field="version",
                    value=manifest.version,
                    cure=f"publish above {self._version}",
                )
            change = self._change = Change(self._scheduler)
            try:
                return await self._put_in(manifest, change)
            finally:
                await asyncio.shield(self._release())

    async def status(self) -> EngineStatus:
        """Looks at the server every `rollout.remote.health_s`. decode_s: seconds in which the server had a sample of ours; its steps and
        its cache are unknown. rss: of this client."""
        self._check()
        now = time.perf_counter()
        if now - self._looked_at >= self._remote.health_s and self._change is None:
            self._looked_at = now
            version = self._version
            try:
                await self._server.check(version)
            except Failure as failure:
                if version == self._version and self._change is None:  # otherwise it was asked across a weight change
                    self._broken = self._calls.refused(failure)
                    raise self._broken from None
        busy = 0.0 if self._busy_since is None else now - self._busy_since
        return EngineStatus(
            version=self._version,
            running=len(self._scheduler.running),
            waiting=self._scheduler.waiting,
            slots=self._scheduler.max_running,
            generated_tokens=self._tokens,
            decode_s=self._busy_s + busy,
            rss=int(psutil.Process(os.getpid()).memory_info().rss),
        )

    async def stop(self) -> None:
        """Requests on the server are given up; samples go out with the tokens they had before, those that had none are refused."""
        self._stopped = self._closed = True
        await self._give_up()
        for sequence in self._scheduler.empty():
            sequence.answer(sequence.rollout(self._name) if sequence.tokens else self._over())
        self._left.set()
        self._staging.clear()
        await self._calls.close()

    # -- samples ----------------------------------------------------------------------------------

    def _admit(self) -> None:
        if self._closed or (self._change is not None and self._change.held):
            return
        for sequence in self._scheduler.admit():
            self._tasks[sequence.arrival] = asyncio.create_task(self._run(sequence))
        if self._tasks and self._busy_since is None:
            self._busy_since = time.perf_counter()

    async def _run(self, sequence: Sequence) -> None:
        """One sample from slot to answer."""
        answer: Rollout | BaseException | None = None
        try:
            await self._complete(sequence)
        except asyncio.CancelledError:  # by its caller, at the end, or because it hung while the weights changed
            answer = None
        except EngineError as error:
            answer = error
        except Failure as failure:
            answer = self._calls.refused(failure)
            if failure.cause == "weights":
                self._broken = answer
        del self._tasks[sequence.arrival]
        if not self._tasks and self._busy_since is not None:
            self._busy_s += time.perf_counter() - self._busy_since
            self._busy_since = None
        standing = self._change is not None and self._change.stopped is not None
        if standing and sequence.ended is None and not sequence.cancelled:
            return  # it keeps its slot until the change says what becomes of it; an error was the pause's
        if sequence in self._scheduler.running:
            self._scheduler.leave(sequence)
        if answer is None and sequence.ended is None and not sequence.cancelled and not self._stopped:
            answer = self._calls.refused(Failure("early", "the server ended a sample that nobody had interrupted", True))
        sequence.answer(answer or (sequence.rollout(self._name) if sequence.tokens or not self._stopped else self._over()))
        self._left.set()
        self._admit()

    async def _complete(self, sequence: Sequence) -> None:
        version, prefix = self._version, list(sequence.tokens)
        done = await self._server.sample(sequence.request, prefix, version, self._vocabulary)
        greedy = sequence.request.temperature == 0
        for token, logprob in zip(done.token_ids, done.logprobs, strict=True):
            if sequence.ended is not None:
                raise Failure("bad_count", "tokens after the end of a sample", False)
            sequence.append(token, 0.0 if greedy else logprob, version, [])
        self._tokens += len(done.token_ids)
        if done.reason != "abort" and sequence.ended is None:
            raise Failure("bad_reason", f"{done.reason} after {len(done.token_ids)} tokens, where nothing asked for it", False)

    # -- weights ----------------------------------------------------------------------------------

    async def _put_in(self, manifest: Manifest, change: Change) -> UpdateReport:
        change.busy = change.running > 0
        while not self._interrupt.announced(change):
            self._left.clear()
            await self._left.wait()
            self._check()
        self._closed, change.stopped = True, time.perf_counter()
        with self._calls.believing():
            await self._stand_still()
        if change.retracting:
            self._scheduler.retract()
        elif change.aborting:
            for sequence in self._scheduler.empty():
                sequence.answer(sequence.rollout(self._name))
        started = time.perf_counter()
        folder = await in_background(self._fetch, manifest)
        staged = time.perf_counter()
        try:
            with self._calls.believing():
                await self._server.load(folder, manifest.version, manifest.payload == "adapter")
                await self._server.check(manifest.version)
        except BaseException as error:
            self._broken = error if isinstance(error, EngineError) else self._over()
            raise
        self._version = manifest.version
        self._interrupt.flipped(change)
        await asyncio.shield(self._release())
        ended = time.perf_counter()
        return UpdateReport(manifest.version, manifest.digest, staged - started, ended - staged, change.pause(ended))

    async def _stand_still(self) -> None:
        """Until the server has let go of every sample: a request that reaches it after a pause would wait there."""
        deadline = time.perf_counter() + PATIENCE_S
        while True:
            await self._server.pause()
            if self._tasks:
                await asyncio.wait(self._tasks.values(), timeout=AGAIN_S)
            if not self._tasks:
                return
            if time.perf_counter() > deadline:
                return await self._give_up()

    async def _give_up(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _release(self) -> None:
        """The update is over, or its weights did not come: whatever it held up goes on."""
        change = self._change
        if change is not None and change.stopped is not None and self._tasks:
            await self._give_up()  # the pause itself failed: nothing may run on beside what is sent again
        self._change = None
        if change is None or self._stopped:
            return
        if change.stopped is not None:
            self._scheduler.retract()  # of whoever still has a slot, which is nobody once the pause succeeded
            with contextlib.suppress(EngineError):  # counted; a server that stays paused answers nothing, and that is told then
                await self._server.resume()
            self._closed = False
        if self._broken is not None:
            for sequence in self._scheduler.empty():
                sequence.answer(copy_of(self._broken))
            return
        self._admit()

    def _fetch(self, manifest: Manifest) -> Path:
        return self._staging.stage(manifest, self._transport.receive(manifest))

    def _check(self) -> None:
        if self._stopped:
            raise EngineError("the engine has stopped", field="rollout", value=self._name, cure="start a new one")
        if self._broken is not None:
            raise copy_of(self._broken)

    def _over(self) -> EngineError:
        return EngineError("the engine was stopped", field="rollout", value=self._name, cure="dispatch the request again", retryable=True)


def _settle(future: asyncio.Future[Rollout], answer: Rollout | BaseException) -> None:
    if future.done():
        return
    if isinstance(answer, BaseException):
        future.set_exception(answer)
    else:
        future.set_result(answer)
