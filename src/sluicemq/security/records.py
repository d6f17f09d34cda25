"""User database: its records, its index for logins, its changes, and its file.

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
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, filterfalse
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from sluicemq.journal.files import lock_file, write_atomically
from sluicemq.management.users import UserRequest
from sluicemq.model.access import (
    ANONYMOUS,
    MAX_PATTERN,
    Identity,
    Permission,
    is_pattern,
    is_role_name,
    is_user_name,
)
from sluicemq.model.errors import (
    AccessDenied,
    AccessError,
    ConfigurationError,
    RoleExists,
    RoleNotFound,
    TokenNotFound,
    UserExists,
    UserNotFound,
)
from sluicemq.security.files import read_bounded
from sluicemq.security.passwords import (
    COSTS,
    TOKEN_PREFIX,
    UNMATCHABLE_HASH,
    bcrypt_cost,
    digest_form,
)

ItemT = TypeVar("ItemT")

VERSION: Final = 1
USERS_NAME: Final = "users.json"
"""Name of the user database in a data directory, and in a backup."""

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


NO_USER: Final = UserRecord(created=0, updated=0)
"""Record of a user that does not exist: without a password, digest and permissions."""


class Database(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All users and roles. `changed_by` is the author of the last change, for the audit log."""

    version: int = VERSION
    changed_by: str = ""
    users: dict[str, UserRecord] = msgspec.field(default_factory=dict)
    roles: dict[str, tuple[Permission, ...]] = msgspec.field(default_factory=dict)

    def rights(self, name: str) -> tuple[Permission, ...]:
        """Return a user's own permissions and those of its roles; () for an unknown user."""
        user = self.users.get(name, NO_USER)
        return user.permissions + tuple(
            permission for role in user.roles for permission in self.roles[role]
        )

    def user(self, name: str) -> UserRecord:
        """Return a user. Raises UserNotFound."""
        user = self.users.get(name)
        if user is None:
            raise UserNotFound(f"the user {name[:100]!r} does not exist")
        return user

    def role(self, name: str) -> tuple[Permission, ...]:
        """Return the permissions of a role. Raises RoleNotFound."""
        permissions = self.roles.get(name)
        if permissions is None:
            raise RoleNotFound(f"the role {name[:100]!r} does not exist")
        return permissions


Change = Callable[[Database], Database]
"""Change to the database; raises AccessError. Not called on the event loop, as it may take long."""


class _Version(msgspec.Struct):
    version: int


def encode(database: Database) -> bytes:
    """Encode a database as the content of the file. Equal databases have equal encodings."""
    return msgspec.json.format(msgspec.json.encode(database, order="deterministic")) + b"\n"


def decode(content: bytes, source: str) -> Database:
    """Decode the content of a file. Raises ConfigurationError, which begins with `source`."""
    try:
        version = msgspec.json.decode(content, type=_Version).version
        if version != VERSION:
            raise ConfigurationError(
                f"{source}: its version is {version}, and this program knows only {VERSION}; was "
                "it written by a newer one?"
            )
        database = msgspec.json.decode(content, type=Database)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigurationError(
            f"{source} is not a user database: {error}. Restore it from a backup, or correct it."
        ) from None
    for problem in _problems(database):
        raise ConfigurationError(f"{source} is not a valid user database: {problem}")
    return database


def _problems(database: Database) -> Iterator[str]:
    invalid_users = filterfalse(is_user_name, database.users)
    for name in chain(invalid_users, filterfalse(is_role_name, database.roles)):
        yield f"{name[:100]!r} cannot be the name of a user or role"
    for name, user in database.users.items():
        if not _PASSWORD.match(user.password) and not bcrypt_cost(user.password):
            yield (
                f"users.{name}.password is neither an argon2id hash nor one of bcrypt with a cost "
                f"of {COSTS[0]} to {COSTS[-1]}"
            )
        if not _DIGEST.match(user.digest):
            yield f"users.{name}.digest is not a digest"
        if missing := [role for role in user.roles if role not in database.roles]:
            yield f"users.{name}: there is no role {missing[0]!r}"
        if not all(_SHA256.match(token.sha256) for token in user.tokens):
            yield f"users.{name}.tokens: a sha256 has 64 hexadecimal digits"
    own_permissions = ((name, user.permissions) for name, user in database.users.items())
    for name, permissions in chain(database.roles.items(), own_permissions):
        if not all(is_pattern(permission.pattern) for permission in permissions):
            yield f"{name}: a pattern has 1 to 256 characters"


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

    def __init__(self, database: Database) -> None:
        self.database = database
        users = database.users.values()
        self.all_by_digest = bool(users) and all(
            user.digest and not user.tokens for user in users if user.password or user.tokens
        )
        """True if every user who can log in can do so with a digest."""
        self.highest_cost = max((bcrypt_cost(user.password) for user in users), default=0)
        """The highest cost of a bcrypt hash; 0 if there is none."""
        self._identities: dict[str, Identity] = {}
        self._tokens: dict[str, tuple[str, TokenRecord]] = {
            token.sha256: (name, token)
            for name, user in database.users.items()
            for token in user.tokens
        }

    def identity(self, name: str) -> Identity:
        """Return the identity of a user, with its rights; ANONYMOUS if there is no such user."""
        identity = self._identities.get(name)
        if identity is None:
            user = self.database.users.get(name)
            if user is None:
                return ANONYMOUS
            identity = Identity(name, self.database.rights(name), user.superuser)
            self._identities[name] = identity
        return identity

    def hash_of(self, name: str) -> str:
        """Return the password hash of a user; one that no password matches if there is none."""
        return self.database.users.get(name, NO_USER).password or UNMATCHABLE_HASH

    def digest_of(self, name: str) -> str:
        """Return the digest form of a user; "" if there is none."""
        return self.database.users.get(name, NO_USER).digest

    def token_owner(self, fingerprint: str, now: float) -> str:
        """Return the user of a token; "" if unknown or expired (seconds since the epoch)."""
        name, token = self._tokens.get(fingerprint, ("", None))
        if token is None or (token.expires and now >= token.expires):
            return ""
        return name


# --- Changes --------------------------------------------------------------------------------------
#
# Changes to the database: functions from one database to another.
#
# `UserStore.change` calls them while the file is locked. Hashing a password takes about 25 ms, much
# less than other processes wait for the lock.

MAX_USERS: Final = 10_000
MAX_PERMISSIONS: Final = 1000
"""Maximum number of permissions of one user or role."""


def save_user(
    database: Database,
    name: str,
    requested: UserRequest,
    hash_password: Callable[[str], str],
    now: int,
    *,
    new: bool,
) -> Database:
    """Add a `new` user, or change one. Slow on purpose if a password is requested.

    `hash_password` raises AccessError for an unacceptable password. A new password keeps the
    permission for digest logins unless changed. Raises the errors of `add_user` and `change_user`.
    """
    hashed = digest = ""
    if requested.password:
        hashed = hash_password(requested.password)
        digest = digest_form(name, requested.password)
    if not new:
        return change_user(database, name, requested, hashed, digest, now)
    user = UserRecord(
        password=hashed,
        digest=digest if requested.allow_digest else "",
        superuser=bool(requested.superuser),
        roles=tuple(dict.fromkeys(requested.roles or ())),
        created=now,
        updated=now,
    )
    return add_user(database, name, user)


def add_user(database: Database, name: str, user: UserRecord) -> Database:
    """Add a user.

    Raises UserExists; AccessError if the name is invalid, a role does not exist, or there are too
    many users.
    """
    if not is_user_name(name):
        raise AccessError(
            f"{name[:100]!r} cannot be a user's name: 1 to 64 letters, digits and - _ . @, or the "
            "subject of a certificate, such as CN=alice,O=Example"
        )
    if name in database.users:
        raise UserExists(f"the user {name} exists already")
    if len(database.users) >= MAX_USERS:
        raise AccessError(f"there are {MAX_USERS} users, and there cannot be more")
    for role in user.roles:
        database.role(role)
    return replace(database, users={**database.users, name: user})


def remove_user(database: Database, name: str, force: bool = False) -> Database:
    """Remove a user. Raises UserNotFound; unless `force`, AccessDenied for the last user and for
    the last superuser."""
    user = database.user(name)
    if len(database.users) == 1 and not force:
        raise AccessDenied(
            f"{name} is the last user; a broker started without users requires no login"
        )
    if user.superuser and _superusers(database) == 1 and not force:
        raise AccessDenied(f"{name} is the last superuser and cannot be removed")
    return replace(database, users=_without(database.users, name))


def change_user(
    database: Database, name: str, requested: UserRequest, hashed: str, digest: str, now: int
) -> Database:
    """Change the requested settings of a user.

    `hashed` and `digest` are made of the requested password; the digest is stored if the user may
    log in by digest: as requested, or else as before. Raises UserNotFound; AccessDenied for the
    last superuser; AccessError if a role does not exist, or if digest logins are to be allowed
    without a new password.
    """
    user = database.user(name)
    has_digest = bool(user.digest)
    allows_digest = has_digest if requested.allow_digest is UNSET else requested.allow_digest
    fields: dict[str, object] = {}
    if requested.password is not UNSET:
        fields = {"password": hashed, "digest": digest if allows_digest else ""}
    elif allows_digest and not has_digest:
        raise AccessError("digest logins require the password: set a password, too")
    elif has_digest and not allows_digest:
        fields = {"digest": ""}
    if requested.superuser not in (UNSET, user.superuser):
        if user.superuser and _superusers(database) == 1:
            raise AccessDenied(f"{name} is the last superuser and has to stay one")
        fields["superuser"] = requested.superuser
    if requested.roles is not UNSET:
        for role in requested.roles:
            database.role(role)
        fields["roles"] = tuple(dict.fromkeys(requested.roles))
    return _with(database, name, now, **fields) if fields else database


def replace_hashes(database: Database, hashes: Mapping[str, tuple[str, str]]) -> Database:
    """Replace hashes by other hashes of the same passwords.

    `hashes` holds the stored hash and its replacement by user. Users that no longer exist or have
    another hash are skipped.
    """
    users = dict(database.users)
    for name, (old, new) in hashes.items():
        if name in users and users[name].password == old:
            users[name] = replace(users[name], password=new)
    return replace(database, users=users) if users != database.users else database


def grant(database: Database, name: str, permission: Permission, now: int) -> Database:
    """Replace the user's permission for exactly this pattern. Raises UserNotFound, AccessError."""
    permissions = _granted(database.user(name).permissions, permission)
    return _with(database, name, now, permissions=permissions)


def revoke(database: Database, name: str, pattern: str, now: int) -> Database:
    """Remove the user's permission for this pattern, if there is one. Raises UserNotFound."""
    permissions = _revoked(database.user(name).permissions, pattern)
    return _with(database, name, now, permissions=permissions)


def add_role(database: Database, role: str) -> Database:
    """Add a role. Raises RoleExists; AccessError if the name is invalid."""
    if not is_role_name(role):
        raise AccessError(
            f"{role[:100]!r} cannot be a role's name: 1 to 64 letters, digits and - _ . @"
        )
    if role in database.roles:
        raise RoleExists(f"the role {role} exists already")
    return replace(database, roles={**database.roles, role: ()})


def remove_role(database: Database, role: str) -> Database:
    """Remove a role. Raises AccessError if it does not exist or a user has it."""
    database.role(role)
    if holders := [name for name, user in database.users.items() if role in user.roles]:
        raise AccessError(
            f"the role {role} is assigned to {', '.join(holders[:5])}; revoke it first"
        )
    return replace(database, roles=_without(database.roles, role))


def grant_role(database: Database, role: str, permission: Permission) -> Database:
    """Replace the role's permission for exactly this pattern.

    Raises AccessError if the role does not exist or the pattern is invalid.
    """
    permissions = _granted(database.role(role), permission)
    return replace(database, roles={**database.roles, role: permissions})


def revoke_role(database: Database, role: str, pattern: str) -> Database:
    """Remove the role's permission for this pattern, if there is one.

    Raises AccessError if the role does not exist.
    """
    permissions = _revoked(database.role(role), pattern)
    return replace(database, roles={**database.roles, role: permissions})


def assign(database: Database, role: str, name: str, now: int) -> Database:
    """Assign a role to a user. Raises UserNotFound; AccessError if the role does not exist."""
    database.role(role)
    roles = database.user(name).roles
    return database if role in roles else _with(database, name, now, roles=(*roles, role))


def withdraw(database: Database, role: str, name: str, now: int) -> Database:
    """Revoke a role from a user, if it is assigned. Raises UserNotFound, AccessError."""
    database.role(role)
    roles = tuple(
        assigned_role for assigned_role in database.user(name).roles if assigned_role != role
    )
    return _with(database, name, now, roles=roles)


def add_token(database: Database, name: str, token: TokenRecord, now: int) -> Database:
    """Add a token to a user. Raises UserNotFound."""
    return _with(database, name, now, tokens=(*database.user(name).tokens, token))


def remove_token(database: Database, name: str, token_id: str, now: int) -> Database:
    """Remove a token. Raises UserNotFound, TokenNotFound."""
    tokens = database.user(name).tokens
    remaining = tuple(token for token in tokens if token.id != token_id)
    if len(remaining) == len(tokens):
        raise TokenNotFound(f"{name} has no token {token_id[:100]!r}")
    return _with(database, name, now, tokens=remaining)


def _with(database: Database, name: str, now: int, **fields: object) -> Database:
    user = replace(database.user(name), updated=now, **fields)
    return replace(database, users={**database.users, name: user})


def _without(items: Mapping[str, ItemT], name: str) -> dict[str, ItemT]:
    return {other: item for other, item in items.items() if other != name}


def _superusers(database: Database) -> int:
    return sum(user.superuser for user in database.users.values())


def _granted(permissions: tuple[Permission, ...], permission: Permission) -> tuple[Permission, ...]:
    if not is_pattern(permission.pattern):
        raise AccessError(f"a pattern has 1 to {MAX_PATTERN} characters")
    other_permissions = _revoked(permissions, permission.pattern)
    if len(other_permissions) >= MAX_PERMISSIONS:
        raise AccessError(f"there cannot be more than {MAX_PERMISSIONS} permissions")
    return (*other_permissions, permission)


def _revoked(permissions: tuple[Permission, ...], pattern: str) -> tuple[Permission, ...]:
    return tuple(permission for permission in permissions if permission.pattern != pattern)


# --- The file -------------------------------------------------------------------------------------
#
# User database on disk: one file, replaced as a whole by one process at a time.
#
# The broker and the command line change it under the same lock (FILE.lock), and first read what
# another program has written since. Readers need no lock: a rename gives them either the old or the
# new file. A replaced file is detected by inode, size and times, which takes one system call.

MAX_FILE: Final = 64 * 1024**2
"""Maximum size of the file in bytes; 10,000 users with many permissions need less."""
LOCK_SECONDS: Final = 10.0
"""Seconds to wait for the lock of the file; a change takes milliseconds."""


NO_DATABASE: Final = Database()
"""Database without a file."""


@dataclass(slots=True, eq=False)
class UserStore:
    """User database of one broker. Thread-safe."""

    path: Path
    _state: tuple[tuple[int, ...], Database, str] = ((), NO_DATABASE, "")
    """Stamp of the file that was last read or written, () if there was none; its content; the text
    of the error if it is damaged. Replaced as a whole, because any thread may do so."""

    def read(self) -> Database:
        """Return the current database; the same object as long as the file is unchanged.

        Without a file it is NO_DATABASE. Raises ConfigurationError if the file is damaged, which is
        checked once, or if it cannot be read, which the next call tries again.
        """
        try:
            stamp = self._stamp()
        except (FileNotFoundError, NotADirectoryError):
            stamp = ()
        except OSError as error:
            reason = f"the file cannot be read: {error.strerror}"
            raise ConfigurationError(f"{self.path}: {reason}") from None
        known_stamp, database, damage = self._state
        if stamp != known_stamp:
            database, damage = self._read(stamp)
            # a file that has replaced the one with the stamp meanwhile is read once more
            self._state = stamp, database, damage
        if damage:
            raise ConfigurationError(damage)
        return database

    def _read(self, stamp: tuple[int, ...]) -> tuple[Database, str]:
        """Return the content of the file, and the text of the error if it is damaged. Raises
        ConfigurationError if it cannot be read."""
        if not stamp:
            return NO_DATABASE, ""
        if stamp[1] > MAX_FILE:
            return NO_DATABASE, f"{self.path}: the file is larger than {MAX_FILE} bytes"
        content = read_bounded(self.path, MAX_FILE)
        try:
            return decode(content, str(self.path)), ""
        except ConfigurationError as error:
            return NO_DATABASE, str(error)

    def _stamp(self) -> tuple[int, ...]:
        """Return inode, size and times of the file. Raises OSError."""
        status = os.stat(self.path)
        return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns

    def change(self, change: Change, by: str) -> Database:
        """Apply a change and write it to disk. `by` is the author for the audit log.

        Raises the errors of `change`, AccessError if the file would become too large to be read
        again, ConfigurationError if it is damaged, OSError.
        """
        busy = AccessError(
            f"another process has been changing {self.path} for {LOCK_SECONDS:g} s; try again"
        )
        lock = self.path.with_name(self.path.name + ".lock")
        with lock_file(lock, mode=0o600, seconds=LOCK_SECONDS, busy=busy):
            before = self.read()
            after = change(before)
            if after is before:
                return before
            after = replace(after, version=VERSION, changed_by=by)
            content = encode(after)
            if len(content) > MAX_FILE:
                raise AccessError(
                    f"the user database would have more than {MAX_FILE} bytes; remove users, "
                    "permissions or tokens that are not needed any more"
                )
            write_atomically(self.path, content, mode=0o600)
            with suppress(OSError, ConfigurationError):  # the file is written; `read` tries again
                stamp = self._stamp()
                # a program that ignores the lock may have replaced it before the stamp was read
                if read_bounded(self.path, MAX_FILE) == content:
                    self._state = stamp, after, ""
            return after
