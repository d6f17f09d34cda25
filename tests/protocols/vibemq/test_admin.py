"""Commands 50 to 56, with a user database in memory."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sluicemq.model.access import EVERYBODY, Identity, Operation, Permission
from sluicemq.model.errors import AccessDenied, AccessError, PasswordRefused
from sluicemq.protocols.vibemq import wire
from sluicemq.protocols.vibemq.wire import Frame
from sluicemq.security import records
from sluicemq.security.access import ChangeCallback, Credentials, LoginCallback
from sluicemq.security.records import Change, Database, UserRecord
from tests.protocols.vibemq.harness import Harness, Peer

NOW = 1_700_000_000
OPERATIONS = [
    "Publish",
    "Subscribe",
    "CreateQueue",
    "DeleteQueue",
    "PurgeQueue",
    "GetQueueInfo",
    "ListQueues",
]
"""In the order of the original's numbers."""


class Directory:
    """A user directory in memory that delays its results while it is `slow`.

    refusal  error of the next changes, instead of the changes
    """

    def __init__(self) -> None:
        root, ann = (
            UserRecord(password=name[0], superuser=name == "root", created=NOW, updated=NOW)
            for name in ("root", "ann")
        )
        self.database = Database(users={"root": root, "ann": ann})
        self.slow = False
        self.waiting: list[tuple[ChangeCallback, AccessError | None]] = []
        self.refusal: AccessError | None = None

    def hash(self, password: str) -> str:
        return password

    def now(self) -> int:
        return NOW

    def change(self, change: Change, done: ChangeCallback) -> None:
        error = self.refusal
        try:
            if error is None:
                self.database = change(self.database)
        except AccessError as raised:
            error = raised
        if self.slow:
            self.waiting.append((done, error))
        else:
            done(error)

    @property
    def passwords(self) -> dict[str, str]:
        return {name: user.password for name, user in self.database.users.items()}

    @property
    def granted(self) -> dict[str, dict[str, Permission]]:
        return {
            name: {permission.pattern: permission for permission in user.permissions}
            for name, user in self.database.users.items()
        }


class Authenticator:
    """Access for any user that gives a name."""

    def __init__(self, database: Directory) -> None:
        self.guest: Identity | None = None
        self.users: Directory | None = database
        self.change = database.change
        self.refused: list[str] = []

    def login(self, peer: str, credentials: Credentials, admitted: LoginCallback) -> None:
        admitted(EVERYBODY if credentials.user == "root" else Identity(credentials.user))

    def cancel_login(self) -> None:
        pass

    def log_denied(self, peer: str, identity: Identity, operation: str) -> None:
        self.refused.append(f"{identity.name} {operation}")


@pytest.fixture
def database() -> Directory:
    return Directory()


@pytest.fixture
def harness(database: Directory) -> Harness:
    return Harness(access=Authenticator(database))


@pytest.fixture
def root(harness: Harness) -> Peer:
    return harness.connect(authUsername="root", authPassword="r")


@pytest.fixture
def ann(harness: Harness) -> Peer:
    return harness.connect(authUsername="ann", authPassword="a")


def done(peer: Peer, kind: int, payload: Any = None) -> Any:
    response = peer.request(kind, payload=payload)
    assert (response.type, response.error_code) == (kind, "")
    return json.loads(response.payload)


def test_creates_and_deletes_user(root: Peer, database: Directory) -> None:
    response = done(root, wire.CREATE_USER, {"username": "bob", "password": "b"})
    assert response == {"username": "bob"}
    assert database.passwords["bob"] == "b"
    assert done(root, wire.LIST_USERS) == [
        {"username": "ann", "isSuperuser": False, "createdAt": NOW},
        {"username": "bob", "isSuperuser": False, "createdAt": NOW},
        {"username": "root", "isSuperuser": True, "createdAt": NOW},
    ]
    assert done(root, wire.DELETE_USER, {"username": "bob"}) == {"username": "bob"}
    assert "bob" not in database.passwords


def test_grants_and_revokes_permissions(root: Peer, database: Directory) -> None:
    for operations, expected, names in (
        (["subscribe", "Publish", "Fly", "Publish"], ["Subscribe", "Publish"], "Publish Subscribe"),
        (["LISTQUEUES", "PurgeQueue"], ["ListQueues", "PurgeQueue"], "PurgeQueue ListQueues"),
        (["ListQueues"], ["ListQueues"], "ListQueues"),
        (OPERATIONS, OPERATIONS, " ".join(OPERATIONS)),
        (["7", "Publish,Subscribe", None, "0"], ["Publish"], "Publish"),
    ):
        request = {"username": "ann", "queuePattern": "a*", "operations": operations}
        response = done(root, wire.GRANT_PERMISSION, request)
        assert response == {"username": "ann", "queuePattern": "a*", "operations": expected}
        permissions = done(root, wire.GET_USER_PERMISSIONS, {"username": "ann"})
        assert permissions == [{"queuePattern": "a*", "operations": names.split()}]
    request = {"username": "ann", "queuePattern": "a*"}
    assert done(root, wire.REVOKE_PERMISSION, request) == request
    assert done(root, wire.REVOKE_PERMISSION, request) == request
    unknown_user = {"username": "unknown", "queuePattern": "a*"}
    assert done(root, wire.REVOKE_PERMISSION, unknown_user) == unknown_user
    assert "unknown" not in database.granted
    assert done(root, wire.GET_USER_PERMISSIONS, {"username": "ann"}) == []
    assert done(root, wire.GET_USER_PERMISSIONS, {"username": "unknown"}) == []


def test_maps_operations_to_those_of_broker(root: Peer, database: Directory) -> None:
    request = {"username": "ann", "queuePattern": "q", "operations": OPERATIONS}
    done(root, wire.GRANT_PERMISSION, request)
    assert database.granted["ann"]["q"] == Permission("q", frozenset(Operation), ignore_case=True)
    for name, operation in zip(OPERATIONS, ("produce", "consume", "create"), strict=False):
        done(root, wire.GRANT_PERMISSION, request | {"operations": [name]})
        assert database.granted["ann"]["q"].operations == {Operation(operation)}


@pytest.mark.parametrize(
    ("kind", "payload", "code"),
    [
        (50, {"username": "ann", "password": "x"}, "USER_EXISTS"),
        (50, {"username": "b b", "password": "x"}, "INVALID_PAYLOAD"),
        (50, {"username": "bob"}, "INVALID_PAYLOAD"),
        (50, {"username": "bob", "password": ""}, "INVALID_PAYLOAD"),
        (50, {"password": "x"}, "INVALID_PAYLOAD"),
        (50, None, "INVALID_PAYLOAD"),
        (50, [], "INVALID_PAYLOAD"),
        (50, {"username": 5, "password": "x"}, "INVALID_PAYLOAD"),
        (51, {"username": "bob"}, "USER_NOT_FOUND"),
        (51, {"username": "root"}, "FORBIDDEN"),
        (51, {}, "INVALID_PAYLOAD"),
        (52, {"username": "bob", "newPassword": "x"}, "USER_NOT_FOUND"),
        (52, {"username": "ann"}, "INVALID_PAYLOAD"),
        (52, {"username": "ann", "newPassword": ""}, "INVALID_PAYLOAD"),
        (53, {"username": "bob", "queuePattern": "*", "operations": ["0"]}, "USER_NOT_FOUND"),
        (53, {"username": "ann", "queuePattern": "*"}, "INVALID_PAYLOAD"),
        (53, {"username": "ann", "operations": []}, "INVALID_PAYLOAD"),
        (
            53,
            {"username": "ann", "queuePattern": "x" * 257, "operations": ["0"]},
            "INVALID_PAYLOAD",
        ),
        (54, {"username": "ann"}, "INVALID_PAYLOAD"),
        (56, {}, "INVALID_PAYLOAD"),
    ],
)
def test_refused_requests(
    root: Peer, database: Directory, kind: int, payload: Any, code: str
) -> None:
    before = (dict(database.passwords), {k: dict(v) for k, v in database.granted.items()})
    assert root.error(kind, payload=payload) == code
    assert (database.passwords, database.granted) == before


def test_last_superuser_cannot_be_deleted(root: Peer, database: Directory) -> None:
    database.refusal = AccessDenied("the last one")
    assert root.error(wire.DELETE_USER, payload={"username": "ann"}) == "FORBIDDEN"


@pytest.mark.parametrize("spelling", ["0", "+0", " 0 ", "00", "publish", "PUBLISH", " Publish "])
def test_operation_is_name_or_number(root: Peer, database: Directory, spelling: str) -> None:
    request = {"username": "ann", "queuePattern": "q", "operations": [spelling]}
    assert done(root, wire.GRANT_PERMISSION, request)["operations"] == ["Publish"]
    assert database.granted["ann"]["q"].operations == {Operation.PRODUCE}


def test_operation_numbers_are_those_of_original(root: Peer) -> None:
    request = {"username": "ann", "queuePattern": "q", "operations": list("0123456")}
    assert done(root, wire.GRANT_PERMISSION, request)["operations"] == OPERATIONS


@pytest.mark.parametrize(
    "operations",
    [
        [],
        None,
        ["Fly"],
        [""],
        [None],
        ["7"],
        ["99"],
        ["-1"],
        ["1.0"],
        ["0x1"],
        ["٠"],
        ["9" * 5000],
        ["Publish,Subscribe"],
        ["0,1"],
        [0],
        [True],
        [{}],
        "Publish",
    ],
)
def test_grant_without_operations_changes_nothing(
    root: Peer, database: Directory, operations: Any
) -> None:
    before = Permission("q", frozenset({Operation.BROWSE}))
    database.database = records.grant(database.database, "ann", before, NOW)
    request = {"username": "ann", "queuePattern": "q", "operations": operations}
    assert root.error(wire.GRANT_PERMISSION, payload=request) == "INVALID_PAYLOAD"
    assert database.granted["ann"] == {"q": before}


@pytest.mark.parametrize(
    ("refusal", "code"),
    [
        (PasswordRefused("the password has 1 character"), "INVALID_PAYLOAD"),
        (AccessError("too many changes of users at once; try again"), "SERVER_ERROR"),
        (AccessDenied("ann is the last user"), "FORBIDDEN"),
    ],
)
def test_error_of_user_directory_is_not_blamed_on_payload(
    root: Peer, database: Directory, refusal: AccessError, code: str
) -> None:
    database.refusal = refusal
    request = {"username": "ann", "newPassword": "x"}
    response = root.request(wire.CHANGE_PASSWORD, payload=request)
    assert (response.error_code, response.error_message) == (code, str(refusal))


@pytest.mark.parametrize("name", ["a", "a_-.9", "Ärger", "a\u0663", "x" * 64])
def test_user_names_valid_in_original_are_accepted(
    root: Peer, database: Directory, name: str
) -> None:
    done(root, wire.CREATE_USER, {"username": name, "password": "p"})
    assert database.passwords[name] == "p"


def test_revoking_from_unknown_user_succeeds(root: Peer, database: Directory) -> None:
    request = {"username": "bob", "queuePattern": "*"}
    assert done(root, wire.REVOKE_PERMISSION, request) == request


def test_invalid_json_payload_is_error(root: Peer) -> None:
    for payload in (b"{", b"\xff", b'{"\xff": 1}', b"[" * 100_000):
        [response] = root.send(Frame(wire.CREATE_USER, "c", payload=payload))
        assert response.error_code == "INVALID_PAYLOAD"


@pytest.mark.parametrize("kind", range(50, 57))
def test_only_superusers_may_manage_other_users(
    harness: Harness, ann: Peer, database: Directory, kind: int
) -> None:
    payload = {
        "username": "root",
        "password": "x",
        "newPassword": "x",
        "queuePattern": "*",
        "operations": ["Publish"],
    }
    before = dict(database.passwords)
    assert ann.error(kind, payload=payload) == "NOT_AUTHORIZED"
    assert database.passwords == before
    assert isinstance(harness.access, Authenticator)
    assert harness.access.refused == [f"ann command {kind}"]


def test_users_may_change_their_own_password_and_list_their_permissions(
    ann: Peer, database: Directory
) -> None:
    done(ann, wire.CHANGE_PASSWORD, {"username": "ann", "newPassword": "new"})
    assert database.passwords["ann"] == "new"
    assert done(ann, wire.GET_USER_PERMISSIONS, {"username": "ann"}) == []
    assert ann.error(wire.DELETE_USER, payload={"username": "ann"}) == "NOT_AUTHORIZED"


def test_responses_may_be_delayed_or_dropped(
    harness: Harness, root: Peer, database: Directory
) -> None:
    database.slow = True
    requests = [
        Frame(50, str(n), payload=b'{"username":"u%d","password":"x"}' % n) for n in range(2)
    ]
    root.send(*requests, Frame(wire.PING, "p"))
    harness.run_event_loop()
    assert root.frames() == [Frame(wire.PONG, "p")]
    done_later, error = database.waiting.pop()
    done_later(error)
    [response] = root.frames()
    assert response.id == "1"
    root.drop()
    done_later, error = database.waiting.pop()
    done_later(error)
    assert root.transport.written == b""


def test_without_user_database_commands_are_unknown() -> None:
    peer = Harness().connect()
    for kind in range(50, 57):
        assert peer.error(kind, payload={"username": "x"}) == "UNKNOWN_COMMAND"
