"""Every command of VibeMQ clients, by every actor."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from sluicemq.broker import Window
from sluicemq.model.access import Operation
from sluicemq.model.destination import Address, CreatedBy, Kind
from sluicemq.protocols.vibemq import wire
from sluicemq.protocols.vibemq.connection import SessionOptions
from sluicemq.protocols.vibemq.session import VibemqSession
from sluicemq.protocols.vibemq.wire import Frame
from tests.authorization.fixture import QUEUE, TOPIC, WRONG_TOKEN, BrokerFixture
from tests.authorization.matrix import (
    ALLOWED,
    DENIED,
    LOGGED_IN,
    NO_ACTOR,
    OWNER_ONLY,
    PERMITTED,
    SUPERUSER_ONLY,
    Actor,
    Cell,
    Row,
    Table,
    check_cell,
    check_complete,
    parametrize_cells,
)
from tests.protocols.vibemq.harness import Peer
from tests.support.api import PASSWORD
from tests.support.broker import Reader
from tests.support.offload import idle_large_deliveries

DENIALS: Final = frozenset(
    {"AUTH_FAILED", "AUTH_REQUIRED", "FORBIDDEN", "NOT_AUTHENTICATED", "NOT_AUTHORIZED"}
)
VICTIM: Final = "victim"
"""A user that is not an actor."""
TEMPORARY: Final = "temporary_destination://queue/own/1"


class VibemqCell(Cell):
    """A connection of the actor, and one of the owner, which may be the same."""

    def __init__(self, fixture: BrokerFixture, actor: Actor) -> None:
        super().__init__(actor)
        self.fixture = fixture
        self.owner = self.connect(Actor.OWNER)
        fixture.owner_transports.append(self.owner.transport)
        self.peer = self.connect(actor)

    def open_connection(self, options: SessionOptions | None = None) -> Peer:
        """Connect to a listener with the options, without CONNECT."""
        transport = self.fixture.transport()
        access = self.fixture.open_with_login(transport, "vibemq")
        fixture: Any = self.fixture  # only attributes that all fixtures have
        large = idle_large_deliveries()
        session = VibemqSession(transport, fixture.broker, access, large, options)
        return Peer(fixture, transport, session)

    def credentials(self, actor: Actor) -> dict[str, str]:
        """Return the headers of CONNECT."""
        if actor is Actor.ANONYMOUS:
            return {}
        return {"authToken": self.fixture.users.tokens.get(actor, WRONG_TOKEN)}

    def connect(self, actor: Actor, options: SessionOptions | None = None) -> Peer:
        """Connect as the actor."""
        peer = self.open_connection(options)
        if actor is not Actor.ANONYMOUS:
            reply = peer.request(wire.CONNECT, **self.credentials(actor))
            assert reply.type == (wire.CONNECT_ACK if actor in LOGGED_IN else wire.ERROR)
        return peer

    def use_owners_connection(self) -> None:
        """Issue commands of the owner on the connection that owns the resources."""
        if self.actor is Actor.OWNER:
            self.peer = self.owner

    def name(self, rest: str) -> str:
        """Return a name on which the actor has permissions, if it has any."""
        return f"other.{rest}" if self.actor is Actor.OTHER else f"own.{rest}"

    def request(self, kind: int, queue: str = "", payload: Any = None, **headers: str) -> None:
        """Issue a command."""
        body = b"" if payload is None else json.dumps(payload).encode()
        self.issue(Frame(kind, self.peer.next_id(), queue, body, headers))

    def issue(self, frame: Frame, has_response: bool = True) -> None:
        """Issue a frame; wait for its response if a thread creates it."""
        peer, fixture = self.peer, self.fixture
        peer.frames()
        self.before = fixture.snapshot()
        peer.send_bytes(wire.encode(frame))
        if (
            has_response
            and not peer.transport.written
            and peer.transport.open
            and self.actor in LOGGED_IN
        ):
            fixture.run_until(lambda: bool(peer.transport.written))
        self.received = peer.transport.written
        replies = [reply for reply in peer.frames() if reply.id == frame.id]
        self.after = fixture.snapshot()
        self.outcome = self._outcome_of(replies[0] if replies else None)

    def _outcome_of(self, reply: Frame | None) -> str:
        if reply is None:
            return "no response"
        if reply.type != wire.ERROR and not reply.error_code:
            return ALLOWED
        return DENIED if reply.error_code in DENIALS else reply.error_code

    def administer(self, kind: int, name: str, **fields: Any) -> None:
        """Issue a command about a user; VICTIM exists."""
        api_fixture = self.fixture.api_fixture
        if VICTIM not in api_fixture.store.read().users:
            api_fixture.add(VICTIM, "own.*: produce")
        self.request(kind, payload={"username": name, **fields})


# --- rows ----------------------------------------------------------------------------------------

Issue = Callable[[VibemqCell], None]

TABLE: Final[Table[VibemqCell]] = Table()
NAMES: Final = {
    value: name
    for name, value in vars(wire).items()
    if name[0] != "_" and isinstance(value, int) and value in wire.FROM_CLIENT | wire.FROM_SERVER
}
"""Names of all commands, by their numbers."""


def row(
    kind: int, target: str, allowed: frozenset[Actor], **fields: Any
) -> Callable[[Issue], Issue]:
    """Return a decorator that adds a row, for the function that issues the command."""
    return TABLE.row(NAMES[kind], target, allowed, **fields)


@row(wire.CONNECT, "", LOGGED_IN)
def _connect(cell: VibemqCell) -> None:
    cell.peer = cell.open_connection()
    cell.request(wire.CONNECT, **cell.credentials(cell.actor))


@row(wire.DISCONNECT, "", LOGGED_IN, has_response=False, reveals=NO_ACTOR)
def _disconnect(cell: VibemqCell) -> None:
    cell.issue(Frame(wire.DISCONNECT, "x"), has_response=False)


@row(wire.PING, "", LOGGED_IN | {Actor.ANONYMOUS, Actor.REJECTED}, reveals=NO_ACTOR)
def _ping(cell: VibemqCell) -> None:
    cell.request(wire.PING)


@row(wire.PUBLISH, "to a queue", PERMITTED, permission=Operation.PRODUCE, changes=True)
def _publish(cell: VibemqCell) -> None:
    cell.fixture.create_owned()
    cell.request(wire.PUBLISH, QUEUE, "x")


@row(wire.PUBLISH, "to a new queue", PERMITTED, permission=Operation.PRODUCE, changes=True)
def _publish_new(cell: VibemqCell) -> None:
    cell.request(wire.PUBLISH, "own.new", "x")


@row(wire.PUBLISH, "to a topic", PERMITTED, permission=Operation.PRODUCE, changes=True)
def _publish_topic(cell: VibemqCell) -> None:
    cell.fixture.create_owned(TOPIC, Kind.TOPIC)
    cell.request(wire.PUBLISH, TOPIC, "x")


@row(wire.PUBLISH, "to a temporary queue", LOGGED_IN, changes=True)
def _publish_temporary(cell: VibemqCell) -> None:
    cell.fixture.broker.destinations.declare(Address(Kind.QUEUE, TEMPORARY), owner=object())
    cell.request(wire.PUBLISH, TEMPORARY, "x")


@row(
    wire.SUBSCRIBE,
    "to a queue",
    PERMITTED,
    permission=Operation.CONSUME,
    changes=True,
    reveals=PERMITTED,
)
def _subscribe(cell: VibemqCell) -> None:
    cell.fixture.create_owned()
    cell.request(wire.SUBSCRIBE, QUEUE)


@row(wire.SUBSCRIBE, "to a topic", PERMITTED, permission=Operation.CONSUME, changes=True)
def _subscribe_topic(cell: VibemqCell) -> None:
    cell.fixture.create_owned(TOPIC, Kind.TOPIC)
    cell.request(wire.SUBSCRIBE, TOPIC)


@row(wire.SUBSCRIBE, "to a reply address", NO_ACTOR)
def _subscribe_reply(cell: VibemqCell) -> None:
    _, reply = cell.fixture.open_query()
    cell.request(wire.SUBSCRIBE, reply)


@row(wire.UNSUBSCRIBE, "of a connection", OWNER_ONLY, changes=True, has_response=False)
def _unsubscribe(cell: VibemqCell) -> None:
    cell.fixture.create_owned()
    cell.owner.subscribe(QUEUE)
    cell.use_owners_connection()
    cell.request(wire.UNSUBSCRIBE, QUEUE)


@row(wire.ACK, "of a delivery", OWNER_ONLY, changes=True, has_response=False)
def _acknowledge(cell: VibemqCell) -> None:
    cell.fixture.create_owned()
    [delivery] = cell.owner.subscribe(QUEUE)
    cell.use_owners_connection()
    cell.issue(Frame(wire.ACK, delivery), has_response=False)


@row(wire.CREATE_QUEUE, "", PERMITTED, permission=Operation.CREATE, changes=True)
def _create(cell: VibemqCell) -> None:
    cell.request(wire.CREATE_QUEUE, "own.new", {})


@row(wire.CREATE_QUEUE, "of a queue that PHPMQ clients use", PERMITTED, permission=Operation.CREATE)
def _create_used(cell: VibemqCell) -> None:
    cell.fixture.create_owned(by=CreatedBy.PHPMQ)
    cell.request(wire.CREATE_QUEUE, QUEUE, {"maxQueueSize": 1})


@row(wire.CREATE_QUEUE, "of a queue in use", PERMITTED, permission=Operation.CREATE, changes=True)
def _create_automatic(cell: VibemqCell) -> None:
    cell.fixture.broker.destinations.queue(QUEUE, by=CreatedBy.VIBEMQ)
    cell.request(wire.CREATE_QUEUE, QUEUE, {"maxQueueSize": 1})


@row(wire.CREATE_QUEUE, "with the owner's dead-letter queue", PERMITTED, changes=True)
def _create_with_dead_letters(cell: VibemqCell) -> None:
    cell.fixture.create_owned()
    options = {"enableDeadLetterQueue": True, "deadLetterQueueName": QUEUE}
    cell.request(wire.CREATE_QUEUE, cell.name("new"), options)


@row(wire.DELETE_QUEUE, "", PERMITTED, permission=Operation.DELETE, changes=True)
def _delete(cell: VibemqCell) -> None:
    cell.fixture.create_owned(by=CreatedBy.VIBEMQ)
    cell.request(wire.DELETE_QUEUE, QUEUE)


@row(wire.DELETE_QUEUE, "of no queue", PERMITTED, permission=Operation.DELETE)
def _delete_none(cell: VibemqCell) -> None:
    cell.request(wire.DELETE_QUEUE, "own.new")


@row(wire.DELETE_QUEUE, "of the configuration", NO_ACTOR)
def _delete_configured(cell: VibemqCell) -> None:
    cell.fixture.create_owned(by=CreatedBy.CONFIGURATION)
    cell.request(wire.DELETE_QUEUE, QUEUE)


@row(wire.DELETE_QUEUE, "of an administrator", NO_ACTOR)
def _delete_managed(cell: VibemqCell) -> None:
    cell.fixture.create_owned(by=CreatedBy.MANAGEMENT)
    cell.request(wire.DELETE_QUEUE, QUEUE)


@row(wire.DELETE_QUEUE, "of another protocol", NO_ACTOR)
def _delete_foreign(cell: VibemqCell) -> None:
    cell.fixture.create_owned(by=CreatedBy.PHPMQ)
    cell.request(wire.DELETE_QUEUE, QUEUE)


@row(wire.DELETE_QUEUE, "with a consumer of another protocol", NO_ACTOR)
def _delete_consumed(cell: VibemqCell) -> None:
    broker = cell.fixture.broker
    queue = cell.fixture.create_owned(by=CreatedBy.VIBEMQ)
    broker.attach(queue.queue, Reader(broker), Window(0, True))
    cell.request(wire.DELETE_QUEUE, QUEUE)


@row(wire.DELETE_QUEUE, "with the dead letters of a queue", NO_ACTOR)
def _delete_with_dead_letters(cell: VibemqCell) -> None:
    cell.fixture.create_owned(by=CreatedBy.VIBEMQ)
    cell.fixture.create_owned("own.source", dead_letter=True, dead_letter_queue=QUEUE)
    cell.request(wire.DELETE_QUEUE, QUEUE)


@row(wire.DELETE_QUEUE, "of another protocol if allowed", PERMITTED, changes=True)
def _delete_foreign_allowed(cell: VibemqCell) -> None:
    cell.fixture.create_owned(by=CreatedBy.PHPMQ)
    cell.peer = cell.connect(cell.actor, SessionOptions(foreign_delete=True))
    cell.request(wire.DELETE_QUEUE, QUEUE)


@row(
    wire.QUEUE_INFO,
    "",
    PERMITTED,
    permission=Operation.BROWSE,
    reveals=PERMITTED,
    marker="messageCount",
)
def _info(cell: VibemqCell) -> None:
    cell.fixture.create_owned()
    cell.request(wire.QUEUE_INFO, QUEUE)


@row(
    wire.QUEUE_INFO, "of no queue", PERMITTED, permission=Operation.BROWSE, marker="QUEUE_NOT_FOUND"
)
def _info_of_none(cell: VibemqCell) -> None:
    cell.request(wire.QUEUE_INFO, "own.new")
    if cell.outcome == "QUEUE_NOT_FOUND":
        cell.outcome = ALLOWED


@row(wire.LIST_QUEUES, "", LOGGED_IN, reveals=PERMITTED, marker=QUEUE)
def _list(cell: VibemqCell) -> None:
    cell.fixture.create_owned()
    cell.request(wire.LIST_QUEUES)


@row(wire.CREATE_USER, "", SUPERUSER_ONLY, changes=True)
def _create_user(cell: VibemqCell) -> None:
    cell.administer(wire.CREATE_USER, "new", password=PASSWORD)


@row(wire.DELETE_USER, "", SUPERUSER_ONLY, changes=True)
def _delete_user(cell: VibemqCell) -> None:
    cell.administer(wire.DELETE_USER, VICTIM)


@row(wire.CHANGE_PASSWORD, "of another", SUPERUSER_ONLY, changes=True)
def _change_password(cell: VibemqCell) -> None:
    cell.administer(wire.CHANGE_PASSWORD, VICTIM, newPassword="another one")


@row(wire.CHANGE_PASSWORD, "of one's own", LOGGED_IN, changes=True)
def _change_own_password(cell: VibemqCell) -> None:
    cell.administer(
        wire.CHANGE_PASSWORD,
        cell.fixture.users.names.get(cell.actor, VICTIM),
        newPassword="another one",
    )


@row(wire.GRANT_PERMISSION, "to another", SUPERUSER_ONLY, changes=True)
def _grant(cell: VibemqCell) -> None:
    fields = {"queuePattern": "own.*", "operations": ["Subscribe"]}
    cell.administer(wire.GRANT_PERMISSION, VICTIM, **fields)


@row(wire.GRANT_PERMISSION, "to oneself", SUPERUSER_ONLY, changes=True)
def _grant_oneself(cell: VibemqCell) -> None:
    fields = {"queuePattern": "own.queue", "operations": ["Subscribe"]}
    cell.administer(
        wire.GRANT_PERMISSION, cell.fixture.users.names.get(cell.actor, VICTIM), **fields
    )


@row(wire.REVOKE_PERMISSION, "", SUPERUSER_ONLY, changes=True)
def _revoke(cell: VibemqCell) -> None:
    cell.administer(wire.REVOKE_PERMISSION, VICTIM, queuePattern="own.*")


@row(wire.LIST_USERS, "", SUPERUSER_ONLY, reveals=SUPERUSER_ONLY, marker=VICTIM)
def _list_users(cell: VibemqCell) -> None:
    cell.administer(wire.LIST_USERS, "")


@row(wire.REVOKE_PERMISSION, "of no user", SUPERUSER_ONLY)
def _revoke_of_none(cell: VibemqCell) -> None:
    cell.request(
        wire.REVOKE_PERMISSION, payload={"username": "no-such-user", "queuePattern": "own.*"}
    )


@row(
    wire.GET_USER_PERMISSIONS, "of another", SUPERUSER_ONLY, reveals=SUPERUSER_ONLY, marker="own.*"
)
def _permissions(cell: VibemqCell) -> None:
    cell.administer(wire.GET_USER_PERMISSIONS, VICTIM)


@row(wire.GET_USER_PERMISSIONS, "of oneself", LOGGED_IN, reveals=OWNER_ONLY, marker="own.*")
def _own_permissions(cell: VibemqCell) -> None:
    cell.administer(wire.GET_USER_PERMISSIONS, cell.fixture.users.names.get(cell.actor, VICTIM))


# --- tests ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerFixture]:
    fixture = BrokerFixture(Path(tmp_path_factory.mktemp("vibemq")))
    yield fixture
    fixture.close()


@parametrize_cells(TABLE.rows)
def test_command_is_permitted_to_its_actors(
    broker: BrokerFixture, row: Row[VibemqCell], actor: Actor
) -> None:
    broker.reset(row.permission)
    cell = VibemqCell(broker, actor)
    row.issue(cell)
    check_cell(row, cell)


def test_every_command_of_clients_has_a_row() -> None:
    check_complete(TABLE.rows, {NAMES[kind] for kind in wire.FROM_CLIENT})


@pytest.mark.parametrize("kind", sorted(set(NAMES) - wire.FROM_CLIENT), ids=NAMES.get)
def test_commands_of_brokers_are_not_served(broker: BrokerFixture, kind: int) -> None:
    broker.reset()
    cell = VibemqCell(broker, Actor.ROOT)
    broker.create_owned()
    cell.request(kind, QUEUE)
    assert cell.outcome == "UNKNOWN_COMMAND"
    assert cell.before == cell.after
