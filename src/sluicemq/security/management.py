"""Users and roles for the administration: queries and changes."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import msgspec

from sluicemq.model.access import Operation, Permission
from sluicemq.model.errors import AccessError
from sluicemq.security.authenticator import Authenticator
from sluicemq.security.passwords import scheme_of
from sluicemq.security.records import Database, UserRecord
from sluicemq.security.user_operations import Preparation


class PermissionView(msgspec.Struct, frozen=True):
    """Permission for operations on all destinations whose names match the pattern."""

    pattern: str
    operations: list[Operation]
    ignore_case: bool


class TokenView(msgspec.Struct, frozen=True, kw_only=True):
    """Token without its secret. Times are in seconds since the epoch; `expires` 0 = never."""

    id: str
    label: str
    created: int
    expires: int


class UserView(msgspec.Struct, frozen=True, kw_only=True):
    """User without its secrets.

    has_password     true if it can log in with a password
    password_scheme  argon2id, bcrypt (migrated, until the first login) or "" for no password
    allow_digest     true if it can log in with a digest
    permissions      its own, without those of its roles
    created, updated  seconds since the epoch
    """

    name: str
    superuser: bool
    has_password: bool
    password_scheme: str
    allow_digest: bool
    roles: list[str]
    permissions: list[PermissionView]
    tokens: list[TokenView]
    created: int
    updated: int


class RoleView(msgspec.Struct, frozen=True, kw_only=True):
    """Role: its permissions, and the users to which it is assigned."""

    name: str
    permissions: list[PermissionView]
    users: list[str]


class UserManagement:
    """Users and roles. All methods are called on the event loop's thread.

    operations  create the changes that `apply` applies
    """

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator
        self.operations = authenticator.operations

    # --- queries -----------------------------------------------------------------------------

    def names(self) -> list[str]:
        """Return all user names, sorted."""
        return sorted(self._database.users)

    def user(self, name: str) -> UserView | None:
        """Return a user; None if unknown."""
        found = self._database.users.get(name)
        return None if found is None else _user(name, found)

    def role_names(self) -> list[str]:
        """Return all role names, sorted."""
        return sorted(self._database.roles)

    def roles(self, names: Collection[str]) -> list[RoleView]:
        """Return the roles of these names that exist, sorted."""
        database = self._database
        holders: dict[str, list[str]] = {name: [] for name in names}
        for user, record in database.users.items():
            for role in record.roles:
                if role in holders:
                    holders[role].append(user)
        return [
            RoleView(
                name=name,
                permissions=_permissions(database.roles[name]),
                users=sorted(holders[name]),
            )
            for name in sorted(holders)
            if name in database.roles
        ]

    def rights(self, name: str) -> list[PermissionView]:
        """Return a user's permissions, including those of its roles."""
        database = self._database
        return _permissions(database.rights(name)) if name in database.users else []

    @property
    def _database(self) -> Database:
        self._authenticator.refresh()
        return self._authenticator.user_snapshot.database

    async def apply(self, by: str, prepare: Preparation) -> None:
        """Apply a change of `operations` and wait until it is on disk.

        `by` is the author for the audit log. Raises as the operation.
        """
        future: asyncio.Future[AccessError | None] = asyncio.get_running_loop().create_future()

        def done(outcome: AccessError | None) -> None:
            if not future.done():
                future.set_result(outcome)

        self._authenticator.change(prepare, by, done)
        outcome = await future
        if outcome is not None:
            raise outcome


def _user(name: str, user: UserRecord) -> UserView:
    return UserView(
        name=name,
        superuser=user.superuser,
        has_password=bool(user.password),
        password_scheme=scheme_of(user.password),
        allow_digest=bool(user.digest),
        roles=list(user.roles),
        permissions=_permissions(user.permissions),
        tokens=[
            TokenView(id=each.id, label=each.label, created=each.created, expires=each.expires)
            for each in user.tokens
        ],
        created=user.created,
        updated=user.updated,
    )


def _permissions(permissions: tuple[Permission, ...]) -> list[PermissionView]:
    return [
        PermissionView(
            each.pattern,
            [one for one in Operation if one in each.operations],
            each.ignore_case,
        )
        for each in permissions
    ]
