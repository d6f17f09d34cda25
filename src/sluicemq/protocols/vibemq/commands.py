"""Infrequent commands of VibeMQ clients: management of queues and of users.

On a VibeMQ server all queues are VibeMQ's. Here other protocols share them: an application that
declares a queue with `OnConflict: Override` must delete neither the messages of another protocol's
clients nor a queue that an operator has set up.

The protocol page does not have the user management commands; the .NET server supports them from
release 1.6.0 on.

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
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from sluicemq.broker import Broker, Destination
from sluicemq.management.users import UserRequest
from sluicemq.model.access import MAX_USER, Identity, Operation, Permission, is_pattern
from sluicemq.model.destination import Address, CreatedBy, Overflow
from sluicemq.model.errors import (
    AccessDenied,
    DestinationConflict,
    PasswordRefused,
    SluiceError,
    UserExists,
    UserNotFound,
)
from sluicemq.protocols.ownership import selected_dead_letter_queue
from sluicemq.protocols.vibemq import queues
from sluicemq.protocols.vibemq.connection import RejectedRequest, VibemqConnection
from sluicemq.protocols.vibemq.consumers import Subscriber
from sluicemq.protocols.vibemq.mapping import is_queue_name
from sluicemq.protocols.vibemq.queues import QueueOptions
from sluicemq.protocols.vibemq.wire import (
    ADMIN,
    CHANGE_PASSWORD,
    CREATE_QUEUE,
    CREATE_USER,
    DELETE_QUEUE,
    DELETE_USER,
    GET_USER_PERMISSIONS,
    GRANT_PERMISSION,
    LIST_QUEUES,
    LIST_USERS,
    QUEUE_INFO,
    REVOKE_PERMISSION,
    Frame,
)
from sluicemq.security import records

# --- queues --------------------------------------------------------------------------------------

_CREATORS: Final = {
    CreatedBy.BROKER: "belongs to the broker itself",
    CreatedBy.CONFIGURATION: "is declared in the broker's configuration",
    CreatedBy.MANAGEMENT: "was created by an administrator",
    CreatedBy.JMQ: "was created by JMS",
    CreatedBy.MSGLITE: "was created by msglite",
    CreatedBy.PHPMQ: "was created by PHPMQ",
}


def create_queue(connection: VibemqConnection, frame: Frame) -> None:
    """Create the queue, or apply the options to an existing one.

    An existing queue takes the options only if VibeMQ use created it and no client has declared it
    yet. A dead-letter queue is never changed.
    """
    written = queues.read_written(frame.payload, frame.headers)
    connection.demand(frame, Operation.CREATE)
    name = frame.queue
    broker, channel, creation = connection.broker, connection.channel, connection.creation
    options = written.options(creation.options)
    existing = queues.find(broker, name)
    if existing is not None and connection.options.strict_create:
        raise DestinationConflict(f"the queue {name} exists already")
    if existing is None or _can_change_options(broker, existing, options):
        dlq = selected_dead_letter_queue(
            broker,
            channel.identity,
            name,
            options.dead_letter_queue,
            is_enabled=options.dead_letter,
        )
        if dlq:
            channel.demand(Operation.PRODUCE, dlq)
        creation.declare(name, written, channel.identity.creator, existing)
    elif ignored := queues.ignored_options(existing, written):
        connection.options.notify(
            f"CreateQueue of {name} by {channel.transport.peer} changed nothing, because the "
            f"queue exists with other options: {ignored}"
        )
    connection.send(Frame(CREATE_QUEUE, frame.id, name))


def _can_change_options(broker: Broker, existing: Destination, options: QueueOptions) -> bool:
    """Return whether CreateQueue may change the options of an existing queue.

    Only if VibeMQ use created the queue, and the change neither drops a message nor changes the
    kind of a queue that has messages or consumers, or whose name a destination of the other kind
    has, too.
    """
    if not existing.automatic or existing.provenance.created_by is not CreatedBy.VIBEMQ:
        return False
    if broker.destinations.dead_letters_of(existing.address) is not None:
        return False
    if existing.address.kind is not options.kind:
        other = broker.destinations.find(Address(options.kind, existing.name))
        return other is None and not existing.busy()
    settings = options.settings
    limit = settings.max_messages
    drops = settings.overflow in (Overflow.DROP_OLDEST, Overflow.DROP_LOWEST)
    return not (limit and drops and existing.waiting > limit)


def delete_queue(connection: VibemqConnection, frame: Frame) -> None:
    """Delete the queue. A missing queue is a success."""
    connection.demand(frame, Operation.DELETE)
    broker = connection.broker
    destination = queues.find(broker, frame.queue)
    if destination is not None:
        reason = _deletion_refusal(broker, destination, connection.channel.identity)
        if reason and not connection.options.foreign_delete:
            raise RejectedRequest("FORBIDDEN", reason)
        broker.remove(destination, force=True)
    connection.send(Frame(DELETE_QUEUE, frame.id, frame.queue))


def _deletion_refusal(broker: Broker, destination: Destination, identity: Identity) -> str:
    """Return why VibeMQ clients may not delete a queue; "" if they may.

    The text names another queue only if the user may see it.
    """
    name = destination.name
    if creation := _CREATORS.get(destination.provenance.created_by):
        return f"queue {name} {creation}; VibeMQ clients cannot delete it"
    source = broker.destinations.dead_letters_of(destination.address)
    if source is not None:
        source_name = source.name if identity.sees(source.name) else "another queue"
        return f"queue {name} is the dead-letter queue of {source_name}; delete that one first"
    for subscription in destination.all_subscriptions:
        idle = subscription.durable and subscription is not destination.queue
        sinks = [consumer.sink for consumer in subscription.consumers]
        if not all(isinstance(sink, Subscriber) for sink in sinks) or (idle and not sinks):
            return f"queue {name} has consumers of other protocols; VibeMQ clients cannot delete it"
    return ""


def queue_info(connection: VibemqConnection, frame: Frame) -> None:
    """Answer with the state and the options of the queue."""
    connection.demand(frame, Operation.BROWSE)
    answer = Frame(QUEUE_INFO, frame.id, frame.queue)
    destination = queues.find(connection.broker, frame.queue)
    if destination is None:
        # an Error would make the .NET client's attempt to connect fail
        missing = f"there is no queue {frame.queue}"
        answer = answer._replace(error_code="QUEUE_NOT_FOUND", error_message=missing)
    else:
        answer = answer._replace(payload=queues.info(destination, connection.reads_mode_names))
    connection.send(answer)


def list_queues(connection: VibemqConnection, frame: Frame) -> bytes | None:
    """Answer with the names of the queues that the user may see, as `send_list`."""
    visible_names = filter(connection.channel.identity.sees, queues.names(connection.broker))
    return connection.send_list(frame, list(visible_names))


# --- users ---------------------------------------------------------------------------------------

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
_REQUIRED_FIELDS: Final = {
    CREATE_USER: ("username", "password"),
    DELETE_USER: ("username",),
    CHANGE_PASSWORD: ("username", "newPassword"),
    GRANT_PERMISSION: ("username", "queuePattern", "operations"),
    REVOKE_PERMISSION: ("username", "queuePattern"),
    GET_USER_PERMISSIONS: ("username",),
}
"""Required fields of the payload."""
_OWN_ACCOUNT_ERRORS: Final = {
    CHANGE_PASSWORD: "You may only change your own password.",
    GET_USER_PERMISSIONS: "You may only view your own permissions.",
}
"""Commands that every user may use for the own account, with the error for other accounts."""
_INVALID_USER_NAME: Final = (
    "Username must be 1-64 characters: alphanumeric, hyphens, underscores, dots."
)
_CHANGE_ERRORS: Final[dict[type[SluiceError], str]] = {
    AccessDenied: "FORBIDDEN",
    PasswordRefused: "INVALID_PAYLOAD",
}
"""Error codes of a change of users; SERVER_ERROR for other errors."""


class CommandPayload(msgspec.Struct, rename="camel"):
    """Payload of all user management commands."""

    username: str | None = None
    password: str | None = None
    new_password: str | None = None
    queue_pattern: str | None = None
    operations: list[str | None] | None = None


_read: Final = msgspec.json.Decoder(CommandPayload).decode


def administer(connection: VibemqConnection, frame: Frame) -> bytes | None:
    """Process a user management command, which is answered now or later; lists as by `send_list`.

    The checks and their order are the original's, so that a request with several errors gets the
    same response.
    """
    kind = frame.type
    access, identity = connection.channel.access, connection.channel.identity
    users = access.users
    assert users is not None
    database = users.database
    if not identity.superuser and kind not in _OWN_ACCOUNT_ERRORS:
        raise _denied(connection, kind, "Superuser access required.")
    if kind == LIST_USERS:
        accounts = [
            {
                "username": name,
                "isSuperuser": account.superuser,
                "createdAt": account.created,
            }
            for name, account in sorted(database.users.items())
        ]
        return connection.send_list(frame, accounts)
    request = _read_request(frame)
    name, pattern = request.username or "", request.queue_pattern or ""
    response: dict[str, object] = {"username": name}
    save_user = partial(records.save_user, name=name, hash_password=users.hash, now=users.now())
    if not identity.superuser and name != identity.name:
        raise _denied(connection, kind, _OWN_ACCOUNT_ERRORS[kind])
    if kind == GET_USER_PERMISSIONS:
        entries = [_permission_entry(permission) for permission in database.rights(name)]
        return connection.send_list(frame, entries)
    change: records.Change
    if kind == CREATE_USER:
        # 1 to 64 letters, digits, `-`, `_` and `.`
        if len(name) > MAX_USER or not is_queue_name(name):
            raise RejectedRequest("INVALID_PAYLOAD", _INVALID_USER_NAME)
        new_user = UserRequest(password=request.password or "")
        change = partial(save_user, requested=new_user, new=True)
    elif kind == DELETE_USER:
        account = database.users.get(name)
        if account is not None and account.superuser:
            raise RejectedRequest("FORBIDDEN", "Cannot delete a superuser account.")
        change = partial(records.remove_user, name=name)
    elif kind == CHANGE_PASSWORD:
        changed_user = UserRequest(password=request.new_password or "")
        change = partial(save_user, requested=changed_user, new=False)
    elif kind == GRANT_PERMISSION:
        operations = _known_operations(request)
        if not operations and name not in database.users:
            raise RejectedRequest("USER_NOT_FOUND", f"User '{name}' not found.")
        if not operations:
            raise RejectedRequest("INVALID_PAYLOAD", "No valid operations specified.")
        if not is_pattern(pattern):
            raise RejectedRequest("INVALID_PAYLOAD", "a pattern can have up to 256 characters")
        response |= {"queuePattern": pattern, "operations": operations}
        granted = frozenset(OPERATIONS[operation] for operation in operations)
        permission = Permission(pattern, granted, ignore_case=True)
        change = partial(records.grant, name=name, permission=permission, now=users.now())
    else:
        response["queuePattern"] = pattern
        change = partial(records.revoke, name=name, pattern=pattern, now=users.now())
    access.change(change, partial(_answer_change, connection, frame, response))
    return None


def _read_request(frame: Frame) -> CommandPayload:
    """Return the payload of a command. Raises RejectedRequest."""
    fields = _REQUIRED_FIELDS[frame.type]
    if not frame.payload:
        raise RejectedRequest("INVALID_PAYLOAD", f"Payload required: {{ {', '.join(fields)} }}.")
    try:
        request = _read(frame.payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        reason = f"the payload cannot be read: {error}"
        raise RejectedRequest("INVALID_PAYLOAD", reason) from None
    values = {
        "username": (request.username or "").strip(),
        "password": request.password,
        "newPassword": request.new_password,
        "queuePattern": (request.queue_pattern or "").strip(),
        "operations": request.operations,
    }
    if not all(values[field] for field in fields):
        *others, last = fields
        comma = "," if len(others) > 1 else ""
        subject = f"{', '.join(others)}{comma} and {last} are" if others else f"{last} is"
        raise RejectedRequest("INVALID_PAYLOAD", f"{subject} required.")
    return request


def _read_operation(text: str) -> str | None:
    """Return the name of an operation, given by name in any letter case or by number, 0 to 6.

    None if there is no such operation. Surrounding white space is ignored.
    """
    text = text.strip()
    if _NUMBER.match(text):
        return dict(enumerate(OPERATIONS)).get(int(text))
    return _NAMES.get(text.lower())


def _known_operations(request: CommandPayload) -> list[str]:
    """Return the names of the operations to grant, each once. Unknown ones are skipped."""
    operations = map(_read_operation, filter(None, request.operations or ()))
    return list(dict.fromkeys(filter(None, operations)))


def _answer_change(
    connection: VibemqConnection,
    frame: Frame,
    response: dict[str, object],
    error: SluiceError | None,
) -> None:
    """Answer with `response`, or with the user directory's error."""
    name = response["username"]
    if error is None or (frame.type == REVOKE_PERMISSION and isinstance(error, UserNotFound)):
        connection.send(Frame(frame.type, frame.id, payload=msgspec.json.encode(response)))
    elif isinstance(error, UserExists):
        connection.refuse(frame.id, "USER_EXISTS", f"User '{name}' already exists.")
    elif isinstance(error, UserNotFound):
        connection.refuse(frame.id, "USER_NOT_FOUND", f"User '{name}' not found.")
    else:
        connection.refuse(frame.id, _CHANGE_ERRORS.get(type(error), "SERVER_ERROR"), str(error))


def _denied(connection: VibemqConnection, kind: int, reason: str) -> RejectedRequest:
    """Write to the audit log that the user may not use a command, and return the error."""
    connection.channel.deny(f"command {kind}")
    return RejectedRequest("NOT_AUTHORIZED", reason)


def _permission_entry(permission: Permission) -> dict[str, object]:
    granted = permission.operations
    names = [name for name, operation in OPERATIONS.items() if operation in granted]
    return {"queuePattern": permission.pattern, "operations": names}


COMMANDS: Final[dict[int, Callable[[VibemqConnection, Frame], bytes | None]]] = {
    CREATE_QUEUE: create_queue,
    DELETE_QUEUE: delete_queue,
    QUEUE_INFO: queue_info,
    LIST_QUEUES: list_queues,
    **dict.fromkeys(ADMIN, administer),
}
"""Infrequent commands of a logged-in client that concern no subscription. They answer, or return
the encoded response if another thread has to compress it. They raise `connection.ANSWERED`."""
