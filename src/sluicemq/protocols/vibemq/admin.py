"""Commands 50 to 56: users and their permissions. The protocol page does not know them; they are
the .NET server's, which has them from release 1.6.0 on.

| command               | payload                               | answer                           |
|-----------------------|---------------------------------------|----------------------------------|
| 50 CreateUser         | username, password                    | username                         |
| 51 DeleteUser         | username                              | username                         |
| 52 ChangePassword     | username, newPassword                 | username                         |
| 53 GrantPermission    | username, queuePattern, operations    | the same                         |
| 54 RevokePermission   | username, queuePattern                | the same                         |
| 55 ListUsers          |                                       | list of username, isSuperuser,   |
|                       |                                       | createdAt                        |
| 56 GetUserPermissions | username                              | list of queuePattern, operations |

Superusers only; but everybody may change the own password and see the own permissions. All values
are JSON; createdAt is in seconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from sluicemq.model.access import Identity, Operation, Permission, is_pattern
from sluicemq.model.errors import AccessDenied, AccessError, UserExists, UserNotFound
from sluicemq.protocols.access import Done, Users
from sluicemq.protocols.vibemq.wire import (
    CHANGE_PASSWORD,
    CREATE_USER,
    DELETE_USER,
    GET_USER_PERMISSIONS,
    GRANT_PERMISSION,
    LIST_USERS,
    Frame,
)

Answer = Callable[[bytes], None]
"""Called with the payload of the answer."""
Refuse = Callable[[str, str], None]
"""Called with an error code and the reason."""

_OPERATIONS: Final = {
    "Publish": Operation.PRODUCE,
    "Subscribe": Operation.CONSUME,
    "CreateQueue": Operation.CREATE,
    "DeleteQueue": Operation.DELETE,
    "PurgeQueue": Operation.MANAGE,
    "GetQueueInfo": Operation.BROWSE,
}
LIST_QUEUES: Final = "ListQueues"
"""Comes with every permission: a list of queues shows those for which one has any. So there is no
operation for it, and a permission for nothing else is one without operations."""
_NAMES: Final = {name.lower(): name for name in (*_OPERATIONS, LIST_QUEUES)}
_OWN: Final = frozenset({CHANGE_PASSWORD, GET_USER_PERMISSIONS})
"""What everybody may do to themselves."""


class Request(msgspec.Struct, rename="camel"):
    """The payload of any of the commands."""

    username: str = ""
    password: str = ""
    new_password: str = ""
    queue_pattern: str = ""
    operations: list[str] | None = None


_read: Final = msgspec.json.Decoder(Request).decode


def administer(
    frame: Frame, users: Users, identity: Identity, answer: Answer, refuse: Refuse
) -> None:
    """Carry out one of the commands; `answer` or `refuse` is called once, now or later."""
    try:
        request = _read(frame.payload) if frame.payload else Request()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        refuse("INVALID_PAYLOAD", f"the payload cannot be read: {error}")
        return
    kind = frame.type
    own = kind in _OWN and request.username == identity.name
    if not (identity.superuser or own):
        refuse("NOT_AUTHORIZED", "only a superuser may do that")
        return
    if kind == LIST_USERS:
        answer(_accounts(users))
        return
    missing = _missing(kind, request)
    if missing:
        refuse("INVALID_PAYLOAD", f"the payload has no {missing}")
        return
    name = request.username
    if kind == GET_USER_PERMISSIONS:
        answer(_permissions(users, name))
    elif kind == CREATE_USER:
        users.create(name, request.password, False, _when(answer, refuse, {"username": name}))
    elif kind == DELETE_USER:
        if any(account.superuser and account.name == name for account in users.accounts()):
            refuse("FORBIDDEN", "a superuser cannot be deleted")
        else:
            users.remove(name, _when(answer, refuse, {"username": name}))
    elif kind == CHANGE_PASSWORD:
        done = _when(answer, refuse, {"username": name})
        users.set_password(name, request.new_password, done)
    else:
        _grant_or_revoke(kind, request, users, answer, refuse)


def _grant_or_revoke(
    kind: int, request: Request, users: Users, answer: Answer, refuse: Refuse
) -> None:
    name, pattern = request.username, request.queue_pattern
    said: dict[str, object] = {"username": name, "queuePattern": pattern}
    if not is_pattern(pattern):
        refuse("INVALID_PAYLOAD", "a pattern has up to 256 characters")
    elif kind == GRANT_PERMISSION:
        operations = [_NAMES[o.lower()] for o in request.operations or () if o.lower() in _NAMES]
        said["operations"] = list(dict.fromkeys(operations))
        granted = frozenset(_OPERATIONS[o] for o in operations if o != LIST_QUEUES)
        users.grant(name, Permission(pattern, granted), _when(answer, refuse, said))
    else:
        done = _when(answer, refuse, said)

        def revoked(error: AccessError | None) -> None:
            # who does not exist has no permission any more, as the client wants it
            done(None if isinstance(error, UserNotFound) else error)

        users.revoke(name, pattern, revoked)


def _missing(kind: int, request: Request) -> str:
    """What the payload has to have and has not."""
    if not request.username:
        return "username"
    if kind == CREATE_USER and not request.password:
        return "password"
    if kind == CHANGE_PASSWORD and not request.new_password:
        return "newPassword"
    if kind in (CREATE_USER, DELETE_USER, CHANGE_PASSWORD, GET_USER_PERMISSIONS):
        return ""
    if not request.queue_pattern:
        return "queuePattern"
    if kind == GRANT_PERMISSION and request.operations is None:
        return "operations"
    return ""


def _when(answer: Answer, refuse: Refuse, said: dict[str, object]) -> Done:
    """What is called when the user database has done it, or has not."""

    def done(error: AccessError | None) -> None:
        if error is None:
            answer(msgspec.json.encode(said))
        elif isinstance(error, UserExists):
            refuse("USER_EXISTS", str(error))
        elif isinstance(error, UserNotFound):
            refuse("USER_NOT_FOUND", str(error))
        elif isinstance(error, AccessDenied):
            refuse("FORBIDDEN", str(error))
        else:
            refuse("INVALID_PAYLOAD", str(error))

    return done


def _accounts(users: Users) -> bytes:
    return msgspec.json.encode(
        [
            {
                "username": account.name,
                "isSuperuser": account.superuser,
                "createdAt": account.created,
            }
            for account in users.accounts()
        ]
    )


def _permissions(users: Users, name: str) -> bytes:
    return msgspec.json.encode(
        [
            {"queuePattern": permission.pattern, "operations": _named(permission)}
            for permission in users.permissions(name)
        ]
    )


def _named(permission: Permission) -> list[str]:
    named = [name for name, operation in _OPERATIONS.items() if operation in permission.operations]
    return named or [LIST_QUEUES]
