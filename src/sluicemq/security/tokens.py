"""Tokens: random secrets that identify a user. A token is shown once; only its SHA-256 is stored.

Tokens have 256 random bits, which cannot be guessed, so that a fast hash is sufficient.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Final

from sluicemq.security.access import TOKEN_PREFIX
from sluicemq.security.records import TokenRecord

_RANDOM_BYTES: Final = 32


def make_token(label: str, now: int, expires: int = 0) -> tuple[str, TokenRecord]:
    """Return a new token and its record. Times are in seconds since the epoch; 0 = never."""
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
    """Return the SHA-256 in hexadecimal digits. The timing of a look-up by it reveals nothing."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
