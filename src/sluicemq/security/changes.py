"""Changes to the user database: pure functions from one database to another.

They neither access files nor hash passwords, because the file is locked while they run. A
`Preparation` does what has to come before, such as hashing a password.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Concatenate, Final, NamedTuple, ParamSpec

from msgspec import UNSET
from msgspec.structs import asdict, replace

from sluicemq.management.users import UserRequest
from sluicemq.model.access import MAX_PATTERN, Permission, is_pattern, is_user_name
from sluicemq.model.errors import (
    AccessDenied,
    AccessError,
    RoleExists,
    RoleNotFound,
    TokenNotFound,
    UserExists,
    UserNotFound,
)
from sluicemq.security.passwords import digest_form
from sluicemq.security.records import Change, Database, TokenRecord, UserRecord

P = ParamSpec("P")
Preparation = Callable[[], Change]
"""Prepares a change; raises AccessError. May take long, so it is not called on the event loop."""

MOST_USERS: Final = 10_000
MOST_PERMISSIONS: Final = 1000
"""Maximum number of permissions of one user or role."""


class UserChange(NamedTuple):
    """Changes to a user; None = unchanged. An empty password removes the password. `allow_digest`:
    True if the data that digest logins need is stored."""

    password: str | None = None
    superuser: bool | None = None
    roles: tuple[str, ...] | None = None
    allow_digest: bool | None = None

    @classmethod
    def of(cls, requested: UserRequest) -> UserChange:
        """Return the change that a request asks for."""
        given = {name: value for name, value in asdict(requested).items() if value is not UNSET}
        if "password" in given:
            given["password"] = given["password"] or ""
        if "roles" in given:
            given["roles"] = tuple(dict.fromkeys(given["roles"]))
        return cls(**given)


def ready(
    change: Callable[Concatenate[Database, P], Database], *args: P.args, **options: P.kwargs
) -> Preparation:
    """Return a change with its arguments, which needs no preparation."""
    return lambda: lambda database: change(database, *args, **options)


def prepare_user(
    name: str, requested: UserChange, hash_password: Callable[[str], str], now: int, *, new: bool
) -> Preparation:
    """Return the preparation of an addition (`new`) or of a change of a user.

    `hash_password` raises AccessError for an unacceptable password. A new password keeps the
    permission for digest logins unless changed.
    """

    def prepare() -> Change:
        password = requested.password
        hashed = hash_password(password) if password else ""
        digest = digest_form(name, password) if password else ""
        if new:
            user = UserRecord(
                password=hashed,
                digest=digest if requested.allow_digest else "",
                superuser=bool(requested.superuser),
                roles=requested.roles or (),
                created=now,
                updated=now,
            )
            return lambda database: add_user(database, name, user)
        return lambda database: _alter(database, name, requested, hashed, digest, now)

    return prepare


def _alter(
    database: Database, name: str, requested: UserChange, hashed: str, digest: str, now: int
) -> Database:
    if requested.password is not None:
        database = set_password(database, name, hashed, digest, now, requested.allow_digest)
    elif requested.allow_digest is not None:
        database = allow_digest(database, name, now, requested.allow_digest)
    if requested.superuser is not None:
        database = set_superuser(database, name, now, requested.superuser)
    if requested.roles is not None:
        database = set_roles(database, name, now, requested.roles)
    return database


def add_user(database: Database, name: str, user: UserRecord) -> Database:
    """Add a user.

    Raises UserExists; AccessError if the name is invalid, a role does not exist, or there are too
    many users.
    """
    if not is_user_name(name):
        raise AccessError(
            f"{name[:100]!r} cannot be a user's name: 1 to 64 letters, digits and - _ . @"
        )
    if name in database.users:
        raise UserExists(f"there is a user {name} already")
    if len(database.users) >= MOST_USERS:
        raise AccessError(f"there are {MOST_USERS} users, and there cannot be more")
    for role in user.roles:
        _role(database, role)
    return replace(database, users={**database.users, name: user})


def remove_user(database: Database, name: str, force: bool = False) -> Database:
    """Remove a user. Raises UserNotFound; unless `force`, AccessDenied for the last user and for
    the last superuser."""
    user = _user(database, name)
    if len(database.users) == 1 and not force:
        raise AccessDenied(
            f"{name} is the last user; a broker started without users requires no login"
        )
    superusers = sum(each.superuser for each in database.users.values())
    if user.superuser and superusers == 1 and not force:
        raise AccessDenied(f"{name} is the last superuser and cannot be removed")
    return replace(database, users={n: u for n, u in database.users.items() if n != name})


def set_password(
    database: Database,
    name: str,
    password: str,
    digest: str,
    now: int,
    allow_digest: bool | None = None,
) -> Database:
    """Set the password of a user; `password` is its hash.

    `digest` is stored if the user may log in by digest: `allow_digest`, or, if that is None, as
    before. Raises UserNotFound.
    """
    if allow_digest is None:
        allow_digest = bool(_user(database, name).digest)
    return _with(database, name, now, password=password, digest=digest if allow_digest else "")


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


def allow_digest(database: Database, name: str, now: int, allowed: bool) -> Database:
    """Allow or forbid digest logins of a user.

    Raises UserNotFound; AccessError if they are to be allowed, which requires a new password.
    """
    if allowed == bool(_user(database, name).digest):
        return database
    if allowed:
        raise AccessError("digest logins require the password: set a password, too")
    return _with(database, name, now, digest="")


def set_superuser(database: Database, name: str, now: int, superuser: bool) -> Database:
    """Make a user a superuser, or an ordinary user.

    Raises UserNotFound; AccessDenied for the last superuser.
    """
    if _user(database, name).superuser == superuser:
        return database
    if not superuser and sum(each.superuser for each in database.users.values()) == 1:
        raise AccessDenied(f"{name} is the last superuser and has to stay one")
    return _with(database, name, now, superuser=superuser)


def set_roles(database: Database, name: str, now: int, roles: tuple[str, ...]) -> Database:
    """Replace the roles of a user. Raises UserNotFound; AccessError if a role does not exist."""
    for role in roles:
        _role(database, role)
    return _with(database, name, now, roles=roles)


def grant(database: Database, name: str, permission: Permission, now: int) -> Database:
    """Replace the user's permission for exactly this pattern. Raises UserNotFound, AccessError."""
    permissions = _granted(_user(database, name).permissions, permission)
    return _with(database, name, now, permissions=permissions)


def revoke(database: Database, name: str, pattern: str, now: int) -> Database:
    """Remove the user's permission for this pattern, if there is one. Raises UserNotFound."""
    permissions = _revoked(_user(database, name).permissions, pattern)
    return _with(database, name, now, permissions=permissions)


def add_role(database: Database, role: str) -> Database:
    """Add a role. Raises RoleExists; AccessError if the name is invalid."""
    if not is_user_name(role):
        raise AccessError(
            f"{role[:100]!r} cannot be a role's name: 1 to 64 letters, digits and - _ . @"
        )
    if role in database.roles:
        raise RoleExists(f"there is a role {role} already")
    return replace(database, roles={**database.roles, role: ()})


def remove_role(database: Database, role: str) -> Database:
    """Remove a role. Raises AccessError if it does not exist or a user has it."""
    _role(database, role)
    if holders := [name for name, user in database.users.items() if role in user.roles]:
        raise AccessError(
            f"the role {role} is assigned to {', '.join(holders[:5])}; withdraw it first"
        )
    return replace(database, roles={n: p for n, p in database.roles.items() if n != role})


def grant_role(database: Database, role: str, permission: Permission) -> Database:
    """Replace the role's permission for exactly this pattern.

    Raises AccessError if the role does not exist or the pattern is invalid.
    """
    permissions = _granted(_role(database, role), permission)
    return replace(database, roles={**database.roles, role: permissions})


def revoke_role(database: Database, role: str, pattern: str) -> Database:
    """Remove the role's permission for this pattern, if there is one.

    Raises AccessError if the role does not exist.
    """
    permissions = _revoked(_role(database, role), pattern)
    return replace(database, roles={**database.roles, role: permissions})


def assign(database: Database, role: str, name: str, now: int) -> Database:
    """Assign a role to a user. Raises UserNotFound; AccessError if the role does not exist."""
    _role(database, role)
    roles = _user(database, name).roles
    return database if role in roles else _with(database, name, now, roles=(*roles, role))


def withdraw(database: Database, role: str, name: str, now: int) -> Database:
    """Withdraw a role from a user, if it is assigned. Raises UserNotFound, AccessError."""
    _role(database, role)
    roles = tuple(each for each in _user(database, name).roles if each != role)
    return _with(database, name, now, roles=roles)


def add_token(database: Database, name: str, token: TokenRecord, now: int) -> Database:
    """Add a token to a user. Raises UserNotFound."""
    return _with(database, name, now, tokens=(*_user(database, name).tokens, token))


def remove_token(database: Database, name: str, token_id: str, now: int) -> Database:
    """Remove a token. Raises UserNotFound, TokenNotFound."""
    tokens = _user(database, name).tokens
    left = tuple(token for token in tokens if token.id != token_id)
    if len(left) == len(tokens):
        raise TokenNotFound(f"{name} has no token {token_id[:100]!r}")
    return _with(database, name, now, tokens=left)


def _with(database: Database, name: str, now: int, **fields: object) -> Database:
    user = replace(_user(database, name), updated=now, **fields)
    return replace(database, users={**database.users, name: user})


def _user(database: Database, name: str) -> UserRecord:
    user = database.users.get(name)
    if user is None:
        raise UserNotFound(f"there is no user {name[:100]!r}")
    return user


def _role(database: Database, role: str) -> tuple[Permission, ...]:
    permissions = database.roles.get(role)
    if permissions is None:
        raise RoleNotFound(f"there is no role {role[:100]!r}")
    return permissions


def _granted(permissions: tuple[Permission, ...], permission: Permission) -> tuple[Permission, ...]:
    if not is_pattern(permission.pattern):
        raise AccessError(f"a pattern has 1 to {MAX_PATTERN} characters")
    others = _revoked(permissions, permission.pattern)
    if len(others) >= MOST_PERMISSIONS:
        raise AccessError(f"there cannot be more than {MOST_PERMISSIONS} permissions")
    return (*others, permission)


def _revoked(permissions: tuple[Permission, ...], pattern: str) -> tuple[Permission, ...]:
    return tuple(each for each in permissions if each.pattern != pattern)
