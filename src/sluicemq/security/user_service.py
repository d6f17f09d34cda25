"""Operations on users, roles and tokens: one implementation for the HTTP API of a running broker
and for the command line, which changes the file of a stopped one.

`records` defines what each change does and which errors it raises.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Concatenate, ParamSpec, Protocol

from msgspec.structs import asdict

from sluicemq.management.operation import Expect, NamedBody, NamePath, Page, implements
from sluicemq.management.users import (
    ASSIGN_ROLE,
    CREATE_TOKEN,
    DELETE_ROLE,
    DELETE_TOKEN,
    DELETE_USER,
    GET_ROLE,
    GET_USER,
    GRANT_ROLE_PERMISSION,
    GRANT_USER_PERMISSION,
    LIST_ROLES,
    LIST_USERS,
    PUT_ROLE,
    PUT_USER,
    REVOKE_ROLE_PERMISSION,
    REVOKE_USER_PERMISSION,
    WITHDRAW_ROLE,
    AccountQuery,
    AssignedRole,
    DeleteUser,
    PermissionRequest,
    PermissionView,
    PutRole,
    PutUser,
    RevokePermission,
    RoleView,
    TokenPath,
    TokenRequest,
    TokenResult,
    TokenView,
    UserRequest,
    UserResult,
    UserView,
)
from sluicemq.model.access import Operation, Permission
from sluicemq.model.errors import AccessError
from sluicemq.security import records
from sluicemq.security.access import UserDirectory
from sluicemq.security.passwords import password_warnings, scheme_of
from sluicemq.security.records import Change, Database, make_token

P = ParamSpec("P")


class UserCall(Protocol):
    """Call of an operation.

    note    text for the audit log, set by the operation
    status  status of the response, set by the operation
    """

    note: str
    status: int

    @property
    def by(self) -> str:
        """Author of a change, for the audit log."""


@dataclass(slots=True, eq=False)
class UserService:
    """Operations on users, roles and tokens."""

    _directory: UserDirectory

    @property
    def database(self) -> Database:
        """Current users and roles."""
        return self._directory.database

    def rights(self, name: str) -> list[PermissionView]:
        """Return a user's permissions, including those of its roles."""
        return permission_views(self.database.rights(name))

    def user_change(self, name: str, requested: UserRequest, *, new: bool) -> Change:
        """Return the change that adds or changes a user."""
        directory = self._directory
        now = directory.now()
        return lambda database: records.save_user(
            database, name, requested, directory.hash, now, new=new
        )

    # --- users -------------------------------------------------------------------------------

    @implements(LIST_USERS)
    async def list_users(self, call: UserCall, query: AccountQuery) -> Page[UserView]:
        """Return a page of the users."""
        database = self.database
        names = _chosen(database.users, query)
        views = [user_view(database, name) for name in names[query.part]]
        return query.page_with(views, len(names))

    @implements(GET_USER)
    async def get_user(self, call: UserCall, parameters: NamePath) -> UserView:
        """Return a user."""
        return user_view(self.database, parameters.name)

    @implements(PUT_USER)
    async def put_user(self, call: UserCall, parameters: PutUser) -> UserResult:
        """Add a user or change its settings."""
        name, change = parameters.name, parameters.body
        new = _is_new(self.database.users, name, parameters.expect)
        await self._change(call, self.user_change(name, change, new=new))
        call.status = 201 if new else 200
        warnings = password_warnings(change.password) if change.password else []
        return UserResult(**asdict(user_view(self.database, name)), warnings=warnings)

    @implements(DELETE_USER)
    async def delete_user(self, call: UserCall, parameters: DeleteUser) -> None:
        """Remove a user."""
        await self._change(call, records.remove_user, parameters.name, parameters.force)

    @implements(GRANT_USER_PERMISSION)
    async def grant(self, call: UserCall, parameters: NamedBody[PermissionRequest]) -> UserView:
        """Grant a user a permission."""
        name, body = parameters.name, parameters.body
        call.note = body.pattern
        await self._change(call, records.grant, name, body.permission, self._directory.now())
        return user_view(self.database, name)

    @implements(REVOKE_USER_PERMISSION)
    async def revoke(self, call: UserCall, parameters: RevokePermission) -> None:
        """Revoke a user's permission."""
        name, call.note = parameters.name, parameters.pattern
        await self._change(call, records.revoke, name, call.note, self._directory.now())

    @implements(ASSIGN_ROLE)
    async def assign(self, call: UserCall, parameters: AssignedRole) -> UserView:
        """Assign a role to a user."""
        name, role = parameters.name, parameters.role
        await self._change(call, records.assign, role, name, self._directory.now())
        return user_view(self.database, name)

    @implements(WITHDRAW_ROLE)
    async def withdraw(self, call: UserCall, parameters: AssignedRole) -> None:
        """Revoke a role from a user."""
        name, role = parameters.name, parameters.role
        await self._change(call, records.withdraw, role, name, self._directory.now())

    @implements(CREATE_TOKEN)
    async def create_token(
        self, call: UserCall, parameters: NamedBody[TokenRequest]
    ) -> TokenResult:
        """Create a token, which is returned only once."""
        now, requested = self._directory.now(), parameters.body
        expires = -(-requested.expires // 1000)
        if expires and expires <= now:
            raise AccessError("the token would have expired already")
        token, record = make_token(requested.label, now, expires)
        await self._change(call, records.add_token, parameters.name, record, now)
        call.note = record.id
        return TokenResult(id=record.id, token=token, expires=expires * 1000)

    @implements(DELETE_TOKEN)
    async def delete_token(self, call: UserCall, parameters: TokenPath) -> None:
        """Revoke a token."""
        name, number = parameters.name, parameters.id
        await self._change(call, records.remove_token, name, number, self._directory.now())

    # --- roles -------------------------------------------------------------------------------

    @implements(LIST_ROLES)
    async def list_roles(self, call: UserCall, query: AccountQuery) -> Page[RoleView]:
        """Return a page of the roles."""
        database = self.database
        names = _chosen(database.roles, query)
        return query.page_with(role_views(database, names[query.part]), len(names))

    @implements(GET_ROLE)
    async def get_role(self, call: UserCall, parameters: NamePath) -> RoleView:
        """Return a role."""
        return role_views(self.database, [parameters.name])[0]

    @implements(PUT_ROLE)
    async def put_role(self, call: UserCall, parameters: PutRole) -> RoleView:
        """Create a role without permissions, unless it exists."""
        name = parameters.name
        if _is_new(self.database.roles, name, parameters.expect):
            await self._change(call, records.add_role, name)
            call.status = 201
        return role_views(self.database, [name])[0]

    @implements(DELETE_ROLE)
    async def delete_role(self, call: UserCall, parameters: NamePath) -> None:
        """Delete a role that is assigned to no user."""
        await self._change(call, records.remove_role, parameters.name)

    @implements(GRANT_ROLE_PERMISSION)
    async def grant_role(
        self, call: UserCall, parameters: NamedBody[PermissionRequest]
    ) -> RoleView:
        """Grant a role a permission."""
        name, body = parameters.name, parameters.body
        call.note = body.pattern
        await self._change(call, records.grant_role, name, body.permission)
        return role_views(self.database, [name])[0]

    @implements(REVOKE_ROLE_PERMISSION)
    async def revoke_role(self, call: UserCall, parameters: RevokePermission) -> None:
        """Revoke a role's permission."""
        call.note = parameters.pattern
        await self._change(call, records.revoke_role, parameters.name, parameters.pattern)

    async def _change(
        self,
        call: UserCall,
        change: Callable[Concatenate[Database, P], Database],
        *args: P.args,
        **options: P.kwargs,
    ) -> None:
        await self._directory.apply(lambda database: change(database, *args, **options), call.by)


def _is_new(names: Collection[str], name: str, expect: Expect) -> bool:
    """Return whether a request adds the name. With `expect` "new" it always does, which raises an
    error for an existing name."""
    return expect == "new" or (name not in names and expect != "existing")


def _chosen(names: Iterable[str], query: AccountQuery) -> list[str]:
    """Return the names that match the filter, in order."""
    matches = (name for name in names if query.filter in name)
    return sorted(matches, reverse=query.order == "desc")


def user_view(database: Database, name: str) -> UserView:
    """Return a user without its secrets. Raises UserNotFound."""
    user = database.user(name)
    return UserView(
        name=name,
        superuser=user.superuser,
        has_password=bool(user.password),
        password_scheme=scheme_of(user.password),
        allow_digest=bool(user.digest),
        roles=list(user.roles),
        permissions=permission_views(user.permissions),
        tokens=[
            TokenView(
                id=token.id,
                label=token.label,
                created=token.created * 1000,
                expires=token.expires * 1000,
            )
            for token in user.tokens
        ],
        created=user.created * 1000,
        updated=user.updated * 1000,
    )


def role_views(database: Database, names: Collection[str]) -> list[RoleView]:
    """Return the roles of these names, in the same order. Raises RoleNotFound."""
    holders: dict[str, list[str]] = {name: [] for name in names}
    for user, record in sorted(database.users.items()):
        for role in record.roles:
            if role in holders:
                holders[role].append(user)
    return [
        RoleView(name=name, permissions=permission_views(database.role(name)), users=users)
        for name, users in holders.items()
    ]


def permission_views(permissions: Iterable[Permission]) -> list[PermissionView]:
    """Return permissions with their operations in the order of `Operation`."""
    return [
        PermissionView(
            permission.pattern,
            [operation for operation in Operation if operation in permission.operations],
            permission.ignore_case,
        )
        for permission in permissions
    ]
