"""What a run will come to, forecast before it runs: the planner at the costs that an earlier run of the same model has measured here.

No such run, or a planner that says no, is an answer in words, never an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.core.cache import cache

from headrace.dispatch import capacity
from headrace.experiments import foresight_words, planner
from headrace.experiments.models import Attempt, Run
from headrace.experiments.states import RunState
from headrace.schema_form import lookup
from headrace.teams.models import Team
from workers.contract.config import RunConfig
from workers.contract.errors import HeadraceError

CALIBRATION = "calibration.json"
NONE_YET = "No run of this model has finished here yet: the first one makes forecasts possible."
LOOKED_AT = 20
TRIED = 3
KEPT_S = 3600
FAILURE_KEPT_S = 60
# Fields that change what things cost. The scenario holds the costs of the run that was measured.
COSTLY = (
    *("model.dtype", "lora.kind", "backend.kind", "backend.ranks", "orchestration.kind"),
    *("transport.kind", "transport.payload", "environment.dataset"),
)


@dataclass(frozen=True)
class Source:
    """A finished run that has told what its model costs on these devices."""

    run: Run
    folder: Path

    @property
    def calibration(self) -> Path:
        return self.folder / CALIBRATION

    def as_json(self) -> dict[str, str]:
        return {"id": self.run.public_id, "name": self.run.name}


@dataclass(frozen=True)
class Foresight:
    """`predicted`, or `why` there is nothing predicted."""

    source: Source | None = None
    why: str | None = None
    predicted: dict[str, Any] | None = None

    def as_json(self) -> dict[str, Any]:
        return {"source": self.source.as_json() if self.source else None, "why": self.why, "predicted": self.predicted}


def foresee(team: Team, config: RunConfig, *, besides: Run | None = None, wait_s: float = planner.WAIT_S) -> Foresight:
    """The newest run that can be calibrated is the source. `besides`: the run that is forecast. Raises PlannerBusy alone."""
    failure = Foresight(why=NONE_YET)
    for source in _sources(team, config, besides):
        try:
            _calibrated(source, wait_s)
        except planner.PlannerBusy:
            raise
        except HeadraceError as fault:
            if failure.source is None:
                failure = Foresight(source, f"The run “{source.run.name}” could not be calibrated: {_sentence(fault)}")
            continue
        return _forecast(source, config, wait_s)
    return failure


def answer(team: Team, config: RunConfig) -> dict[str, Any]:
    """The same as JSON, for pages. A planner that is busy is an answer, too."""
    try:
        return foresee(team, config).as_json()
    except planner.PlannerBusy as fault:
        return Foresight(why=_sentence(fault)).as_json()


def fill(run: Run, *, wait_s: float = planner.WAIT_S) -> bool:
    """Called by the task after a launch: keeps with the run what was predicted of it. False: nothing was. Raises PlannerBusy."""
    if run.forecast is not None or run.source == Run.Source.UPLOAD:
        return False
    found = foresee(run.team, RunConfig.model_validate(run.config.data), besides=run, wait_s=wait_s)
    if found.predicted is None:
        return False
    kept = {"source": found.as_json()["source"], "predicted": found.predicted}
    return Run.unscoped.filter(pk=run.pk, forecast__isnull=True).update(forecast=kept) == 1


def _sources(team: Team, config: RunConfig, besides: Run | None) -> Iterator[Source]:
    """Finished runs of this team, model and engine whose events lie on this machine, the newest first, at most `TRIED`."""
    runs = Run.objects.for_team(team).filter(state=RunState.SUCCEEDED, deleted_at=None).exclude(source=Run.Source.UPLOAD)
    runs = runs.filter(config__data__model__path=config.model.path, config__data__rollout__engine=config.rollout.engine)
    if besides is not None:
        runs = runs.exclude(pk=besides.pk)
    found = 0
    for run in runs.select_related("config").order_by("-state_since", "-pk")[:LOOKED_AT]:
        folder = _folder(run)
        if folder is not None:
            yield Source(run, folder)
            found += 1
        if found == TRIED:
            return


def _folder(run: Run) -> Path | None:
    """Of the run's last attempt that left something to measure."""
    for attempt in Attempt.objects.for_team(run.team_id).filter(run=run).exclude(out_dir="").order_by("-number"):
        folder = Path(attempt.out_dir)
        whole = (folder / "spool").is_dir() and (folder / "config.json").is_file()
        if whole or (folder / CALIBRATION).is_file():
            return folder
    return None


def _calibrated(source: Source, wait_s: float) -> None:
    """Once a run. What failed is not tried again for a while. Raises PlannerFailed, PlannerBusy."""
    if source.calibration.is_file():
        return
    key = f"calibration:{source.run.pk}"
    failed = cache.get(key)
    if failed is not None:
        raise planner.PlannerFailed(failed[0], field="run", cure=failed[1])
    try:
        planner.calibrate(source.folder, source.calibration, wait_s=wait_s)
    except planner.PlannerFailed as fault:
        cache.set(key, (fault.message, fault.cure), KEPT_S)
        raise


def _forecast(source: Source, config: RunConfig, wait_s: float) -> Foresight:
    """Raises PlannerBusy."""
    key = f"forecast:{source.run.pk}:{config.digest()}"
    kept = cache.get(key)
    if kept is None:
        try:
            kept = (None, planner.forecast(config, source.calibration, wait_s=wait_s))
        except planner.PlannerFailed as fault:
            kept = (f"No forecast: {_sentence(fault)}", None)
        cache.set(key, kept, KEPT_S if kept[0] is None else FAILURE_KEPT_S)
    why, told = kept
    if told is None:
        return Foresight(source, why)
    return Foresight(source, None, foresight_words.predicted(told, capacity.price_of(source.run), unlike(source.run, config)))


def unlike(run: Run, config: RunConfig) -> list[str]:
    """Where the measured run differs in what decides costs: a forecast carries its costs over."""
    there, here = run.config.data, config.as_json()
    rows = [(path, lookup(there, path), lookup(here, path)) for path in COSTLY]
    return [f"{path} {_or_none(here)}, measured with {_or_none(there)}" for path, there, here in rows if there != here]


def _or_none(value: Any) -> str:
    return "none" if value in (None, "") else str(value)


def _sentence(fault: HeadraceError) -> str:
    """Its message and cure."""
    text = fault.message.rstrip(".") + (f". To do: {fault.cure.rstrip('.')}." if fault.cure else ".")
    return text[:1].upper() + text[1:]
