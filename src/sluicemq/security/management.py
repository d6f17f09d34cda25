"""The user database as the administration sees and changes it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from functools import partial
from typing import NamedTuple

import msgspec

from sluicemq.model.access import Operation, Permission
from sluicemq.model.errors import AccessDenied, AccessError
from sluicemq.security import changes
from sluicemq.security.authenticator import Authenticator
from sluicemq.security.changes import Change
from sluicemq.security.passwords import digest_form, password_warnings, scheme_of
from sluicemq.security.records import Database, UserRecord
from sluicemq.security.tokens import make_token


class PermissionView(msgspec.Struct, frozen=True):
    """Operations on all destinations whose names match; `ignore_case`: in any letter case."""

    pattern: str
    operations: list[Operation]
    ignore_case: bool


class TokenView(msgspec.Struct, frozen=True, kw_only=True):
    """A token, without its secret. Times in seconds since the epoch; `expires` 0 = never."""

    id: str
    label: str
    created: int
    expires: int


class UserView(msgspec.Struct, frozen=True, kw_only=True):
    """A user, without secrets. `has_password` and `allow_digest`: whether it can log in by that.
    `password_scheme`: argon2id, bcrypt (taken over, until the first login) or "" for no password.
    The permissions are its own, without those of its roles. Times in seconds since the epoch."""

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
    """Permissions with a name, and the users who have them."""

    name: str
    permissions: list[PermissionView]
    users: list[str]


class UserChange(NamedTuple):
    """Changes to a user; None = unchanged. An empty password removes the password. `allow_digest`:
    True if the data that digest logins need is stored."""

    password: str | None = None
    superuser: bool | None = None
    roles: tuple[str, ...] | None = None
    allow_digest: bool | None = None


class UserManagement:
    """Users and roles, for the administration. Called on the event loop's thread.

    Changes are on disk when the method returns; `by` is the user who makes the change, for the
    audit log. Methods raise UserNotFound, UserExists, AccessDenied (the last superuser) and
    AccessError.
    """

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator

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

    # --- changes -----------------------------------------------------------------------------

    async def add(self, by: str, name: str, requested: UserChange) -> list[str]:
        """Create a user; return warnings about its password."""
        now = self._authenticator.now()
        password = requested.password

        def prepare() -> Change:
            user = UserRecord(
                password=self._authenticator.hash(password) if password else "",
                digest=digest_form(name, password) if password and requested.allow_digest else "",
                superuser=bool(requested.superuser),
                roles=requested.roles or (),
                created=now,
                updated=now,
            )
            return partial(changes.add_user, name=name, user=user)

        await self._change(by, prepare)
        return password_warnings(password) if password else []

    async def alter(self, by: str, name: str, requested: UserChange) -> list[str]:
        """Change a user; return warnings about its password."""
        now = self._authenticator.now()
        password = requested.password

        def prepare() -> Change:
            hashed = self._authenticator.hash(password) if password else ""
            digest = digest_form(name, password) if password else ""

            def change(database: Database) -> Database:
                if password is not None:
                    database = changes.set_password(
                        database, name, hashed, digest, now, requested.allow_digest
                    )
                elif requested.allow_digest is not None:
                    database = changes.allow_digest(database, name, now, requested.allow_digest)
                if requested.superuser is not None:
                    database = changes.set_superuser(database, name, now, requested.superuser)
                if requested.roles is not None:
                    database = changes.set_roles(database, name, now, requested.roles)
                return database

            return change

        await self._change(by, prepare)
        return password_warnings(password) if password else []

    async def set_password(self, by: str, name: str, password: str) -> None:
        """Change a user's password."""
        await self.alter(by, name, UserChange(password=password))

    async def remove(self, by: str, name: str, force: bool) -> None:
        """Delete a user; the last one only with `force`."""

        def remove(database: Database) -> Database:
            if force:
                return changes.without_user(database, name)
            if [*database.users] == [name]:
                raise AccessDenied(
                    f"{name} is the last user; a broker started without users requires no login"
                )
            return changes.remove_user(database, name)

        await self._change(by, lambda: remove)

    async def grant(self, by: str, name: str, permission: Permission) -> None:
        """Replace a user's permission for exactly this pattern."""
        now = self._authenticator.now()
        grant = partial(changes.grant, name=name, permission=permission, now=now)
        await self._change(by, lambda: grant)

    async def revoke(self, by: str, name: str, pattern: str) -> None:
        """Remove a user's permission for this pattern."""
        revoke = partial(changes.revoke, name=name, pattern=pattern, now=self._authenticator.now())
        await self._change(by, lambda: revoke)

    async def assign(self, by: str, role: str, name: str) -> None:
        """Assign a role to a user."""
        assign = partial(changes.assign, role=role, name=name, now=self._authenticator.now())
        await self._change(by, lambda: assign)

    async def withdraw(self, by: str, role: str, name: str) -> None:
        """Withdraw a role from a user."""
        withdraw = partial(changes.withdraw, role=role, name=name, now=self._authenticator.now())
        await self._change(by, lambda: withdraw)

    async def add_token(self, by: str, name: str, label: str, expires: int) -> tuple[str, str]:
        """Create a token; return its id and the token."""
        now = self._authenticator.now()
        if expires and expires <= now:
            raise AccessError("the token would have expired already")
        token, record = make_token(label, now, expires)
        add = partial(changes.add_token, name=name, token=record, now=now)
        await self._change(by, lambda: add)
        return record.id, token

    async def remove_token(self, by: str, name: str, token: str) -> None:
        """Delete a user's token by its id."""
        remove = partial(
            changes.remove_token, name=name, token_id=token, now=self._authenticator.now()
        )
        await self._change(by, lambda: remove)

    async def add_role(self, by: str, role: str) -> None:
        """Create a role."""
        await self._change(by, lambda: partial(changes.add_role, role=role))

    async def remove_role(self, by: str, role: str) -> None:
        """Delete a role."""
        await self._change(by, lambda: partial(changes.remove_role, role=role))

    async def grant_role(self, by: str, role: str, permission: Permission) -> None:
        """Replace a role's permission for exactly this pattern."""
        grant = partial(changes.grant_role, role=role, permission=permission)
        await self._change(by, lambda: grant)

    async def revoke_role(self, by: str, role: str, pattern: str) -> None:
        """Remove a role's permission for this pattern."""
        revoke = partial(changes.revoke_role, role=role, pattern=pattern)
        await self._change(by, lambda: revoke)

    async def _change(self, by: str, prepare: Callable[[], Change]) -> None:
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
