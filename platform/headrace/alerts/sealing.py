"""Addresses and passwords of channels at rest: encrypted and authenticated (Fernet) under a key that follows from SECRET_KEY.

Called by services when a channel is saved and by `deliver` just before it is used. A key that was changed leaves channels unreadable
unless the old one stands in SECRET_KEY_FALLBACKS; then people enter the address anew.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings

from workers.contract.errors import HeadraceError

_PURPOSE = b"headrace alert channels 1"


class Unreadable(HeadraceError):
    """The sealed text was written under another key, or changed."""


def seal(content: dict[str, Any]) -> str:
    """Text that only this server's key opens."""
    return _keys().encrypt(json.dumps(content).encode()).decode("ascii")


def unseal(text: str) -> dict[str, Any]:
    """The inverse. Raises Unreadable."""
    try:
        found = json.loads(_keys().decrypt(text.encode("ascii")))
    except (InvalidToken, ValueError) as error:
        raise Unreadable(
            "the channel's address cannot be read: the server's SECRET_KEY is another one", field="address", cure="enter the address again"
        ) from error
    if not isinstance(found, dict):
        raise Unreadable("the channel's address cannot be read", field="address", cure="enter the address again")
    return found


def _keys() -> MultiFernet:
    return MultiFernet([_key(secret) for secret in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)])


def _key(secret: str) -> Fernet:
    derived = HKDF(algorithm=SHA256(), length=32, salt=None, info=_PURPOSE).derive(secret.encode())
    return Fernet(base64.urlsafe_b64encode(derived))
