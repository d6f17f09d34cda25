"""User management, commands 50 to 56. The protocol page does not have them; the .NET server
supports them from release 1.6.0 on.

| command               | payload                               | response                         |
|-----------------------|---------------------------------------|----------------------------------|
| 50 CreateUser         | username, password                    | username                         |
| 51 DeleteUser         | username                              | username                         |
| 52 ChangePassword     | username, newPassword                 | username                         |
| 53 GrantPermission    | username, queuePattern, operations    | the same                         |
| 54 RevokePermission   | username, queuePattern                | the same                         |
| 55 ListUsers          |                                       | list of username, isSuperuser,   |
|                       |                                       | createdAt                        |
| 56 GetUserPermissions | username                              | list of queuePattern, operations |

Superusers only, but every user may change the own password and list the own permissions. All values
are JSON; createdAt is in seconds since the epoch. User names are more restricted than elsewhere in
the broker, and patterns granted here ignore letter case, both as in the original.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from sluicemq.model.access import MAX_USER, Identity, Operation, Permission, is_pattern
from sluicemq.model.errors import AccessDenied, AccessError, UserExists, UserNotFound
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
from sluicemq.security.access import Done, Users

Answer = Callable[[bytes], None]
"""Called with the payload of the response."""
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
"""Operations by VibeMQ's names, in the order of VibeMQ's numbers."""
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
"""Required fields of the payload."""
_OWN: Final = {
    CHANGE_PASSWORD: error_texts.OWN_PASSWORD_ONLY,
    GET_USER_PERMISSIONS: error_texts.OWN_PERMISSIONS_ONLY,
}
"""Commands that every user may use for the own account, with the error for other accounts."""


class CommandPayload(msgspec.Struct, rename="camel"):
    """Payload of all commands."""

    username: str | None = None
    password: str | None = None
    new_password: str | None = None
    queue_pattern: str | None = None
    operations: list[str | None] | None = None


_read: Final = msgspec.json.Decoder(CommandPayload).decode


def administer(
    frame: Frame, users: Users, identity: Identity, answer: Answer, refuse: Refuse
) -> None:
    """Process a user management command. Calls `answer` or `refuse` once, now or later.

    The checks and their order are the original's, so that a request with several errors gets the
    same response.
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
    """Return the name of an operation, given by name in any letter case or by number, 0 to 6.

    None if there is no such operation. Surrounding white space is ignored.
    """
    text = text.strip()
    if _NUMBER.match(text):
        number = int(text)
        return list(OPERATIONS)[number] if 0 <= number < len(OPERATIONS) else None
    return _NAMES.get(text.lower())


def _grant(
    name: str, request: CommandPayload, users: Users, answer: Answer, refuse: Refuse
) -> None:
    pattern = request.queue_pattern or ""
    # unknown operations are skipped, as long as a known one is left
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
        response = {"username": name, "queuePattern": pattern, "operations": operations}
        permission = Permission(pattern, granted, ignore_case=True)
        users.grant(name, permission, _when(answer, refuse, name, response))


def _revoke(name: str, pattern: str, users: Users, answer: Answer, refuse: Refuse) -> None:
    """Revoke a permission. Succeeds for an unknown user."""
    response = {"username": name, "queuePattern": pattern}
    done = _when(answer, refuse, name, response)
    users.revoke(name, pattern, lambda error: done(None if _unknown(error) else error))


def _unknown(error: AccessError | None) -> bool:
    return isinstance(error, UserNotFound)


def _complete(kind: int, request: CommandPayload) -> bool:
    """Return whether the payload has all required fields. Blank names and patterns are missing."""
    if not (request.username or "").strip():
        return False
    if kind == CREATE_USER:
        return bool(request.password)
    if kind == CHANGE_PASSWORD:
        return bool(request.new_password)
    if kind in (GRANT_PERMISSION, REVOKE_PERMISSION) and not (request.queue_pattern or "").strip():
        return False
    return kind != GRANT_PERMISSION or bool(request.operations)


def _when(answer: Answer, refuse: Refuse, name: str, response: Mapping[str, object]) -> Done:
    """Return the callback that answers with `response`, or with the user directory's error."""

    def done(error: AccessError | None) -> None:
        if error is None:
            answer(msgspec.json.encode(response))
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
