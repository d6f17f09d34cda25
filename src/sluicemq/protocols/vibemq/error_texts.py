"""Error messages in the words of the original server (1.8.0).

The .NET client passes only the message of an Error to its application, and applications compare it.
Errors that the original server also reports therefore have exactly its text. Other errors have
their own text in the module that reports them.
"""

from __future__ import annotations

from typing import Final

from sluicemq.protocols.vibemq import wire

CONNECT_FIRST: Final = "Please send a Connect command first."
CREDENTIALS_MISSING: Final = "Username and password are required."
CREDENTIALS_WRONG: Final = "Invalid username or password."
TOO_MANY_CONNECTIONS: Final = "Maximum connections reached."
TOO_MANY_REQUESTS: Final = "Message rate limit exceeded."
ACCESS_DENIED: Final = "Access denied."

QUEUE_NAME_CHARACTERS: Final = (
    "Queue name contains invalid characters. Allowed: alphanumeric, hyphens, underscores, dots."
)

SUPERUSER_ONLY: Final = "Superuser access required."
OWN_PASSWORD_ONLY: Final = "You may only change your own password."
OWN_PERMISSIONS_ONLY: Final = "You may only view your own permissions."
SUPERUSER_STAYS: Final = "Cannot delete a superuser account."
USER_NAME: Final = "Username must be 1-64 characters: alphanumeric, hyphens, underscores, dots."
NO_OPERATIONS: Final = "No valid operations specified."

_REQUIRED_FOR: Final = {
    wire.PUBLISH: "publish",
    wire.SUBSCRIBE: "subscribe",
    wire.UNSUBSCRIBE: "unsubscribe",
    wire.CREATE_QUEUE: "CreateQueue",
    wire.DELETE_QUEUE: "DeleteQueue",
    wire.QUEUE_INFO: "QueueInfo",
}
_COMMANDS: Final = {
    wire.CONNECT_ACK: "ConnectAck",
    wire.PONG: "Pong",
    wire.PUBLISH_ACK: "PublishAck",
    wire.SUBSCRIBE_ACK: "SubscribeAck",
    wire.UNSUBSCRIBE_ACK: "UnsubscribeAck",
    wire.DELIVER: "Deliver",
    wire.CREATE_USER: "AdminCreateUser",
    wire.DELETE_USER: "AdminDeleteUser",
    wire.CHANGE_PASSWORD: "AdminChangePassword",
    wire.GRANT_PERMISSION: "AdminGrantPermission",
    wire.REVOKE_PERMISSION: "AdminRevokePermission",
    wire.LIST_USERS: "AdminListUsers",
    wire.GET_USER_PERMISSIONS: "AdminGetUserPermissions",
    wire.ERROR: "Error",
}
"""Names of commands in the original server's error for unknown commands."""


def queue_name_missing(kind: int) -> str:
    """Return the error for a command of this type without a queue name."""
    return f"Queue name is required for {_REQUIRED_FOR[kind]}."


def queue_name_too_long(limit: int) -> str:
    """Return the error for a name of more than `limit` UTF-16 units."""
    return f"Queue name exceeds maximum length ({limit})."


def too_many_headers(count: int, limit: int) -> str:
    """Return the error for a message with `count` headers, more than `limit`."""
    return f"Too many headers ({count}). Maximum: {limit}."


def header_value_too_long(key: str, limit: int) -> str:
    """Return the error for a header whose value has more than `limit` UTF-16 units."""
    return f"Header value for '{key}' exceeds maximum length ({limit})."


def unknown_command(kind: int) -> str:
    """Return the error for an unsupported command."""
    return f"Unknown command type: {_COMMANDS.get(kind, kind)}"


def payload_required(*fields: str) -> str:
    """Return the error for a user management command without a payload."""
    return f"Payload required: {{ {', '.join(fields)} }}."


def fields_required(*fields: str) -> str:
    """Return the error for a user management command that lacks one of one to three fields."""
    *others, last = fields
    if not others:
        return f"{last} is required."
    comma = "," if len(others) > 1 else ""
    return f"{', '.join(others)}{comma} and {last} are required."


def user_exists(name: str) -> str:
    """Return the error for the creation of an existing user."""
    return f"User '{name}' already exists."


def user_not_found(name: str) -> str:
    """Return the error for an unknown user."""
    return f"User '{name}' not found."
