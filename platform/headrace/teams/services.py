"""Writes of this app: teams, members, people, API tokens, set-up links. Invitations and sessions have modules of their own."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import DatabaseError, transaction
from django.utils import timezone

from headrace.identifiers import hash_secret, new_secret
from headrace.teams import audit
from headrace.teams.models import ApiToken, Invitation, Membership, Role, SetupLink, Team, User
from headrace.teams.policy import can, role_in
from workers.contract.errors import HeadraceError

log = logging.getLogger(__name__)

SETUP_LINK_LIFE = timedelta(hours=24)
API_TOKEN_PREFIX = "hra_"
SETUP_PREFIX = "hrs_"
LONGEST_TOKEN_DAYS = 366


class NotAllowed(HeadraceError):
    """The user's role does not allow it."""


class LinkSpent(HeadraceError):
    """A set-up link that is unknown, used or too old. Which of them is not told."""


def require(user: User, action: str, obj: object) -> None:
    """Raises NotAllowed unless the policy says yes."""
    if not can(user, action, obj):
        raise NotAllowed("your role in this team does not allow this", field="user", cure="ask an owner of the team", value=action)


def needs_first_admin() -> bool:
    """Whether nobody can sign in as an administrator yet."""
    return not User.objects.filter(is_superuser=True, is_active=True).exists()


@transaction.atomic
def issue_setup_link(team: Team) -> str:
    """A new set-up link's secret; older unspent links of the team stop working. Only the hash is stored."""
    now = timezone.now()
    SetupLink.objects.for_team(team).filter(used_at=None).update(expires_at=now)
    secret = new_secret(SETUP_PREFIX)
    SetupLink.objects.create(team=team, token_hash=hash_secret(secret), expires_at=now + SETUP_LINK_LIFE)
    audit.record("setup_link.issue", team=team)
    return secret


def setup_link(secret: str) -> SetupLink | None:
    """The live link this secret opens, or None. Looking does not spend it."""
    now = timezone.now()
    return SetupLink.unscoped.filter(token_hash=hash_secret(secret), used_at=None, expires_at__gt=now).select_related("team").first()


@transaction.atomic
def spend_setup_link(secret: str, *, email: str, password: str, name: str = "") -> User:
    """Make the first admin. The link works once, however many ask at the same time.

    Raises LinkSpent, or Django's ValidationError for a weak password or an e-mail that is taken; then the link stays good.
    """
    now = timezone.now()
    link = (
        SetupLink.unscoped.select_for_update(of=("self",)).filter(token_hash=hash_secret(secret), used_at=None, expires_at__gt=now).first()
    )
    if link is None or not needs_first_admin():
        raise LinkSpent(
            "this set-up link has been used or is too old", cure="run `headrace up` again: it prints a new one while there is no admin"
        )
    user = User(email=email.strip().lower(), name=name.strip(), is_staff=True, is_superuser=True)
    validate_password(password, user)
    user.set_password(password)
    user.full_clean()
    user.save()
    Membership.objects.create(team=link.team, user=user, role=Role.OWNER)
    link.used_at, link.used_by = now, user
    link.save(update_fields=["used_at", "used_by"])
    audit.record("setup_link.spend", user=user, team=link.team, obj=user)
    return user


@transaction.atomic
def set_member(*, by: User, team: Team, user: User, role: str) -> Membership:
    """Add a member or change a role. The last owner stays an owner."""
    require(by, "member.edit", team)
    if role not in Role.values:
        raise NotAllowed("no such role", field="role", value=role, cure=f"one of {', '.join(Role.values)}")
    if role != Role.OWNER:
        _keep_an_owner(team, user)
        _end_invitations(team, user)
    before = role_in(user, team)
    membership, _ = Membership.unscoped.update_or_create(team=team, user=user, defaults={"role": role})
    audit.record("member.set", user=by, team=team, obj=user, detail={"role": role, "before": before or "", "email": user.email})
    return membership


@transaction.atomic
def own_new_team(*, by: User, team: Team) -> None:
    """Called when an administrator has made a team: it begins with its maker as owner, who adds the others."""
    if Membership.objects.for_team(team).exists():
        raise NotAllowed("this team has members already", field="team", value=team.slug, cure="ask one of its owners")
    Membership.objects.create(team=team, user=by, role=Role.OWNER)
    audit.record("team.create", user=by, team=team, obj=team)


@transaction.atomic
def remove_member(*, by: User, team: Team, user: User) -> None:
    """Take somebody out of a team; their API tokens for it and the invitations they made stop working at once."""
    require(by, "member.edit", team)
    _take_out(team, user)
    audit.record("member.remove", user=by, team=team, obj=user, detail={"email": user.email})


@transaction.atomic
def leave_team(*, user: User, team: Team) -> None:
    """One's own way out, for every role; the last owner stays."""
    require(user, "team.view", team)
    _take_out(team, user)
    audit.record("member.leave", user=user, team=team, obj=user)


@transaction.atomic
def edit_team(*, by: User, team: Team, name: str) -> None:
    """Give a team another name. Its slug stays: scripts may use it."""
    require(by, "team.edit", team)
    name = " ".join(name.split())
    if not 1 <= len(name) <= 200 or not name.isprintable():
        raise NotAllowed("is no name", field="name", value=name[:60], cure="1 to 200 visible characters")
    before, team.name = team.name, name
    team.save(update_fields=["name"])
    audit.record("team.edit", user=by, team=team, obj=team, detail={"name": name, "before": before})


@transaction.atomic
def edit_profile(user: User, *, name: str) -> None:
    """How others see this person."""
    name = " ".join(name.split())
    if len(name) > 200 or not name.isprintable():
        raise NotAllowed("is no name", field="name", value=name[:60], cure="at most 200 visible characters")
    user.name = name
    user.save(update_fields=["name"])
    audit.record("account.edit", user=user, obj=user, detail={"name": name})


@transaction.atomic
def change_password(user: User, *, old: str, new: str) -> None:
    """Raises ValidationError naming the field. Every session of the person stops fitting; the caller keeps its own."""
    if not user.check_password(old):
        raise ValidationError({"old": "This is not your password now."})
    try:
        validate_password(new, user)
    except ValidationError as fault:
        raise ValidationError({"new": fault.messages}) from None
    user.set_password(new)
    user.save(update_fields=["password"])
    audit.record("password.change", user=user, obj=user)


@transaction.atomic
def issue_api_token(*, user: User, team: Team, name: str, scope: str = ApiToken.Scope.READ, days: int = 90) -> tuple[ApiToken, str]:
    """A new token and its secret, which is shown this once."""
    require(user, "token.create", team)
    if not 1 <= days <= LONGEST_TOKEN_DAYS:
        raise NotAllowed("out of range", field="days", value=days, cure=f"choose 1 to {LONGEST_TOKEN_DAYS}")
    secret = new_secret(API_TOKEN_PREFIX)
    token = ApiToken.objects.create(
        team=team,
        user=user,
        name=name.strip()[:100] or "token",
        token_hash=hash_secret(secret),
        hint=secret[:8],
        scope=ApiToken.Scope(scope),
        expires_at=timezone.now() + timedelta(days=days),
    )
    audit.record("token.create", user=user, team=team, obj=token, detail={"scope": token.scope, "name": token.name})
    return token, secret


@transaction.atomic
def rotate_api_token(*, by: User, token: ApiToken) -> str:
    """A new secret for one's own token, good for as long as it was at first; the old secret fails from the next request on."""
    if token.user_id != by.pk:
        raise NotAllowed("only its owner may rotate a token", field="token", value=token.public_id, cure="revoke it instead")
    require(by, "token.create", token.team)
    secret, now = new_secret(API_TOKEN_PREFIX), timezone.now()
    life = min(max(token.expires_at - token.created_at, timedelta(days=1)), timedelta(days=LONGEST_TOKEN_DAYS))
    live = ApiToken.unscoped.filter(pk=token.pk, revoked_at=None)
    changes = {"token_hash": hash_secret(secret), "hint": secret[:8], "created_at": now, "expires_at": now + life, "last_used_at": None}
    if not live.update(**changes):
        raise NotAllowed("this token is revoked", field="token", value=token.public_id, cure="make a new one")
    token.refresh_from_db()
    audit.record("token.rotate", user=by, team=token.team, obj=token, detail={"name": token.name})
    return secret


@transaction.atomic
def revoke_api_token(*, by: User, token: ApiToken) -> None:
    """Stop a token. It fails from the next request on."""
    require(by, "token.revoke", token)
    ApiToken.unscoped.filter(pk=token.pk, revoked_at=None).update(revoked_at=timezone.now())
    audit.record("token.revoke", user=by, team=token.team, obj=token, detail={"name": token.name, "of": token.user.email})


def verify_api_token(secret: str) -> ApiToken | None:
    """The live token of this secret, or None. Notes its use, at most once a minute."""
    if not secret.startswith(API_TOKEN_PREFIX):
        return None
    now = timezone.now()
    live = ApiToken.unscoped.filter(token_hash=hash_secret(secret), revoked_at=None, expires_at__gt=now, user__is_active=True)
    token = live.select_related("user", "team").first()
    if token is None or role_in(token.user, token.team_id) is None:
        return None
    if token.last_used_at is None or token.last_used_at < now - timedelta(minutes=1):
        _note_use(token, now)
    return token


def _note_use(token: ApiToken, now: datetime) -> None:
    """For people to look at. A database that takes no writes keeps nobody from reading."""
    try:
        with transaction.atomic():
            ApiToken.unscoped.filter(pk=token.pk).update(last_used_at=now)
    except DatabaseError as error:
        log.warning("the last use of token %s was not noted: %s", token.hint, error)


def _take_out(team: Team, user: User) -> None:
    _keep_an_owner(team, user)
    Membership.objects.for_team(team).filter(user=user).delete()
    ApiToken.objects.for_team(team).filter(user=user, revoked_at=None).update(revoked_at=timezone.now())
    _end_invitations(team, user)


def _end_invitations(team: Team, user: User) -> None:
    """Links that somebody made as an owner do not outlive that."""
    mine = Invitation.objects.for_team(team).filter(created_by=user, accepted_at=None, revoked_at=None)
    mine.update(revoked_at=timezone.now())


def _keep_an_owner(team: Team, user: User) -> None:
    owners = Membership.objects.for_team(team).select_for_update().filter(role=Role.OWNER)
    if {owner.user_id for owner in owners} == {user.pk}:
        raise NotAllowed("a team needs an owner", field="role", cure="make somebody else an owner first")
