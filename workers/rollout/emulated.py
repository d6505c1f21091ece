"""An engine that takes declared time on a clock and does no arithmetic: the twin of `rollout.torch`, driven by the same interrupts.

It leaps from one finished sample to the next instead of stepping token by token, so that a large pool is simulated quickly.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import groupby

from workers.axes.interrupt.base import Interrupt
from workers.axes.orchestration.wire import copy_of
from workers.clock import Clock
from workers.contract.errors import EngineError
from workers.records import EngineStatus, FinishReason, Manifest, Rollout, SampleRequest, UpdateReport
from workers.rollout.leaps import EngineCost, Leap, News, Sequence
from workers.rollout.rhythm import Rhythm
from workers.rollout.running import Running, whole

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
        self._running = Running(self._cost.grain)
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
        self._ended = asyncio.Event()
        self._rhythm = Rhythm(self._failed)
        self._rhythm.rest(self._turn)
        self._leap = Leap(0.0, 0, 0, 0.0, 0.0)
        self._fetching: asyncio.TimerHandle | None = None

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
        prefix = len(request.prefix_ids)
        sequence = Sequence(request, answer, max(min(wanted, request.max_new_tokens), prefix + 1), finish, len(request.prompt_ids), prefix)
        if prefix:
            sequence.spans = [(version, len(list(drawn))) for version, drawn in groupby(request.prefix_versions)]
        sequence.cached = request.parked_on == self._name and request.id in self._parked
        self._parked.pop(request.id, None)
        self._waiting.append(sequence)
        if len(self._running) < self.slots and not self._held:
            self._rhythm.ring()
        try:
            return await answer
        except asyncio.CancelledError:
            self._deserted = True
            self._rhythm.ring()  # the sample leaves its slot, or the queue, before the next decode step
            raise

    async def update(self, manifest: Manifest) -> UpdateReport:
        async with self._updating:
            if self._stopping:
                raise self._stopped()
            if manifest.version < self.version:
                cure = f"publish above {self.version}"
                raise EngineError("an older version than the one that serves", field="version", value=manifest.version, cure=cure)
            news = self._news = News(manifest, asyncio.get_running_loop().create_future())
            self._rhythm.ring()
            return await news.flipped

    async def status(self) -> EngineStatus:
        return EngineStatus(
            self.version, self.running, self.waiting, self.slots, self.tokens, self._decode_s, 0, self._decode_steps, self._longest_s
        )

    async def stop(self) -> None:
        self._stopping = True
        self._rhythm.ring()
        await self._ended.wait()

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
        self._waiting.extendleft(reversed(self._running.take(lambda sequence: True)))

    def abort(self) -> None:
        for sequence in self._running.take(_trains):
            if self._parks:
                self._parked[sequence.request.id] = None
            self._answer(sequence, "abort")
        for sequence in filter(_trains, self._waiting):
            self._answer(sequence, "abort")
        self._waiting = deque(sequence for sequence in self._waiting if not _trains(sequence))
        while len(self._parked) > self.slots:  # what was given up meanwhile would stay for ever
            del self._parked[next(iter(self._parked))]

    def recompute_cache(self) -> None:
        self._owed_s += self._prefill(self._running.held)

    # -- its life: from turn to turn, each between two forward passes ---------------------------------

    def _turn(self) -> None:
        if self._stopping:
            self._end(self._stopped())
            return
        if self._deserted:
            self._running.take(lambda sequence: sequence.answer.done())
            self._deserted = False
        news = self._news
        if news is not None and not news.accepted:
            self._announce(news)
        if news is not None and news.fetched:
            self._flip(news)
        elif news is not None and news.accepted and self._interrupt.stops:
            self._rhythm.rest(self._turn)
        else:
            fresh = self._admit()
            if fresh and self._cost.grain == 1:
                ahead_s, self._ahead_s = self._ahead_s, 0.0
                self._rhythm.then(ahead_s, partial(self._first_tokens, fresh))
            else:
                self._decode()

    def _decode(self) -> None:
        if self._running:
            self._set_out()
        elif self._waiting and self._news is None:  # they have come while the last ones got their last token from a prefill
            self._turn()
        else:
            self._rhythm.rest(self._turn)

    def _announce(self, news: News) -> None:
        """The engine is asked after every leap: between leaps the number of running samples, on which the answer may hang, stays."""
        busy = bool(self._running or self._waiting)
        if self._interrupt.announced(self):
            news.accepted, news.busy, news.stood = True, busy, self._clock.now()
            self._fetching = asyncio.get_running_loop().call_later(self._transfer_s(news.manifest), self._fetched, news)

    def _fetched(self, news: News) -> None:
        news.transfer_s, news.fetched = self._clock.now() - news.stood, True
        self._rhythm.ring()

    def _flip(self, news: News) -> None:
        self._rhythm.then(self._cost.apply_s, partial(self._apply, news, self._clock.now()))

    def _apply(self, news: News, began: float) -> None:
        if self.wrong_digest:
            self._serve(news, began)
            return
        self.version = news.manifest.version
        self._running.turn(self.version)
        self._prompts.clear()
        self._interrupt.flipped(self)
        owed_s, self._owed_s = self._owed_s, 0.0
        self._rhythm.then(owed_s, partial(self._serve, news, began))

    def _serve(self, news: News, began: float) -> None:
        self._held = False
        if self._news is news:
            self._news = None
        now = self._clock.now()
        digest = "0" * 64 if self.wrong_digest else news.manifest.digest
        stood_since, busy = (news.stood, news.busy) if self._interrupt.stops else (began, bool(self._running))
        if not news.flipped.done():
            pause_s = now - stood_since if busy else 0.0
            news.flipped.set_result(UpdateReport(news.manifest.version, digest, news.transfer_s, now - began, pause_s))
        self._turn()

    def _admit(self) -> int:
        """Free slots are filled in the order of the queue. Returns how many of those admitted need a prefill."""
        fresh, tokens = 0, 0.0
        while self._waiting and len(self._running) < self.slots and not self._held:
            sequence = self._waiting.popleft()
            if sequence.answer.done():
                continue
            if sequence.admitted is None:
                sequence.admitted = self._clock.now()
            if sequence.cached:
                sequence.cached = False
                self._running.add(sequence)
                continue
            fresh += 1
            if sequence.done or sequence.request.group_id not in self._prompts:
                tokens += sequence.prompt + sequence.done * self._cost.grain
            self._prompts[sequence.request.group_id] = None
            # A prefill gives one token, next to nothing of a coarse one.
            self._running.add(sequence, 1 if self._cost.grain == 1 else 0)
        if fresh:
            while len(self._prompts) > _PROMPTS_KEPT:
                del self._prompts[next(iter(self._prompts))]
            self._ahead_s += self._prefill(tokens)
        return fresh

    def _first_tokens(self, fresh: int) -> None:
        """Who needed a prefill has the first token from it; the others have waited meanwhile."""
        self.tokens += fresh
        self._draw(0)
        self._decode()

    def _prefill(self, tokens: float) -> float:
        self.prefilled += round(tokens)
        return self._cost.prefill_s * tokens

    def _set_out(self) -> None:
        """Leaps to the first finished sample."""
        running, steps = len(self._running), self._cost.grain * self._running.left()
        # What is held grows with every step: seconds that hang on it linearly are exactly those of the leap's middle.
        step_s = self._cost.step(running, self._running.held + running * steps / 2)
        self._leap = Leap(self._clock.now(), running, steps, step_s, self._ahead_s)
        self._ahead_s = 0.0
        self._rhythm.leap(self._leap.seconds, self._land, self._cut_short)

    def _cut_short(self) -> None:
        """Something has happened: the leap ends with the forward pass under way."""
        leap, grain = self._leap, self._cost.grain
        passed_s = self._clock.now() - leap.began
        if not leap.step_s:
            self._land()
        elif grain > 1:  # what is left of one real step among many is not waited for
            self._ahead_s = max(0.0, leap.ahead_s - passed_s)
            leap.steps = grain * min(leap.steps / grain, whole(max(0.0, passed_s - leap.ahead_s) / leap.step_s / grain))
            self._land()
        else:
            leap.steps = min(leap.steps, math.ceil(passed_s / leap.step_s - 1e-9))
            self._rhythm.then(leap.began + leap.seconds - self._clock.now(), self._land)

    def _land(self) -> None:
        leap = self._leap
        self._decode_s += leap.steps * leap.step_s
        self._decode_steps += round(leap.steps)
        self._longest_s = max(self._longest_s, leap.step_s)
        self.tokens += round(leap.steps * leap.running)
        self._draw(leap.steps / self._cost.grain)
        self._turn()

    def _draw(self, tokens: float) -> None:
        for sequence in self._running.draw(tokens):
            self._answer(sequence, sequence.finish)

    def _answer(self, sequence: Sequence, reason: FinishReason) -> None:
        if sequence.answer.done():  # its caller has gone
            return
        seconds = 0.0 if sequence.admitted is None else self._clock.now() - sequence.admitted
        sequence.answer.set_result(sequence.rollout(reason, self._name, seconds))

    def _failed(self, error: Exception) -> None:
        """Whatever it was, every waiting caller must hear of it."""
        self._stopping = True
        self._end(EngineError(f"the emulated engine failed: {type(error).__name__}: {error}", field="rollout", value=self._name))

    def _end(self, error: EngineError) -> None:
        """Samples with tokens go out as they are, the others are refused."""
        for sequence in (*self._running.take(lambda sequence: True), *self._waiting):
            if round(sequence.done):
                self._answer(sequence, "abort")
            elif not sequence.answer.done():
                sequence.answer.set_exception(copy_of(error))
        self._waiting.clear()
        if self._fetching is not None:
            self._fetching.cancel()
        if self._news is not None and not self._news.flipped.done():
            self._news.flipped.set_exception(copy_of(error))
        self._ended.set()

    def _stopped(self) -> EngineError:
        return EngineError("the engine has stopped", field="rollout", value=self._name, cure="dispatch the request again", retryable=True)


def _trains(sequence: Sequence) -> bool:
    return sequence.request.purpose == "train"
