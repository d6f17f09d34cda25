"""User database: its records, its file, and its index for logins.

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

import fcntl
import hashlib
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from sluicemq.journal.writer import write_whole
from sluicemq.model.access import ANONYMOUS, Identity, Permission, is_pattern, is_user_name
from sluicemq.model.errors import AccessError, ConfigurationError
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

    def rights(self, name: str) -> tuple[Permission, ...]:
        """Return a user's own permissions and those of its roles.

        Raises KeyError if there is no such user.
        """
        user = self.users[name]
        return user.permissions + tuple(p for role in user.roles for p in self.roles[role])


Change = Callable[[Database], Database]
"""Change to the database; raises AccessError."""


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


# --- The file -------------------------------------------------------------------------------------
#
# User database on disk: one file, replaced as a whole by one process at a time.
#
# The broker and the command line change it under the same lock (FILE.lock) and read it again before
# each change. Readers need no lock: a rename gives them either the old or the new file. A replaced
# file is detected by inode, size and times, which takes one system call.

MAX_FILE: Final = 64 * 1024**2
"""Maximum size of the file in bytes; 10,000 users with many permissions need less."""
LOCK_SECONDS: Final = 10.0
"""Seconds to wait for the lock of the file; a change takes milliseconds."""
_LOCK_POLL: Final = 0.01

_Stamp = tuple[int, int, int, int]


class UserStore:
    """User database of one broker. One thread calls `read`; any thread may call `change`."""

    __slots__ = ("_database", "_stamp", "path")

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stamp: _Stamp | None = None
        self._database = Database()

    def read(self) -> Database:
        """Return the current database; the same object as long as the file is unchanged.

        Without a file there are no users. Raises ConfigurationError if the file is damaged or
        cannot be read; the next call tries again.
        """
        try:
            stamp = _stamp(os.stat(self.path))
        except (FileNotFoundError, NotADirectoryError):
            stamp = None
        except OSError as error:
            raise _unreadable(self.path, error) from None
        if stamp != self._stamp:
            self._database, self._stamp = _load(self.path)
        return self._database

    @property
    def exists(self) -> bool:
        """Return whether the file existed at the last `read`."""
        return self._stamp is not None

    def change(self, change: Change, by: str) -> Database:
        """Apply a change and write it to disk. `by` is the author for the audit log.

        Raises the errors of `change`, ConfigurationError if the file is damaged, OSError.
        """
        with self._locked():
            before, _ = _load(self.path)
            after = change(before)
            if after is before:
                return before
            after = replace(after, version=VERSION, changed_by=by)
            write_whole(self.path, encode(after), mode=0o600, owner=self._owner())
            return after

    @contextmanager
    def _locked(self) -> Iterator[None]:
        path = self.path.with_name(self.path.name + ".lock")
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            owner = self._owner()
            if owner is not None:
                os.fchown(fd, *owner)
            deadline = time.monotonic() + LOCK_SECONDS
            while True:
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise AccessError(
                            f"another process has been changing {self.path} for "
                            f"{LOCK_SECONDS:g} s; try again"
                        ) from None
                    time.sleep(_LOCK_POLL)
            yield
        finally:
            os.close(fd)

    def _owner(self) -> tuple[int, int] | None:
        """Return the owner of new files if root runs this process: the owner of the directory, so
        that the broker's user can still read the file."""
        if os.geteuid() != 0:
            return None
        directory = os.stat(self.path.parent)
        return directory.st_uid, directory.st_gid


def _load(path: Path) -> tuple[Database, _Stamp | None]:
    try:
        with path.open("rb") as file:
            # of the open file, because the path may refer to a newer file by now
            stamp = _stamp(os.fstat(file.fileno()))
            content = file.read(MAX_FILE + 1)
    except (FileNotFoundError, NotADirectoryError):
        return Database(), None
    except OSError as error:
        raise _unreadable(path, error) from None
    if len(content) > MAX_FILE:
        raise ConfigurationError(f"{path}: the user database is larger than {MAX_FILE} bytes")
    return decode(content, str(path)), stamp


def _stamp(status: os.stat_result) -> _Stamp:
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _unreadable(path: Path, error: OSError) -> ConfigurationError:
    return ConfigurationError(
        f"{path}: the user database cannot be read: {error.strerror or error}"
    )
