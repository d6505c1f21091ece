"""Who may do what: users, teams, memberships, tokens, set-up links and the audit trail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib.auth.base_user import AbstractBaseUser, BaseUserManager
from django.contrib.auth.models import PermissionsMixin
from django.db import models
from django.db.models.functions import Lower
from django.utils import timezone

from headrace.identifiers import WithPublicId
from headrace.teams.scoping import TeamScopedManager, UnscopedManager

if TYPE_CHECKING:
    from django_stubs_ext.db.models.manager import RelatedManager


class UserManager(BaseUserManager["User"]):
    """E-mail addresses compare without regard to case: they are stored in lower case and looked up so."""

    use_in_migrations = True

    def create_user(self, email: str, password: str | None = None, **fields: Any) -> User:
        if not email or "@" not in email:
            raise ValueError(f"email: an e-mail address is needed (given: {email!r})")
        user = self.model(email=email, **fields)
        user.set_password(password)
        user.save(using=self._db)
        return user

    def create_superuser(self, email: str, password: str | None = None, **fields: Any) -> User:
        return self.create_user(email, password, **{"is_staff": True, "is_superuser": True, **fields})

    def get_by_natural_key(self, username: str | None) -> User:
        return self.get(email=(username or "").strip().lower())


class User(WithPublicId, AbstractBaseUser, PermissionsMixin):
    """A person. Signs in by e-mail."""

    email = models.EmailField(unique=True)
    name = models.CharField(max_length=200, blank=True, default="")
    is_active = models.BooleanField(default=True)
    is_staff = models.BooleanField(default=False)
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    objects = UserManager()

    if TYPE_CHECKING:
        memberships: RelatedManager[Membership]

    USERNAME_FIELD = "email"
    REQUIRED_FIELDS: ClassVar[list[str]] = []

    class Meta:
        constraints = [models.UniqueConstraint(Lower("email"), name="user_email_ci")]

    def __str__(self) -> str:
        return self.email

    def save(self, *args: Any, **kwargs: Any) -> None:
        self.email = self.email.strip().lower()
        super().save(*args, **kwargs)

    def get_full_name(self) -> str:
        return self.name or self.email

    def get_short_name(self) -> str:
        return self.name or self.email.split("@")[0]


class Team(WithPublicId):
    """Owns projects, runs, tokens and clusters. Nothing crosses from one team to another."""

    name = models.CharField(max_length=200)
    slug = models.SlugField(max_length=60, unique=True)
    created_at = models.DateTimeField(auto_now_add=True)
    members = models.ManyToManyField(User, through="Membership", related_name="teams")

    def __str__(self) -> str:
        return self.name


class Role(models.TextChoices):
    """What a member may do; `teams/policy.py` holds the table."""

    VIEWER = "viewer", "Viewer"
    MEMBER = "member", "Member"
    MAINTAINER = "maintainer", "Maintainer"
    OWNER = "owner", "Owner"


class Membership(models.Model):
    """One user's role in one team."""

    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="memberships")
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=12, choices=Role.choices, default=Role.MEMBER)
    created_at = models.DateTimeField(auto_now_add=True)

    if TYPE_CHECKING:
        team_id: int
        user_id: int

    unscoped = UnscopedManager["Membership"]()
    objects = TeamScopedManager["Membership"]()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["team", "user"], name="membership_once"),
            models.CheckConstraint(condition=models.Q(role__in=Role.values), name="membership_role"),
        ]

    def __str__(self) -> str:
        return f"{self.user_id} is {self.role} of {self.team_id}"


class ApiToken(WithPublicId):
    """A person's bearer token for one team. Only its hash is stored; it never does more than its owner may."""

    class Scope(models.TextChoices):
        METRICS = "metrics", "Metrics only"
        READ = "read", "Read"
        LAUNCH = "launch", "Read and launch"
        WRITE = "write", "Read and write"

    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="api_tokens")
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="api_tokens")
    name = models.CharField(max_length=100)
    token_hash = models.CharField(max_length=64, unique=True)
    hint = models.CharField(max_length=12, help_text="The first characters, so that its owner can tell tokens apart.")
    scope = models.CharField(max_length=8, choices=Scope.choices, default=Scope.READ)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField()
    last_used_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    if TYPE_CHECKING:
        team_id: int
        user_id: int

    unscoped = UnscopedManager["ApiToken"]()
    objects = TeamScopedManager["ApiToken"]()

    def __str__(self) -> str:
        return f"{self.name} ({self.hint}...)"


class SetupLink(models.Model):
    """The way the first admin gets in: spent by one POST, good for 24 hours, only its hash is stored."""

    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="setup_links")
    token_hash = models.CharField(max_length=64, unique=True)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True, blank=True)
    used_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, blank=True, related_name="+")

    unscoped = UnscopedManager["SetupLink"]()
    objects = TeamScopedManager["SetupLink"]()

    def __str__(self) -> str:
        return f"set-up link of {self.team_id}, good until {self.expires_at:%Y-%m-%d %H:%M}"


class Invitation(WithPublicId):
    """A link that lets one person into one team with one role. Only its hash is stored; spent once, it never opens again."""

    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="invitations")
    email = models.EmailField(blank=True, default="", help_text="If given, only this address may accept.")
    role = models.CharField(max_length=12, choices=Role.choices, default=Role.MEMBER)
    token_hash = models.CharField(max_length=64, unique=True)
    hint = models.CharField(max_length=12, help_text="The first characters, so that links can be told apart.")
    created_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, blank=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField()
    accepted_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, blank=True, related_name="+")
    accepted_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    if TYPE_CHECKING:
        team_id: int

    unscoped = UnscopedManager["Invitation"]()
    objects = TeamScopedManager["Invitation"]()

    class Meta:
        constraints = [models.CheckConstraint(condition=models.Q(role__in=Role.values), name="invitation_role")]

    def __str__(self) -> str:
        return f"invitation {self.hint}... to {self.team_id} as {self.role}"


class SignIn(WithPublicId):
    """One browser session of one person, so that it can be named and ended. Its row goes when the session has ended."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="sign_ins")
    session_key = models.CharField(max_length=40, unique=True)
    address = models.CharField(max_length=45, blank=True, default="")
    agent = models.CharField(max_length=300, blank=True, default="")
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    def __str__(self) -> str:
        return f"sign-in of {self.user_id}"


class AuditEvent(models.Model):
    """One line of the append-only trail. Each row's hash covers the row before it, so a changed or missing row shows."""

    team = models.ForeignKey(Team, on_delete=models.SET_NULL, null=True, blank=True, related_name="audit_events")
    user = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, blank=True, related_name="+")
    actor = models.CharField(max_length=254, help_text="E-mail at the time, or the name of the part that acted.")
    action = models.CharField(max_length=60)
    object_kind = models.CharField(max_length=40, blank=True, default="")
    object_id = models.CharField(max_length=40, blank=True, default="")
    detail = models.JSONField(default=dict, blank=True)
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    previous_hash = models.CharField(max_length=64, blank=True, default="")
    row_hash = models.CharField(max_length=64, unique=True)

    unscoped = UnscopedManager["AuditEvent"]()
    objects = TeamScopedManager["AuditEvent"]()

    class Meta:
        indexes = [models.Index(fields=["team", "-created_at"])]

    def __str__(self) -> str:
        return f"{self.created_at:%Y-%m-%d %H:%M:%S} {self.actor} {self.action} {self.object_kind} {self.object_id}"
