"""One connection to a server: every call is one request, every error names field, value and cure."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import httpx

from headrace.api.schemas import (
    ArtifactOut,
    ArtifactsOut,
    CheckOut,
    ComparisonOut,
    EventsOut,
    LogsOut,
    Me,
    Problem,
    ProjectOut,
    ProjectsOut,
    QueueOut,
    RaceOut,
    RacePage,
    RaceRow,
    RunDetail,
    RunOut,
    RunPage,
    SamplesOut,
    SeriesOut,
    SweepOut,
    ViewOut,
    ViewsOut,
)
from headrace.client.watching import LINE_METRICS, Progress, progress_of
from workers.contract.errors import HeadraceError

RETRIES = 4
PAGE = 200
OVER = frozenset({"succeeded", "failed", "cancelled", "lost"})


class ApiError(HeadraceError):
    """The server refused, or cannot be reached. `status` is the HTTP status; 0: no answer."""

    def __init__(self, status: int, problem: Problem) -> None:
        super().__init__(problem.message, field=problem.field, value=problem.value, cure=problem.cure or "", retryable=problem.retryable)
        self.status = status
        self.code = problem.code


class Client:
    """A server and a token. Reads are tried again when the network fails; a launch carries an idempotency key, so it is too.

    Raises ApiError.
    """

    def __init__(self, server: str, token: str, *, timeout_s: float = 30.0, transport: httpx.BaseTransport | None = None) -> None:
        headers = {"Authorization": f"Bearer {token}", "User-Agent": "headrace-client"}
        self.server = server.rstrip("/")
        self._http = httpx.Client(base_url=f"{self.server}/api/v1", headers=headers, timeout=timeout_s, transport=transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

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
        self._request("DELETE", f"/views/{view}")

    def save_view(self, page: str, name: str, query: str) -> ViewOut:
        return ViewOut.model_validate(self._post("/views", {"page": page, "name": name, "query": query}))

    def edit(self, run: str, *, name: str | None = None, note: str | None = None, tags: list[str] | None = None) -> RunDetail:
        body = {"name": name, "note": note, "tags": tags}
        return RunDetail.model_validate(self._request("PATCH", f"/runs/{run}", json=body))

    def delete(self, run: str) -> None:
        self._request("DELETE", f"/runs/{run}")

    def act(self, run: str, action: str) -> RunDetail:
        """`action`: cancel, resume, pause, continue, stop or checkpoint."""
        return RunDetail.model_validate(self._post(f"/runs/{run}/{action}", {}))

    def extend(self, run: str, *, steps: int | None = None, wall_s: float | None = None) -> RunDetail:
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

    def _download(self, path: str, to: Path, params: dict[str, str]) -> int:
        part = to.with_name(to.name + ".part")
        written = 0
        try:
            with self._http.stream("GET", path, params=params) as answer, part.open("wb") as sink:
                if answer.status_code != 200:
                    answer.read()
                    raise _refusal(answer)
                for piece in answer.iter_bytes():
                    written += sink.write(piece)
            part.replace(to)
        except httpx.HTTPError as error:
            raise _unreachable(self.server, error) from error
        finally:
            part.unlink(missing_ok=True)
        return written

    def _get(self, path: str, **params: Any) -> Any:
        return self._request("GET", path, params={name: value for name, value in params.items() if value not in (None, "")})

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        return self._request("POST", path, json=body)

    def _request(self, method: str, path: str, **options: Any) -> Any:
        """Every request may be repeated: reads change nothing, launches have a key, and asking for a state twice is asking once."""
        for attempt in range(RETRIES):
            try:
                answer = self._http.request(method, path, **options)
            except httpx.TransportError as error:
                if attempt == RETRIES - 1:
                    raise _unreachable(self.server, error) from error
                time.sleep(0.3 * 2**attempt)
                continue
            if answer.status_code in (429, 503) and attempt < RETRIES - 1:
                time.sleep(min(10.0, _seconds(answer.headers.get("Retry-After")) or 0.3 * 2**attempt))
                continue
            break
        if answer.status_code == 204:
            return None
        if answer.status_code >= 300:
            raise _refusal(answer)
        return answer.json()


def _key() -> str:
    return f"client-{uuid.uuid4().hex}"


def _refusal(answer: httpx.Response) -> ApiError:
    try:
        return ApiError(answer.status_code, Problem.model_validate(answer.json()))
    except ValueError:  # no JSON, or not of this shape: whatever stands between client and server answered
        return ApiError(
            answer.status_code, Problem(code="unknown", message=f"{answer.url} answered {answer.status_code}, which is no Headrace answer")
        )


def _unreachable(server: str, error: Exception) -> ApiError:
    words = f"{server} cannot be reached ({type(error).__name__})"
    return ApiError(
        0, Problem(code="unreachable", message=words, field="server", value=server, cure="start it with `headrace up`", retryable=True)
    )


def _seconds(text: str | None) -> float | None:
    return float(text) if text and text.isdigit() else None
