from typing import Any

from django.contrib import admin
from django.contrib.auth.admin import UserAdmin as BaseUserAdmin
from django.http import HttpRequest

from headrace.teams import services
from headrace.teams.models import ApiToken, AuditEvent, Membership, SetupLink, Team, User


class ReadOnly(admin.ModelAdmin):
    """Rows that only services write."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False


@admin.register(User)
class UserAdmin(BaseUserAdmin):
    ordering = ("email",)
    list_display = ("email", "name", "is_active", "is_staff", "last_login")
    list_filter = ("is_active", "is_staff")
    search_fields = ("email", "name")
    readonly_fields = ("public_id", "created_at", "last_login")
    fieldsets = (
        (None, {"fields": ("public_id", "email", "name", "password")}),
        ("Access", {"fields": ("is_active", "is_staff", "is_superuser", "groups", "user_permissions")}),
        ("Dates", {"fields": ("created_at", "last_login")}),
    )
    add_fieldsets = ((None, {"classes": ("wide",), "fields": ("email", "name", "usable_password", "password1", "password2")}),)


class MembershipInline(admin.TabularInline):
    """Shown only: members are changed on the team's page, where the rules of the services and the audit trail hold."""

    model = Membership
    extra = 0

    def has_add_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False


@admin.register(Team)
class TeamAdmin(admin.ModelAdmin):
    list_display = ("name", "slug", "created_at")
    readonly_fields = ("public_id", "created_at")
    inlines = (MembershipInline,)

    def save_model(self, request: HttpRequest, obj: Team, form: Any, change: bool) -> None:
        super().save_model(request, obj, form, change)
        if not change and isinstance(request.user, User):
            services.own_new_team(by=request.user, team=obj)


@admin.register(ApiToken)
class ApiTokenAdmin(ReadOnly):
    list_display = ("name", "hint", "user", "team", "scope", "expires_at", "last_used_at", "revoked_at")
    exclude = ("token_hash",)


@admin.register(SetupLink)
class SetupLinkAdmin(ReadOnly):
    list_display = ("team", "created_at", "expires_at", "used_at", "used_by")
    exclude = ("token_hash",)


@admin.register(AuditEvent)
class AuditEventAdmin(ReadOnly):
    list_display = ("created_at", "actor", "action", "object_kind", "object_id", "team")
    list_filter = ("action",)
    search_fields = ("actor", "object_id")
