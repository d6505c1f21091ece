"""Writes of saved views, and what the runs table does to several runs at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlencode

from django.db import IntegrityError, transaction

from headrace.compare.models import SavedView
from headrace.experiments import services as run_services
from headrace.experiments import shelving
from headrace.experiments.models import Run
from headrace.experiments.problems import BadInput
from headrace.experiments.text import clean_line
from headrace.teams import audit
from headrace.teams.models import Team, User
from headrace.teams.services import require
from workers.contract.errors import HeadraceError

MOST_VIEWS = 200
MOST_AT_ONCE = 200
LONGEST_QUERY = 4000
OF_THE_MOMENT = frozenset({"page", "rows", "csrfmiddlewaretoken"})
ADDRESSES = {SavedView.Page.RUNS: "/runs/", SavedView.Page.COMPARE: "/compare/"}


def address(view: SavedView) -> str:
    """Where a saved view leads."""
    return ADDRESSES[SavedView.Page(view.page)] + (f"?{view.query}" if view.query else "")


def save_view(team: Team, user: User, *, page: str, name: str, query: str) -> SavedView:
    """Keep the exact link of a page under a name. The same name on the same page is taken: BadInput says so."""
    require(user, "view.create", team)
    if page not in SavedView.Page.values:
        raise BadInput("is not a page that is saved", field="page", value=page, cure=" or ".join(SavedView.Page.values))
    if SavedView.objects.for_team(team).count() >= MOST_VIEWS:
        raise BadInput(f"the team has {MOST_VIEWS} views already", field="name", cure="delete one that nobody needs")
    fields = {"page": page, "name": clean_line(name, field="name", longest=100), "query": clean_query(query)}
    try:
        with transaction.atomic():
            view = SavedView.objects.create(team=team, created_by=user, **fields)
            audit.record("view.create", user=user, team=team, obj=view)
            return view
    except IntegrityError:
        raise BadInput("another view has this name", field="name", value=fields["name"], cure="choose another one") from None


def rename_view(view: SavedView, user: User, name: str) -> None:
    """Another name for a saved view; its link stays."""
    require(user, "view.edit", view)
    view.name = clean_line(name, field="name", longest=100)
    try:
        with transaction.atomic():
            view.save(update_fields=["name"])
            audit.record("view.edit", user=user, team=view.team, obj=view)
    except IntegrityError:
        raise BadInput("another view has this name", field="name", value=view.name, cure="choose another one") from None


@transaction.atomic
def delete_view(view: SavedView, user: User) -> None:
    """Forget a saved view; the runs it shows stay."""
    require(user, "view.edit", view)
    audit.record("view.delete", user=user, team=view.team, obj=view, detail={"name": view.name})
    view.delete()


def clean_query(query: str) -> str:
    """A query string in one normal form, without what is of the moment."""
    if len(query) > LONGEST_QUERY:
        raise BadInput(f"is longer than {LONGEST_QUERY} characters", field="query", value=f"{len(query)} characters", cure="choose less")
    try:
        pairs = parse_qsl(query.removeprefix("?"), keep_blank_values=False, max_num_fields=60)
    except ValueError:
        raise BadInput("has too many parts", field="query", cure="choose less") from None
    cleaned = urlencode([(key, value) for key, value in pairs if key not in OF_THE_MOMENT and "\x00" not in value])
    if len(cleaned) > LONGEST_QUERY:
        raise BadInput(f"is longer than {LONGEST_QUERY} characters", field="query", value=f"{len(cleaned)} characters", cure="choose less")
    return cleaned


@dataclass
class Outcome:
    """What became of an action on several runs."""

    done: list[Run] = field(default_factory=list)
    refused: list[tuple[Run, str]] = field(default_factory=list)


def _tag(run: Run, user: User, tag: str) -> None:
    if tag not in run.tags:
        run_services.edit_run(run, user, tags=[*run.tags, tag])


def _untag(run: Run, user: User, tag: str) -> None:
    if tag in run.tags:
        run_services.edit_run(run, user, tags=[kept for kept in run.tags if kept != tag])


def _cancel(run: Run, user: User, tag: str) -> None:
    if run.is_over:
        raise BadInput(f"it is {run.state} already", field="state")
    run_services.cancel_run(run, user)


# word: what is done to one run. The words are those of the table's buttons.
ACTIONS: dict[str, Callable[[Run, User, str], object]] = {
    "tag": _tag,
    "untag": _untag,
    "cancel": _cancel,
    "archive": lambda run, user, tag: shelving.archive_run(run, user),
    "unarchive": lambda run, user, tag: shelving.unarchive_run(run, user),
    "delete": lambda run, user, tag: run_services.delete_run(run, user),
}
ASKS_FIRST = frozenset({"cancel", "delete"})


def apply_to(runs: Iterable[Run], user: User, action: str, *, tag: str = "") -> Outcome:
    """Do one thing to each run. Each is done or refused by itself, with the reason; raises BadInput only for the request as a whole."""
    if action not in ACTIONS:
        raise BadInput("is not an action", field="action", value=action, cure=f"one of {', '.join(ACTIONS)}")
    if action in ("tag", "untag"):
        tag = clean_line(tag, field="tag", longest=60)
    outcome = Outcome()
    for run in runs:
        try:
            ACTIONS[action](run, user, tag)
        except HeadraceError as fault:
            outcome.refused.append((run, fault.message))
        else:
            outcome.done.append(run)
    return outcome
