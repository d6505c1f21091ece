"""One attempt of a run, from its folder to its summary: start-up, resume, cancel and the end. The flow itself is `pipeline`.

The folder holds config.json, provenance.json, spool/, checkpoints/, logs/ and, at the end, summary.json.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import shutil
import signal
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from workers import models, registry, report, resume, starting
from workers.axes.orchestration.base import Orchestration, Pools
from workers.axes.transport.leftovers import mark, sweep, sweep_orphans
from workers.background import in_background
from workers.checkpoint import Checkpoint, Checkpoints
from workers.clock import WallClock
from workers.contract.config import RunConfig
from workers.contract.errors import Cancelled, CheckpointError, EngineError, Fenced, HeadraceError
from workers.contract.events import Control
from workers.contract.failpoints import reached
from workers.emit import Emitter
from workers.environments.base import Environment
from workers.environments.build import build as build_environment
from workers.folder import claim, last_trained, log_tail, write_json
from workers.ledger import SampleLedger, TimeLedger
from workers.logs import LogFollower
from workers.machine import Machine
from workers.parts import TRAINER, Parts
from workers.pipeline import Pipeline
from workers.pool import Pool
from workers.progress import Progress
from workers.provenance import provenance
from workers.records import Group
from workers.rollout.vllm import install as vllm
from workers.scoring.threads import ThreadScorer
from workers.ship import AttemptFile, Shipper
from workers.steering import Steering
from workers.summary import summarise

CANCEL_PATIENCE_S = 5.0
SPOOL_PATIENCE_S = 30.0
FIRST_WISHES_S = 5.0  # a resumed attempt waits so long for the server's wishes


class Driver:
    """Constructed by the command line; `run` returns the summary or raises what ended the attempt."""

    def __init__(
        self,
        config: RunConfig,
        out: Path,
        *,
        attempt: AttemptFile | None = None,
        resume_from: Path | None = None,
        on_events: Callable[[list[dict[str, Any]]], None] | None = None,
    ) -> None:
        if config.rollout.engine == "vllm":
            vllm.require()
        self.config = config
        self.out = out
        self._resume_from = resume_from
        self._clock = WallClock()
        self._cancel = asyncio.Event()
        self._fenced = False
        self.steering = Steering()
        self._last_parts: Parts | None = None
        self._model_digest = ""
        # First of all: a resume that is refused leaves the folder as it was.
        self._restored: Checkpoint | None = None
        faults: list[CheckpointError] = []
        if resume_from is not None:
            self._restored, faults = resume.find(resume_from, config)
        # Attempts of one run share it, whatever folder they write to; a checkpoint of another run is known by it.
        lineage = resume.read_lineage(resume_from) if resume_from is not None else None
        # In place it is the same run again, which may have left shared memory; in another folder two may go on from it at once.
        self.run_id = attempt.run if attempt else (resume.own_id(out) if resume_from == out else None) or uuid.uuid4().hex[:12]
        self._lineage = lineage or self.run_id
        self._held = claim(out, config, resume=resume_from == out)
        # Every process of a run carries both, so that "gone" can be checked; shared memory is named by them.
        os.environ["HEADRACE_RUN_ID"] = self.run_id
        if attempt:
            os.environ["HEADRACE_ATTEMPT"] = attempt.attempt
        sweep(self.run_id)  # what an attempt left that was killed here
        orphans = sweep_orphans()
        self._alive = mark(self.run_id)  # held for as long as this process lives
        self._broken = asyncio.Event()  # set when the spool met a fault that no retry cures
        self.emit = Emitter(out / "spool", on_fatal=self._spool_failed(asyncio.get_running_loop()))
        if on_events is not None:
            self.emit.listeners.append(on_events)
        if orphans:
            self.emit.log("info", f"removed {len(orphans)} files of shared memory that killed runs had left", "driver")
        for fault in faults:
            self.emit.log("warning", f"a checkpoint was passed over: {fault}", "resume")
        self._shipper = self._make_shipper(attempt) if attempt else None
        # Unix sockets and the like need short paths; a run's scratch is its own and goes with it.
        self.scratch = out / "scratch"
        self.scratch.mkdir(exist_ok=True)
        lanes = [f"generator/{index}" for index in range(config.rollout.engines)] + [TRAINER]
        self._logs = LogFollower(out / "logs", self.emit.log)
        self._machine = Machine(out)
        self.samples = SampleLedger()
        self.time = TimeLedger(self._clock, lanes)
        self.progress = Progress()
        self.checkpoints = Checkpoints(out / "checkpoints", config.checkpoint.keep_last)

    async def run(self) -> dict[str, Any]:
        """Returns the summary of a finished attempt. Raises Cancelled, Fenced or the first failure, after telling it."""
        loop = asyncio.get_running_loop()
        for name in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(name, self._cancel.set)
        # What a resume goes on from holds the weights: the checkpoint that the run once started from may be gone.
        pools_config = self.config if self._restored is None else starting.without(self.config)
        orchestration: Orchestration = registry.resolve("orchestration", self.config.orchestration.kind)(
            pools_config, self.run_id, self.scratch
        )
        work = asyncio.create_task(self._attempt(orchestration))
        cancel = asyncio.create_task(self._cancel.wait())
        broken = asyncio.create_task(self._broken.wait())
        follow = asyncio.create_task(self._follow_logs())
        error: BaseException | None = None
        try:
            await asyncio.wait({work, cancel, broken}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                error = await self._cancelled(work)
                if broken.done():
                    error = EngineError(
                        f"the spool failed: {self.emit.fatal}", field="spool", cure="see the log; resume from the last checkpoint"
                    )
            else:
                error = first_cause(work.exception())
        finally:
            for task in (cancel, broken, follow):
                task.cancel()
            await orchestration.stop()
            sweep(self.run_id)  # a killed sender cannot unlink its own
            with contextlib.suppress(OSError):
                await self.checkpoints.close()
            shutil.rmtree(self.scratch, ignore_errors=True)
        return self._finish(error)

    async def _follow_logs(self) -> None:
        """Beside the attempt from its first second: what processes print, how the machine is, and what start-up takes."""
        while True:
            await self._clock.sleep(1.0)
            self.emit.metrics(await asyncio.to_thread(self._machine.read))
            self._logs.look()
            if self._last_parts is None:  # until the flow tells its own
                report.spans(self.emit, self.time)

    async def _attempt(self, orchestration: Orchestration) -> None:
        for lane in self.time.lanes:
            self.time.enter(lane, "startup")
        self.emit.phase("model", f"finding {self.config.model.path}")
        folder = await in_background(models.locate, self.config.model.path)
        restored = self._restored
        self._model_digest = await in_background(models.digest, folder)
        start = None if restored else await in_background(starting.check, self.config, self._model_digest)
        starting_pools = asyncio.create_task(orchestration.start())  # beside what follows: both take seconds
        try:
            self.emit.phase("environment", f"preparing {self.config.environment.dataset}")
            environment = await in_background(build_environment, self.config, folder, self._tell_of_data)
            facts = await in_background(provenance, self.config, folder, environment)
            facts["init_from"] = start.facts() if start else None
            facts["lineage"] = self._lineage
            (self.out / "provenance.json").write_text(json.dumps(facts, indent=1))
            self.emit.emit(
                "started",
                {
                    "config_digest": self.config.digest(),
                    "provenance": facts,
                    "lanes": self.time.lanes,
                    "resumed_from": resume.origin(restored) if restored else None,
                },
            )
            self.emit.phase("pools", f"starting {self.config.rollout.engines} engine(s) and the trainer ({self.config.orchestration.kind})")
            pools = await starting_pools
        finally:
            starting_pools.cancel()
            await asyncio.wait({starting_pools})
        parts = self._parts(environment, pools)
        if start is not None:
            self.emit.phase("start", f"the weights of {start.folder.name} are published as version 0")
            await resume.serve(parts)
        if restored:
            self.emit.phase("resume", f"restoring step {restored.step} from {restored.folder.name}")
            await resume.restore(parts, restored, last_trained(self._resume_from or self.out))
            if self._shipper is not None:  # the budget may have been extended: without it the run could be over at once
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.steering.heard.wait(), FIRST_WISHES_S)
        for lane in self.time.lanes:
            self.time.leave(lane, "startup")
        self.emit.phase("running", "the flow has started", 1.0)
        self._last_parts = parts
        flow = asyncio.create_task(Pipeline(parts).run())
        watch = asyncio.create_task(orchestration.failure(parts.pool.lost))
        try:
            await asyncio.wait({flow, watch}, return_when=asyncio.FIRST_COMPLETED)
            # A dead process is the first cause, whatever the flow met because of it.
            (watch if watch.done() else flow).result()
        finally:
            for task in (flow, watch):
                task.cancel()
            await asyncio.wait({flow, watch})

    def _parts(self, environment: Environment, pools: Pools) -> Parts:
        config = self.config
        return Parts(
            config=config,
            clock=self._clock,
            environment=environment,
            scorer=ThreadScorer(environment, config.rewards.timeout_s),
            pool=Pool(
                pools.generators,
                config.rollout.max_running,
                self.time,
                self._tell_of_loss,
                config.rollout.route,
                deadline_s=config.rollout.deadline_s,
            ),
            buffer=registry.resolve("buffer", config.buffer.kind)(config.buffer, config.batch.prompts),
            staleness=registry.resolve("staleness", config.staleness.over_limit)(config.staleness),
            partial=[registry.resolve("partial", kind)() for kind in config.partial],
            trainer=pools.trainer,
            emit=self.emit,
            samples=self.samples,
            time=self.time,
            progress=self.progress,
            save=self._save,
            stop_requested=self._should_stop,
            save_requested=self.steering.take_save,
            steering=self.steering,
        )

    async def _save(self, under_way: dict[str, Group]) -> None:
        parts = self._last_parts
        assert parts is not None
        # The driver's part is taken first: while the trainer writes, groups move on, but weights do not.
        own = {"config": self.config.as_json(), "model_digest": self._model_digest, "lineage": self._lineage}
        driver = {**resume.snapshot(parts, under_way), **own}

        async def write(aside: Path) -> None:
            await parts.trainer.checkpoint(aside)
            await self._on_disk(driver["told_through"])

        saved = await self.checkpoints.save(
            step=self.progress.step,
            version=self.progress.version,
            config_digest=self.config.digest(),
            driver=driver,
            write_trainer=write,
        )
        self.emit.emit(
            "checkpoint",
            {"path": str(saved.folder), "step": saved.step, "version": saved.version, "bytes": saved.bytes, "sha256": saved.sha256},
        )
        self.emit.log("info", f"checkpoint {saved.folder.name}: {saved.bytes / 1e6:.1f} MB", "checkpoint")
        reached("save.told")

    async def _on_disk(self, seq: int) -> None:
        """A checkpoint must not outlive what was told before it: a resume would go on from what nobody ever heard of.

        Raises OSError where the spool's disk takes nothing; the save is then tried again as any other that found no room.
        """
        deadline = self._clock.now() + SPOOL_PATIENCE_S
        while self.emit.durable_seq < seq:
            if self._clock.now() > deadline:
                raise OSError(errno.ENOSPC, f"the spool has not taken event {seq} for {SPOOL_PATIENCE_S:.0f} s ({self.emit.error})")
            await self._clock.sleep(0.01)

    async def _cancelled(self, work: asyncio.Task[None]) -> HeadraceError:
        self.emit.phase("stopping", "cancelling: the last complete checkpoint stands")
        if self._last_parts is not None:
            with contextlib.suppress(HeadraceError, TimeoutError, OSError):
                await asyncio.wait_for(self._last_parts.trainer.interrupt(), 1.0)
        work.cancel()
        await asyncio.wait({work}, timeout=CANCEL_PATIENCE_S)
        return Fenced("a newer attempt took over") if self._fenced else Cancelled("cancelled on request")

    def _finish(self, error: BaseException | None) -> dict[str, Any]:
        self._logs.look(last=True)
        self._machine.close()
        outcome = "cancelled" if isinstance(error, Cancelled | Fenced) else "failed" if error else "succeeded"
        summary = summarise(self.config, self.progress, self.samples, self.time, outcome)
        summary["evaluations"] = self.progress.evaluations
        cause = (
            error.as_dict()
            if isinstance(error, HeadraceError)
            else {"type": type(error).__name__, "message": str(error)}
            if error
            else None
        )
        summary["cause"] = cause
        reached("end.summary")
        try:
            write_json(self.out / "summary.json", summary)
        except OSError as full:
            self.emit.log("error", f"summary.json was not written: {full}")
        if error is not None:
            self.emit.log("error" if outcome == "failed" else "warning", str(error))
        report.spans(self.emit, self.time)
        self.emit.emit("finished", {"outcome": outcome, "cause": cause, "log_tail": log_tail(self.out / "logs"), "summary": summary})
        if not self.emit.close():
            sys.stderr.write(f"error: events {self.emit.durable_seq + 1} to {self.emit.last_seq} are not on disk: {self.emit.error}\n")
        reached("end.told")
        if self._shipper is not None and not self._shipper.stop():
            sys.stderr.write("note: not every event was sent; they wait in the spool for `ship`\n")
        if error is not None:
            raise error
        return summary

    def _make_shipper(self, attempt: AttemptFile) -> Shipper:
        loop = asyncio.get_running_loop()

        def wish(control: Control) -> None:
            if control.cancel:
                self._fenced = shipper.fenced.is_set()
                loop.call_soon_threadsafe(self._cancel.set)
            loop.call_soon_threadsafe(self._steer, control)

        shipper = Shipper(
            attempt,
            self.out / "spool",
            wish,
            durable=lambda: self.emit.durable_seq,
            on_trouble=lambda message: self.emit.log("warning", message, "shipper"),
        )
        self.emit.listeners.append(shipper.wake)
        shipper.start()
        return shipper

    def _spool_failed(self, loop: asyncio.AbstractEventLoop) -> Callable[[Exception], None]:
        def tell(_error: Exception) -> None:  # called on the spool's thread
            loop.call_soon_threadsafe(self._broken.set)

        return tell

    def _tell_of_loss(self, name: str, error: HeadraceError) -> None:
        self.emit.log("error", f"{name} is lost, its requests are dispatched again elsewhere: {error}", "pool")

    def _tell_of_data(self, message: str) -> None:
        self.emit.log("warning", message, "environment")

    def _steer(self, control: Control) -> None:
        told = self.steering.steps
        self.steering.ask(control)
        steps, schedule = self.steering.steps, self.config.optimizer.schedule
        if steps is not None and steps != told:
            self.emit.log("info", f"the budget is {steps} steps now; the config says {self.config.budget.steps}", "budget")
            if steps > self.config.budget.steps and schedule != "constant":
                self.emit.log("warning", f"the {schedule} learning rate is 0 from step {self.config.budget.steps} on", "budget")

    def _should_stop(self) -> bool:
        """A stop was asked for, or the time limit has passed; time spent paused does not count towards it."""
        asked = self.steering.wall_s
        limit = asked if asked is not None else self.config.budget.wall_s
        worked = self.time.as_dict()["wall_s"] - self.time.total(TRAINER, "paused")
        return self.steering.stop_after_step or (limit is not None and worked >= limit)


def first_cause(error: BaseException | None) -> BaseException | None:
    """The first failure inside an exception group; others followed from it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
