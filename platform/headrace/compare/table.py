"""The runs table as its link describes it: query, filters, columns, order, page. Read here, written back into links here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from django.db.models import QuerySet
from django.http import QueryDict

from headrace.compare import fields, query, where
from headrace.compare.fields import RunField
from headrace.compare.query import QueryError
from headrace.experiments import listing
from headrace.experiments.models import Run
from headrace.experiments.selectors import runs_for
from headrace.experiments.states import RunState
from headrace.teams.models import Team

# The parameters of the table's link that a saved view keeps; `page` and `rows` are of the moment.
PARAMETERS = ("q", "state", "project", "experiment", "archived", "cols", "sort")


@dataclass
class Table:
    """One request for the table."""

    user: Any
    team: Team | None
    given: QueryDict
    error: QueryError | None = None
    parsed: query.Query = field(default_factory=query.Query)

    def __post_init__(self) -> None:
        self.q = self.given.get("q", "").replace("\x00", "").strip()[: query.LONGEST]
        chosen = self.given.get("cols", "")[:2000]
        self.columns, self.unknown = fields.columns(chosen, listing.COLUMNS, listing.MOST_COLUMNS)
        self.columns = [item for item in self.columns if item.key != "name"]
        self.sort = self._sort(self.given.get("sort", ""))
        self.page = listing.page_number(self.given.get("page", ""))

    @property
    def parameters(self) -> dict[str, str]:
        """What the link holds, without the page."""
        kept = {name: self.given.get(name, "").replace("\x00", "").strip()[:2000] for name in PARAMETERS}
        return {name: value for name, value in kept.items() if value}

    @property
    def is_filtered(self) -> bool:
        return bool(self.parameters.keys() & {"q", "state", "project", "experiment"})

    def link(self, **changes: Any) -> str:
        """The table's query string with some parameters changed; an empty value takes one out. The page begins anew unless given."""
        merged = {name: value for name, value in {**self.parameters, **changes}.items() if value}
        return "?" + urlencode(merged)

    def runs(self) -> QuerySet[Run]:
        """The runs that fit, in order. A query that cannot be understood finds nothing and leaves `error`."""
        runs = runs_for(self.user, self.team).select_related("experiment")
        if self.team is None:
            return runs.none()
        try:
            self.parsed = query.parse(self.q)
            runs, mentioned = where.apply(runs, self.parsed, team=self.team, user=self.user)
        except QueryError as fault:
            self.error = fault
            return runs.none()
        if not self.given.get("archived") and "archived" not in mentioned:
            runs = runs.filter(archived_at=None)
        state, project, experiment = (self.given.get(name, "") for name in ("state", "project", "experiment"))
        if state in RunState.values:
            runs = runs.filter(state=state)
        if project:
            runs = runs.filter(project__public_id=project[:20])
        if experiment:
            runs = runs.filter(experiment__public_id=experiment[:20])
        return where.ordered(runs, [self.sort]) if self.sort else runs

    def heads(self) -> list[dict[str, Any]]:
        """Column heads: the name first, each with the link that sorts by it and how it is sorted now."""
        sorted_by = self.sort or self._sorted_by_query()
        heads = []
        for item in [fields.OWN["name"], *self.columns]:
            now = "" if sorted_by is None or sorted_by[0].key != item.key else "descending" if sorted_by[1] else "ascending"
            # Numbers and times are first asked for largest first, words from A.
            first, other = ("-", "") if item.kind in ("number", "time", "duration") else ("", "-")
            prefix = {"": first, "descending": "" if first else "!", "ascending": other if not first else "!"}[now]
            after = "" if prefix == "!" else f"{prefix}{item.key}"
            heads.append(
                {"key": item.key, "title": item.title, "kind": item.kind, "help": item.help, "sorted": now, "link": self.link(sort=after)}
            )
        return heads

    def _sort(self, text: str) -> tuple[RunField, bool] | None:
        if not text:
            return None
        try:
            return fields.resolve(text.removeprefix("-")[:300]), text.startswith("-")
        except QueryError:
            self.unknown.append(text[:100])
            return None

    def _sorted_by_query(self) -> tuple[RunField, bool] | None:
        if not self.parsed.sort:
            return fields.OWN["created"], True
        return fields.resolve(self.parsed.sort[0].field), self.parsed.sort[0].descending


def mark(text: str, fault: QueryError) -> dict[str, str]:
    """The query in three parts, the wrong one in the middle, and the words about it."""
    start, end = min(fault.start, len(text)), min(fault.end, len(text))
    return {"before": text[:start], "wrong": text[start:end], "after": text[end:], "message": fault.message, "cure": fault.cure or ""}
