"""The token of one attempt: it appends that attempt's events and does nothing else. Only its hash is stored."""

from __future__ import annotations

import hmac

from django.utils import timezone

from headrace.experiments.lifecycle import LATE_SHIPPING
from headrace.experiments.models import Attempt
from headrace.identifiers import hash_secret, new_secret

PREFIX = "hrw_"


def issue_run_token(attempt: Attempt) -> str:
    """A new token; the attempt's former one stops working. Called by the launcher just before the job starts, and for uploads.

    It has no end while the attempt runs; the end of the attempt sets one (lifecycle.LATE_SHIPPING).
    """
    secret = new_secret(PREFIX)
    attempt.token_hash = hash_secret(secret)
    attempt.token_expires = timezone.now() + LATE_SHIPPING if attempt.is_over else None
    attempt.save(update_fields=["token_hash", "token_expires"])
    return secret


def verify_run_token(attempt_public_id: str, secret: str) -> Attempt | None:
    """The attempt this token belongs to, or None. An unknown attempt takes as long to answer as a wrong token."""
    attempt = Attempt.unscoped.select_related("run").filter(public_id=attempt_public_id).first()
    known = attempt.token_hash if attempt is not None and attempt.token_hash else "0" * 64
    fits = hmac.compare_digest(known, hash_secret(secret))
    if not fits or attempt is None or not attempt.token_hash or attempt.run.deleted_at is not None:
        return None
    if attempt.token_expires is not None and attempt.token_expires <= timezone.now():
        return None
    return attempt
