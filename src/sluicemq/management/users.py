"""Operations on users, their permissions, roles and tokens, and on the caller's session."""

from __future__ import annotations

from types import NoneType
from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from sluicemq.management.operation import (
    SORT,
    ApiOperation,
    Body,
    Expect,
    NamedBody,
    NamePath,
    Need,
    NoParameters,
    Page,
    SortedPageQuery,
)
from sluicemq.model.access import MAX_PATTERN, Operation, Permission

Password = Annotated[str, Meta(min_length=1, max_length=1024)]
Pattern = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=MAX_PATTERN,
        description="Pattern of destination names; `*` matches any characters.",
        examples=["orders.*"],
    ),
]


class PermissionView(msgspec.Struct, frozen=True):
    """Permission for operations on all destinations whose names match the pattern."""

    pattern: str
    operations: list[Operation]
    ignore_case: bool


class TokenView(msgspec.Struct, frozen=True, kw_only=True):
    """Token without its secret. Times are in ms since the epoch; `expires` 0 = never."""

    id: str
    label: str
    created: int
    expires: int


class UserView(msgspec.Struct, frozen=True, kw_only=True):
    """User without its secrets.

    has_password     true if it can log in with a password
    password_scheme  argon2id, bcrypt (migrated, until the first login) or "" for no password
    allow_digest     true if it can log in with a digest
    permissions      its own permissions, without those of its roles
    created          time of creation in ms since the epoch
    updated          time of the last change in ms since the epoch
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


class AccountQuery(SortedPageQuery, kw_only=True, frozen=True):
    """Selection of users or roles."""

    filter: Annotated[str, Meta(description="Only names that contain this text.")] = ""
    sort: Annotated[Literal["name"], SORT] = "name"


class PutRole(NamePath, frozen=True, kw_only=True):
    """A role, and the precondition of the request."""

    expect: Expect = ""


class DeleteUser(NamePath, frozen=True, kw_only=True):
    """A user to be removed."""

    force: Annotated[
        bool, Meta(description="Allow it even for the last superuser or the last user.")
    ] = False


class RevokePermission(NamePath, frozen=True, kw_only=True):
    """A user or a role, and the permission to revoke."""

    pattern: Pattern


class UserRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a user; omitted fields stay unchanged. A password of null removes the password:
    such a user can log in with tokens only."""

    password: Password | UnsetType | None = UNSET
    superuser: bool | UnsetType = UNSET
    roles: Annotated[list[str], Meta(max_length=100)] | UnsetType = UNSET
    allow_digest: bool | UnsetType = UNSET


class PutUser(PutRole, frozen=True, kw_only=True):
    """A user with its settings, and the precondition of the request."""

    body: UserRequest = UserRequest()


class AssignedRole(NamePath, frozen=True, kw_only=True):
    """A user and a role."""

    role: Annotated[str, Meta(min_length=1, description="Name of the role.")]


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

    @property
    def permission(self) -> Permission:
        """The permission."""
        return Permission(self.pattern, frozenset(self.operations), self.ignore_case)


class TokenRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Label of a token and its expiration: ms since the epoch, rounded up to seconds; 0 = never."""

    label: Annotated[str, Meta(max_length=200)] = ""
    expires: Annotated[int, Meta(ge=0, le=1 << 50)] = 0


class TokenPath(NamePath, frozen=True, kw_only=True):
    """A token of a user."""

    id: Annotated[str, Meta(min_length=1, description="Id of the token.")]


class TokenResult(msgspec.Struct, frozen=True, kw_only=True):
    """A new token. `token` is returned only once."""

    id: str
    token: str
    expires: int


class LoginRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """User and password, or a token."""

    user: str = ""
    password: str = ""
    token: str = ""


class PasswordRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Current and new password of the caller."""

    current_password: str
    new_password: Annotated[str, Meta(min_length=1, max_length=1024)]


class SessionView(msgspec.Struct, frozen=True, kw_only=True):
    """The caller.

    user        "" if the broker requires no login
    csrf_token  value of the header `X-CSRF-Token` of requests that change something; "" without a
                session
    """

    user: str
    superuser: bool
    csrf_token: str
    permissions: list[PermissionView]


_USER: Final = "/users/{name}"
_ROLE: Final = "/roles/{name}"

LIST_USERS: Final = ApiOperation(
    "listUsers", "GET", "/users", Need.SUPERUSER, "List the users", AccountQuery, Page[UserView]
)
GET_USER: Final = ApiOperation(
    "getUser", "GET", _USER, Need.SUPERUSER, "Show a user", NamePath, UserView
)
PUT_USER: Final = ApiOperation(
    "putUser",
    "PUT",
    _USER,
    Need.SUPERUSER,
    "Create or change a user",
    PutUser,
    UserResult,
    other_statuses=(201,),
)
DELETE_USER: Final = ApiOperation(
    "deleteUser", "DELETE", _USER, Need.SUPERUSER, "Delete a user", DeleteUser, NoneType, status=204
)
GRANT_USER_PERMISSION: Final = ApiOperation(
    "grantUserPermission",
    "PUT",
    f"{_USER}/permissions",
    Need.SUPERUSER,
    "Grant a permission",
    NamedBody[PermissionRequest],
    UserView,
)
REVOKE_USER_PERMISSION: Final = ApiOperation(
    "revokeUserPermission",
    "DELETE",
    f"{_USER}/permissions",
    Need.SUPERUSER,
    "Revoke a permission",
    RevokePermission,
    NoneType,
    status=204,
)
ASSIGN_ROLE: Final = ApiOperation(
    "assignRole",
    "PUT",
    f"{_USER}/roles/{{role}}",
    Need.SUPERUSER,
    "Assign a role",
    AssignedRole,
    UserView,
)
WITHDRAW_ROLE: Final = ApiOperation(
    "withdrawRole",
    "DELETE",
    f"{_USER}/roles/{{role}}",
    Need.SUPERUSER,
    "Revoke a role from a user",
    AssignedRole,
    NoneType,
    status=204,
)
CREATE_TOKEN: Final = ApiOperation(
    "createToken",
    "POST",
    f"{_USER}/tokens",
    Need.SUPERUSER,
    "Create a token",
    NamedBody[TokenRequest],
    TokenResult,
    status=201,
)
DELETE_TOKEN: Final = ApiOperation(
    "deleteToken",
    "DELETE",
    f"{_USER}/tokens/{{id}}",
    Need.SUPERUSER,
    "Revoke a token",
    TokenPath,
    NoneType,
    status=204,
)
LIST_ROLES: Final = ApiOperation(
    "listRoles", "GET", "/roles", Need.SUPERUSER, "List the roles", AccountQuery, Page[RoleView]
)
GET_ROLE: Final = ApiOperation(
    "getRole", "GET", _ROLE, Need.SUPERUSER, "Show a role", NamePath, RoleView
)
PUT_ROLE: Final = ApiOperation(
    "putRole",
    "PUT",
    _ROLE,
    Need.SUPERUSER,
    "Create a role",
    PutRole,
    RoleView,
    other_statuses=(201,),
)
DELETE_ROLE: Final = ApiOperation(
    "deleteRole",
    "DELETE",
    _ROLE,
    Need.SUPERUSER,
    "Delete a role",
    NamePath,
    NoneType,
    status=204,
)
GRANT_ROLE_PERMISSION: Final = ApiOperation(
    "grantRolePermission",
    "PUT",
    f"{_ROLE}/permissions",
    Need.SUPERUSER,
    "Grant a role a permission",
    NamedBody[PermissionRequest],
    RoleView,
)
REVOKE_ROLE_PERMISSION: Final = ApiOperation(
    "revokeRolePermission",
    "DELETE",
    f"{_ROLE}/permissions",
    Need.SUPERUSER,
    "Revoke a role's permission",
    RevokePermission,
    NoneType,
    status=204,
)
CREATE_SESSION: Final = ApiOperation(
    "createSession",
    "POST",
    "/session",
    Need.NOTHING,
    "Log in and begin a session",
    Body[LoginRequest],
    SessionView,
    audited=False,
)
GET_SESSION: Final = ApiOperation(
    "getSession",
    "GET",
    "/session",
    Need.USER,
    "Show the caller's session",
    NoParameters,
    SessionView,
)
DELETE_SESSION: Final = ApiOperation(
    "deleteSession", "DELETE", "/session", Need.USER, "Log out", NoParameters, NoneType, status=204
)
CHANGE_PASSWORD: Final = ApiOperation(
    "changePassword",
    "POST",
    "/session/password",
    Need.USER,
    "Change the caller's password",
    Body[PasswordRequest],
    SessionView,
)
