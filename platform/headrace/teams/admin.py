from typing import Any, ClassVar

from django.contrib import admin
from django.contrib.auth.admin import UserAdmin as BaseUserAdmin
from django.contrib.auth.models import Group
from django.http import HttpRequest
from django.utils.html import format_html

from headrace.teams import audit, services
from headrace.teams.models import ApiToken, AuditEvent, Invitation, Membership, SetupLink, SignIn, Team, User

# Roles are memberships; a permission given to a group would do nothing in the product.
admin.site.unregister(Group)
# It opens by script after the page is drawn, and everything jumps; the first page and the trail at the top lead as far.
admin.site.enable_nav_sidebar = False


class ReadOnly(admin.ModelAdmin):
    """Rows that only services write. `place`, where given, is the product's own page of a row."""

    list_per_page = 50
    show_full_result_count = False  # counting every row of a large table would cost more than the page

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False

    def place(self, obj: Any) -> str:
        return ""

    def view_on_site(self, obj: Any) -> str | None:  # type: ignore[override]
        return self.place(obj) or None

    @admin.display(description="Page")
    def page(self, obj: Any) -> str:
        """A column that leads to the product's page."""
        place = self.place(obj)
        return format_html('<a href="{}">Open</a>', place) if place else "–"


# Words of the admin alone; everything else calls these by their own names.
for _model, _words in ((ApiToken, "API tokens"), (SetupLink, "set-up links"), (SignIn, "sign-ins")):
    _model._meta.verbose_name_plural = _words


@admin.register(User)
class UserAdmin(BaseUserAdmin):
    ordering = ("email",)
    list_display = ("email", "name", "is_active", "is_staff", "last_login", "created_at")
    list_filter = ("is_active", "is_staff")
    list_per_page = 50
    search_fields = ("email", "name")
    filter_horizontal: ClassVar[tuple[str, ...]] = ()
    readonly_fields = ("public_id", "created_at", "last_login")
    fieldsets = (
        (None, {"fields": ("public_id", "email", "name", "password")}),
        ("Access", {"fields": ("is_active", "is_staff", "is_superuser")}),
        ("Dates", {"fields": ("created_at", "last_login")}),
    )
    add_fieldsets = ((None, {"classes": ("wide",), "fields": ("email", "name", "usable_password", "password1", "password2")}),)

    def save_model(self, request: HttpRequest, obj: User, form: Any, change: bool) -> None:
        super().save_model(request, obj, form, change)
        changed = {"fields": sorted(name for name in form.changed_data if "password" not in name), "email": obj.email}
        audit.record("user.edit" if change else "user.create", user=_person(request), obj=obj, detail=changed)

    def delete_model(self, request: HttpRequest, obj: User) -> None:
        audit.record("user.delete", user=_person(request), obj=obj, detail={"email": obj.email})
        super().delete_model(request, obj)


class MembershipInline(admin.TabularInline):
    """Shown only: members are changed on the team's page, where the rules of the services and the audit trail hold."""

    model = Membership
    extra = 0
    fields = ("user", "role", "created_at")
    readonly_fields = ("created_at",)

    def get_queryset(self, request: HttpRequest) -> Any:
        return super().get_queryset(request).select_related("user")

    def has_add_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False


@admin.register(Team)
class TeamAdmin(admin.ModelAdmin):
    list_display = ("name", "slug", "created_at")
    search_fields = ("name", "slug")
    readonly_fields = ("public_id", "created_at")
    prepopulated_fields: ClassVar[dict[str, Any]] = {"slug": ("name",)}
    inlines = (MembershipInline,)

    def save_model(self, request: HttpRequest, obj: Team, form: Any, change: bool) -> None:
        super().save_model(request, obj, form, change)
        if not change and isinstance(request.user, User):
            services.own_new_team(by=request.user, team=obj)
        elif change:
            audit.record("team.edit", user=_person(request), team=obj, obj=obj, detail={"name": obj.name, "by": "administrator"})

    def has_delete_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False  # it would take every run with it, past the rules that keep active ones


@admin.register(Membership)
class MembershipAdmin(ReadOnly):
    list_display = ("user", "team", "role", "created_at")
    list_filter = ("role", "team")
    list_select_related = ("user", "team")
    search_fields = ("user__email", "user__name", "team__name")


@admin.register(ApiToken)
class ApiTokenAdmin(ReadOnly):
    list_display = ("name", "hint", "user", "team", "scope", "expires_at", "last_used_at", "revoked_at")
    list_filter = ("scope", "team")
    list_select_related = ("user", "team")
    search_fields = ("name", "hint", "user__email")
    exclude = ("token_hash",)


@admin.register(Invitation)
class InvitationAdmin(ReadOnly):
    list_display = ("hint", "team", "email", "role", "created_by", "created_at", "expires_at", "accepted_by", "revoked_at")
    list_filter = ("role", "team")
    list_select_related = ("team", "created_by", "accepted_by")
    search_fields = ("email", "hint")
    exclude = ("token_hash",)


@admin.register(SignIn)
class SignInAdmin(ReadOnly):
    list_display = ("user", "address", "created_at")
    list_select_related = ("user",)
    search_fields = ("user__email", "address")
    exclude = ("session_key",)


@admin.register(SetupLink)
class SetupLinkAdmin(ReadOnly):
    list_display = ("team", "created_at", "expires_at", "used_at", "used_by")
    list_select_related = ("team", "used_by")
    exclude = ("token_hash",)


@admin.register(AuditEvent)
class AuditEventAdmin(ReadOnly):
    list_display = ("created_at", "actor", "action", "object_kind", "object_id", "team")
    list_filter = ("action", "team")
    list_select_related = ("team",)
    search_fields = ("actor", "object_id")
    date_hierarchy = "created_at"


def _person(request: HttpRequest) -> User | None:
    return request.user if isinstance(request.user, User) else None
