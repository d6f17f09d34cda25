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
are JSON; createdAt is in seconds since the epoch. Names of users are narrower than elsewhere in the
broker, and patterns granted here ignore letter case, both as in the original.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from sluicemq.model.access import MAX_USER, Identity, Operation, Permission, is_pattern
from sluicemq.model.errors import AccessDenied, AccessError, UserExists, UserNotFound
from sluicemq.protocols.access import Done, Users
from sluicemq.protocols.vibemq import error_texts
from sluicemq.protocols.vibemq.mapping import is_queue_name
from sluicemq.protocols.vibemq.wire import (
    CHANGE_PASSWORD,
    CREATE_USER,
    DELETE_USER,
    GET_USER_PERMISSIONS,
    GRANT_PERMISSION,
    LIST_USERS,
    REVOKE_PERMISSION,
    Frame,
)

Answer = Callable[[bytes], None]
"""Called with the payload of the answer."""
Refuse = Callable[[str, str], None]
"""Called with an error code and the reason."""

OPERATIONS: Final = {
    "Publish": Operation.PRODUCE,
    "Subscribe": Operation.CONSUME,
    "CreateQueue": Operation.CREATE,
    "DeleteQueue": Operation.DELETE,
    "PurgeQueue": Operation.MANAGE,
    "GetQueueInfo": Operation.BROWSE,
    "ListQueues": Operation.LIST,
}
"""By VibeMQ's names, in the order of VibeMQ's numbers."""
_NAMES: Final = {name.lower(): name for name in OPERATIONS}
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,9}\Z")
_FIELDS: Final = {
    CREATE_USER: ("username", "password"),
    DELETE_USER: ("username",),
    CHANGE_PASSWORD: ("username", "newPassword"),
    GRANT_PERMISSION: ("username", "queuePattern", "operations"),
    REVOKE_PERMISSION: ("username", "queuePattern"),
    GET_USER_PERMISSIONS: ("username",),
}
"""What the payload has to have."""
_OWN: Final = {
    CHANGE_PASSWORD: error_texts.OWN_PASSWORD_ONLY,
    GET_USER_PERMISSIONS: error_texts.OWN_PERMISSIONS_ONLY,
}
"""What everybody may do to themselves, and the text for those who try it with others."""


class Request(msgspec.Struct, rename="camel"):
    """The payload of any of the commands."""

    username: str | None = None
    password: str | None = None
    new_password: str | None = None
    queue_pattern: str | None = None
    operations: list[str | None] | None = None


_read: Final = msgspec.json.Decoder(Request).decode


def administer(
    frame: Frame, users: Users, identity: Identity, answer: Answer, refuse: Refuse
) -> None:
    """Carry out one of the commands; `answer` or `refuse` is called once, now or later.

    The checks and their order are the original's, so that a request with several faults gets the
    same answer.
    """
    kind = frame.type
    if not identity.superuser and kind not in _OWN:
        refuse("NOT_AUTHORIZED", error_texts.SUPERUSER_ONLY)
        return
    if kind == LIST_USERS:
        answer(_accounts(users))
        return
    fields = _FIELDS[kind]
    if not frame.payload:
        refuse("INVALID_PAYLOAD", error_texts.payload_required(*fields))
        return
    try:
        request = _read(frame.payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        refuse("INVALID_PAYLOAD", f"the payload cannot be read: {error}")
        return
    if not _complete(kind, request):
        refuse("INVALID_PAYLOAD", error_texts.fields_required(*fields))
        return
    name = request.username or ""
    if not identity.superuser and name != identity.name:
        refuse("NOT_AUTHORIZED", _OWN[kind])
        return
    if kind == GET_USER_PERMISSIONS:
        answer(_permissions(users, name))
        return
    done = _when(answer, refuse, name, {"username": name})
    if kind == CREATE_USER:
        if is_vibemq_user_name(name):
            users.create(name, request.password or "", False, done)
        else:
            refuse("INVALID_PAYLOAD", error_texts.USER_NAME)
    elif kind == DELETE_USER:
        if any(account.superuser and account.name == name for account in users.accounts()):
            refuse("FORBIDDEN", error_texts.SUPERUSER_STAYS)
        else:
            users.remove(name, done)
    elif kind == CHANGE_PASSWORD:
        users.set_password(name, request.new_password or "", done)
    elif kind == GRANT_PERMISSION:
        _grant(name, request, users, answer, refuse)
    else:
        _revoke(name, request.queue_pattern or "", users, answer, refuse)


def is_vibemq_user_name(name: str) -> bool:
    """Return whether the original would accept the name for a new user: 1 to 64 letters, digits,
    `-`, `_` and `.`."""
    return len(name) <= MAX_USER and is_queue_name(name)


def read_operation(text: str) -> str | None:
    """Return the name of an operation that is given by name, in any letter case, or by number, 0 to
    6; None if there is no such operation. White space around it is ignored."""
    text = text.strip()
    if _NUMBER.match(text):
        number = int(text)
        return list(OPERATIONS)[number] if 0 <= number < len(OPERATIONS) else None
    return _NAMES.get(text.lower())


def _grant(name: str, request: Request, users: Users, answer: Answer, refuse: Refuse) -> None:
    pattern = request.queue_pattern or ""
    # what cannot be read is skipped, as long as something is left to be granted
    found = [read_operation(text) for text in request.operations or () if text is not None]
    operations = list(dict.fromkeys(operation for operation in found if operation is not None))
    if not operations and not any(account.name == name for account in users.accounts()):
        refuse("USER_NOT_FOUND", error_texts.user_not_found(name))
    elif not operations:
        refuse("INVALID_PAYLOAD", error_texts.NO_OPERATIONS)
    elif not is_pattern(pattern):
        refuse("INVALID_PAYLOAD", "a pattern has up to 256 characters")
    else:
        granted = frozenset(OPERATIONS[operation] for operation in operations)
        said = {"username": name, "queuePattern": pattern, "operations": operations}
        permission = Permission(pattern, granted, ignore_case=True)
        users.grant(name, permission, _when(answer, refuse, name, said))


def _revoke(name: str, pattern: str, users: Users, answer: Answer, refuse: Refuse) -> None:
    """Whoever does not exist has no permission any more."""
    said = {"username": name, "queuePattern": pattern}
    done = _when(answer, refuse, name, said)
    users.revoke(name, pattern, lambda error: done(None if _unknown(error) else error))


def _unknown(error: AccessError | None) -> bool:
    return isinstance(error, UserNotFound)


def _complete(kind: int, request: Request) -> bool:
    """Return whether the payload has all that the command needs. A name or pattern of white space
    is none."""
    if not (request.username or "").strip():
        return False
    if kind == CREATE_USER:
        return bool(request.password)
    if kind == CHANGE_PASSWORD:
        return bool(request.new_password)
    if kind in (GRANT_PERMISSION, REVOKE_PERMISSION) and not (request.queue_pattern or "").strip():
        return False
    return kind != GRANT_PERMISSION or bool(request.operations)


def _when(answer: Answer, refuse: Refuse, name: str, said: Mapping[str, object]) -> Done:
    """Return what is called when the user database has done it to the user `name`, or has not."""

    def done(error: AccessError | None) -> None:
        if error is None:
            answer(msgspec.json.encode(said))
        elif isinstance(error, UserExists):
            refuse("USER_EXISTS", error_texts.user_exists(name))
        elif isinstance(error, UserNotFound):
            refuse("USER_NOT_FOUND", error_texts.user_not_found(name))
        elif isinstance(error, AccessDenied):
            refuse("FORBIDDEN", error_texts.SUPERUSER_STAYS)
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
    return [name for name, operation in OPERATIONS.items() if operation in permission.operations]
