"""Error codes and texts of the original server 1.8.0, which .NET applications compare.

Every row was observed on the original.
"""

from __future__ import annotations

from typing import Any

import pytest

from sluicemq.model.access import EVERYBODY, Identity, Operation, Permission
from sluicemq.model.errors import AuthenticationFailed, AuthenticationMissing
from sluicemq.protocols.vibemq import wire
from sluicemq.protocols.vibemq.connection import SessionOptions
from sluicemq.protocols.vibemq.wire import Frame
from sluicemq.security.access import Credentials, LoginCallback
from tests.protocols.vibemq.harness import Harness, Peer
from tests.protocols.vibemq.test_admin import Directory

BAD_NAME = (
    "Queue name contains invalid characters. Allowed: alphanumeric, hyphens, underscores, dots."
)
BAD_USER = "Username must be 1-64 characters: alphanumeric, hyphens, underscores, dots."
SUPERUSER = "Superuser access required."


class Access:
    """Users root, a superuser, and ann, who may publish to own.*; passwords as names."""

    def __init__(self) -> None:
        self.guest: Identity | None = None
        directory = Directory()
        self.users: Directory | None = directory
        self.change = directory.change

    def login(self, peer: str, credentials: Credentials, admitted: LoginCallback) -> None:
        if not credentials.password and not credentials.token:
            admitted(AuthenticationMissing("log in with a user name and a password"))
        elif credentials.token or credentials.user != credentials.password:
            admitted(AuthenticationFailed("the user name or the password is wrong"))
        elif credentials.user == "root":
            admitted(EVERYBODY)
        else:
            permission = Permission("own.*", frozenset({Operation.PRODUCE}))
            admitted(Identity(credentials.user, [permission]))

    def cancel_login(self) -> None:
        pass

    def log_denied(self, peer: str, identity: Identity, operation: str) -> None:
        pass


@pytest.fixture
def harness() -> Harness:
    return Harness(access=Access())


def connect_as(harness: Harness, user: str) -> Peer:
    if not user:
        return harness.open_connection()
    return harness.connect(authUsername=user, authPassword=user)


def code_and_text(answer: Frame) -> tuple[str, str]:
    assert answer.type == wire.ERROR
    return answer.error_code, answer.error_message


@pytest.mark.parametrize(
    ("headers", "code", "text"),
    [
        ({}, "AUTH_REQUIRED", "Username and password are required."),
        ({"authUsername": "ann"}, "AUTH_REQUIRED", "Username and password are required."),
        ({"authPassword": "ann"}, "AUTH_REQUIRED", "Username and password are required."),
        (
            {"authUsername": "ann", "authPassword": "x"},
            "AUTH_FAILED",
            "Invalid username or password.",
        ),
        ({"authToken": "x"}, "AUTH_FAILED", "Invalid username or password."),
    ],
)
def test_texts_of_failed_logins(
    harness: Harness, headers: dict[str, str], code: str, text: str
) -> None:
    peer = harness.open_connection()
    assert code_and_text(peer.request(wire.CONNECT, **headers)) == (code, text)
    assert code_and_text(peer.request(wire.PUBLISH, "q", 1)) == (
        "NOT_AUTHENTICATED",
        "Please send a Connect command first.",
    )


@pytest.mark.parametrize(
    ("kind", "queue", "code", "text"),
    [
        (wire.PUBLISH, "", "INVALID_QUEUE", "Queue name is required for publish."),
        (wire.SUBSCRIBE, "", "INVALID_QUEUE", "Queue name is required for subscribe."),
        (wire.UNSUBSCRIBE, "", "INVALID_QUEUE", "Queue name is required for unsubscribe."),
        (wire.CREATE_QUEUE, "", "INVALID_QUEUE", "Queue name is required for CreateQueue."),
        (wire.DELETE_QUEUE, "", "INVALID_QUEUE", "Queue name is required for DeleteQueue."),
        (wire.QUEUE_INFO, "", "INVALID_QUEUE", "Queue name is required for QueueInfo."),
        (wire.PUBLISH, "a b", "INVALID_MESSAGE", BAD_NAME),
        (wire.CREATE_QUEUE, "a b", "INVALID_MESSAGE", BAD_NAME),
        (wire.SUBSCRIBE, "\U0001d4d0", "INVALID_MESSAGE", BAD_NAME),
        (
            wire.PUBLISH,
            "a" * 257,
            "INVALID_MESSAGE",
            "Queue name exceeds maximum length (256).",
        ),
        (
            wire.PUBLISH,
            "\U0001d4d0" * 129,
            "INVALID_MESSAGE",
            "Queue name exceeds maximum length (256).",
        ),
        *(
            (kind, "foo", "NOT_AUTHORIZED", "Access denied.")
            for kind in (
                wire.PUBLISH,
                wire.SUBSCRIBE,
                wire.CREATE_QUEUE,
                wire.DELETE_QUEUE,
                wire.QUEUE_INFO,
            )
        ),
        *(
            (kind, "", "UNKNOWN_COMMAND", f"Unknown command type: {name}")
            for kind, name in (
                (wire.CONNECT_ACK, "ConnectAck"),
                (wire.PONG, "Pong"),
                (wire.PUBLISH_ACK, "PublishAck"),
                (wire.SUBSCRIBE_ACK, "SubscribeAck"),
                (wire.UNSUBSCRIBE_ACK, "UnsubscribeAck"),
                (wire.DELIVER, "Deliver"),
                (wire.ERROR, "Error"),
                (3, "3"),
                (77, "77"),
                (255, "255"),
            )
        ),
    ],
)
def test_texts_of_command_errors(
    harness: Harness, kind: int, queue: str, code: str, text: str
) -> None:
    assert code_and_text(connect_as(harness, "ann").request(kind, queue)) == (code, text)


@pytest.mark.parametrize(
    ("headers", "text"),
    [
        ({f"k{n}": "v" for n in range(51)}, "Too many headers (51). Maximum: 50."),
        (
            {"x" * 100: "v" * 4097},
            f"Header value for '{'x' * 100}' exceeds maximum length (4096).",
        ),
    ],
)
def test_texts_of_header_errors(harness: Harness, headers: dict[str, str], text: str) -> None:
    peer = connect_as(harness, "ann")
    assert code_and_text(peer.request(wire.PUBLISH, "own.q", 1, **headers)) == (
        "INVALID_MESSAGE",
        text,
    )


@pytest.mark.parametrize(
    ("user", "kind", "payload", "code", "text"),
    [
        ("root", 50, None, "INVALID_PAYLOAD", "Payload required: { username, password }."),
        (
            "root",
            50,
            {"username": "", "password": "x"},
            "INVALID_PAYLOAD",
            "username and password are required.",
        ),
        (
            "root",
            50,
            {"username": " ", "password": "x"},
            "INVALID_PAYLOAD",
            "username and password are required.",
        ),
        (
            "root",
            50,
            {"username": "a", "password": None},
            "INVALID_PAYLOAD",
            "username and password are required.",
        ),
        *(
            ("root", 50, {"username": name, "password": "x"}, "INVALID_PAYLOAD", BAD_USER)
            for name in (
                "bad@user",
                "a" * 65,
                "a b",
                "a\n",
                "a ",
                "a\u0300",
                "a\u2160",
                "\U0001d4d0",
            )
        ),
        (
            "root",
            50,
            {"username": "ann", "password": "x"},
            "USER_EXISTS",
            "User 'ann' already exists.",
        ),
        ("root", 51, None, "INVALID_PAYLOAD", "Payload required: { username }."),
        ("root", 51, {"username": ""}, "INVALID_PAYLOAD", "username is required."),
        ("root", 51, {"username": "zz"}, "USER_NOT_FOUND", "User 'zz' not found."),
        ("root", 51, {"username": "root"}, "FORBIDDEN", "Cannot delete a superuser account."),
        ("root", 52, None, "INVALID_PAYLOAD", "Payload required: { username, newPassword }."),
        (
            "root",
            52,
            {"username": "ann", "newPassword": ""},
            "INVALID_PAYLOAD",
            "username and newPassword are required.",
        ),
        (
            "root",
            52,
            {"username": "zz", "newPassword": "x"},
            "USER_NOT_FOUND",
            "User 'zz' not found.",
        ),
        (
            "root",
            53,
            None,
            "INVALID_PAYLOAD",
            "Payload required: { username, queuePattern, operations }.",
        ),
        *(
            (
                "root",
                53,
                payload,
                "INVALID_PAYLOAD",
                "username, queuePattern, and operations are required.",
            )
            for payload in (
                {"username": "ann", "queuePattern": "*", "operations": []},
                {"username": "ann", "queuePattern": "*", "operations": None},
                {"username": "ann", "queuePattern": "", "operations": ["Publish"]},
                {"username": " ", "queuePattern": "*", "operations": ["Publish"]},
            )
        ),
        (
            "root",
            53,
            {"username": "ann", "queuePattern": "*", "operations": ["nope"]},
            "INVALID_PAYLOAD",
            "No valid operations specified.",
        ),
        (
            "root",
            53,
            {"username": "zz", "queuePattern": "*", "operations": ["nope"]},
            "USER_NOT_FOUND",
            "User 'zz' not found.",
        ),
        ("root", 54, None, "INVALID_PAYLOAD", "Payload required: { username, queuePattern }."),
        (
            "root",
            54,
            {"username": "ann", "queuePattern": ""},
            "INVALID_PAYLOAD",
            "username and queuePattern are required.",
        ),
        ("root", 56, None, "INVALID_PAYLOAD", "Payload required: { username }."),
        ("root", 56, {"username": ""}, "INVALID_PAYLOAD", "username is required."),
        *(("ann", kind, None, "NOT_AUTHORIZED", SUPERUSER) for kind in (50, 51, 53, 54, 55)),
        ("ann", 52, None, "INVALID_PAYLOAD", "Payload required: { username, newPassword }."),
        ("ann", 56, None, "INVALID_PAYLOAD", "Payload required: { username }."),
        (
            "ann",
            52,
            {"username": "root", "newPassword": "x"},
            "NOT_AUTHORIZED",
            "You may only change your own password.",
        ),
        (
            "ann",
            56,
            {"username": "root"},
            "NOT_AUTHORIZED",
            "You may only view your own permissions.",
        ),
    ],
)
def test_texts_of_user_errors(
    harness: Harness, user: str, kind: int, payload: Any, code: str, text: str
) -> None:
    assert code_and_text(connect_as(harness, user).request(kind, payload=payload)) == (code, text)


@pytest.mark.parametrize(
    ("kind", "name"),
    list(
        enumerate(
            (
                "AdminCreateUser",
                "AdminDeleteUser",
                "AdminChangePassword",
                "AdminGrantPermission",
                "AdminRevokePermission",
                "AdminListUsers",
                "AdminGetUserPermissions",
            ),
            50,
        )
    ),
)
def test_texts_of_user_commands_without_user_database(kind: int, name: str) -> None:
    response = Harness().connect().request(kind, payload={"username": "u"})
    assert code_and_text(response) == ("UNKNOWN_COMMAND", f"Unknown command type: {name}")


def test_text_of_too_many_requests(harness: Harness) -> None:
    peer = harness.connect(SessionOptions(rate_limit=1), authUsername="root", authPassword="root")
    responses = [peer.request(wire.QUEUE_INFO, "q") for _ in range(2)]
    assert code_and_text(responses[1]) == ("RATE_LIMITED", "Message rate limit exceeded.")


def test_text_of_too_many_connections(harness: Harness) -> None:
    peer = harness.open_connection()
    peer.transport.user_limit_reached = True
    response = peer.request(wire.CONNECT, authUsername="root", authPassword="root")
    assert code_and_text(response) == ("CONNECTION_LIMIT", "Maximum connections reached.")
