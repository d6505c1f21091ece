"""Pages of alerts: what fired, rules, channels, and their test buttons. Thin: selectors read, services write."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from headrace.alerts import selectors, services
from headrace.alerts.dryrun import dry_run
from headrace.alerts.forms import ChannelForm, RuleForm
from headrace.alerts.kinds import KINDS, READY_MADE
from headrace.alerts.models import AlertChannel, AlertRule
from headrace.experiments.models import Run
from headrace.experiments.problems import BadInput
from headrace.teams.models import Team
from headrace.teams.policy import can
from headrace.teams.services import NotAllowed
from headrace.teams.views import current_team
from headrace.telemetry.views import json_of_run


@require_safe
def alerts(request: HttpRequest) -> HttpResponse:
    """?q= and ?open=1 filter what fired, ?page= turns; rules and channels below."""
    team = current_team(request)
    if team is None:
        return render(request, "alerts/index.html", {"section": "alerts", "team": None})
    text = request.GET.get("q", "").replace("\x00", "").strip()[:200]
    number = request.GET.get("page", "1")
    page = min(int(number), 100_000) if number.isascii() and number.isdigit() and len(number) < 7 and int(number) > 0 else 1
    only_open = request.GET.get("open") == "1"
    history, more = selectors.history_for(request.user, team, page=page, text=text, only_open=only_open)
    filters = {name: value for name, value in (("q", text), ("open", "1" if only_open else "")) if value}
    rules = selectors.rules_for(request.user, team)
    named = {rule.name for rule in rules}
    context = {
        "section": "alerts",
        "team": team,
        "history": history,
        "rules": rules,
        "channels": selectors.channels_for(request.user, team),
        "ready_made": [offered for offered in READY_MADE if offered.name not in named],
        "kinds": selectors.kinds(),
        "channel_kinds": AlertChannel.Kind.choices,
        "can_create": can(request.user, "alert.create", team),
        "can_channel": can(request.user, "channel.edit", team),
        "editable": {rule.pk for rule in rules if can(request.user, "alert.edit", rule)},
        "q": text,
        "only_open": only_open,
        "newer": "?" + urlencode({**filters, "page": page - 1}) if page > 1 else "",
        "older": "?" + urlencode({**filters, "page": page + 1}) if more else "",
    }
    return render(request, "alerts/index.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
def rule_new(request: HttpRequest) -> HttpResponse:
    """?kind=: the form of a new rule; ?run= fills its scope."""
    team = _team_that_may(request, "alert.create")
    kind = request.GET.get("kind", "threshold")
    if kind not in KINDS:
        raise Http404("no such kind of rule")
    return _rule_form(request, team, kind, None)


@require_http_methods(["GET", "HEAD", "POST"])
def rule_edit(request: HttpRequest, public_id: str) -> HttpResponse:
    """One rule; who may not edit it may look and try it."""
    rule = _rule(request, public_id)
    return _rule_form(request, rule.team, rule.kind, rule)


@require_POST
def rule_delete(request: HttpRequest, public_id: str) -> HttpResponse:
    rule = _rule(request, public_id)
    _allowed(lambda: services.delete_rule(rule, _user(request)))
    messages.success(request, f"The rule {rule.name} is deleted.")
    return redirect("/alerts/")


@require_POST
def rule_switch(request: HttpRequest, public_id: str) -> HttpResponse:
    rule = _rule(request, public_id)
    _allowed(lambda: services.switch_rule(rule, _user(request), request.POST.get("enabled") == "1"))
    return redirect("/alerts/")


@require_POST
def ready_made(request: HttpRequest) -> HttpResponse:
    """Adds the offered rules that were ticked."""
    team = _team_that_may(request, "alert.create")
    made = services.add_ready_made(team, _user(request), request.POST.getlist("key"))
    said = f"{len(made)} rule{'s' * (len(made) != 1)} watch{'es' * (len(made) == 1)} now." if made else "Nothing was chosen."
    messages.success(request, said)
    return redirect("/alerts/")


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def channel_new(request: HttpRequest) -> HttpResponse:
    """?kind=: the form of a new channel."""
    team = _team_that_may(request, "channel.edit")
    kind = request.GET.get("kind", "webhook")
    if kind not in AlertChannel.Kind.values:
        raise Http404("no such kind of channel")
    return _channel_form(request, team, kind, None)


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def channel_edit(request: HttpRequest, public_id: str) -> HttpResponse:
    channel = _channel(request, public_id)
    if not can(request.user, "channel.edit", channel):
        raise PermissionDenied("Only owners of the team may change its channels.")
    return _channel_form(request, channel.team, channel.kind, channel)


@require_POST
def channel_test(request: HttpRequest, public_id: str) -> HttpResponse:
    """Sends a message now; the page tells what came of it."""
    channel = _channel(request, public_id)
    row = _allowed(lambda: services.test_channel(channel, _user(request)))
    if row.state == "sent":
        messages.success(request, f"{channel.name} took the test message: {row.words}.")
    else:
        messages.error(request, f"{channel.name} did not get the test message: {row.words}.")
    return redirect("/alerts/")


@require_POST
def channel_delete(request: HttpRequest, public_id: str) -> HttpResponse:
    channel = _channel(request, public_id)
    _allowed(lambda: services.delete_channel(channel, _user(request)))
    messages.success(request, f"The channel {channel.name} is deleted.")
    return redirect("/alerts/")


@json_of_run
def of_run(request: HttpRequest, run: Run) -> dict[str, Any]:
    """What fired for the run: the marks of its time bar and its banner."""
    return {"alerts": selectors.alerts_of(run)}


def _rule_form(request: HttpRequest, team: Team, kind: str, rule: AlertRule | None) -> HttpResponse:
    may = can(request.user, "alert.create", team) if rule is None else can(request.user, "alert.edit", rule)
    runs, channels = selectors.runs_offered(request.user, team), list(selectors.channels_for(request.user, team))
    posted = request.POST if request.method == "POST" else None
    form = RuleForm(kind, runs, channels, posted, rule)
    if rule is None and posted is None and request.GET.get("run") in {run.public_id for run in runs}:
        form.fields["run"].initial = request.GET["run"]
    tried = None
    if posted is not None and form.is_valid():
        try:
            if "try" in posted:
                tried = _try(request, team, form, rule, runs)
            else:
                saved = services.save_rule(team, _user(request), form.given(), rule)
                messages.success(request, f"The rule {saved.name} is saved.")
                return redirect("/alerts/")
        except NotAllowed as fault:
            raise PermissionDenied(fault.message) from None
        except BadInput as fault:
            form.add_error(fault.field if fault.field in form.fields else None, _sentence(fault))
    context = {
        "section": "alerts",
        "team": team,
        "form": form,
        "rule": rule,
        "kind": kind,
        "title": KINDS[kind][1],
        "words": KINDS[kind][2],
        "runs": runs,
        "tried": tried,
        "try_run": posted.get("try_run", "") if posted is not None else request.GET.get("run", ""),
        "may": may,
    }
    return render(request, "alerts/rule.html", context, status=422 if form.errors else 200)


def _try(request: HttpRequest, team: Team, form: RuleForm, rule: AlertRule | None, runs: list[Run]) -> dict[str, Any]:
    """The rule as it stands in the form, over the chosen run; nothing is saved."""
    run = next((one for one in runs if one.public_id == request.POST.get("try_run")), None)
    if run is None:
        raise BadInput("is not one of the runs", field="try_run", cure="choose a run to try the rule on")
    copy = AlertRule(team=team, kind=form.kind) if rule is None else AlertRule(pk=rule.pk, team=team, kind=rule.kind)
    tried, _ = services.prepare_rule(team, form.given(), copy)
    return {**dry_run(tried, run), "run": run}


def _channel_form(request: HttpRequest, team: Team, kind: str, channel: AlertChannel | None) -> HttpResponse:
    form = ChannelForm(kind, request.POST or None, channel)
    if request.method == "POST" and form.is_valid():
        data = form.cleaned_data
        given = form.given()
        if channel is not None and not any(given[name] for name in given if name != "mode"):
            given = {}  # the address stays as it is
        try:
            saved, secret = services.save_channel(
                team, _user(request), kind=kind, name=data["name"], given=given, enabled=data["enabled"], channel=channel
            )
        except NotAllowed as fault:
            raise PermissionDenied(fault.message) from None
        except BadInput as fault:
            form.add_error(fault.field if fault.field in form.fields else None, _sentence(fault))
        else:
            if secret:
                return render(request, "alerts/secret.html", {"section": "alerts", "channel": saved, "secret": secret})
            messages.success(request, f"The channel {saved.name} is saved. Press Test to see whether it works.")
            return redirect("/alerts/")
    label = AlertChannel.Kind(kind).label
    context = {"section": "alerts", "team": team, "form": form, "channel": channel, "kind": kind, "label": label}
    return render(request, "alerts/channel.html", context, status=422 if form.errors else 200)


def _team_that_may(request: HttpRequest, action: str) -> Team:
    team = current_team(request)
    if team is None:
        raise Http404("no team")
    if not can(request.user, action, team):
        raise PermissionDenied("Your role in this team does not allow this.")
    return team


def _rule(request: HttpRequest, public_id: str) -> AlertRule:
    try:
        return selectors.rule_for(request.user, public_id)
    except AlertRule.DoesNotExist:
        raise Http404("no such rule") from None


def _channel(request: HttpRequest, public_id: str) -> AlertChannel:
    try:
        return selectors.channel_for(request.user, public_id)
    except AlertChannel.DoesNotExist:
        raise Http404("no such channel") from None


def _allowed(act: Any) -> Any:
    try:
        return act()
    except NotAllowed as fault:
        raise PermissionDenied(fault.message) from None


def _sentence(fault: BadInput) -> str:
    words = f"{fault.message[:1].upper()}{fault.message[1:]}"
    return f"{words}. To do: {fault.cure}." if fault.cure else f"{words}."


def _user(request: HttpRequest) -> Any:
    return request.user
