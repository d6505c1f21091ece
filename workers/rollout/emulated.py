"""An engine that takes declared time on a clock and does no arithmetic: the twin of `rollout.torch`, driven by the same interrupts.

It leaps from one finished sample to the next instead of stepping token by token, so that a large pool is simulated quickly.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from functools import lru_cache

from workers.axes.interrupt.base import Interrupt
from workers.axes.orchestration.wire import copy_of
from workers.clock import Clock
from workers.contract.errors import EngineError
from workers.records import EngineStatus, FinishReason, Manifest, Rollout, SampleRequest, UpdateReport
from workers.rollout.leaps import Bell, EngineCost, News, Sequence

_PROMPTS_KEPT = 256  # groups whose prompt is not prefilled a second time under the same weights


class EmulatedEngine:
    """See `workers.rollout.base.Generator` and `axes.interrupt.base.Interruptible`.

    lengths(request): tokens of the whole completion, end-of-sequence included; longer than `max_new_tokens` is cut there.
    transfer_s(manifest): seconds until a payload has arrived. parks: whether the cache of aborted samples is kept for their return.
    fail_next and wrong_digest are drills: so many requests fail; updates arrive damaged and the old version stays.
    """

    def __init__(
        self,
        clock: Clock,
        name: str,
        slots: int,
        interrupt: Interrupt,
        lengths: Callable[[SampleRequest], int],
        cost: EngineCost | None = None,
        transfer_s: Callable[[Manifest], float] = lambda _manifest: 0.0,
        parks: bool = False,
    ) -> None:
        self.version = 0
        self.slots = slots
        self.tokens = 0
        self.prefilled = 0  # tokens, prompts and prefixes alike
        self.fail_next = 0
        self.wrong_digest = False
        self._clock = clock
        self._name = name
        self._interrupt = interrupt
        self._lengths = lengths
        self._cost = cost or EngineCost()
        self._transfer_s = transfer_s
        self._parks = parks
        self._running: list[Sequence] = []
        self._waiting: deque[Sequence] = deque()
        self._parked: dict[str, None] = {}  # ids of aborted samples whose cache is kept, oldest first
        self._prompts: dict[str, None] = {}  # ids of groups whose prompt is cached
        self._news: News | None = None
        self._updating = asyncio.Lock()
        self._held = False
        self._deserted = False  # a caller has gone whose sample may still run
        self._ahead_s = 0.0  # prefill that comes before the next decode step
        self._owed_s = 0.0  # prefill that `recompute_cache` has asked for
        self._decode_s = 0.0
        self._decode_steps = 0
        self._longest_s = 0.0
        self._stopping = False
        self._bell = Bell()
        self._life: asyncio.Task[None] | None = None
        self._fetching: asyncio.Task[None] | None = None

    # -- the generator's door ---------------------------------------------------------------------

    async def generate(self, request: SampleRequest) -> Rollout:
        if self._stopping:
            raise self._stopped()
        if self.fail_next:
            self.fail_next -= 1
            raise EngineError("the emulated engine fell over", field="rollout", value=self._name, cure="dispatch the request again")
        wanted = max(1, self._lengths(request))
        finish: FinishReason = "length" if wanted > request.max_new_tokens else "stop"
        answer: asyncio.Future[Rollout] = asyncio.get_running_loop().create_future()
        sequence = Sequence(request, answer, max(min(wanted, request.max_new_tokens), len(request.prefix_ids) + 1), finish)
        sequence.prompt = len(request.prompt_ids)
        for version in request.prefix_versions:
            if version != sequence.version:
                sequence.turn(version)
            sequence.done += 1
        sequence.cached = request.parked_on == self._name and request.id in self._parked
        self._parked.pop(request.id, None)
        self._waiting.append(sequence)
        if len(self._running) < self.slots and not self._held:
            self._wake()
        try:
            return await answer
        except asyncio.CancelledError:
            self._deserted = True
            self._wake()  # the sample leaves its slot, or the queue, before the next decode step
            raise

    async def update(self, manifest: Manifest) -> UpdateReport:
        async with self._updating:
            if self._stopping:
                raise self._stopped()
            if manifest.version < self.version:
                cure = f"publish above {self.version}"
                raise EngineError("an older version than the one that serves", field="version", value=manifest.version, cure=cure)
            news = self._news = News(manifest, asyncio.get_running_loop().create_future())
            self._wake()
            return await news.flipped

    async def status(self) -> EngineStatus:
        return EngineStatus(
            self.version, self.running, self.waiting, self.slots, self.tokens, self._decode_s, 0, self._decode_steps, self._longest_s
        )

    async def stop(self) -> None:
        self._stopping = True
        self._wake()
        if self._life is not None:
            await self._life

    # -- the interrupt's door ---------------------------------------------------------------------

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def hold_admission(self) -> None:
        self._held = True

    def retract(self) -> None:
        self._waiting.extendleft(reversed(self._running))
        self._running = []

    def abort(self) -> None:
        kept = [sequence for sequence in self._waiting if sequence.request.purpose != "train"]
        ended = [sequence for sequence in (*self._running, *self._waiting) if sequence.request.purpose == "train"]
        for sequence in ended:
            if self._parks and sequence in self._running:
                self._parked[sequence.request.id] = None
            self._answer(sequence, "abort")
        self._running = [sequence for sequence in self._running if sequence.request.purpose != "train"]
        self._waiting = deque(kept)
        while len(self._parked) > self.slots:  # what was given up meanwhile would stay for ever
            del self._parked[next(iter(self._parked))]

    def recompute_cache(self) -> None:
        self._owed_s += self._prefill([self._held_by(sequence) for sequence in self._running])

    # -- its life: one task, that ends when there is nothing to do ----------------------------------

    def _wake(self) -> None:
        if self._life is None or self._life.done():
            self._life = asyncio.get_running_loop().create_task(self._live())
        else:
            self._bell.ring()

    async def _live(self) -> None:
        try:
            while not self._stopping and await self._turn():
                pass
        except Exception as error:  # whatever it was, every waiting caller must hear of it
            self._stopping = True
            self._end(EngineError(f"the emulated engine failed: {type(error).__name__}: {error}", field="rollout", value=self._name))
            raise
        if self._stopping:
            self._end(self._stopped())

    async def _turn(self) -> bool:
        """Begins between two forward passes. False: there is nothing to do."""
        if self._deserted:
            self._running = [sequence for sequence in self._running if not sequence.answer.done()]
            self._deserted = False
        news = self._news
        if news is not None and not news.accepted:
            self._announce(news)
        if news is not None and news.fetched:
            await self._flip(news)
        elif news is not None and news.accepted and self._interrupt.stops:
            await self._bell.wait()
        else:
            await self._admit()
            if self._running:
                await self._decode()
            elif news is not None:
                await self._bell.wait()
            else:
                return bool(self._waiting)  # some may have come while the last ones got their last token from a prefill
        return True

    def _announce(self, news: News) -> None:
        """The engine is asked after every leap: between leaps the number of running samples, on which the answer may hang, stays."""
        busy = bool(self._running or self._waiting)
        if self._interrupt.announced(self):
            news.accepted, news.busy, news.stood = True, busy, self._clock.now()
            self._fetching = asyncio.get_running_loop().create_task(self._fetch(news))

    async def _fetch(self, news: News) -> None:
        began = self._clock.now()
        await self._clock.sleep(self._transfer_s(news.manifest))
        news.transfer_s, news.fetched = self._clock.now() - began, True
        self._bell.ring()

    async def _flip(self, news: News) -> None:
        began = self._clock.now()
        paused_since = news.stood if self._interrupt.stops else began
        await self._clock.sleep(self._cost.apply_s)
        if not self.wrong_digest:
            self.version = news.manifest.version
            self._prompts.clear()
            self._interrupt.flipped(self)
            owed, self._owed_s = self._owed_s, 0.0
            await self._clock.sleep(owed)
        self._held = False
        if self._news is news:
            self._news = None
        now = self._clock.now()
        digest = "0" * 64 if self.wrong_digest else news.manifest.digest
        busy = news.busy if self._interrupt.stops else bool(self._running)
        if not news.flipped.done():
            pause = now - paused_since if busy else 0.0
            news.flipped.set_result(UpdateReport(news.manifest.version, digest, news.transfer_s, now - began, pause))

    async def _admit(self) -> None:
        """Free slots are filled in the order of the queue; who needs a prefill gets the first token from it."""
        fresh: list[Sequence] = []
        tokens: list[float] = []
        while self._waiting and len(self._running) < self.slots and not self._held:
            sequence = self._waiting.popleft()
            if sequence.answer.done():
                continue
            self._running.append(sequence)
            if sequence.admitted is None:
                sequence.admitted = self._clock.now()
            if sequence.cached:
                sequence.cached = False
                continue
            fresh.append(sequence)
            if sequence.done or sequence.request.group_id not in self._prompts:
                tokens.append(self._held_by(sequence))
            self._prompts[sequence.request.group_id] = None
        if fresh:
            while len(self._prompts) > _PROMPTS_KEPT:
                del self._prompts[next(iter(self._prompts))]
            if self._cost.grain == 1:
                await self._clock.sleep(self._prefill(tokens))
                self._advance(fresh, 1)
            else:  # a prefill gives one token, next to nothing of a coarse one; the leap that follows begins after it
                self._ahead_s += self._prefill(tokens)

    def _held_by(self, sequence: Sequence) -> float:
        """Positions of a sample's keys and values, in real tokens."""
        return sequence.prompt + sequence.done * self._cost.grain

    def _prefill(self, lengths: list[float]) -> float:
        self.prefilled += round(sum(lengths))
        return self._cost.prefill_s * sum(lengths)

    async def _decode(self) -> None:
        """Leaps to the first finished sample, or to the end of the forward pass in which something happened."""
        began, grain = self._clock.now(), self._cost.grain
        steps = grain * min([item.length - item.done for item in self._running])
        held = 0.0
        if self._cost.reads_cache:
            # What is held grows with every step: seconds that hang on it linearly are exactly those of the leap's middle.
            held = sum([item.prompt + item.done * grain for item in self._running]) + len(self._running) * steps / 2
        step_s = self._cost.step(len(self._running), held)
        ahead_s, self._ahead_s = self._ahead_s, 0.0
        if await self._bell.wait(ahead_s + steps * step_s) and step_s:
            passed_s = self._clock.now() - began
            if grain > 1:  # what is left of one real step among many is not waited for
                self._ahead_s = max(0.0, ahead_s - passed_s)
                steps = min(steps, max(0.0, passed_s - ahead_s) / step_s)
            else:
                steps = min(steps, math.ceil(passed_s / step_s - 1e-9))
                await self._clock.sleep(began + steps * step_s - self._clock.now())
        self._decode_s += steps * step_s
        self._decode_steps += round(steps)
        self._longest_s = max(self._longest_s, step_s)
        self._advance(self._running, steps if grain == 1 else steps / grain)

    def _advance(self, sequences: list[Sequence], tokens: float) -> None:
        if not tokens:
            return
        self.tokens += round(tokens * len(sequences) * self._cost.grain)
        ended, version = False, self.version
        for sequence in sequences:
            if sequence.version != version:
                sequence.turn(version)
            sequence.done += tokens
            if sequence.done > sequence.length - 1e-9:
                self._answer(sequence, sequence.finish)
                ended = True
        if ended:
            self._running = [sequence for sequence in self._running if not sequence.over]

    def _answer(self, sequence: Sequence, reason: FinishReason) -> None:
        if sequence.answer.done():  # its caller has gone
            return
        request, began = sequence.request, sequence.admitted
        sequence.answer.set_result(
            Rollout(
                id=request.id,
                group_id=request.group_id,
                index=request.index,
                token_ids=_tokens(round(sequence.done)),
                logprobs=_logprobs(round(sequence.done)),
                versions=sequence.versions(),
                finish_reason=reason,
                engine=self._name,
                seconds=0.0 if began is None else self._clock.now() - began,
            )
        )

    def _end(self, error: EngineError) -> None:
        """Samples with tokens go out as they are, the others are refused."""
        for sequence in (*self._running, *self._waiting):
            if round(sequence.done):
                self._answer(sequence, "abort")
            elif not sequence.answer.done():
                sequence.answer.set_exception(copy_of(error))
        self._running, self._waiting = [], deque()
        if self._fetching is not None:
            self._fetching.cancel()
        if self._news is not None and not self._news.flipped.done():
            self._news.flipped.set_exception(copy_of(error))

    def _stopped(self) -> EngineError:
        return EngineError("the engine has stopped", field="rollout", value=self._name, cure="dispatch the request again", retryable=True)


# Rows of equal values are shared: nobody changes a rollout, and a large simulation makes many.
@lru_cache(maxsize=4096)
def _tokens(count: int) -> list[int]:
    return [1] * count


@lru_cache(maxsize=4096)
def _logprobs(count: int) -> list[float]:
    return [-1.0] * count
