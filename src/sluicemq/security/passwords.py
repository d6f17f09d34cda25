"""Hashing and verification of passwords.

Passwords are hashed by argon2id with 19 MiB, 2 passes and 1 lane (OWASP's Password Storage Cheat
Sheet; a verification takes 15 to 25 ms). Each hash contains its parameters, so that hashes with
other parameters remain valid. Hashes migrated from VibeMQ are bcrypt hashes (`legacy_hashes`) until
the first login of their user.
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
"""Maximum length of the password in a basic login of the Java JMS client, in bytes of UTF-8 (JMQ,
section 5.2). Digest logins and other clients have no such limit."""
SHORT_PASSWORD: Final = 12
"""A new password with fewer characters is accepted with a warning."""
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
"""Hash that matches no password. It is verified for users that do not exist or have no password, so
that their logins take as long as others."""


def hash_password(password: str, minimum: int = 0) -> str:
    """Return the hash of a new password. Slow on purpose.

    Raises AccessError if the password is invalid or has fewer than `minimum` characters.
    """
    check_password(password, minimum)
    return _hasher.hash(password)


def check_password(password: str, minimum: int = 0) -> None:
    """Raise AccessError if a password is invalid or has fewer than `minimum` characters.

    The message does not contain the password.
    """
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
    """Return warnings about a password that is accepted."""
    if len(password) >= SHORT_PASSWORD:
        return []
    return [
        f"the password has fewer than {SHORT_PASSWORD} characters; a longer one is harder to guess"
    ]


def verify(stored: str, password: str, highest: int = 0) -> bool:
    """Return whether `stored` is a hash of this password. Slow on purpose; thread-safe.

    `highest` is the highest cost of a bcrypt hash in the user database, 0 if there is none: every
    wrong password takes as long as one that is compared with such a hash.
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
    """Return the algorithm of a password hash: argon2id or bcrypt; "" for no password."""
    return "bcrypt" if bcrypt_cost(stored) else "argon2id" if stored else ""


def digest_form(user: str, password: str) -> str:
    """Return the digest form of a password: the MD5 of `user:password`.

    As in the JMS broker, it is written as a signed 128-bit number in base 16 without leading zeros
    (JMQ, section 5.2). It is sufficient for a digest login, like the password itself.
    """
    return _signed_md5(f"{user}:{password}")


def digest_answer(form: str, nonce: str) -> str:
    """Return the correct response to a digest challenge with that nonce."""
    return _signed_md5(f"{form}:{nonce}")


def page_digest_answer(form: str, nonce: str) -> str:
    """Return the response as defined by the published protocol page of the JMS broker: both MD5
    values, including that in `form`, are 32 hexadecimal digits."""
    unsigned = int(form, 16) % (1 << 128)
    return f"{_md5(f'{unsigned:032x}:{nonce}'):032x}"


def _signed_md5(text: str) -> str:
    return f"{_md5(text, signed=True):x}"


def _md5(text: str, *, signed: bool = False) -> int:
    md5 = hashlib.md5(text.encode("utf-8", "surrogatepass"), usedforsecurity=False).digest()
    return int.from_bytes(md5, "big", signed=signed)


def read_secret_file(path: Path) -> str:
    """Return the first line of a file. Raises ConfigurationError if it is empty or unreadable."""
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
