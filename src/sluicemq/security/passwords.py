"""Hashing and verification of passwords.

Passwords are hashed by argon2id with 19 MiB, 2 passes and 1 lane (OWASP's Password Storage Cheat
Sheet; a verification takes 15 to 25 ms). Each hash contains its parameters, so that hashes with
other parameters remain valid. Hashes migrated from VibeMQ are bcrypt hashes (`legacy_hashes`) until
the first login of their user.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import Final

import bcrypt
from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from sluicemq.model.errors import PasswordRefused

# --- bcrypt hashes of VibeMQ ----------------------------------------------------------------------
#
# bcrypt hashes that were migrated from VibeMQ, and the time that hides which users have one.
#
#     $2b$12$j8a3swuct5DkpugvSoWLb.mjnS.T/XmzrFJM4kIYZvevPkri6fOlK
#      |  |  |                     hash, 31 characters
#      |  |  salt, 22 characters
#      |  cost: 2 ** cost rounds, 4 to 15
#      version: 2a, 2b, 2x and 2y mean the same here, as they do to BCrypt.Net
#
# BCrypt.Net hashes the first 72 bytes of the password in UTF-8, followed by a NUL. NULs within the
# password count. BCrypt.Net and this module reject text that cannot be encoded in UTF-8.
#
# A check of another hash, or for a user who does not exist, is 2 to 100 times as fast as one of a
# bcrypt hash. The duration of a failed login would reveal who has one. Therefore each failed check
# takes as long as the slowest one that the user database can cause (`equalise_duration`).

MAX_BCRYPT_PASSWORD: Final = 72
"""Number of bytes of a password that bcrypt hashes."""
COSTS: Final = range(4, 16)
"""Accepted costs. Cost 15 takes 2 s of CPU time, and each further cost twice as long."""

# The last characters of salt and hash have 2 and 4 bits, so that bcrypt never writes others.
_FORM: Final = re.compile(
    r"\$2[abxy]\$(\d\d)\$[./A-Za-z0-9]{21}[.Oeu][./A-Za-z0-9]{30}[.CGKOSWaeimquy26]\Z"
)
_SALT: Final = "u" * 21 + "e"
"""Salt of hashes that are computed only to spend time."""


def bcrypt_cost(stored: str) -> int:
    """Return the cost of a bcrypt hash; 0 for other hashes and for costs that are not accepted."""
    match = _FORM.match(stored)
    cost = int(match[1]) if match is not None else 0
    return cost if cost in COSTS else 0


def verify_bcrypt(stored: str, password: bytes) -> bool:
    """Return whether the bcrypt hash `stored` is of this password. Slow on purpose; releases the
    interpreter lock."""
    computed_hash = bcrypt.hashpw(password[:MAX_BCRYPT_PASSWORD], stored.encode())
    return hmac.compare_digest(computed_hash, stored.encode())


def equalise_duration(stored: str, highest: int) -> None:
    """Spend the time by which bcrypt at cost `highest` takes longer than a check of `stored` did.

    2 ** c rounds, and once more those of the costs from c to `highest` - 1, are 2 ** `highest`.
    """
    cost = bcrypt_cost(stored)
    for extra_cost in range(cost, highest) if cost else (highest,):
        bcrypt.hashpw(b"", f"$2b${extra_cost:02}${_SALT}".encode())


TOKEN_PREFIX: Final = "slq_"
"""Prefix of every token. Secret scanners recognise it, and so does a login that receives a token as
its password."""
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
UNMATCHABLE_HASH: Final = (
    f"$argon2id$v=19$m={MEMORY_KIB},t={PASSES},p={PARALLELISM}"
    "$c2x1aWNlbXEtbm8tdXNlcg$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
)
"""Hash that matches no password. It is verified for users that do not exist or have no password, so
that their logins take as long as others."""


def hash_password(password: str, minimum: int = 0) -> str:
    """Return the hash of a new password. Slow on purpose.

    Raises PasswordRefused if the password is invalid or has fewer than `minimum` characters.
    """
    check_password(password, minimum)
    return _hasher.hash(password)


def check_password(password: str, minimum: int = 0) -> None:
    """Raise PasswordRefused if a password is invalid or has fewer than `minimum` characters.

    The message does not contain the password.
    """
    if not password:
        raise PasswordRefused("a password cannot be empty")
    if password.startswith(TOKEN_PREFIX):  # a login would take it for a token
        raise PasswordRefused(f"a password cannot begin with {TOKEN_PREFIX}, as tokens do")
    if len(password) < minimum:
        raise PasswordRefused(
            f"the password has {len(password)} characters, and this broker requires {minimum} "
            "(auth.min_password_length)"
        )
    try:
        size = len(password.encode())
    except UnicodeEncodeError:
        raise PasswordRefused("a password is text") from None
    if size > MAX_PASSWORD:
        raise PasswordRefused(f"a password has at most {MAX_PASSWORD} bytes")


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
    is_bcrypt = bool(bcrypt_cost(stored))
    is_match = verify_bcrypt(stored, secret) if is_bcrypt else _verify_argon2(stored, secret)
    if is_match and is_text:
        return True
    if highest:
        equalise_duration(stored, highest)
        if is_bcrypt:
            _verify_argon2(UNMATCHABLE_HASH, secret)
    return False


def _verify_argon2(password_hash: str, password: bytes) -> bool:
    try:
        return _hasher.verify(password_hash, password)
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
