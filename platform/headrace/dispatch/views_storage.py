"""The storage page: what a team uses, what is kept how long, what was deleted and can still be brought back."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST

from headrace.dispatch import keeping, retention, storage
from headrace.experiments.models import Run
from headrace.experiments.problems import BadInput, WrongState
from headrace.teams.models import Team
from headrace.teams.policy import can
from headrace.teams.services import NotAllowed
from headrace.teams.views_team import team_or_403
from headrace.telemetry.access import run_or_404

LABELS = {"events": "Events", "samples": "Samples", "logs": "Logs", "checkpoints": "Checkpoints"}
HELP = {
    "events": "Without them a sample's tokens and time travel are gone; charts stay.",
    "samples": "Prompts and completions as listed.",
    "logs": "Lines of the drivers' logs.",
    "checkpoints": "Without one a run cannot be resumed, forked or downloaded.",
}


class RetentionForm(forms.Form):
    """Days by kind, counted from a run's end; empty: for ever."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for kind in retention.KINDS:
            least = retention.LEAST_DAYS[kind]
            widget = forms.NumberInput(attrs={"class": "input", "placeholder": "for ever", "min": least, "max": retention.LONGEST_DAYS})
            self.fields[kind] = forms.IntegerField(
                label=f"{LABELS[kind]}, days",
                required=False,
                min_value=least,
                max_value=retention.LONGEST_DAYS,
                widget=widget,
                help_text=HELP[kind],
                error_messages={
                    "invalid": f"Not a whole number. Give {least} to {retention.LONGEST_DAYS}, or nothing to keep it for ever."
                },
            )


@require_http_methods(["GET", "HEAD", "POST"])
def storage_page(request: HttpRequest) -> HttpResponse:
    """?again=1 measures anew. A POST of a policy shows what it would take away; with `confirmed` it is saved."""
    team = team_or_403(request, "team.view" if request.method != "POST" else "retention.edit")
    user: Any = request.user
    policy = keeping.policy_of(team)
    form = RetentionForm(request.POST or None, initial=retention.days_of(policy))
    preview = None
    if request.method == "POST" and form.is_valid():
        days = {kind: form.cleaned_data[kind] for kind in retention.KINDS}
        try:
            if request.POST.get("confirmed") == "1":
                keeping.edit_policy(by=user, team=team, days=days)
                messages.success(request, "Saved. The next daily round keeps to it.")
                return redirect("/team/storage/")
            keeping.check_days(days)
            preview = retention.plan(team, days, timezone.now())
        except BadInput as fault:
            form.add_error(fault.field, f"{fault.message[:1].upper()}{fault.message[1:]}. To do: {fault.cure}.")
    return render(request, "team/storage.html", _context(request, team, form, preview), status=422 if form.errors else 200)


@require_POST
def keep(request: HttpRequest, public_id: str) -> HttpResponse:
    """`keep=1` keeps the run for ever, anything else leaves it to the policy."""
    user: Any = request.user
    run = run_or_404(user, public_id)
    wanted = request.POST.get("keep") == "1"
    try:
        keeping.keep_run(run, user, keep=wanted)
    except NotAllowed as fault:
        raise PermissionDenied(fault.message) from None
    messages.success(request, f"“{run.name}” is kept for ever." if wanted else f"“{run.name}” is kept as long as the policy says.")
    return redirect("/team/storage/" if request.POST.get("from") == "storage" else f"/runs/{run.public_id}/edit/")


@require_POST
def restore(request: HttpRequest, public_id: str) -> HttpResponse:
    """Takes a run's deletion back."""
    user: Any = request.user
    team = team_or_403(request)
    run = Run.objects.for_team(team).filter(public_id=public_id).exclude(deleted_at=None).first()
    if run is None:
        raise Http404("no such deleted run")
    try:
        keeping.restore_run(run, user)
    except NotAllowed as fault:
        raise PermissionDenied(fault.message) from None
    except WrongState as fault:
        messages.error(request, f"{fault.message[:1].upper()}{fault.message[1:]}.")
        return redirect("/team/storage/")
    messages.success(request, f"“{run.name}” is back.")
    return redirect(f"/runs/{run.public_id}/")


def _context(request: HttpRequest, team: Team, form: RetentionForm, preview: retention.Plan | None) -> dict[str, Any]:
    user: Any = request.user
    use = storage.use_of(team, again=request.GET.get("again") == "1")
    top = max((size for _, size in use.growth), default=0)
    now = keeping.policy_of(team)
    return {
        "section": "team",
        "tab": "storage",
        "team": team,
        "use": use,
        "database": [(kind, storage.NOTES[kind], size, use.items[kind]) for kind, size in use.database.items()],
        "files": [(kind, storage.NOTES[kind], size) for kind, size in use.disk.items()],
        "bars": [
            (3 + 10 * place, 60 - (58 * size / top if top else 0), 58 * size / top if top else 0, day, size)
            for place, (day, size) in enumerate(use.growth)
        ],
        "grown": sum(size for _, size in use.growth),
        "disk": storage.disk(),
        "form": form,
        "kept": [(LABELS[kind], days) for kind, days in retention.days_of(now).items()],
        "preview": preview,
        "labels": LABELS,
        "next_round": retention.plan(team, retention.days_of(now), timezone.now()) if now else None,
        "may": can(user, "retention.edit", team),
        "may_keep": can(user, "run.edit", team),
        "deleted": storage.deleted_runs(team),
        "may_restore": can(user, "run.delete", team),
        "orphans": storage.orphans() if user.is_staff else None,
        "grace_days": retention.DELETED_GRACE.days,
    }
