"""Forms of rules and channels. They read text into values; what is allowed is decided by the services."""

from __future__ import annotations

from typing import Any

from django import forms
from django.http import QueryDict

from headrace.alerts.models import AlertChannel, AlertRule, Severity
from headrace.experiments.models import Run
from headrace.experiments.states import RunState
from workers.contract.metrics import CATALOGUE

Kind = AlertChannel.Kind
TEXT = {"class": "input", "autocomplete": "off"}
STATES = [(name, RunState(name).label) for name in ("failed", "lost", "succeeded", "cancelled", "paused", "running")]


def _text(label: str, help_text: str = "", *, required: bool = True, initial: str = "", **attributes: str) -> forms.CharField:
    widget = forms.TextInput(attrs={**TEXT, **attributes})
    return forms.CharField(label=label, help_text=help_text, required=required, initial=initial, max_length=1000, widget=widget)


def _number(label: str, help_text: str, initial: float, *, whole: bool = False) -> forms.Field:
    widget = forms.TextInput(attrs={**TEXT, "inputmode": "decimal"})
    made = forms.IntegerField if whole else forms.FloatField
    return made(label=label, help_text=help_text, initial=initial, widget=widget)


def _choice(label: str, choices: list[tuple[str, str]], initial: str, help_text: str = "") -> forms.ChoiceField:
    return forms.ChoiceField(
        label=label, choices=choices, initial=initial, help_text=help_text, widget=forms.Select(attrs={"class": "input"})
    )


def _metric(label: str, initial: str, help_text: str, *, required: bool = True) -> forms.CharField:
    return _text(label, help_text, required=required, initial=initial, list="metric-names")


def option_fields(kind: str) -> dict[str, forms.Field]:
    """The fields of one kind's options."""
    if kind == "threshold":
        return {
            "metric": _metric("Metric", "loss/entropy", "Name of the series, as on the charts."),
            "side": _choice("Is", [("above", "above"), ("below", "below")], "below"),
            "value": _number("Value", "In the metric's own unit.", 0.05),
            "points": _number("Points on end", "So many values in a row have to be beyond it: one outlier is no alarm.", 3, whole=True),
            "seconds": _number("Or seconds", "Above 0: for so long, instead of so many points.", 0),
        }
    if kind == "collapse":
        return {
            "metric": _metric("Metric", "reward/mean", "More is better: a reward, an evaluation."),
            "percent": _number("Fall, per cent", "Below its best of the window.", 50),
            "steps": _number("Window, steps", "The best is looked for in the last so many steps.", 50, whole=True),
            "mean_of": _number("Mean of, points", "Smooths both ends.", 3, whole=True),
        }
    if kind == "nonfinite":
        return {"metric": _metric("Metric", "", "Empty: any metric of the run.", required=False)}
    if kind == "stall":
        return {
            "of": _choice("No", [("step", "finished step"), ("event", "event at all")], "step"),
            "seconds": _number("For, seconds", "At least 15. Longer than your longest step.", 600),
        }
    if kind == "state":
        widget = forms.CheckboxSelectMultiple
        return {"states": forms.MultipleChoiceField(label="It becomes", choices=STATES, initial=["failed", "lost"], widget=widget)}
    return {"seconds": _number("Longer than, seconds", "In the queue or while it is launched.", 1800)}


class RuleForm(forms.Form):
    """One rule. The fields of its kind come first, then whom it watches, then whom it tells."""

    name = _text("Name", "As it is told: Reward collapse.")

    def __init__(
        self, kind: str, runs: list[Run], channels: list[AlertChannel], data: QueryDict | None = None, rule: AlertRule | None = None
    ) -> None:
        initial: dict[str, Any] = {}
        if rule is not None:
            names = ("name", "preset", "tag", "severity", "cooldown_s", "tell_resolved", "hold_run", "enabled")
            initial = {**rule.options, **{name: getattr(rule, name) for name in names}}
            initial["run"] = rule.run.public_id if rule.run else ""
            initial["channels"] = [channel.public_id for channel in rule.channels.all()] if rule.pk else [one.public_id for one in channels]
        super().__init__(data, initial=initial)
        self.kind, self.runs, self.known = kind, runs, channels
        self.options = option_fields(kind)
        self.fields.update(self.options)
        offered = [("", "every run of the team"), *[(run.public_id, run.name) for run in runs]]
        if rule is not None and rule.run is not None and rule.run.public_id not in dict(offered):
            offered.append((rule.run.public_id, rule.run.name))
            self.runs = [*runs, rule.run]
        self.fields |= {
            "run": forms.ChoiceField(label="Run", choices=offered, required=False, widget=forms.Select(attrs={"class": "input"})),
            "preset": _text("Only of preset", "Its name, for example prime-rl. Empty: any.", required=False),
            "tag": _text("Only with tag", "Empty: with or without.", required=False),
            "channels": forms.MultipleChoiceField(
                label="Tell",
                choices=[(channel.public_id, f"{channel.name} ({channel.get_kind_display()})") for channel in channels],
                required=False,
                widget=forms.CheckboxSelectMultiple,
                initial=[channel.public_id for channel in channels],
            ),
            "severity": _choice("Severity", list(Severity.choices), Severity.WARNING),
            "cooldown_s": _number("Quiet for, seconds", "After it told, it is not told again for so long.", 900, whole=True),
            "tell_resolved": forms.BooleanField(label="Tell when it is over", required=False, initial=True),
            "hold_run": forms.BooleanField(label="Write a checkpoint and pause the run", required=False),
            "enabled": forms.BooleanField(label="Switched on", required=False, initial=True),
        }

    def given(self) -> dict[str, Any]:
        """What `services.save_rule` takes. Call after is_valid."""
        data = self.cleaned_data
        chosen = set(data.get("channels") or [])
        plain = {
            name: data.get(name) for name in ("name", "preset", "tag", "severity", "cooldown_s", "tell_resolved", "hold_run", "enabled")
        }
        return {
            **plain,
            "kind": self.kind,
            "options": {name: data[name] for name in self.options if name in data},
            "run": next((run for run in self.runs if run.public_id == data.get("run")), None),
            "channels": [channel for channel in self.known if channel.public_id in chosen],
        }

    @property
    def metric_names(self) -> list[str]:
        return sorted(CATALOGUE)


class ChannelForm(forms.Form):
    """One channel. Where `channel` is given its address fields stay empty: what is sealed is never shown."""

    name = _text("Name", "As rules list it: #rl-runs, On-call.")

    def __init__(self, kind: str, data: QueryDict | None = None, channel: AlertChannel | None = None) -> None:
        super().__init__(data, initial={"name": channel.name, "enabled": channel.enabled} if channel else None)
        self.kind = kind
        self.address = address_fields(kind)
        for field in self.address.values():
            if channel is not None:
                field.required, field.initial = False, None
        self.fields.update(self.address)
        self.fields["enabled"] = forms.BooleanField(label="Switched on", required=False, initial=True)

    def given(self) -> dict[str, str]:
        """The address. Call after is_valid."""
        return {name: str(self.cleaned_data.get(name) or "") for name in self.address}


def address_fields(kind: str) -> dict[str, forms.Field]:
    """The fields of one kind of channel's address."""
    if kind == Kind.EMAIL:
        modes = [("starttls", "STARTTLS (587)"), ("ssl", "TLS (465)"), ("none", "no encryption (25)")]
        return {
            "to": _text("To", "E-mail addresses, commas between them."),
            "sender": _text("From", "What the mail server lets you send as."),
            "host": _text("Mail server", "For example smtp.example.org."),
            "port": _text("Port", "Empty: the usual one.", required=False, inputmode="numeric"),
            "mode": _choice("Connection", modes, "starttls"),
            "user": _text("User", "Empty: the server asks for none.", required=False),
            "password": forms.CharField(
                label="Password",
                required=False,
                max_length=500,
                widget=forms.PasswordInput(attrs={"class": "input", "autocomplete": "off"}),
            ),
        }
    if kind == Kind.NTFY:
        return {
            "server": _text("Server", "Your own, or the public one.", initial="https://ntfy.sh"),
            "topic": _text("Topic", "Whoever knows it can read it: make it hard to guess."),
            "token": _text("Access token", "Empty: the topic is open.", required=False),
        }
    if kind == Kind.CHAT:
        words = (
            "A webhook address of Google Chat or Mattermost, or apprise's form: tgram://…, mmosts://…, rockets://…, gotifys://…, pover://…"
        )
        return {"address": _text("Address", words)}
    help_text = {
        Kind.WEBHOOK: "Gets a JSON POST, signed. A public https address.",
        Kind.SLACK: "Slack → your app → Incoming webhooks: https://hooks.slack.com/services/…",
        Kind.DISCORD: "Discord → channel → Integrations → Webhooks: https://discord.com/api/webhooks/…",
        Kind.TEAMS: "Teams → channel → Workflows → post when a webhook request is received: https://….logic.azure.com/…",
    }
    return {"url": _text("Address", help_text.get(Kind(kind), ""), inputmode="url")}
