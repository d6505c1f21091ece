"""The supervisor's life: check, start, watch, restart with backoff, stop within ten seconds."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from types import FrameType

from headrace.supervisor import parts, pidfile, preflight
from headrace.supervisor.layout import Layout
from headrace.supervisor.process import MARK, Child, become_subreaper, end_all, reap_orphans
from workers.contract.errors import EnvironmentMissing

STOP_S = 2.5  # between SIGTERM and SIGKILL; the whole stop has ten seconds
RUN_GRACE_S = 4.0  # for active runs to reach a safe point
HEALTHY_S = 60.0
MAX_BACKOFF_S = 30.0

Say = Callable[[str], None]


class Stopped(Exception):
    """Ctrl-C or SIGTERM arrived: leave the current wait and stop."""


class Supervisor:
    """Owns every process of one data folder. Single-threaded: children are only started from this thread."""

    def __init__(self, layout: Layout, say: Say, outside: parts.Outside | None = None) -> None:
        self.layout = layout
        self.say = say
        self.outside = outside or parts.Outside.from_environment()
        self.children: list[Child] = []
        self.env: dict[str, str] = {}
        self.stop_asked = 0
        self.django_ready = False
        self.owns = False  # only the owner of the data folder may end what runs on it

    # --- start

    def start(self) -> None:
        """Everything up to a web page that answers. Raises EnvironmentMissing with one sentence on any failure."""
        preflight.check_machine(self.layout.data)
        become_subreaper()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        cleared = pidfile.claim(self.layout)
        self.owns = True
        if cleared:
            self.say(f"cleared {cleared} processes of an earlier start that was killed")
        preflight.check_port(self.layout.port)
        self.layout.make()
        self.layout.write_secrets()
        pidfile.write(self.layout, [])
        self.env = parts.export_settings(self.layout, self.outside) | {MARK: self.layout.mark}
        note = parts.memory_note()
        if note:
            self.say(note)
        self._launch()

    def _launch(self) -> None:
        """Valkey and Ray start while the database is migrated; the web needs Valkey, the launcher needs Ray."""
        layout, env = self.layout, self.env
        valkey = None if self.outside.valkey else self._spawn(parts.valkey(layout, env))
        ray = None if self.outside.ray else self._spawn(parts.ray(layout, env))
        self.say("database: applying migrations")
        self.run_once("migrate", parts.migrate_command())
        self._collect_static()
        env = self.env
        if valkey:
            self._await(valkey)
        self.say("starting the web server, the task worker and the reconciler")
        front = [self._spawn(parts.web(layout, env)), self._spawn(parts.celery(layout, env)), self._spawn(parts.reconciler(layout, env))]
        if ray:
            self.say("waiting for the local Ray head")
            self._await(ray)
        for child in front:
            self._await(child)

    def _collect_static(self) -> None:
        """Gives scripts and styles names by content and compressed copies; should it fail they are served as they lie."""
        before, self.env = self.env, self.env | {"HEADRACE_STATIC_COLLECTED": "1"}
        try:
            self.run_once("static", parts.collect_command())
        except (EnvironmentMissing, subprocess.TimeoutExpired) as fault:
            self.env = before
            self.say(f"static files are served without digests and uncompressed ({str(fault).splitlines()[0]})")

    def run_once(self, name: str, argv: list[str], timeout_s: float = 300) -> str:
        """Runs a command to its end and returns what it printed; its failure is the supervisor's failure."""
        done = subprocess.run(argv, env=self.env, cwd=self.layout.data, capture_output=True, text=True, timeout=timeout_s, check=False)
        with (self.layout.logs / f"{name}.log").open("a") as log:
            log.write(done.stdout + done.stderr)
        if done.returncode:
            tail = "\n".join((done.stderr or done.stdout).strip().splitlines()[-6:])
            raise EnvironmentMissing(
                f"{name} failed with exit code {done.returncode}:\n{tail}", cure=f"read {self.layout.logs / f'{name}.log'}"
            )
        return done.stdout

    def _spawn(self, child: Child) -> Child:
        self.children.append(child)
        self._begin(child)
        return child

    def _begin(self, child: Child) -> None:
        child.start()
        pidfile.write(self.layout, [group for known in self.children for group in known.groups[-1:]])

    def _await(self, child: Child) -> None:
        deadline = time.monotonic() + child.ready_within_s
        while not child.ready():
            self.check_stop()
            if not child.running:
                raise EnvironmentMissing(f"{child.name} ended at start:\n{child.last_lines()}", cure=f"read {child.log}")
            if time.monotonic() > deadline:
                raise EnvironmentMissing(
                    f"{child.name} was not ready within {child.ready_within_s:.0f} s:\n{child.last_lines()}", cure=f"read {child.log}"
                )
            time.sleep(0.1)

    # --- watch

    def watch(self, seconds: float) -> None:
        """One turn of the loop: reaps, restarts what ended, sleeps. Raises Stopped when asked to stop."""
        deadline = time.monotonic() + seconds
        while True:
            self.check_stop()
            reap_orphans()
            for child in self.children:
                self._keep(child)
            left = deadline - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(left, 0.25))

    def _keep(self, child: Child) -> None:
        now = time.monotonic()
        if child.running:
            if child.failures and now - child.started > HEALTHY_S:
                child.failures = 0
            return
        if not child.retry_at:
            child.signal_group(signal.SIGKILL)  # what it left in its group would hold its port or socket
            wait = min(MAX_BACKOFF_S, 0.5 * 2**child.failures)
            child.failures += 1
            child.retry_at = now + wait
            code = child.process.returncode if child.process else None
            self.say(f"{child.name} ended (exit code {code}); starting it again in {wait:.1f} s (log: {child.log})")
        elif now >= child.retry_at:
            child.retry_at = 0.0
            self._begin(child)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.stop_asked += 1

    def check_stop(self) -> None:
        if self.stop_asked:
            raise Stopped

    # --- stop

    def stop(self) -> list[int]:
        """Runs first, then every process, then files. Returns pids that could not be ended (empty: nothing is left)."""
        began = time.monotonic()
        if not self.owns:
            return []
        if self.django_ready:
            from headrace.dispatch.stopping import stop_active_runs

            try:
                stop_active_runs(grace_s=RUN_GRACE_S, patience=lambda: self.stop_asked < 3)
            except Exception as error:
                # A database that is gone must not keep the processes alive: they are ended below by their mark.
                self.say(f"runs could not be cancelled in order ({error}); ending their processes")
        order = [child for child in reversed(self.children) if child.running]
        for child in order:
            child.signal_group(signal.SIGTERM)
        deadline = time.monotonic() + STOP_S
        while any(child.running for child in order) and time.monotonic() < deadline:
            reap_orphans()
            time.sleep(0.05)
        for child in self.children:
            child.signal_group(signal.SIGKILL)
            if child.process:
                child.process.wait(timeout=5)
        _, survivors = end_all(lambda: pidfile.leftovers(self.layout), grace_s=0)
        reap_orphans()
        self.layout.clear()
        if self.children:
            self.say(f"stopped in {time.monotonic() - began:.1f} s")
        return [p.pid for p in survivors]

    def use_django(self) -> None:
        """Lets this process call services (launch, cancel, read progress). Called once the database is migrated."""
        import django

        os.environ.update(self.env)
        django.setup()
        self.django_ready = True
