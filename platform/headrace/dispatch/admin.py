from django import forms
from django.contrib import admin

from headrace.dispatch.capacity import machine
from headrace.dispatch.models import Cluster, ReconcilerLease, RetentionPolicy, TeamQuota
from headrace.teams.admin import ReadOnly


class ClusterForm(forms.ModelForm):
    """Says what may stand in the capacity, and refuses a currency that is none."""

    class Meta:
        model = Cluster
        fields = ("team", "name", "address", "token_file", "is_default", "capacity", "price_per_device_hour", "currency")
        widgets = {"capacity": forms.Textarea(attrs={"rows": 4, "spellcheck": "false"})}

    def clean_capacity(self) -> dict[str, float]:
        value = self.cleaned_data["capacity"] or {}
        known = set(machine())
        if not isinstance(value, dict) or not value.keys() <= known:
            raise forms.ValidationError(f'Give an object with any of {", ".join(sorted(known))}, for example {{"cpus": 16, "gpus": 2}}.')
        for name, number in value.items():
            if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number < 1e16:
                raise forms.ValidationError(f"{name}: give a number, 0 or more.")
        return value

    def clean_currency(self) -> str:
        code = str(self.cleaned_data["currency"]).strip().upper()
        if len(code) != 3 or not code.isascii() or not code.isalpha():
            raise forms.ValidationError("Give three letters, for example EUR.")
        return code


@admin.register(Cluster)
class ClusterAdmin(admin.ModelAdmin):
    form = ClusterForm
    list_display = ("name", "team", "address", "is_default", "price_per_device_hour", "currency", "last_seen_at")
    readonly_fields = ("public_id", "created_at", "last_seen_at")
    fieldsets = (
        (None, {"fields": ("public_id", "name", "team", "is_default")}),
        ("Where it is", {"fields": ("address", "token_file")}),
        ("What it has", {"fields": ("capacity",)}),
        ("What a device costs for an hour", {"fields": (("price_per_device_hour", "currency"),)}),
        ("Dates", {"fields": ("created_at", "last_seen_at")}),
    )


@admin.register(TeamQuota)
class TeamQuotaAdmin(admin.ModelAdmin):
    list_display = ("team", "most_running", "most_queued", "device_hours_month", "updated_at")
    readonly_fields = ("updated_at",)


@admin.register(ReconcilerLease)
class ReconcilerLeaseAdmin(ReadOnly):
    list_display = ("name", "holder", "fence", "acquired_at", "expires_at")


RetentionPolicy._meta.verbose_name_plural = "retention policies"


@admin.register(RetentionPolicy)
class RetentionPolicyAdmin(ReadOnly):
    list_display = ("team", "events_days", "samples_days", "logs_days", "checkpoints_days", "updated_at")
    list_select_related = ("team",)
