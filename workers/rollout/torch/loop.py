"""The decode loop: swap, admit, prefill, decode, in a thread of its own. It sleeps when there is nothing to do."""

from __future__ import annotations

import threading
import time

import torch

from workers.axes.interrupt.base import Interrupt
from workers.contract.errors import EngineError, HeadraceError
from workers.rollout.torch.decoder import Decoder
from workers.rollout.torch.scheduler import Scheduler, Sequence
from workers.rollout.torch.update import Phase, Served, Update


class DecodeLoop:
    """One engine's inner life. Everything after `_run` is called by the decode thread; interrupts see it as an Interruptible.

    An update goes through: `announce` -> the interrupt makes room, asked between passes -> `Update.cleared` -> `stage`, or
    `withdraw` where the weights did not come -> the flip -> `Update.over`. Stopping and failing end it with an error instead.
    """

    def __init__(self, decoder: Decoder, scheduler: Scheduler, interrupt: Interrupt, name: str) -> None:
        self._decoder = decoder
        self._scheduler = scheduler
        self._interrupt = interrupt
        self._name = name
        self._threads = torch.get_num_threads()
        self._wake = threading.Condition()
        self._update: Update | None = None
        self._still = False  # no forward pass until the flip
        self._held = False  # no admission until the flip
        self._last_pass = time.perf_counter()  # when the last forward pass ended
        self._stopping = False
        self._failure: BaseException | None = None
        self._cancellations = False
        self._thread = threading.Thread(target=self._run, name=f"decode-{name}", daemon=True)

    # -- called by other threads ------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def submit(self, sequence: Sequence) -> None:
        """Queues a request. Raises EngineError when the engine has stopped or failed."""
        with self._wake:
            self._refuse_if_over()
            self._scheduler.submit(sequence)
            if self._update is not None and self._update.first_arrival is None:
                self._update.first_arrival = time.perf_counter()
            self._wake.notify()

    def cancel(self, sequence: Sequence) -> None:
        """The caller has gone: the sample leaves its slot or queue before the next decode step, also while decoding stands still."""
        with self._wake:
            sequence.cancelled = True
            self._cancellations = True
            self._wake.notify()

    def announce(self, update: Update) -> None:
        """New weights exist. Called by one at a time. Raises EngineError when the engine has stopped or failed."""
        with self._wake:
            self._refuse_if_over()
            self._update = update
            self._wake.notify()

    def stage(self, update: Update, served: Served) -> None:
        """The weights of an update that was cleared are ready: they serve after the next flip."""
        with self._wake:
            self._refuse_if_over()
            update.served, update.staged_at, update.phase = served, time.perf_counter(), Phase.STAGED
            self._wake.notify()

    def withdraw(self, update: Update) -> None:
        """The update is over, or its weights will not come: whatever it held up goes on. Without effect where it has ended."""
        with self._wake:
            if self._update is update:
                self._release()
                self._wake.notify()

    def stop(self, timeout: float | None = None) -> bool:
        """Ends the thread between two decode steps. Returns whether it has ended."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def check(self) -> None:
        """Raises EngineError where the decode loop has failed: an engine that cannot decode is not alive."""
        if self._failure is not None:
            raise _as_engine_error(self._failure) from self._failure

    def _refuse_if_over(self) -> None:
        self.check()
        if self._stopping:
            raise EngineError("the engine has stopped", field="rollout", value=self._name, cure="start a new one")

    # -- what an interrupt may do -----------------------------------------------------------------

    @property
    def running(self) -> int:
        return len(self._scheduler.running)

    @property
    def waiting(self) -> int:
        return self._scheduler.waiting

    def hold_admission(self) -> None:
        self._held = True

    def retract(self) -> None:
        with self._wake:
            self._scheduler.retract()

    def abort(self) -> None:
        """Running samples are parked first, where the engine parks."""
        for sequence in self._scheduler.running:
            if not sequence.cancelled:
                self._decoder.park(sequence)
        with self._wake:
            left = self._scheduler.empty()
        for sequence in left:
            self._answer(sequence, "abort")

    def recompute_cache(self) -> None:
        self._decoder.recompute(list(self._scheduler.running))

    # -- the decode thread ------------------------------------------------------------------------

    def _run(self) -> None:
        torch.set_num_threads(self._threads)  # OpenMP counts threads for each calling thread apart
        try:
            with torch.inference_mode():
                while self._turn():
                    pass
        except BaseException as error:  # whatever it was, every waiting caller must hear of it
            self._fail(error)
            return
        self._end()

    def _turn(self) -> bool:
        """One round: at most one decode step of the running samples. False: stop was asked for."""
        with self._wake:
            while not self._must_act():
                self._wake.wait()
            if self._stopping:
                return False
            update = self._update
            cancelled, self._cancellations = self._cancellations, False
        if cancelled:
            self._drop_cancelled()
        if update is not None:
            self._advance(update)
        if not self._still:
            self._pass()
        return True

    def _must_act(self) -> bool:
        if self._stopping or self._cancellations:
            return True
        if self._update is not None and self._update.phase is not Phase.CLEARED:
            return True
        return not self._still and bool(self._scheduler.running or (self._scheduler.waiting and not self._held))

    def _pass(self) -> None:
        """Admission, the prefill of those admitted, a decode step: each where there is anything to do."""
        with self._wake:
            admitted = [] if self._held else self._scheduler.admit()
        if admitted:
            self._decoder.prefill(admitted, len(self._scheduler.running))
            self._finished_pass(admitted)
        if self._scheduler.running:
            running = list(self._scheduler.running)
            self._decoder.decode(running)
            self._finished_pass(running)

    def _advance(self, update: Update) -> None:
        """Asks the interrupt whether the weights may be fetched, or puts those in place that have come."""
        if update.phase is Phase.STAGED:
            self._flip(update)
        elif update.phase is Phase.ANNOUNCED:
            update.busy = update.busy or self.running > 0
            cleared = self._interrupt.announced(self)
            with self._wake:
                if self._update is not update:  # withdrawn meanwhile: what the interrupt held is free again
                    self._still = self._held = False
                    return
                if cleared:
                    update.phase = Phase.CLEARED
                    self._still = update.stood_still = self._interrupt.stops
            if cleared:
                update.cleared(None)

    def _flip(self, update: Update) -> None:
        """Between two forward passes. `Update.pause` says what of it counts as pause."""
        assert update.served is not None
        began, busy = time.perf_counter(), self.running > 0
        update.replaced = self._decoder.serve(update.served)
        self._interrupt.flipped(self)
        with self._wake:
            if self._update is update:
                self._release()
        ended = time.perf_counter()
        update.over((ended - update.staged_at, update.pause(began, ended, self._last_pass, busy)))

    def _release(self) -> None:
        self._update = None
        self._still = self._held = False

    def _drop_cancelled(self) -> None:
        with self._wake:
            gone = self._scheduler.forget_cancelled()
        for sequence in gone:
            if self._decoder.parked is not None:
                self._decoder.parked.drop(sequence.request.id)
            self._answer(sequence, "abort")
        for sequence in [sequence for sequence in self._scheduler.running if sequence.cancelled]:
            self._leave(sequence)
            self._answer(sequence, "abort")

    def _finished_pass(self, sequences: list[Sequence]) -> None:
        self._last_pass = time.perf_counter()
        for sequence in sequences:
            if sequence.ended is not None:
                self._leave(sequence)
                self._answer(sequence)

    def _leave(self, sequence: Sequence) -> None:
        move = self._scheduler.leave(sequence)
        if move is not None:
            self._decoder.moved(move[0], move[1], self._scheduler.running[move[1]].length)

    def _answer(self, sequence: Sequence, reason: str | None = None) -> None:
        if reason == "abort":
            sequence.ended = "abort"
        sequence.answer(sequence.rollout(self._name))

    def _end(self) -> None:
        """Stop: samples go out with the tokens they have; those that have none are refused."""
        left, update = self._take_all()
        stopped = EngineError(
            "the engine was stopped", field="rollout", value=self._name, cure="dispatch the request again", retryable=True
        )
        for sequence in left:
            if sequence.tokens:
                self._answer(sequence, "abort")
            else:
                sequence.answer(_as_engine_error(stopped))
        if update is not None:
            update.over(stopped)

    def _fail(self, error: BaseException) -> None:
        left, update = self._take_all(error)
        for sequence in left:
            sequence.answer(_as_engine_error(error))
        if update is not None:
            update.over(_as_engine_error(error))

    def _take_all(self, failure: BaseException | None = None) -> tuple[list[Sequence], Update | None]:
        with self._wake:
            self._failure = failure
            update = self._update
            self._release()
            return self._scheduler.empty(), update


def _as_engine_error(error: BaseException) -> HeadraceError:
    """A fresh error for each caller: one exception object must not be raised in several tasks."""
    if isinstance(error, HeadraceError):
        return type(error)(error.message, field=error.field, value=error.value, cure=error.cure, retryable=error.retryable)
    message = f"the decode loop failed: {type(error).__name__}: {error}"
    return EngineError(message, field="rollout", cure="see the engine's log; a smaller rollout.max_running needs less memory")
