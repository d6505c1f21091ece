"""Opaque public ids and secrets. Called when a row is made; nothing here is derived from a row's number."""

from __future__ import annotations

import hashlib
import secrets

from django.db import models

ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"
LENGTH = 12


def new_public_id() -> str:
    """12 characters of lower-case base32 (60 random bits)."""
    return "".join(secrets.choice(ALPHABET) for _ in range(LENGTH))


def new_secret(prefix: str) -> str:
    """A bearer secret: prefix and 256 random bits. It is shown once; only `hash_secret` of it is stored."""
    return f"{prefix}{secrets.token_urlsafe(32)}"


def hash_secret(secret: str) -> str:
    """sha256, hex. Secrets are random and long, so a fast hash is enough."""
    return hashlib.sha256(secret.encode()).hexdigest()


class WithPublicId(models.Model):
    """Adds `public_id`, the only name of the row that URLs and clients see."""

    public_id: models.CharField[str, str] = models.CharField(max_length=LENGTH, unique=True, default=new_public_id, editable=False)

    class Meta:
        abstract = True
