"""Commands 50 to 56, with a user database in memory."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sluicemq.model.access import EVERYBODY, Identity, Operation, Permission
from sluicemq.model.errors import AccessDenied, AccessError, UserExists, UserNotFound
from sluicemq.protocols.vibemq import wire
from sluicemq.protocols.vibemq.wire import Frame
from sluicemq.security.access import Admitted, Credentials, Done
from sluicemq.security.records import UserRecord
from tests.protocols.vibemq.harness import Harness, Peer

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


class Database:
    """A double of sluicemq.security.access.Users; answers wait while it is `slow`."""

    def __init__(self) -> None:
        self.passwords = {"root": "r", "ann": "a"}
        self.granted: dict[str, dict[str, Permission]] = {"root": {}, "ann": {}}
        self.slow = False
        self.waiting: list[tuple[Done, AccessError | None]] = []

    def _answer(self, done: Done, error: AccessError | None = None) -> None:
        if self.slow:
            self.waiting.append((done, error))
        else:
            done(error)

    def _known(self, name: str, done: Done) -> bool:
        if name in self.passwords:
            return True
        self._answer(done, UserNotFound(f"there is no user {name}"))
        return False

    def create(self, name: str, password: str, superuser: bool, done: Done) -> None:
        assert not superuser
        if name in self.passwords:
            self._answer(done, UserExists(f"there is a user {name}"))
        elif " " in name:
            self._answer(done, AccessError("no such name"))
        else:
            self.passwords[name] = password
            self.granted[name] = {}
            self._answer(done)

    def remove(self, name: str, done: Done) -> None:
        if name == "last":
            self._answer(done, AccessDenied("the last one"))
        elif self._known(name, done):
            del self.passwords[name]
            self._answer(done)

    def set_password(self, name: str, password: str, done: Done) -> None:
        if self._known(name, done):
            self.passwords[name] = password
            self._answer(done)

    def grant(self, name: str, permission: Permission, done: Done) -> None:
        if self._known(name, done):
            self.granted[name][permission.pattern] = permission
            self._answer(done)

    def revoke(self, name: str, pattern: str, done: Done) -> None:
        if self._known(name, done):
            self.granted[name].pop(pattern, None)
            self._answer(done)

    def accounts(self) -> dict[str, UserRecord]:
        return {
            name: UserRecord(superuser=name == "root", created=1700000000, updated=1700000000)
            for name in sorted(self.passwords)
        }

    def permissions(self, name: str) -> list[Permission]:
        return list(self.granted.get(name, {}).values())


class Authenticator:
    """Access for whoever says a name."""

    def __init__(self, database: Database) -> None:
        self.guest: Identity | None = None
        self.users: Database | None = database
        self.refused: list[str] = []

    def login(self, peer: str, credentials: Credentials, admitted: Admitted) -> None:
        admitted(EVERYBODY if credentials.user == "root" else Identity(credentials.user))

    def cancel_login(self) -> None:
        pass

    def denied(self, peer: str, identity: Identity, what: str) -> None:
        self.refused.append(f"{identity.name} {what}")


@pytest.fixture
def database() -> Database:
    return Database()


@pytest.fixture
def harness(database: Database) -> Harness:
    return Harness(access=Authenticator(database))


@pytest.fixture
def root(harness: Harness) -> Peer:
    return harness.connect(authUsername="root", authPassword="r")


@pytest.fixture
def ann(harness: Harness) -> Peer:
    return harness.connect(authUsername="ann", authPassword="a")


def done(peer: Peer, kind: int, payload: Any = None) -> Any:
    answer = peer.ask(kind, payload=payload)
    assert (answer.type, answer.error_code) == (kind, "")
    return json.loads(answer.payload)


def test_a_user_comes_and_goes(root: Peer, database: Database) -> None:
    response = done(root, wire.CREATE_USER, {"username": "bob", "password": "b"})
    assert response == {"username": "bob"}
    assert database.passwords["bob"] == "b"
    assert done(root, wire.LIST_USERS) == [
        {"username": "ann", "isSuperuser": False, "createdAt": 1700000000},
        {"username": "bob", "isSuperuser": False, "createdAt": 1700000000},
        {"username": "root", "isSuperuser": True, "createdAt": 1700000000},
    ]
    assert done(root, wire.DELETE_USER, {"username": "bob"}) == {"username": "bob"}
    assert "bob" not in database.passwords


def test_permissions_come_and_go(root: Peer, database: Database) -> None:
    for operations, expected, granted in (
        (["subscribe", "Publish", "Fly", "Publish"], ["Subscribe", "Publish"], "Publish Subscribe"),
        (["LISTQUEUES", "PurgeQueue"], ["ListQueues", "PurgeQueue"], "PurgeQueue ListQueues"),
        (["ListQueues"], ["ListQueues"], "ListQueues"),
        (OPERATIONS, OPERATIONS, " ".join(OPERATIONS)),
        (["7", "Publish,Subscribe", None, "0"], ["Publish"], "Publish"),
    ):
        request = {"username": "ann", "queuePattern": "a*", "operations": operations}
        response = done(root, wire.GRANT_PERMISSION, request)
        assert response == {"username": "ann", "queuePattern": "a*", "operations": expected}
        listed = done(root, wire.GET_USER_PERMISSIONS, {"username": "ann"})
        assert listed == [{"queuePattern": "a*", "operations": granted.split()}]
    request = {"username": "ann", "queuePattern": "a*"}
    assert done(root, wire.REVOKE_PERMISSION, request) == request
    assert done(root, wire.REVOKE_PERMISSION, request) == request
    unknown = {"username": "unknown", "queuePattern": "a*"}
    assert done(root, wire.REVOKE_PERMISSION, unknown) == unknown
    assert "unknown" not in database.granted
    assert done(root, wire.GET_USER_PERMISSIONS, {"username": "ann"}) == []
    assert done(root, wire.GET_USER_PERMISSIONS, {"username": "unknown"}) == []


def test_operations_are_the_brokers(root: Peer, database: Database) -> None:
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
        (50, {"password": "x"}, "INVALID_PAYLOAD"),
        (50, None, "INVALID_PAYLOAD"),
        (50, [], "INVALID_PAYLOAD"),
        (50, {"username": 5, "password": "x"}, "INVALID_PAYLOAD"),
        (51, {"username": "bob"}, "USER_NOT_FOUND"),
        (51, {"username": "root"}, "FORBIDDEN"),
        (51, {"username": "last"}, "FORBIDDEN"),
        (51, {}, "INVALID_PAYLOAD"),
        (52, {"username": "bob", "newPassword": "x"}, "USER_NOT_FOUND"),
        (52, {"username": "ann"}, "INVALID_PAYLOAD"),
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
    root: Peer, database: Database, kind: int, payload: Any, code: str
) -> None:
    before = (dict(database.passwords), {k: dict(v) for k, v in database.granted.items()})
    assert root.error(kind, payload=payload) == code
    assert (database.passwords, database.granted) == before


@pytest.mark.parametrize("spelling", ["0", "+0", " 0 ", "00", "publish", "PUBLISH", " Publish "])
def test_an_operation_is_a_name_or_a_number(root: Peer, database: Database, spelling: str) -> None:
    request = {"username": "ann", "queuePattern": "q", "operations": [spelling]}
    assert done(root, wire.GRANT_PERMISSION, request)["operations"] == ["Publish"]
    assert database.granted["ann"]["q"].operations == {Operation.PRODUCE}


def test_numbers_are_in_the_order_of_the_original(root: Peer) -> None:
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
def test_a_grant_of_nothing_changes_nothing(
    root: Peer, database: Database, operations: Any
) -> None:
    before = Permission("q", frozenset({Operation.BROWSE}))
    database.granted["ann"]["q"] = before
    request = {"username": "ann", "queuePattern": "q", "operations": operations}
    assert root.error(wire.GRANT_PERMISSION, payload=request) == "INVALID_PAYLOAD"
    assert database.granted["ann"] == {"q": before}


@pytest.mark.parametrize("name", ["a", "a_-.9", "Ärger", "a\u0663", "x" * 64])
def test_names_of_users_that_the_original_takes(root: Peer, database: Database, name: str) -> None:
    done(root, wire.CREATE_USER, {"username": name, "password": "p"})
    assert database.passwords[name] == "p"


def test_revoking_from_an_unknown_user_succeeds(root: Peer, database: Database) -> None:
    request = {"username": "bob", "queuePattern": "*"}
    assert done(root, wire.REVOKE_PERMISSION, request) == request


def test_a_payload_that_is_no_json(root: Peer) -> None:
    for payload in (b"{", b"\xff", b'{"\xff": 1}', b"[" * 100_000):
        [answer] = root.say(Frame(wire.CREATE_USER, "c", payload=payload))
        assert answer.error_code == "INVALID_PAYLOAD"


@pytest.mark.parametrize("kind", range(50, 57))
def test_only_superusers_may_touch_others(
    harness: Harness, ann: Peer, database: Database, kind: int
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


def test_everybody_may_change_the_own_password_and_see_the_own_permissions(
    ann: Peer, database: Database
) -> None:
    done(ann, wire.CHANGE_PASSWORD, {"username": "ann", "newPassword": "new"})
    assert database.passwords["ann"] == "new"
    assert done(ann, wire.GET_USER_PERMISSIONS, {"username": "ann"}) == []
    assert ann.error(wire.DELETE_USER, payload={"username": "ann"}) == "NOT_AUTHORIZED"


def test_an_answer_may_come_later_or_never(
    harness: Harness, root: Peer, database: Database
) -> None:
    database.slow = True
    requests = [
        Frame(50, str(n), payload=b'{"username":"u%d","password":"x"}' % n) for n in range(2)
    ]
    assert root.say(*requests, Frame(wire.PING, "p")) == [Frame(wire.PONG, "p")]
    done_later, error = database.waiting.pop()
    done_later(error)
    [answer] = root.frames()
    assert answer.id == "1"
    root.drop()
    done_later, error = database.waiting.pop()
    done_later(error)
    assert root.transport.written == b""


def test_without_a_user_database_there_are_no_such_commands() -> None:
    peer = Harness().connect()
    for kind in range(50, 57):
        assert peer.error(kind, payload={"username": "x"}) == "UNKNOWN_COMMAND"
