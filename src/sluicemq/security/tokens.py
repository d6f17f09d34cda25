"""Tokens: random secrets that stand for a user. Shown once; only their SHA-256 is kept.

They have 256 random bits, so that a fast hash is enough: there is nothing to guess.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Final

from sluicemq.security.access import TOKEN_PREFIX
from sluicemq.security.records import TokenRecord

_RANDOM_BYTES: Final = 32


def make_token(label: str, now: int, expires: int = 0) -> tuple[str, TokenRecord]:
    """A new token and its stored form. Times are seconds since the epoch; 0 = never."""
    token = TOKEN_PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)
    record = TokenRecord(
        id=secrets.token_hex(4),
        sha256=fingerprint(token),
        label=label,
        created=now,
        expires=expires,
    )
    return token, record


def fingerprint(token: str) -> str:
    """SHA-256 in hexadecimal digits. To look one up by it tells nothing by its timing."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
