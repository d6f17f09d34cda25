"""Records of the user database, and the format of its file.

    {"version": 1, "changed_by": "root on the command line",
     "users": {"anna": {"password": "$argon2id$…", "digest": "", "superuser": false,
                        "permissions": [{"pattern": "orders.*", "operations": ["consume"]}],
                        "roles": ["readers"], "tokens": [{"id": "5f0c2a91", "sha256": "…", …}],
                        "created": 1790000000, "updated": 1790000000}},
     "roles": {"readers": [{"pattern": "*", "operations": ["browse"]}]}}

Passwords and tokens cannot be derived from the file. A `digest` is sufficient for a login, which is
why only users who need one have it.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from typing import Final

import msgspec

from sluicemq.model.access import ANONYMOUS, Identity, Permission, is_pattern, is_user_name
from sluicemq.model.errors import ConfigurationError
from sluicemq.security.access import TOKEN_PREFIX
from sluicemq.security.passwords import COSTS, UNKNOWN, bcrypt_cost

VERSION: Final = 1

_SHA256: Final = re.compile(r"[0-9a-f]{64}\Z")
_PASSWORD: Final = re.compile(r"(\$argon2id\$[\x21-\x7e]{1,500})?\Z")
_DIGEST: Final = re.compile(r"(-?[0-9a-f]{1,32})?\Z")


class TokenRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Token of a user.

    id       identifier in commands and lists; independent of the secret
    sha256   SHA-256 of the token, in hexadecimal digits
    label    description by its creator
    created  seconds since the epoch
    expires  seconds since the epoch; 0 = never
    """

    id: str
    sha256: str
    label: str = ""
    created: int
    expires: int = 0


class UserRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """User.

    password  argon2id hash, or bcrypt hash until the first login of a user migrated from VibeMQ;
              "" = password logins are disabled
    digest    see `passwords.digest_form`; "" = digest logins are disabled
    created, updated  seconds since the epoch
    """

    password: str = ""
    digest: str = ""
    superuser: bool = False
    permissions: tuple[Permission, ...] = ()
    roles: tuple[str, ...] = ()
    tokens: tuple[TokenRecord, ...] = ()
    created: int
    updated: int


class Database(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All users and roles. `changed_by` is the author of the last change, for the audit log."""

    version: int = VERSION
    changed_by: str = ""
    users: dict[str, UserRecord] = msgspec.field(default_factory=dict)
    roles: dict[str, tuple[Permission, ...]] = msgspec.field(default_factory=dict)

    @property
    def highest_cost(self) -> int:
        """Highest cost of a bcrypt hash; 0 if there is none."""
        return max((bcrypt_cost(user.password) for user in self.users.values()), default=0)

    def rights(self, name: str) -> tuple[Permission, ...]:
        """Return a user's own permissions and those of its roles.

        Raises KeyError if there is no such user.
        """
        user = self.users[name]
        return user.permissions + tuple(p for role in user.roles for p in self.roles[role])


class _Version(msgspec.Struct):
    version: int


def encode(database: Database) -> bytes:
    """Encode a database as the content of the file. Equal databases have equal encodings."""
    return msgspec.json.format(msgspec.json.encode(database, order="deterministic")) + b"\n"


def decode(content: bytes, where: str) -> Database:
    """Decode the content of a file. Raises ConfigurationError whose message begins with `where`."""
    try:
        version = msgspec.json.decode(content, type=_Version).version
        if version != VERSION:
            raise ConfigurationError(
                f"{where}: its version is {version}, and this program knows only {VERSION}; was it "
                "written by a newer one?"
            )
        database = msgspec.json.decode(content, type=Database)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigurationError(
            f"{where} is not a user database: {error}. Restore it from a backup, or correct it."
        ) from None
    for problem in _problems(database):
        raise ConfigurationError(f"{where} is not a sound user database: {problem}")
    return database


def _problems(database: Database) -> list[str]:
    found = []
    for name in (*database.users, *database.roles):
        if not is_user_name(name):
            found.append(f"{name[:100]!r} cannot be the name of a user or role")
    listed = [*database.roles.items()]
    for name, user in database.users.items():
        listed.append((name, user.permissions))
        if not _PASSWORD.match(user.password) and not bcrypt_cost(user.password):
            found.append(
                f"users.{name}.password is neither an argon2id hash nor one of bcrypt with a cost "
                f"of {COSTS[0]} to {COSTS[-1]}"
            )
        if not _DIGEST.match(user.digest):
            found.append(f"users.{name}.digest is not a digest")
        if missing := [role for role in user.roles if role not in database.roles]:
            found.append(f"users.{name}: there is no role {missing[0]!r}")
        if not all(_SHA256.match(token.sha256) for token in user.tokens):
            found.append(f"users.{name}.tokens: a sha256 has 64 hexadecimal digits")
    for name, permissions in listed:
        if not all(is_pattern(permission.pattern) for permission in permissions):
            found.append(f"{name}: a pattern has 1 to 256 characters")
    return found


# --- Tokens ---------------------------------------------------------------------------------------
#
# Tokens: random secrets that identify a user. A token is shown once; only its SHA-256 is stored.
#
# Tokens have 256 random bits, which cannot be guessed, so that a fast hash is sufficient.

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


# --- Snapshot for logins --------------------------------------------------------------------------
#
# The users at one moment, indexed for logins; replaced when the user database has changed.


class UserSnapshot:
    """Snapshot of the user database. Identities are created on first use; connections share
    them."""

    __slots__ = ("_identities", "_tokens", "all_by_digest", "database", "highest_cost")

    def __init__(self, database: Database) -> None:
        self.database = database
        users = database.users.values()
        self.all_by_digest = bool(users) and all(
            user.digest and not user.tokens for user in users if user.password or user.tokens
        )
        """True if every user who can log in can do so with a digest."""
        self.highest_cost = database.highest_cost
        """The highest cost of a bcrypt hash; 0 if there is none."""
        self._identities: dict[str, Identity] = {}
        self._tokens: dict[str, tuple[str, TokenRecord]] = {
            token.sha256: (name, token)
            for name, user in database.users.items()
            for token in user.tokens
        }

    def identity(self, name: str) -> Identity:
        """Return the identity of a user, with its rights; ANONYMOUS if there is no such user."""
        known = self._identities.get(name)
        if known is None:
            user = self.database.users.get(name)
            if user is None:
                return ANONYMOUS
            known = Identity(name, self.database.rights(name), user.superuser)
            self._identities[name] = known
        return known

    def hash_of(self, name: str) -> str:
        """Return the password hash of a user; one that no password matches if there is none."""
        user = self.database.users.get(name)
        return (user.password if user is not None else "") or UNKNOWN

    def digest_of(self, name: str) -> str:
        """Return the digest form of a user; "" if there is none."""
        user = self.database.users.get(name)
        return user.digest if user is not None else ""

    def holder(self, fingerprint: str, now: float) -> str:
        """Return the user of a token; "" if unknown or expired (seconds since the epoch)."""
        name, token = self._tokens.get(fingerprint, ("", None))
        if token is None or (token.expires and now >= token.expires):
            return ""
        return name
