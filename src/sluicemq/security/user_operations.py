"""Operations on users and roles: each prepares the change to the user database that it makes.

A change is prepared before the database is locked, as hashing a password takes long on purpose.
`UserStore.change` applies it and writes the file.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from sluicemq.model.access import Permission
from sluicemq.model.errors import AccessDenied, AccessError
from sluicemq.security import changes
from sluicemq.security.changes import Change
from sluicemq.security.passwords import digest_form
from sluicemq.security.records import Database, UserRecord
from sluicemq.security.tokens import make_token

Preparation = Callable[[], Change]
"""Prepares a change; raises AccessError. May take long, so it is not called on the event loop."""


class UserChange(NamedTuple):
    """Changes to a user; None = unchanged. An empty password removes the password. `allow_digest`:
    True if the data that digest logins need is stored."""

    password: str | None = None
    superuser: bool | None = None
    roles: tuple[str, ...] | None = None
    allow_digest: bool | None = None


class UserOperations:
    """Prepares changes. The changes raise UserNotFound, UserExists, AccessDenied (the last
    superuser) and AccessError, as `changes` says.
    """

    def __init__(self, hash_password: Callable[[str], str], now: Callable[[], int]) -> None:
        """`hash_password` raises AccessError for an unacceptable password; `now` returns seconds
        since the epoch.
        """
        self._hash = hash_password
        self._now = now

    def add(self, name: str, requested: UserChange) -> Preparation:
        """Create a user."""
        now = self._now()

        def prepare() -> Change:
            password = requested.password
            user = UserRecord(
                password=self._hash(password) if password else "",
                digest=digest_form(name, password) if password and requested.allow_digest else "",
                superuser=bool(requested.superuser),
                roles=requested.roles or (),
                created=now,
                updated=now,
            )
            return partial(changes.add_user, name=name, user=user)

        return prepare

    def alter(self, name: str, requested: UserChange) -> Preparation:
        """Change a user. A new password keeps the permission for digest logins unless changed."""
        now = self._now()

        def prepare() -> Change:
            password = requested.password
            hashed = self._hash(password) if password else ""
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

        return prepare

    def remove(self, name: str, force: bool = False) -> Preparation:
        """Delete a user; the last user and the last superuser only with `force`."""

        def change(database: Database) -> Database:
            if force:
                return changes.without_user(database, name)
            if [*database.users] == [name]:
                raise AccessDenied(
                    f"{name} is the last user; a broker started without users requires no login"
                )
            return changes.remove_user(database, name)

        return lambda: change

    def grant(self, name: str, permission: Permission) -> Preparation:
        """Replace a user's permission for exactly this pattern."""
        now = self._now()
        return lambda: partial(changes.grant, name=name, permission=permission, now=now)

    def revoke(self, name: str, pattern: str) -> Preparation:
        """Remove a user's permission for this pattern, if there is one."""
        now = self._now()
        return lambda: partial(changes.revoke, name=name, pattern=pattern, now=now)

    def assign(self, role: str, name: str) -> Preparation:
        """Assign a role to a user."""
        now = self._now()
        return lambda: partial(changes.assign, role=role, name=name, now=now)

    def withdraw(self, role: str, name: str) -> Preparation:
        """Withdraw a role from a user."""
        now = self._now()
        return lambda: partial(changes.withdraw, role=role, name=name, now=now)

    def add_token(self, name: str, label: str, expires: int) -> tuple[Preparation, str, str]:
        """Create a token; return its id and the token too, which cannot be retrieved later.

        `expires` is in seconds since the epoch, 0 = never. Raises AccessError if that has passed.
        """
        now = self._now()
        if expires and expires <= now:
            raise AccessError("the token would have expired already")
        token, record = make_token(label, now, expires)
        add = partial(changes.add_token, name=name, token=record, now=now)
        return lambda: add, record.id, token

    def remove_token(self, name: str, token: str) -> Preparation:
        """Delete a user's token by its id."""
        now = self._now()
        return lambda: partial(changes.remove_token, name=name, token_id=token, now=now)

    def add_role(self, role: str) -> Preparation:
        """Create a role without permissions."""
        return lambda: partial(changes.add_role, role=role)

    def remove_role(self, role: str) -> Preparation:
        """Delete a role that is assigned to no user."""
        return lambda: partial(changes.remove_role, role=role)

    def grant_role(self, role: str, permission: Permission) -> Preparation:
        """Replace a role's permission for exactly this pattern."""
        return lambda: partial(changes.grant_role, role=role, permission=permission)

    def revoke_role(self, role: str, pattern: str) -> Preparation:
        """Remove a role's permission for this pattern, if there is one."""
        return lambda: partial(changes.revoke_role, role=role, pattern=pattern)
