"""Forms of the account pages. What is allowed is judged by the services; forms show it at the field."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Any

from django import forms
from django.contrib.auth import password_validation
from django.contrib.auth.forms import AuthenticationForm

from headrace.teams.models import ApiToken, Role, User


def _input(kind: type[forms.Widget], **attrs: Any) -> forms.Widget:
    return kind(attrs={"class": "input", **attrs})


class LoginForm(AuthenticationForm):
    """E-mail and password. Which of the two was wrong is not told."""

    error_messages = {
        "invalid_login": "E-mail and password do not fit together. Check both and try again.",
        "inactive": "E-mail and password do not fit together. Check both and try again.",
    }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["username"].label = "E-mail"
        self.fields["username"].widget = _input(forms.EmailInput, autocomplete="username", autofocus=True, maxlength=254)
        self.fields["password"].widget = _input(forms.PasswordInput, autocomplete="current-password")


class SetupForm(forms.Form):
    """A new person's account: the first administrator's, and everybody's who comes by invitation."""

    email = forms.EmailField(label="E-mail", max_length=254, widget=_input(forms.EmailInput, autocomplete="username", autofocus=True))
    name = forms.CharField(
        label="Name",
        max_length=200,
        required=False,
        help_text="How others see you. May be empty.",
        widget=_input(forms.TextInput, autocomplete="name"),
    )
    password = forms.CharField(
        label="Password", strip=False, max_length=1024, widget=_input(forms.PasswordInput, autocomplete="new-password")
    )
    again = forms.CharField(
        label="Password again", strip=False, max_length=1024, widget=_input(forms.PasswordInput, autocomplete="new-password")
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["password"].help_text = " ".join(password_validation.password_validators_help_texts())

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        if data.get("password") and data.get("again") and data["password"] != data["again"]:
            self.add_error("again", "The two passwords differ. Type the same one twice.")
        return data


class TokenForm(forms.Form):
    """A new API token of the signed-in person."""

    name = forms.CharField(
        label="Name",
        max_length=100,
        help_text="What uses it.",
        widget=_input(forms.TextInput, autocomplete="off"),
    )
    scope = forms.ChoiceField(
        label="Scope",
        choices=ApiToken.Scope.choices,
        initial=ApiToken.Scope.READ,
        help_text="Metrics is for a monitoring server. Launch starts, cancels and resumes runs. Shipping a run needs read and write.",
        widget=_input(forms.Select),
    )
    days = forms.TypedChoiceField(
        label="Good for",
        coerce=int,
        choices=[(7, "7 days"), (30, "30 days"), (90, "90 days"), (366, "a year")],
        initial=90,
        help_text="After that it stops by itself.",
        widget=_input(forms.Select),
    )


class MemberForm(forms.Form):
    """Somebody who has an account, and the role they get; who is in the team already changes role."""

    email = forms.EmailField(
        label="E-mail",
        max_length=254,
        help_text="Of somebody who has an account here.",
        widget=_input(forms.EmailInput, autocomplete="off"),
    )
    role = forms.ChoiceField(label="Role", choices=Role.choices, initial=Role.MEMBER, widget=_input(forms.Select))

    def clean_email(self) -> User:
        found = User.objects.filter(email__iexact=self.cleaned_data["email"].strip(), is_active=True).first()
        if found is None:
            raise forms.ValidationError("Nobody with this e-mail has an account. An administrator makes one under Admin.")
        return found


class InvitationForm(forms.Form):
    """A new link into the team."""

    role = forms.ChoiceField(label="Role", choices=Role.choices, initial=Role.MEMBER, widget=_input(forms.Select))
    days = forms.TypedChoiceField(
        label="Good for",
        coerce=int,
        choices=[(1, "1 day"), (3, "3 days"), (7, "7 days"), (30, "30 days")],
        initial=7,
        widget=_input(forms.Select),
    )
    email = forms.EmailField(
        label="Only for this e-mail",
        max_length=254,
        required=False,
        help_text="May be empty: then whoever opens the link first may use it.",
        widget=_input(forms.EmailInput, autocomplete="off"),
    )


class ProfileForm(forms.Form):
    """How others see this person."""

    name = forms.CharField(label="Name", max_length=200, required=False, widget=_input(forms.TextInput, autocomplete="name"))


class PasswordForm(forms.Form):
    """The password now and the new one, twice."""

    old = forms.CharField(
        label="Password now", strip=False, max_length=1024, widget=_input(forms.PasswordInput, autocomplete="current-password")
    )
    new = forms.CharField(
        label="New password", strip=False, max_length=1024, widget=_input(forms.PasswordInput, autocomplete="new-password")
    )
    again = forms.CharField(
        label="New password again", strip=False, max_length=1024, widget=_input(forms.PasswordInput, autocomplete="new-password")
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["new"].help_text = " ".join(password_validation.password_validators_help_texts())

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        if data.get("new") and data.get("again") and data["new"] != data["again"]:
            self.add_error("again", "The two passwords differ. Type the same one twice.")
        return data


class TeamForm(forms.Form):
    """What a team is called."""

    name = forms.CharField(label="Name of the team", max_length=200, widget=_input(forms.TextInput, autocomplete="off"))


@dataclass(frozen=True)
class Filters:
    """What the page's form asks for; empty: everything. Days are UTC and both included."""

    person: str = ""
    action: str = ""
    object: str = ""
    since: date | None = None
    until: date | None = None


class AuditForm(forms.Form):
    """Filters of the audit trail, all optional."""

    person = forms.ChoiceField(label="Person", required=False, widget=_input(forms.Select))
    action = forms.ChoiceField(label="Action", required=False, widget=_input(forms.Select))
    object = forms.CharField(
        label="Object", max_length=40, required=False, widget=_input(forms.TextInput, autocomplete="off", placeholder="its id")
    )
    since = forms.DateField(label="From", required=False, widget=_input(forms.DateInput, type="date"))
    until = forms.DateField(label="To", required=False, widget=_input(forms.DateInput, type="date"))

    def __init__(self, *args: Any, choices: dict[str, list[str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name, source, every in (("person", "actor", "Everybody"), ("action", "action", "Every action")):
            field: Any = self.fields[name]
            field.choices = [("", every), *((value, value) for value in choices[source])]

    def filters(self) -> Filters:
        """What is usable of the query; a faulty part filters nothing and is shown at its field."""
        self.is_valid()
        return Filters(**{name: value for name, value in self.cleaned_data.items() if value})
