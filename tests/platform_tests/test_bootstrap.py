"""The first start: rows made once, and one link that lets one admin in once."""

from __future__ import annotations

import io
import json
import threading
from datetime import timedelta

import pytest
from django.core.exceptions import ValidationError
from django.core.management import call_command
from django.db import connection
from django.test import TransactionTestCase
from django.utils import timezone

from headrace.experiments.models import Project
from headrace.identifiers import hash_secret
from headrace.teams.models import Membership, Role, SetupLink, Team, User
from headrace.teams.services import LinkSpent, setup_link, spend_setup_link

PASSWORD = "correct horse battery staple"


def bootstrap() -> str:
    """The set-up link's secret as a start prints it."""
    out = io.StringIO()
    call_command("bootstrap", stdout=out)
    return out.getvalue().strip().rstrip("/").rpartition("/")[2]


@pytest.mark.django_db
def test_it_may_run_at_every_start() -> None:
    first, second = bootstrap(), bootstrap()
    assert Team.objects.count() == Project.unscoped.count() == 1
    assert first != second
    assert setup_link(first) is None, "the newest link is the only one"
    assert setup_link(second) is not None
    assert setup_link(second) is not None, "looking does not spend it"
    assert User.objects.count() == 0, "no default account"
    assert not SetupLink.unscoped.filter(token_hash=second).exists()
    assert SetupLink.unscoped.filter(token_hash=hash_secret(second)).exists()


@pytest.mark.django_db
def test_the_link_makes_one_admin_once() -> None:
    secret = bootstrap()
    user = spend_setup_link(secret, email=" Ada@Example.org ", password=PASSWORD, name="Ada")
    assert (user.email, user.is_superuser, user.is_staff) == ("ada@example.org", True, True)
    assert Membership.unscoped.get(user=user).role == Role.OWNER
    assert user.check_password(PASSWORD)
    with pytest.raises(LinkSpent):
        spend_setup_link(secret, email="eve@example.org", password=PASSWORD)
    out = io.StringIO()
    call_command("bootstrap", "--json", stdout=out)
    assert json.loads(out.getvalue())["setup_url"] is None, "an admin exists: no further link"


@pytest.mark.django_db
def test_a_weak_password_leaves_the_link_good() -> None:
    secret = bootstrap()
    for password in ("short", "123456789012345", "ada@example.org"):
        with pytest.raises(ValidationError):
            spend_setup_link(secret, email="ada@example.org", password=password)
    with pytest.raises(ValidationError):
        spend_setup_link(secret, email="not an address", password=PASSWORD)
    assert User.objects.count() == 0
    assert setup_link(secret) is not None


@pytest.mark.django_db
def test_an_old_or_foreign_link_opens_nothing() -> None:
    secret = bootstrap()
    link = SetupLink.unscoped.get(used_at=None, expires_at__gt=timezone.now())
    assert timedelta(hours=23) < link.expires_at - timezone.now() <= timedelta(hours=24)
    SetupLink.unscoped.filter(pk=link.pk).update(expires_at=timezone.now())
    for wrong in (secret, "hrs_" + "x" * 43, "", "\x00"):
        assert setup_link(wrong) is None
        with pytest.raises(LinkSpent):
            spend_setup_link(wrong, email="ada@example.org", password=PASSWORD)


class TestRace(TransactionTestCase):
    def test_two_at_once_make_one_admin(self) -> None:
        secret = bootstrap()
        outcomes: list[str] = []
        gate = threading.Barrier(6)

        def spend(number: int) -> None:
            try:
                gate.wait(timeout=30)
                spend_setup_link(secret, email=f"user{number}@example.org", password=PASSWORD)
                outcomes.append("in")
            except LinkSpent:
                outcomes.append("spent")
            finally:
                connection.close()

        threads = [threading.Thread(target=spend, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
        assert sorted(outcomes) == ["in"] + ["spent"] * 5
        assert User.objects.count() == 1
