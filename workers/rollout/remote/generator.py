"""A running vLLM or SGLang server behind Headrace's door of engines: samples by HTTP, weights by path.

No sample of this engine is on the server while its weights change: so every token's version is exact although servers do not tell it. A
sample that was retracted or aborted is sent again with its tokens as part of the prompt.

The server is not ours: it is neither started nor ended, and it may serve nobody else, because a weight change ends all that runs there.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

from workers import models
from workers.axes.orchestration.wire import copy_of
from workers.axes.transport.base import Transport
from workers.background import in_background
from workers.contract.config import Remote, RunConfig
from workers.contract.errors import EngineError
from workers.records import EngineStatus, Manifest, Rollout, UpdateReport
from workers.rollout.fronted import Fronted
from workers.rollout.remote import secret
from workers.rollout.remote.calls import Calls, Failure
from workers.rollout.remote.change import Change
from workers.rollout.remote.ready import make_ready, mark_of
from workers.rollout.remote.servers import FLAVOURS, Server
from workers.rollout.remote.staging import Staging
from workers.rollout.torch.scheduler import Sequence

AGAIN_S = 0.5  # a request that was on its way when the server was paused is ended by the next pause
PATIENCE_S = 5.0  # after which requests that still hang are given up, with the tokens they had before


class RemoteGenerator(Fronted[Change]):
    """See `workers.rollout.base.Generator`. The constructor asks the server what it is."""

    def __init__(self, config: RunConfig, name: str, transport: Transport) -> None:
        assert config.rollout.remote is not None
        self._remote: Remote = config.rollout.remote
        super().__init__(config, name, transport)
        folder = Path(models.locate(config.model.path))
        shape = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self._vocabulary, self._positions = int(shape["vocab_size"]), int(shape["max_position_embeddings"])
        index = int(name.rpartition("/")[2])
        self._calls = self._client(index)
        mark = mark_of(config)
        with ThreadPoolExecutor(1) as thread:  # a loop of its own: the constructor may be called from a running one
            flavour, model = thread.submit(asyncio.run, make_ready(self._client(index), config, mark, folder)).result()
        self._server: Server = FLAVOURS[flavour](self._calls, model, mark)
        self._staging = Staging(folder, config.lora, name)
        self._broken: EngineError | None = None
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
            failed_calls=self._calls.failures.total(),
        )

    async def stop(self) -> None:
        """Requests on the server are given up; samples go out with the tokens they had before, those that had none are refused."""
        self._stopped = self._closed = True
        await self._give_up()
        self._answer_waiting()
        self._staging.clear()
        await self._calls.close()

    # -- samples ----------------------------------------------------------------------------------

    def _bounds(self) -> tuple[int, int]:
        return self._vocabulary, self._positions

    def _admitted(self) -> None:
        if self._busy_since is None:
            self._busy_since = time.perf_counter()

    async def _run(self, sequence: Sequence) -> None:
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

    def _new_change(self) -> Change:
        return Change(self._scheduler)

    async def _put_in(self, manifest: Manifest, change: Change) -> UpdateReport:
        """transfer_s: reading the file for its digest and laying it out; apply_s: the server's load, until it goes on; pause_s: see
        `Change.pause`. The digest is checked here, over the very file that the server then reads.

        A load that the server fails leaves it with weights that nobody knows: then this engine is lost, and says so ever after.
        """
        await self._room_made(change)
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
        super()._check()
        if self._broken is not None:
            raise copy_of(self._broken)
