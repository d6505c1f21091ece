"""The query language: text to tree and back, faults with their place, and what each kind of term finds in the database."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from headrace.compare import fields, query, where
from headrace.compare.query import All, Any, Compare, Not, Query, QueryError, Sort, Value, Word, parse, write
from headrace.experiments import services
from headrace.experiments.models import Attempt, Experiment, Run
from headrace.experiments.selectors import runs_for
from headrace.teams.models import Role, Team, User
from tests.platform_tests.telemetry_rig import metric, push

NAMES = st.from_regex(r"[A-Za-z][A-Za-z0-9_./-]{0,12}", fullmatch=True).filter(lambda name: name.lower() not in query.KEYWORDS | {"sort"})
BARE = st.text(st.characters(exclude_characters='()",', exclude_categories=["Z", "C"]), min_size=1, max_size=12)
ANYTHING = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
VALUES = st.builds(Value, BARE, st.just(False)) | st.builds(Value, ANYTHING, st.just(True))
COMPARES = st.builds(Compare, NAMES, st.sampled_from([":", "!="]), st.lists(VALUES, min_size=1, max_size=3).map(tuple)) | st.builds(
    Compare, NAMES, st.sampled_from(["<", "<=", ">", ">=", "~", "!~"]), st.tuples(VALUES)
)
WORDS = st.builds(Word, ANYTHING)


def _several(kind: type[All] | type[Any]) -> Callable[[st.SearchStrategy[query.Node]], st.SearchStrategy[query.Node]]:
    def make(nodes: st.SearchStrategy[query.Node]) -> st.SearchStrategy[query.Node]:
        plain = nodes.filter(lambda node: not isinstance(node, kind))
        return st.lists(plain, min_size=2, max_size=3).map(lambda parts: kind(tuple(parts)))

    return make


NODES = st.recursive(COMPARES | WORDS, lambda inner: inner.map(Not) | _several(All)(inner) | _several(Any)(inner), max_leaves=8)
SORTS = st.lists(st.builds(Sort, NAMES, st.booleans()), max_size=3).map(tuple)


@given(st.builds(Query, st.none() | NODES, SORTS))
def test_a_tree_that_is_written_is_read_back(tree: Query) -> None:
    text = write(tree)
    if len(text) <= query.LONGEST:
        assert parse(text) == tree


@given(st.text(max_size=80) | st.text('ab:=<>~!(), "\\*-0.or not and', max_size=40))
def test_any_text_is_a_query_or_an_error_with_its_place(text: str) -> None:
    try:
        tree = parse(text)
    except QueryError as fault:
        assert 0 <= fault.start <= fault.end <= len(text) and fault.message and fault.cure
    else:
        assert parse(write(tree)) == tree


@given(ANYTHING)
def test_what_is_quoted_means_itself(text: str) -> None:
    found = parse(f"tag:{query.quote(text)}").where
    assert isinstance(found, Compare) and [value.text for value in found.values] == [text]
    assert found.values[0].quoted or "*" not in text


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("reward>", (6, 7), "a value is missing"),
        ("a (b or c", (2, 3), "without its )"),
        ("a) b", (1, 2), "without its ("),
        ("a or", (2, 4), "nothing after"),
        ("or a", (0, 2), "nothing before"),
        ("not", (0, 3), "nothing after"),
        ('name:"x', (5, 7), "without its end"),
        ("reward>1,2", (9, 10), "one value"),
        (">3", (0, 1), "name is missing"),
        ("()", (0, 2), "nothing is in"),
        ("sort:a sort:b sort:c sort:d", (21, 27), "more than 3 sorts"),
        ("not sort:a", (0, 10), "turns the order round"),
        ("a " * 41, (80, 82), "more than 40"),
        ("(" * 20, (13, 14), "too deeply"),
        ("x" * 1001, (1000, 1001), "longer than 1000"),
    ],
)
def test_faults_say_where(text: str, place: tuple[int, int], words: str) -> None:
    with pytest.raises(QueryError) as caught:
        parse(text)
    assert (caught.value.start, caught.value.end) == place
    assert words in f"{caught.value.message} {caught.value.cure}"


def test_fields_have_one_name_each_and_short_ones_where_only_one_fits() -> None:
    assert fields.resolve("lag.max").key == "lag/max"
    assert fields.resolve("batch.prompts").key == "config.batch.prompts"
    assert fields.resolve("environment.options").kind == "json"
    assert fields.resolve("config.environment.options.max_terms").path == "environment.options.max_terms"
    for name, cure in (
        ("buffer.depth", "config.buffer.depth or buffer/depth"),
        ("rewrd", "did you mean reward"),
        ("prompts", "config.batch.prompts"),
        ("config.environment.options.a'b", "did you mean"),
    ):
        with pytest.raises(QueryError, match=cure.replace(".", r"\.")):
            fields.resolve(name)


# --- what terms find -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def ada(team: Team, member: Callable[..., User]) -> User:
    return member(team, Role.OWNER, name="Ada Byron")


@pytest.fixture
def runs(team: Team, ada: User, start: Callable[..., Run]) -> dict[str, Run]:
    """Three runs: alpha (tagged, rewarded 0.9, three days old), beta (0.2, cancelled, 20 steps), gamma (no data)."""
    alpha = start(team, ada, name="alpha 50% (old) sums", tags=["baseline", "Größe"], group="sweep 1")
    beta = start(team, ada, name="beta", steps=20, tags=["base*"])
    gamma = start(team, None, name="gamma", source="demo")
    push(alpha.attempts.get(), [metric(0.1), metric(0.9), ("metrics", {"values": {"lag/max": 3, "own/x": 1}})])
    push(beta.attempts.get(), [metric(0.2)])
    services.cancel_run(beta, None)
    now = timezone.now()
    Run.unscoped.filter(pk=alpha.pk).update(created_at=now - timedelta(days=3))
    Attempt.unscoped.filter(run=alpha).update(started_at=now - timedelta(minutes=30))
    Attempt.unscoped.filter(run=beta).update(started_at=now - timedelta(minutes=5), ended_at=now - timedelta(minutes=3))
    experiment = Experiment.objects.create(team=team, project=gamma.project, name="Does it learn?")
    Run.unscoped.filter(pk=gamma.pk).update(experiment=experiment, archived_at=now)
    return {"alpha": alpha, "beta": beta, "gamma": gamma}


def _find(team: Team, user: User, runs: dict[str, Run], text: str) -> str:
    found, _ = where.apply(runs_for(user, team), parse(text), team=team, user=user)
    names = {run.pk: name for name, run in runs.items()}
    return " ".join(names[run.pk] for run in found)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "gamma beta alpha"),
        ("alpha", "alpha"),
        ("50%", "alpha"),
        ('"(old)"', "alpha"),
        ("CHAIN demo", "gamma beta alpha"),
        ("name:a", ""),
        ("name:A*", "alpha"),
        ('name:"a*"', ""),
        ("name~ETA", "beta"),
        ("name!~eta", "gamma alpha"),
        ("state:cancelled", "beta"),
        ("state:running,queued", "gamma alpha"),
        ("state!=running,queued", "beta"),
        ("preset:demo", "gamma beta alpha"),
        ("preset:demo@2 id:none", ""),
        ("preset:verl*", ""),
        ("reward>0.6", "alpha"),
        ("reward>=0.2 reward<=0.2", "beta"),
        ("reward:none", "gamma"),
        ("reward:*", "beta alpha"),
        ("not reward>0.6", "gamma beta"),
        ("reward:0.2 or reward/mean:0.9", "beta alpha"),
        ("heldout:*", ""),
        ("lag.max<4", "alpha"),
        ("own/x=1", "alpha"),
        ("step:2", "alpha"),
        ("tag:baseline", "alpha"),
        ("tag:base*", "beta alpha"),
        ('tag:"base*"', "beta"),
        ("tag:Größe", "alpha"),
        ("tag:none", "gamma"),
        ("not tag:none", "beta alpha"),
        ("config.budget.steps>10", "beta"),
        ("budget.steps:3", "gamma alpha"),
        ("config.rollout.remote:none budget.steps:20", "beta"),
        ("config.environment.options.max_terms:2 beta", "beta"),
        ("config.environment.options.max_terms>2", ""),
        ("config.partial:continue gamma", "gamma"),
        ("config.partial:abort*", ""),
        ("config.lora.moe_experts:no alpha", "alpha"),
        ("config.lora.moe_experts:yes", ""),
        ("config.buffer.kind:bounded,double beta", "beta"),
        ("model~smollm alpha", "alpha"),
        ("by:me", "beta alpha"),
        ("by:ada*", "beta alpha"),
        ("by:demo", "gamma"),
        ("by:none", "gamma"),
        ("group:sweep*", "alpha"),
        ("group:none", "gamma beta"),
        ("experiment~learn", "gamma"),
        ("experiment:none", "beta alpha"),
        ("project:P seed=7 alpha", "alpha"),
        ("created>7d", "gamma beta alpha"),
        ("created<2d", "alpha"),
        ("created>=2026-01-01 created<=2999-12-31 beta", "beta"),
        ("duration>10m", "alpha"),
        ("duration>=2min duration<3min", "beta"),
        ("duration:none", "gamma"),
        ("archived:yes", "gamma"),
        ("(alpha or beta) archived:no not state:cancelled", "alpha"),
        ("sort:-reward", "alpha beta gamma"),
        ("sort:reward", "beta alpha gamma"),
        ("sort:-config.budget.steps sort:name", "beta alpha gamma"),
        ("sort:-duration", "alpha beta gamma"),
        ("sort:created", "alpha beta gamma"),
        ("beta or gamma sort:name", "beta gamma"),
    ],
)
def test_terms_find(team: Team, ada: User, runs: dict[str, Run], text: str, expected: str) -> None:
    assert _find(team, ada, runs, text) == expected


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("rewrd>1", (0, 5), "did you mean reward"),
        ("other/x>1", (0, 7), "no field other/x"),
        ("alpha reward>much", (13, 17), "is a number"),
        ("reward>nan", (7, 10), "is a number"),
        ("reward~1", (7, 8), "~ is for text"),
        ("name>x", (5, 6), "use name:x"),
        ("created:7d", (8, 10), "needs < or >"),
        ("created>soon", (8, 12), "is not a time"),
        ("created>2026-13-40", (8, 18), "is not a time"),
        ("created>9999999w", (8, 16), "too long ago"),
        ("duration>long", (9, 13), "length of time"),
        ("archived:maybe", (9, 14), "yes or no"),
        ("sort:nothing_like_it", (0, 20), "there is no field"),
        (" ".join(f"{name}>0" for name in list(fields.metric_fields())[:9]), None, "more than 8 metrics"),
    ],
)
def test_terms_that_cannot_be_asked(team: Team, ada: User, text: str, place: tuple[int, int] | None, words: str) -> None:
    with pytest.raises(QueryError) as caught:
        where.apply(runs_for(ada, team), parse(text), team=team, user=ada)
    if place:
        assert (caught.value.start, caught.value.end) == place
    assert words in f"{caught.value.message} {caught.value.cure}"


def test_another_teams_metric_is_no_field_here(other_team: Team, team: Team, ada: User, start: Callable[..., Run]) -> None:
    push(start(other_team).attempts.get(), [metric(1.0, "secret/x")])
    assert fields.stored_metrics(team) == [] and fields.stored_metrics(other_team) == ["secret/x"]
    with pytest.raises(QueryError, match="no field"):
        where.apply(runs_for(ada, team), parse("secret/x>0"), team=team, user=ada)
