"""Endpoints for users and their permissions, roles and tokens.

Only a user, or the owner of the data through the admin socket, can change users. While there are no
users, the broker rejects other requests with a message that explains how to add the first one.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from sluicemq.admin.api_context import ApiContext
from sluicemq.admin.errors import ApiError
from sluicemq.admin.pagination import Page, SortedPageQuery, page_of
from sluicemq.admin.routing import Call, Endpoint, Need
from sluicemq.model.access import MAX_PATTERN, Operation, Permission
from sluicemq.model.errors import UserExists, UserNotFound
from sluicemq.security.management import RoleView, UserManagement, UserView
from sluicemq.security.passwords import password_warnings
from sluicemq.security.user_operations import Preparation, UserChange

Given = TypeVar("Given")
Password = Annotated[str, Meta(min_length=1, max_length=1024)]
Pattern = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=MAX_PATTERN,
        description="Of names; `*` stands for any characters.",
    ),
]
Expect = Annotated[
    Literal["", "new", "existing"],
    Meta(description="`new`: refuse to alter one; `existing`: refuse to create one."),
]


class ListQuery(SortedPageQuery, kw_only=True, frozen=True):
    """Selection of users or roles."""

    filter: Annotated[str, Meta(description="Only names that contain this text.")] = ""
    sort: Literal["name"] = "name"


class ExpectQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Precondition of the request."""

    expect: Expect = ""


class ForceQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Options for removing users and superusers."""

    force: Annotated[
        bool, Meta(description="Allow it even for the last superuser or the last user.")
    ] = False


class PatternQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Permission to revoke."""

    pattern: Pattern


class UserRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a user; omitted fields stay unchanged. A password of null removes the password:
    such a user can log in with tokens only."""

    password: Password | UnsetType | None = UNSET
    superuser: bool | UnsetType = UNSET
    roles: Annotated[list[str], Meta(max_length=100)] | UnsetType = UNSET
    allow_digest: bool | UnsetType = UNSET


class UserResult(UserView, frozen=True, kw_only=True):
    """A user that has been added or changed. `warnings` describes accepted settings that are not
    recommended, such as a short password."""

    warnings: list[str]


class PermissionRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Operations on the destinations whose names match the pattern."""

    pattern: Pattern
    operations: Annotated[list[Operation], Meta(min_length=1, max_length=20)]
    ignore_case: Annotated[
        bool, Meta(description="Ignore the letter case of names, as VibeMQ does.")
    ] = False


class TokenRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Label and expiration time of a token; seconds since the epoch, 0 = never expires."""

    label: Annotated[str, Meta(max_length=200)] = ""
    expires: Annotated[int, Meta(ge=0, le=1 << 40)] = 0


class TokenResult(msgspec.Struct, frozen=True, kw_only=True):
    """A new token. `token` is returned only once."""

    id: str
    token: str
    expires: int


class UserEndpoints:
    """Handlers of `/users` and `/roles`."""

    def __init__(self, directory: UserManagement) -> None:
        self._directory = directory
        self._operations = directory.operations

    async def list(self, call: Call) -> Page[UserView]:
        """GET /users"""
        query: ListQuery = call.query
        page = _chosen(self._directory.names(), query)
        found = [user for name in page.items if (user := self._directory.user(name)) is not None]
        return Page(items=found, total=page.total, next_cursor=page.next_cursor)

    async def show(self, call: Call) -> UserView:
        """GET /users/{name}"""
        return self._user(call.names["name"])

    async def put(self, call: Call) -> UserResult:
        """PUT /users/{name}"""
        by = _changer(call)
        name, requested = call.names["name"], call.body
        expect = call.query.expect
        change = UserChange(
            password="" if requested.password is None else _given(requested.password),
            superuser=_given(requested.superuser),
            roles=None if requested.roles is UNSET else tuple(dict.fromkeys(requested.roles)),
            allow_digest=_given(requested.allow_digest),
        )
        for role in change.roles or ():
            self._role(role)
        there = self._directory.user(name) is not None
        if there and expect == "new":
            raise UserExists(f"there is a user {name} already")
        if there or expect == "existing":
            await self._directory.apply(by, self._operations.alter(name, change))
        else:
            await self._directory.apply(by, self._operations.add(name, change))
            call.status = 201
        warnings = password_warnings(change.password) if change.password else []
        return UserResult(**msgspec.structs.asdict(self._user(name)), warnings=warnings)

    async def delete(self, call: Call) -> None:
        """DELETE /users/{name}"""
        await self._apply(call, self._operations.remove(call.names["name"], call.query.force))

    async def grant(self, call: Call) -> UserView:
        """PUT /users/{name}/permissions"""
        name = call.names["name"]
        call.note = call.body.pattern
        await self._apply(call, self._operations.grant(name, _permission(call.body)))
        return self._user(name)

    async def revoke(self, call: Call) -> None:
        """DELETE /users/{name}/permissions"""
        call.note = call.query.pattern
        await self._apply(call, self._operations.revoke(call.names["name"], call.query.pattern))

    async def assign(self, call: Call) -> UserView:
        """PUT /users/{name}/roles/{role}"""
        name, role = call.names["name"], self._role(call.names["role"]).name
        await self._apply(call, self._operations.assign(role, name))
        return self._user(name)

    async def withdraw(self, call: Call) -> None:
        """DELETE /users/{name}/roles/{role}"""
        role = self._role(call.names["role"]).name
        await self._apply(call, self._operations.withdraw(role, call.names["name"]))

    async def add_token(self, call: Call) -> TokenResult:
        """POST /users/{name}/tokens"""
        requested: TokenRequest = call.body
        prepare, number, token = self._operations.add_token(
            call.names["name"], requested.label, requested.expires
        )
        await self._apply(call, prepare)
        call.note = number
        return TokenResult(id=number, token=token, expires=requested.expires)

    async def remove_token(self, call: Call) -> None:
        """DELETE /users/{name}/tokens/{id}"""
        name, number = call.names["name"], call.names["id"]
        if number not in [token.id for token in self._user(name).tokens]:
            raise ApiError(404, "token-not-found", f"{name} has no token {number[:100]!r}")
        await self._apply(call, self._operations.remove_token(name, number))

    async def list_roles(self, call: Call) -> Page[RoleView]:
        """GET /roles"""
        query: ListQuery = call.query
        page = _chosen(self._directory.role_names(), query)
        found = self._directory.roles(page.items)[:: 1 if query.order == "asc" else -1]
        return Page(items=found, total=page.total, next_cursor=page.next_cursor)

    async def show_role(self, call: Call) -> RoleView:
        """GET /roles/{name}"""
        return self._role(call.names["name"])

    async def put_role(self, call: Call) -> RoleView:
        """PUT /roles/{name}"""
        by = _changer(call)
        name, expect = call.names["name"], call.query.expect
        if not self._directory.roles([name]) and expect != "existing":
            await self._directory.apply(by, self._operations.add_role(name))
            call.status = 201
        elif expect == "new":
            raise ApiError(409, "role-exists", f"there is a role {name} already")
        return self._role(name)

    async def delete_role(self, call: Call) -> None:
        """DELETE /roles/{name}"""
        await self._apply(call, self._operations.remove_role(self._role(call.names["name"]).name))

    async def grant_role(self, call: Call) -> RoleView:
        """PUT /roles/{name}/permissions"""
        name = self._role(call.names["name"]).name
        call.note = call.body.pattern
        await self._apply(call, self._operations.grant_role(name, _permission(call.body)))
        return self._role(name)

    async def revoke_role(self, call: Call) -> None:
        """DELETE /roles/{name}/permissions"""
        name = self._role(call.names["name"]).name
        call.note = call.query.pattern
        await self._apply(call, self._operations.revoke_role(name, call.query.pattern))

    async def _apply(self, call: Call, prepare: Preparation) -> None:
        await self._directory.apply(_changer(call), prepare)

    def _user(self, name: str) -> UserView:
        found = self._directory.user(name)
        if found is None:
            raise UserNotFound(f"there is no user {name[:100]!r}")
        return found

    def _role(self, name: str) -> RoleView:
        found = self._directory.roles([name])
        if not found:
            raise ApiError(404, "role-not-found", f"there is no role {name[:100]!r}")
        return found[0]


def _chosen(names: list[str], query: ListQuery) -> Page[str]:
    """Return the requested page of the names that match the filter."""
    found = [name for name in names if query.filter in name]
    return page_of(found if query.order == "asc" else found[::-1], query)


def _changer(call: Call) -> str:
    """Return the name of the user who makes the change. Raises ApiError if anonymous."""
    if not call.identity.name:
        raise ApiError(
            409,
            "authentication-disabled",
            "this broker has no users and requires no login; add the first user on the broker's "
            "machine: sluicemq users add NAME --superuser",
        )
    return call.by


def _given(value: Given | UnsetType) -> Given | None:
    return None if isinstance(value, UnsetType) else value


def _permission(requested: PermissionRequest) -> Permission:
    return Permission(requested.pattern, frozenset(requested.operations), requested.ignore_case)


def endpoints(context: ApiContext) -> list[Endpoint]:
    """Return the endpoints of /users and /roles."""
    handlers = UserEndpoints(context.users)
    need = Need.SUPERUSER
    user, role = "/users/{name}", "/roles/{name}"
    permission, tokens, assigned = f"{user}/permissions", f"{user}/tokens", f"{user}/roles/{{role}}"
    return [
        Endpoint(
            "GET",
            "/users",
            "listUsers",
            handlers.list,
            "List the users",
            need,
            query=ListQuery,
            answer=Page[UserView],
        ),
        Endpoint("GET", user, "getUser", handlers.show, "A user", need, answer=UserView),
        Endpoint(
            "PUT",
            user,
            "putUser",
            handlers.put,
            "Add or change a user",
            need,
            query=ExpectQuery,
            body=UserRequest,
            answer=UserResult,
            created=True,
        ),
        Endpoint(
            "DELETE",
            user,
            "deleteUser",
            handlers.delete,
            "Remove a user",
            need,
            query=ForceQuery,
            status=204,
        ),
        Endpoint(
            "PUT",
            permission,
            "grantUserPermission",
            handlers.grant,
            "Grant a permission",
            need,
            body=PermissionRequest,
            answer=UserView,
        ),
        Endpoint(
            "DELETE",
            permission,
            "revokeUserPermission",
            handlers.revoke,
            "Revoke a permission",
            need,
            query=PatternQuery,
            status=204,
        ),
        Endpoint(
            "PUT", assigned, "assignRole", handlers.assign, "Assign a role", need, answer=UserView
        ),
        Endpoint(
            "DELETE",
            assigned,
            "withdrawRole",
            handlers.withdraw,
            "Revoke a role from a user",
            need,
            status=204,
        ),
        Endpoint(
            "POST",
            tokens,
            "createToken",
            handlers.add_token,
            "Create a token",
            need,
            body=TokenRequest,
            answer=TokenResult,
            status=201,
        ),
        Endpoint(
            "DELETE",
            f"{tokens}/{{id}}",
            "deleteToken",
            handlers.remove_token,
            "Revoke a token",
            need,
            status=204,
        ),
        Endpoint(
            "GET",
            "/roles",
            "listRoles",
            handlers.list_roles,
            "List the roles",
            need,
            query=ListQuery,
            answer=Page[RoleView],
        ),
        Endpoint("GET", role, "getRole", handlers.show_role, "A role", need, answer=RoleView),
        Endpoint(
            "PUT",
            role,
            "putRole",
            handlers.put_role,
            "Add a role",
            need,
            query=ExpectQuery,
            answer=RoleView,
            created=True,
        ),
        Endpoint(
            "DELETE", role, "deleteRole", handlers.delete_role, "Remove a role", need, status=204
        ),
        Endpoint(
            "PUT",
            f"{role}/permissions",
            "grantRolePermission",
            handlers.grant_role,
            "Grant a role a permission",
            need,
            body=PermissionRequest,
            answer=RoleView,
        ),
        Endpoint(
            "DELETE",
            f"{role}/permissions",
            "revokeRolePermission",
            handlers.revoke_role,
            "Revoke a role's permission",
            need,
            query=PatternQuery,
            status=204,
        ),
    ]
