"""Forms of the account pages. What is allowed is judged by the services; forms show it at the field."""

from __future__ import annotations

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
    """The first administrator's account."""

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
        help_text="Shipping a run and starting one need read and write.",
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
