"""Passwords: how they are kept, and how one is checked.

argon2id with 19 MiB, 2 passes and 1 lane (OWASP's Password Storage Cheat Sheet; 15 to 25 ms a
check). The parameters stand in each hash, so that hashes made with others go on working. Hashes
that were taken over from VibeMQ are bcrypt's (`legacy_hashes`) until their user's first login.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from sluicemq.model.errors import AccessError, ConfigurationError
from sluicemq.security.legacy_hashes import bcrypt_cost, equalise, verify_bcrypt

MAX_PASSWORD: Final = 1024
"""Bytes in UTF-8."""
MAX_JAVA_PASSWORD: Final = 57
"""Bytes in UTF-8 that the Java JMS client sends of a password at a basic login (JMQ, section 5.2).
Digest logins and other clients have no such limit."""
SHORT_PASSWORD: Final = 12
"""Characters below which a new password is accepted with a warning."""
MEMORY_KIB: Final = 19_456
PASSES: Final = 2
PARALLELISM: Final = 1

_hasher: Final = PasswordHasher(time_cost=PASSES, memory_cost=MEMORY_KIB, parallelism=PARALLELISM)

NO_DIGEST: Final = "0"
"""Digest form compared for a user without one, so that the comparison takes as long."""
UNKNOWN: Final = (
    f"$argon2id$v=19$m={MEMORY_KIB},t={PASSES},p={PARALLELISM}"
    "$c2x1aWNlbXEtbm8tdXNlcg$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
)
"""The hash of no password: checked for users that do not exist or have no password, so that it
takes as long as for others."""


def hash_password(password: str, minimum: int = 0) -> str:
    """Return the form that is kept of a new password. Slow on purpose.

    Raises AccessError if it cannot be a password or has less than `minimum` characters.
    """
    check_password(password, minimum)
    return _hasher.hash(password)


def check_password(password: str, minimum: int = 0) -> None:
    """Raise AccessError, which does not quote it, if it cannot be a password or has less than
    `minimum` characters."""
    if not password:
        raise AccessError("a password cannot be empty")
    if len(password) < minimum:
        raise AccessError(
            f"the password has {len(password)} characters, and this broker requires {minimum} "
            "(auth.min_password_length)"
        )
    try:
        size = len(password.encode())
    except UnicodeEncodeError:
        raise AccessError("a password is text") from None
    if size > MAX_PASSWORD:
        raise AccessError(f"a password has at most {MAX_PASSWORD} bytes")


def password_warnings(password: str) -> list[str]:
    """Return what is not refused about a new password, but better done otherwise."""
    if len(password) >= SHORT_PASSWORD:
        return []
    return [
        f"the password has fewer than {SHORT_PASSWORD} characters; a longer one is harder to guess"
    ]


def verify(stored: str, password: str, highest: int = 0) -> bool:
    """Return whether `stored` was made of this password. Slow on purpose; from any thread.

    `highest` is the highest cost of a bcrypt hash in the user database, 0 if there is none: all
    passwords that are wrong take as long as one that is compared with such a hash.
    """
    try:
        secret, is_text = password.encode(), True
    except UnicodeEncodeError:
        secret, is_text = b"", False
    by_bcrypt = bool(bcrypt_cost(stored))
    right = verify_bcrypt(stored, secret) if by_bcrypt else _verify_argon2(stored, secret)
    if right and is_text:
        return True
    if highest:
        equalise(stored, highest)
        if by_bcrypt:
            _verify_argon2(UNKNOWN, secret)
    return False


def _verify_argon2(stored: str, password: bytes) -> bool:
    try:
        return _hasher.verify(stored, password)
    except (VerificationError, InvalidHashError):
        return False


def scheme_of(stored: str) -> str:
    """Return what a password is hashed with: argon2id or bcrypt; "" for no password."""
    return "bcrypt" if bcrypt_cost(stored) else "argon2id" if stored else ""


def digest_form(user: str, password: str) -> str:
    """Return the digest form of a password: the MD5 of `user:password`, in the JMS broker's form.

    That is the 128 bits as a signed number in base 16 without leading zeros (JMQ, section 5.2).
    Whoever has it can log in by digest as with the password itself.
    """
    return _signed_md5(f"{user}:{password}")


def digest_answer(form: str, nonce: str) -> str:
    """Return the correct answer to a digest challenge with that nonce."""
    return _signed_md5(f"{form}:{nonce}")


def page_digest_answer(form: str, nonce: str) -> str:
    """Return the same answer as the published page of the JMS broker's protocol defines it: both
    MD5s, that in `form` too, are 32 hexadecimal digits."""
    unsigned = int(form, 16) % (1 << 128)
    return f"{_md5(f'{unsigned:032x}:{nonce}'):032x}"


def _signed_md5(text: str) -> str:
    return f"{_md5(text, signed=True):x}"


def _md5(text: str, *, signed: bool = False) -> int:
    md5 = hashlib.md5(text.encode("utf-8", "surrogatepass"), usedforsecurity=False).digest()
    return int.from_bytes(md5, "big", signed=signed)


def read_secret_file(path: Path) -> str:
    """The first line of a file. Raises ConfigurationError if there is none."""
    try:
        with path.open(encoding="utf-8") as file:
            secret = file.readline(MAX_PASSWORD + 2).rstrip("\r\n")
    except OSError as error:
        raise ConfigurationError(
            f"{path}: the file cannot be read: {error.strerror or error}"
        ) from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path}: the file is not UTF-8 text") from None
    if not secret:
        raise ConfigurationError(f"{path}: the first line is empty")
    return secret
