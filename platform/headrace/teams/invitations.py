"""Invitations by link: the only way that new people sign up. Made by owners, spent once, bounded in time and in tries."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from django.contrib.auth.password_validation import validate_password
from django.core.cache import cache
from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from headrace.identifiers import hash_secret, new_secret
from headrace.teams import audit
from headrace.teams.backends import WINDOW_S
from headrace.teams.models import Invitation, Membership, Role, Team, User
from headrace.teams.services import LinkSpent, NotAllowed, require

PREFIX = "hri_"
LONGEST_DAYS = 30
MOST_OPEN = 200
# Failures in a window: unknown links of one address, refused forms of one link.
PER_ADDRESS, PER_LINK = 50, 20


class TooManyTries(LinkSpent):
    """Too many failures from one address or on one link; the answer is the one for a spent link."""


@dataclass(frozen=True)
class Accepted:
    """Who joined which team. `joined` False: the person was in the team already and the link stays good."""

    user: User
    team: Team
    joined: bool


def _live() -> QuerySet[Invitation]:
    return Invitation.unscoped.filter(accepted_at=None, revoked_at=None, expires_at__gt=timezone.now()).select_related("team")


@transaction.atomic
def invite(*, by: User, team: Team, role: str = Role.MEMBER, email: str = "", days: int = 7) -> tuple[Invitation, str]:
    """A new invitation and its secret, which is shown this once. Raises NotAllowed, naming field and cure."""
    require(by, "invitation.edit", team)
    if role not in Role.values:
        raise NotAllowed("no such role", field="role", value=role, cure=f"one of {', '.join(Role.values)}")
    if not 1 <= days <= LONGEST_DAYS:
        raise NotAllowed("out of range", field="days", value=days, cure=f"choose 1 to {LONGEST_DAYS}")
    email = email.strip().lower()
    if email:
        _check_email(email)
    if team.memberships.filter(user__email=email).exists():
        raise NotAllowed("is in this team already", field="email", value=email, cure="change the role under Members")
    if open_invitations(team).count() >= MOST_OPEN:
        raise NotAllowed(f"{MOST_OPEN} invitations are open", field="team", value=team.slug, cure="revoke those that nobody needs")
    secret = new_secret(PREFIX)
    row = Invitation.objects.create(
        team=team,
        email=email,
        role=role,
        token_hash=hash_secret(secret),
        hint=secret[:8],
        created_by=by,
        expires_at=timezone.now() + timedelta(days=days),
    )
    audit.record("invitation.create", user=by, team=team, obj=row, detail={"role": role, "email": email, "days": days})
    return row, secret


@transaction.atomic
def revoke(*, by: User, invitation: Invitation) -> None:
    """The link stops working at once. One that was accepted stays as it is."""
    require(by, "invitation.edit", invitation)
    if Invitation.unscoped.filter(pk=invitation.pk, accepted_at=None, revoked_at=None).update(revoked_at=timezone.now()):
        detail = {"role": invitation.role, "email": invitation.email}
        audit.record("invitation.revoke", user=by, team=invitation.team, obj=invitation, detail=detail)


def open_invitations(team: Team) -> QuerySet[Invitation]:
    """Those that somebody can still accept."""
    return Invitation.objects.for_team(team).filter(accepted_at=None, revoked_at=None, expires_at__gt=timezone.now())


def invitations_of(team: Team) -> QuerySet[Invitation]:
    """Every invitation of a team, newest first."""
    return Invitation.objects.for_team(team).select_related("created_by", "accepted_by").order_by("-created_at", "-pk")


def look(secret: str, address: str) -> Invitation:
    """The live invitation behind a link; looking spends nothing. Raises LinkSpent, the same for every reason, and counts the failure."""
    counter = _counter(f"address|{address}")
    if cache.get(counter, 0) >= PER_ADDRESS:
        raise TooManyTries("too many links that do not work", cure="wait a quarter of an hour")
    found = _live().filter(token_hash=hash_secret(secret)).first() if secret.startswith(PREFIX) else None
    if found is None:
        _count(counter)
        raise LinkSpent("this invitation does not work", cure="ask an owner of the team for a new one")
    if cache.get(_counter(f"link|{found.pk}"), 0) >= PER_LINK:
        raise TooManyTries("too many tries on this link", cure="wait a quarter of an hour")
    return found


def refused(invitation: Invitation) -> None:
    """Called when a filled-in form was turned down: guessing addresses through one link has an end."""
    _count(_counter(f"link|{invitation.pk}"))


@transaction.atomic
def accept(secret: str, user: User) -> Accepted:
    """A signed-in person joins. Raises LinkSpent, or NotAllowed where the link is for another address; then it stays good."""
    row = _locked(secret)
    if row.email and row.email != user.email:
        raise NotAllowed(
            "this invitation is for somebody else", field="email", value=user.email, cure="log in with the address it was made for"
        )
    if Membership.objects.for_team(row.team_id).filter(user=user).exists():
        return Accepted(user, row.team, joined=False)
    _join(row, user)
    return Accepted(user, row.team, joined=True)


@transaction.atomic
def accept_as_new(secret: str, *, email: str, name: str, password: str) -> Accepted:
    """A new person gets an account and joins. Raises LinkSpent, or ValidationError by field; then the link stays good."""
    row = _locked(secret)
    email = email.strip().lower()
    if row.email and row.email != email:
        raise ValidationError({"email": "This is not the address that the invitation was made for."})
    if User.objects.filter(email=email).exists():
        raise ValidationError({"email": "This address cannot be used for a new account. If it is yours, log in and open the link again."})
    user = User(email=email, name=name.strip())
    validate_password(password, user)
    user.set_password(password)
    user.full_clean()
    user.save()
    _join(row, user)
    return Accepted(user, row.team, joined=True)


def _locked(secret: str) -> Invitation:
    row = _live().select_for_update(of=("self",)).filter(token_hash=hash_secret(secret)).first()
    if row is None:
        raise LinkSpent("this invitation does not work", cure="ask an owner of the team for a new one")
    return row


def _join(row: Invitation, user: User) -> None:
    """Spends the link by compare-and-set: of two that come at the same time, one finds it spent and nothing of it is stored."""
    spent = _live().filter(pk=row.pk).update(accepted_at=timezone.now(), accepted_by=user)
    if not spent:
        raise LinkSpent("this invitation does not work", cure="ask an owner of the team for a new one")
    Membership.objects.create(team=row.team, user=user, role=row.role)
    audit.record("invitation.accept", user=user, team=row.team, obj=row, detail={"role": row.role})


def _check_email(email: str) -> None:
    try:
        validate_email(email)
    except ValidationError:
        raise NotAllowed("is no e-mail address", field="email", value=email[:100], cure="for example ada@example.org") from None


def _counter(name: str) -> str:
    return f"invite-{hash_secret(name)}"


def _count(counter: str) -> None:
    cache.add(counter, 0, WINDOW_S)
    cache.incr(counter)
