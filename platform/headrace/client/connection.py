"""The client: a method for every question and every act."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headrace.api.schemas import (
    ArtifactOut,
    ArtifactsOut,
    CheckOut,
    ComparisonOut,
    EventsOut,
    ExportOut,
    LogsOut,
    Me,
    ProbeOut,
    Problem,
    ProjectOut,
    ProjectsOut,
    RunDetail,
    RunOut,
    RunPage,
    SamplesOut,
    SeriesOut,
)
from headrace.api.schemas_several import QueueOut, RaceOut, RacePage, RaceRow, SweepOut, ViewOut, ViewsOut
from headrace.client.transport import ApiError, Connection
from headrace.client.watching import LINE_METRICS, Progress, progress_of

PAGE = 200
OVER = frozenset({"succeeded", "failed", "cancelled", "lost"})


class Client(Connection):
    """Everything the API does, as the models that the server answers with."""

    # --- looking

    def me(self) -> Me:
        return Me.model_validate(self._get("/me"))

    def projects(self) -> list[ProjectOut]:
        return ProjectsOut.model_validate(self._get("/projects")).projects

    def presets(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._get("/presets")["presets"]
        return found

    def check(self, *, preset: str | None = None, config: dict[str, Any] | None = None, set: list[str] | None = None) -> CheckOut:
        """Resolve a config without starting it: the same code as the form and the engine."""
        return CheckOut.model_validate(self._post("/config/check", {"preset": preset, "config": config or {}, "set": set or []}))

    def runs(self, query: str = "", *, state: str = "", group: str = "", limit: int = 50) -> Iterator[RunOut]:
        """Newest first, page by page, at most `limit` of them. `query`: the language of the runs table, `reward>0.6 tag:baseline`."""
        before, left = "", limit
        while left > 0:
            wanted = {"query": query, "state": state, "group": group, "before": before, "limit": min(left, PAGE)}
            page = RunPage.model_validate(self._get("/runs", **wanted))
            yield from page.runs
            left -= len(page.runs)
            if page.next is None:
                return
            before = page.next

    def run(self, run: str) -> RunDetail:
        return RunDetail.model_validate(self._get(f"/runs/{run}"))

    def snapshot(self, run: str) -> dict[str, Any]:
        """Flow, ledgers, evaluations, newest samples and log lines."""
        found: dict[str, Any] = self._get(f"/runs/{run}/snapshot")
        return found

    def series(self, run: str, names: list[str], *, x: str = "step", buckets: int = 500) -> SeriesOut:
        return SeriesOut.model_validate(self._get(f"/runs/{run}/series", names=",".join(names), x=x, buckets=buckets))

    def events(self, run: str, *, after: int = 0, attempt: int | None = None) -> EventsOut:
        return EventsOut.model_validate(self._get(f"/runs/{run}/events", after=after, attempt=attempt))

    def samples(self, run: str, *, step: int | None = None, outcome: str = "", text: str = "", limit: int = 50) -> list[dict[str, Any]]:
        found = self._get(f"/runs/{run}/samples", step=step, outcome=outcome, text=text, limit=limit)
        return SamplesOut.model_validate(found).samples

    def logs(self, run: str, *, after: int | None = None, attempt: int | None = None) -> LogsOut:
        return LogsOut.model_validate(self._get(f"/runs/{run}/logs", after=after, attempt=attempt))

    def artifacts(self, run: str) -> list[ArtifactOut]:
        return ArtifactsOut.model_validate(self._get(f"/runs/{run}/artifacts")).artifacts

    def compare(self, runs: list[str], metrics: list[str] | None = None) -> ComparisonOut:
        """Config fields that differ, and the last value of each series."""
        named = {"metrics": ",".join(metrics)} if metrics else {}
        return ComparisonOut.model_validate(self._get("/compare", runs=",".join(runs), **named))

    def queue(self) -> QueueOut:
        return QueueOut.model_validate(self._get("/queue"))

    def sweep(self, sweep: str) -> SweepOut:
        return SweepOut.model_validate(self._get(f"/sweeps/{sweep}"))

    def races(self, limit: int = 50) -> list[RaceRow]:
        return RacePage.model_validate(self._get("/races", limit=limit)).races

    def race(self, race: str) -> RaceOut:
        """A race with its results so far."""
        return RaceOut.model_validate(self._get(f"/races/{race}"))

    def views(self, page: str = "") -> list[ViewOut]:
        return ViewsOut.model_validate(self._get("/views", page=page)).views

    # --- acting

    def launch(
        self,
        name: str,
        *,
        preset: str | None = None,
        config: dict[str, Any] | None = None,
        set: list[str] | None = None,
        key: str | None = None,
        **more: Any,
    ) -> RunDetail:
        """Queue a run. `key`: asking again with the same one answers the same run. `more`: other fields of RunIn."""
        given = {"name": name, "preset": preset, "config": config or {}, "set": set or [], **more}
        return RunDetail.model_validate(self._post("/runs", {**given, "idempotency_key": key or _key()}))

    def start_sweep(self, name: str, *, key: str | None = None, **fields: Any) -> SweepOut:
        """Queue every combination of `seeds` and `axes`; `fields`: those of SweepIn."""
        return SweepOut.model_validate(self._post("/sweeps", {"name": name, **fields, "idempotency_key": key or _key()}))

    def act_on_sweep(self, sweep: str, action: str = "cancel") -> SweepOut:
        return SweepOut.model_validate(self._post(f"/sweeps/{sweep}/{action}", {}))

    def start_race(self, name: str, spec: dict[str, Any], *, key: str | None = None, project: str | None = None) -> RaceOut:
        """Race presets on one workload; `spec` as a race's answer holds it."""
        body = {"name": name, "spec": spec, "project": project, "idempotency_key": key or _key()}
        return RaceOut.model_validate(self._post("/races", body))

    def act_on_race(self, race: str, action: str) -> RaceOut:
        """`action`: pause, resume or cancel."""
        return RaceOut.model_validate(self._post(f"/races/{race}/{action}", {}))

    def delete_view(self, view: str) -> None:
        self._request("DELETE", f"/views/{view}", once=True)

    def save_view(self, page: str, name: str, query: str) -> ViewOut:
        return ViewOut.model_validate(self._post("/views", {"page": page, "name": name, "query": query}))

    def edit(self, run: str, *, name: str | None = None, note: str | None = None, tags: list[str] | None = None) -> RunDetail:
        body = {"name": name, "note": note, "tags": tags}
        return RunDetail.model_validate(self._request("PATCH", f"/runs/{run}", json=body))

    def delete(self, run: str) -> None:
        self._request("DELETE", f"/runs/{run}", once=True)

    def act(self, run: str, action: str) -> RunDetail:
        """`action`: cancel, resume, pause, continue, stop or checkpoint."""
        return RunDetail.model_validate(self._post(f"/runs/{run}/{action}", {}, once=True))

    def extend(self, run: str, *, steps: int | None = None, wall_s: float | None = None) -> RunDetail:
        """What is not named stays as it is."""
        return RunDetail.model_validate(self._post(f"/runs/{run}/extend", {"steps": steps, "wall_s": wall_s}))

    # --- following

    def watch(self, run: str, *, every_s: float = 1.0) -> Iterator[Progress]:
        """The run as it goes, until it is over; the last one says how it ended."""
        while True:
            found = progress_of(self.snapshot(run), self.compare([run], list(LINE_METRICS)).runs[0].results)
            yield found
            if found.state in OVER:
                return
            time.sleep(every_s)

    def tail(self, run: str, *, follow: bool = True, every_s: float = 1.0) -> Iterator[dict[str, Any]]:
        """Log lines, oldest first; with `follow` until the run is over, across its attempts."""
        attempt: int | None = None
        after: int | None = None
        while True:
            over = self.run(run).state in OVER  # asked first: lines of the last moment come with the next request
            found = self.logs(run, after=after)
            if found.attempt != attempt:
                attempt, after = found.attempt, None
                found = self.logs(run)
            for line in found.logs:
                after = line["seq"]
                yield line
            if over or not follow:
                return
            time.sleep(every_s)

    def export(self, run: str, to: Path, *, what: str = "series", form: str = "parquet", names: list[str] | None = None) -> int:
        """Write a whole table to a file that does not exist yet, or not at all. Returns its bytes."""
        wanted = {"what": what, "format": form, "names": ",".join(names or [])}
        return self._download(f"/runs/{run}/export", to, wanted)

    def report(self, race: str, to: Path) -> int:
        """Write a race's report: HTML, or CSV where the file's name ends so. Returns its bytes."""
        form = "csv" if to.suffix == ".csv" else "html"
        return self._download(f"/races/{race}/report.{form}", to, {})

    def checkpoint(self, run: str, *, step: int | None = None) -> ArtifactOut:
        """The newest complete checkpoint, or that of `step`. ApiError (404) where there is none."""
        usable = [row for row in self.artifacts(run) if row.kind == "checkpoint" and row.state == "complete" and step in (None, row.step)]
        if not usable:
            raise ApiError(
                404, Problem(code="no_checkpoint", message="no such checkpoint", field="step", value=step, cure="see the run's files")
            )
        return max(usable, key=lambda row: (row.created, row.step or 0))

    def adapter(self, run: str, to: Path, *, step: int | None = None, patience_s: float = 300.0) -> ArtifactOut:
        """Write the adapter of a checkpoint (the newest, or of `step`) as a zip in the layout of PEFT. Waits until it is made ready."""
        chosen, until = self.checkpoint(run, step=step), time.monotonic() + patience_s
        while True:
            found = ExportOut.model_validate(self._post(f"/runs/{run}/artifacts/{chosen.id}/export", {}))
            if found.download is not None:
                self._download(f"/runs/{run}/artifacts/{found.download}/download", to, {})
                return chosen
            if found.state == "failed" or time.monotonic() > until:
                told = found.problem or {"message": f"it was not ready after {patience_s:.0f} s"}
                raise ApiError(409, Problem(code="export_failed", message=str(told.get("message")), cure=told.get("cure")))
            time.sleep(1.0)

    def ask(self, run: str, prompts: list[str], *, checkpoint: str | None = None, patience_s: float = 600.0, **sampling: float) -> ProbeOut:
        """The base model and a checkpoint answer the same prompts. Waits for the answers."""
        body = {"prompts": prompts, "checkpoint": checkpoint, "sampling": sampling}
        probe, until = ProbeOut.model_validate(self._post(f"/runs/{run}/probes", body, once=True)), time.monotonic() + patience_s
        while probe.state in ("queued", "running", "stopping") and time.monotonic() < until:
            time.sleep(1.0)
            probe = ProbeOut.model_validate(self._get(f"/runs/{run}/probes/{probe.id}"))
        return probe


def _key() -> str:
    return f"client-{uuid.uuid4().hex}"
