"""Every packet of JMS clients, by every actor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from sluicemq.model.access import Operation
from sluicemq.model.destination import Kind
from sluicemq.protocols.java import Long
from sluicemq.protocols.jmq.connection import SessionOptions
from sluicemq.protocols.jmq.destinations import DEAD_MESSAGES
from sluicemq.protocols.jmq.fields import XID_SIZE, encode_header
from sluicemq.protocols.jmq.packets import (
    LAST_MESSAGE_TYPE,
    A,
    AckMode,
    PacketType,
    Status,
    XaFlag,
)
from sluicemq.protocols.jmq.session import JmqSession
from sluicemq.protocols.jmq.wire import Packet, encode_packet
from tests.authorization.fixture import QUEUE, TOPIC, WRONG_TOKEN, BrokerFixture
from tests.authorization.matrix import (
    ALLOWED,
    DENIED,
    EVERYBODY,
    LOGGED_IN,
    NO_ACTOR,
    OWNER_ONLY,
    RIGHTS,
    ROOT_ONLY,
    SECRET,
    Actor,
    Cell,
    Row,
    Table,
    cells,
    check,
    check_complete,
)
from tests.protocols.jmq.harness import Peer, blocks, login, status, xid

TEMPORARY: Final = "temporary_destination://queue/own/1"
CLIENT_ID: Final = "own-client"
DURABLE: Final = "own-durable"
XID: Final = xid("own")

REFUSALS: Final = frozenset(
    {
        Status.UNAUTHORIZED,
        Status.FORBIDDEN,
        Status.NOT_FOUND,
        Status.NOT_ALLOWED,
        Status.CONFLICT,
        Status.GONE,
    }
)
"""Statuses of what an actor may not do, or may not know of."""
NOT_FROM_CLIENTS: Final = frozenset(
    kind
    for kind in PacketType
    if kind.name.endswith("_REPLY") and kind is not PacketType.PING_REPLY
) | {
    PacketType.ERROR,
    PacketType.AUTHENTICATE_REQUEST,
    PacketType.INFO,
    PacketType.DEBUG,
}
"""Packets that only a broker sends."""


class JmqCell(Cell):
    """A connection of the actor, and one of the owner: the same if the row asks for that."""

    def __init__(self, fixture: BrokerFixture, actor: Actor) -> None:
        super().__init__(actor)
        self.fixture = fixture
        self.numbers: dict[Peer, int] = {}
        """JMQConnectionIDs."""
        self.owner = self.connect(Actor.OWNER)
        fixture.owners.append(self.owner.transport)
        self.peer = self.connect(actor)

    def open_connection(self, **properties: object) -> Peer:
        """Connect, and say HELLO."""
        fixture = self.fixture
        transport = fixture.transport()
        access = fixture.with_login(transport, "jmq")
        options = SessionOptions(authentication="basic")
        session = JmqSession(transport, fixture.broker, fixture.coordinator, access, options)
        peer = Peer(fixture, transport, session)
        answer = peer.hello(**properties)
        self.numbers[peer] = int(str(answer.properties["JMQConnectionID"]))
        return peer

    def connect(self, actor: Actor) -> Peer:
        """Connect as that actor."""
        peer = self.open_connection()
        if actor is Actor.REJECTED:
            peer.ask(PacketType.AUTHENTICATE, {}, login("owner", WRONG_TOKEN), expect=413)
        elif actor is not Actor.ANONYMOUS:
            token = self.fixture.users.tokens[actor]
            peer.ask(PacketType.AUTHENTICATE, {}, login("", token), expect=200)
            peer.send_packet(PacketType.START)
        return peer

    def on_owners_connection(self) -> None:
        """Let the owner issue the command on the connection that the resources belong to."""
        if self.actor is Actor.OWNER:
            self.peer = self.owner

    def name(self, rest: str) -> str:
        """Return a name at which the actor has rights if it has any."""
        return f"other.{rest}" if self.actor is Actor.OTHER else f"own.{rest}"

    # --- the command -------------------------------------------------------------------------

    def ask(
        self,
        kind: int,
        properties: dict[str, Any] | None = None,
        body: bytes = b"",
        flags: int = A,
        header: bytes = b"",
    ) -> Packet | None:
        """Issue a command; return its answer."""
        peer = self.peer
        peer.numbers += 1
        data = encode_packet(kind, flags, peer.numbers, properties or {}, header, body)
        return self._issue(data)

    def publish(self, kind: int, name: str, **how: Any) -> None:
        """Issue a message to that queue."""
        self.peer.numbers += 1
        flags = how.pop("flags", A)
        number = self.peer.numbers
        self._issue(self.peer.message(name, "x", flags=flags, kind=kind, consumer_id=number, **how))

    def _issue(self, data: bytes) -> Packet | None:
        peer = self.peer
        peer.inbox = []
        peer.receive()
        if self.before is None:
            self.before = self.fixture.snapshot()
        peer.send_bytes(data)
        self.received += peer.transport.written
        packets = peer.receive()
        answers = [p for p in packets if p.consumer_id == peer.numbers and not p.is_message]
        self.after = self.fixture.snapshot()
        answer = answers[0] if answers else None
        self.outcome = self._outcome_of(answer)
        return answer

    def _outcome_of(self, answer: Packet | None) -> str:
        if answer is None:
            return DENIED if self.actor is Actor.REJECTED else "no answer"
        reply_status = status(answer)
        if reply_status == Status.OK:
            return ALLOWED
        before_login = self.actor is Actor.ANONYMOUS and reply_status == Status.ERROR
        if reply_status in REFUSALS or before_login or reply_status == Status.INVALID_LOGIN:
            return DENIED
        return f"{reply_status!r}: {answer.properties.get('JMQReason')!r}"

    # --- resources of the owner --------------------------------------------------------------

    def consumer(self, topic: bool = False) -> int:
        """Let the owner's connection consume; return the consumer's number."""
        if topic:
            self.fixture.owned(TOPIC, Kind.TOPIC)
        else:
            self.fixture.owned()
        session = self.owner.create_session(AckMode.CLIENT)
        return self.owner.consume(TOPIC if topic else QUEUE, session, topic)

    def delivery(self) -> Packet:
        """Return the message that the owner's connection holds unacknowledged."""
        self.consumer()
        [packet] = self.owner.delivered()
        return packet

    def temporary(self) -> None:
        """Create a temporary queue of the owner's connection, with a message."""
        assert self.owner.create(TEMPORARY, temporary=True) == Status.OK
        self.owner.send(TEMPORARY, SECRET)

    def durable(self, topic: str = TOPIC, close: bool = True) -> None:
        """Create a durable subscription of the owner with a message; its client leaves."""
        if "*" not in topic:
            self.fixture.owned(TOPIC, Kind.TOPIC)
        client = self.connect(Actor.OWNER)
        client.ask(PacketType.SET_CLIENTID, {"JMQClientID": CLIENT_ID}, expect=200)
        session = client.create_session(AckMode.CLIENT)
        client.consume(topic, session, True, JMQDurableName=DURABLE)
        if close:
            client.drop()
            if "*" not in topic:
                self.owner.send(TOPIC, SECRET, topic=True)

    def branch(self, *steps: str) -> int:
        """Start a branch of a distributed transaction of the owner, and take it as far as the
        steps say ("end", "prepare"). Return its number."""
        self.fixture.owned()
        started = self.owner.ask(PacketType.START_TRANSACTION, {}, XID, expect=200)
        number = int(str(started.properties["JMQTransactionID"]))
        self.owner.send(QUEUE, SECRET, transaction_id=number)
        if "end" in steps:
            flags = {"JMQXAFlags": XaFlag.SUCCESS}
            self.owner.ask(PacketType.END_TRANSACTION, flags, XID, expect=200)
        if "prepare" in steps:
            self.owner.ask(PacketType.PREPARE_TRANSACTION, {}, XID, expect=200)
        return number


# --- rows ----------------------------------------------------------------------------------------

TABLE: Final[Table[JmqCell]] = Table()
row = TABLE.row


def harmless(kind: PacketType, properties: dict[str, Any] | None = None, **more: Any) -> None:
    """Add a row for what everybody may do who has logged in, or everybody in `allowed`."""
    allowed = more.pop("allowed", LOGGED_IN)

    @row(kind, "", allowed, reveals=NO_ACTOR, **more)
    def issue(cell: JmqCell) -> None:
        cell.fixture.owned()
        cell.ask(kind, properties)


# messages


def _message(kind: PacketType) -> None:
    @row(kind, "to a queue", RIGHTS, right=Operation.PRODUCE, changes=True)
    def to_queue(cell: JmqCell) -> None:
        cell.fixture.owned()
        cell.publish(kind, QUEUE)

    @row(kind, "to a temporary queue", LOGGED_IN, changes=True)
    def to_temporary(cell: JmqCell) -> None:
        cell.temporary()
        cell.publish(kind, TEMPORARY)

    @row(kind, "in a transaction", OWNER_ONLY, changes=True)
    def in_transaction(cell: JmqCell) -> None:
        number = cell.branch()
        cell.on_owners_connection()
        cell.publish(kind, QUEUE, transaction_id=number)


for _kind in [kind for kind in PacketType if kind <= LAST_MESSAGE_TYPE]:
    _message(_kind)

# the connection

harmless(PacketType.GOODBYE, allowed=LOGGED_IN | {Actor.ANONYMOUS})
harmless(PacketType.PING, allowed=LOGGED_IN | {Actor.ANONYMOUS})
harmless(PacketType.PING_REPLY, answered=False)
harmless(PacketType.FLOW_PAUSED, answered=False)
harmless(PacketType.GENERATE_UID)
harmless(PacketType.GET_LICENSE)
harmless(PacketType.INFO_REQUEST, {"JMQRequestType": 1})
harmless(PacketType.CREATE_SESSION, {"JMQAckMode": int(AckMode.AUTO)})
harmless(PacketType.START, answered=False)
harmless(PacketType.STOP)
harmless(PacketType.START_TRANSACTION, changes=True)


@row(PacketType.HELLO, "", EVERYBODY)
def _hello(cell: JmqCell) -> None:
    transport = cell.fixture.transport()
    access = cell.fixture.with_login(transport, "jmq")
    session = JmqSession(transport, cell.fixture.broker, cell.fixture.coordinator, access)
    cell.peer = Peer(cell.fixture, transport, session)
    cell.ask(PacketType.HELLO, {"JMQProtocolLevel": 500, "JMQVersion": "1"})


@row(PacketType.AUTHENTICATE, "in place of a connection", OWNER_ONLY, changes=True, answered=False)
def _supersede(cell: JmqCell) -> None:
    old_peer = cell.open_connection(JMQReconnectable=True)
    old_peer.ask(
        PacketType.AUTHENTICATE, {}, login("", cell.fixture.users.tokens[Actor.OWNER]), expect=200
    )
    cell.fixture.owners.append(old_peer.transport)
    cell.peer = cell.open_connection(JMQConnectionID=Long(cell.numbers[old_peer]))
    token = cell.fixture.users.tokens.get(cell.actor, WRONG_TOKEN)
    cell.ask(PacketType.AUTHENTICATE, {}, login("owner", token))


@row(PacketType.AUTHENTICATE, "", LOGGED_IN)
def _authenticate(cell: JmqCell) -> None:
    cell.peer = cell.open_connection()
    cell.ask(
        PacketType.AUTHENTICATE,
        {},
        login("owner", cell.fixture.users.tokens.get(cell.actor, WRONG_TOKEN)),
    )


@row(PacketType.SET_CLIENTID, "unused", LOGGED_IN)
def _client_id(cell: JmqCell) -> None:
    cell.ask(PacketType.SET_CLIENTID, {"JMQClientID": "unused"})


@row(PacketType.SET_CLIENTID, "of an offline client with subscriptions", RIGHTS)
def _owned_client_id(cell: JmqCell) -> None:
    cell.durable()
    cell.ask(PacketType.SET_CLIENTID, {"JMQClientID": CLIENT_ID})


@row(PacketType.DESTROY_SESSION, "of a connection", OWNER_ONLY, changes=True)
def _destroy_session(cell: JmqCell) -> None:
    cell.fixture.owned()
    session = cell.owner.create_session(AckMode.CLIENT)
    cell.owner.consume(QUEUE, session)
    cell.on_owners_connection()
    cell.ask(PacketType.DESTROY_SESSION, {"JMQSessionID": Long(session)})


# consumers and producers


def _consume(cell: JmqCell, name: str, topic: bool = False, **more: Any) -> None:
    """ADD_CONSUMER, with a session of the actor's if it can have one."""
    session = 1
    if cell.actor in LOGGED_IN:
        session = cell.peer.create_session(AckMode.CLIENT)
    properties = {
        **cell.peer.destination_properties(name, topic),
        "JMQSessionID": Long(session),
        "JMQSize": 10,
    }
    cell.ask(PacketType.ADD_CONSUMER, {**properties, **more})


@row(
    PacketType.ADD_CONSUMER,
    "of a queue",
    RIGHTS,
    right=Operation.CONSUME,
    changes=True,
    reveals=RIGHTS,
)
def _consume_queue(cell: JmqCell) -> None:
    cell.fixture.owned()
    _consume(cell, QUEUE)


@row(PacketType.ADD_CONSUMER, "of a topic", RIGHTS, right=Operation.CONSUME, changes=True)
def _consume_topic(cell: JmqCell) -> None:
    cell.fixture.owned(TOPIC, Kind.TOPIC)
    _consume(cell, TOPIC, True)


@row(PacketType.ADD_CONSUMER, "of a wildcard", RIGHTS, right=Operation.CONSUME, changes=True)
def _consume_wildcard(cell: JmqCell) -> None:
    cell.fixture.owned(TOPIC, Kind.TOPIC)
    _consume(cell, "own.>", True)


@row(PacketType.ADD_CONSUMER, "of the dead message queue", ROOT_ONLY, changes=True)
def _consume_dead_messages(cell: JmqCell) -> None:
    _consume(cell, DEAD_MESSAGES.name)


@row(PacketType.ADD_CONSUMER, "of the broker's metrics", ROOT_ONLY, changes=True)
def _consume_metrics(cell: JmqCell) -> None:
    _consume(cell, "mq.metrics.broker", True)


@row(
    PacketType.ADD_CONSUMER,
    "of a temporary queue",
    OWNER_ONLY,
    changes=True,
    reveals=OWNER_ONLY,
)
def _consume_temporary(cell: JmqCell) -> None:
    cell.temporary()
    cell.on_owners_connection()
    _consume(cell, TEMPORARY)


@row(PacketType.ADD_CONSUMER, "of a durable subscription", RIGHTS, changes=True, reveals=RIGHTS)
def _consume_durable(cell: JmqCell) -> None:
    cell.durable()
    cell.ask(PacketType.SET_CLIENTID, {"JMQClientID": CLIENT_ID})
    if cell.outcome == ALLOWED:
        _consume(cell, TOPIC, True, JMQDurableName=DURABLE)


@row(PacketType.ADD_CONSUMER, "in place of a durable subscription", RIGHTS, changes=True)
def _replace_durable(cell: JmqCell) -> None:
    cell.durable()
    name = cell.name("another.topic")
    cell.fixture.owned(name, Kind.TOPIC)
    cell.ask(PacketType.SET_CLIENTID, {"JMQClientID": CLIENT_ID})
    if cell.outcome == ALLOWED:
        _consume(cell, name, True, JMQDurableName=DURABLE)


@row(PacketType.ADD_CONSUMER, "in place of a shared durable subscription", RIGHTS, changes=True)
def _replace_shared(cell: JmqCell) -> None:
    cell.fixture.owned(TOPIC, Kind.TOPIC)
    client = cell.connect(Actor.OWNER)
    session = client.create_session(AckMode.CLIENT)
    client.consume(TOPIC, session, True, JMQDurableName=DURABLE, JMQJMSShare=True)
    client.drop()
    cell.owner.send(TOPIC, SECRET, topic=True)
    name = cell.name("another.topic")
    cell.fixture.owned(name, Kind.TOPIC)
    _consume(cell, name, True, JMQDurableName=DURABLE, JMQJMSShare=True)


@row(PacketType.DELETE_CONSUMER, "of a connection", OWNER_ONLY, changes=True)
def _delete_consumer(cell: JmqCell) -> None:
    number = cell.consumer(topic=True)
    cell.on_owners_connection()
    cell.ask(PacketType.DELETE_CONSUMER, {"JMQConsumerID": Long(number)})


@row(PacketType.DELETE_CONSUMER, "that is a durable subscription", RIGHTS, changes=True)
def _unsubscribe(cell: JmqCell) -> None:
    cell.durable()
    cell.ask(PacketType.DELETE_CONSUMER, {"JMQDurableName": DURABLE, "JMQClientID": CLIENT_ID})


@row(
    PacketType.DELETE_CONSUMER,
    "that is a durable subscription of a wildcard",
    RIGHTS,
    changes=True,
)
def _unsubscribe_wildcard(cell: JmqCell) -> None:
    cell.durable("own.none.*")
    cell.ask(PacketType.DELETE_CONSUMER, {"JMQDurableName": DURABLE, "JMQClientID": CLIENT_ID})


@row(PacketType.RESUME_FLOW, "of a consumer", OWNER_ONLY, changes=True, answered=False)
def _resume(cell: JmqCell) -> None:
    cell.fixture.owned()
    session = cell.owner.create_session(AckMode.CLIENT)
    number = cell.owner.consume(QUEUE, session, size=0)
    cell.on_owners_connection()
    cell.ask(PacketType.RESUME_FLOW, {"JMQConsumerID": Long(number), "JMQSize": 10}, flags=0)


@row(PacketType.ADD_PRODUCER, "of a queue", RIGHTS, right=Operation.PRODUCE)
def _produce(cell: JmqCell) -> None:
    cell.fixture.owned()
    cell.ask(PacketType.ADD_PRODUCER, cell.peer.destination_properties(QUEUE))


@row(PacketType.ADD_PRODUCER, "of a temporary queue", LOGGED_IN)
def _produce_temporary(cell: JmqCell) -> None:
    cell.temporary()
    cell.ask(PacketType.ADD_PRODUCER, cell.peer.destination_properties(TEMPORARY))


@row(PacketType.DELETE_PRODUCER, "of a connection", OWNER_ONLY)
def _delete_producer(cell: JmqCell) -> None:
    cell.fixture.owned()
    answer = cell.owner.ask(
        PacketType.ADD_PRODUCER, cell.owner.destination_properties(QUEUE), expect=200
    )
    number = Long(int(str(answer.properties["JMQProducerID"])))
    cell.on_owners_connection()
    cell.ask(PacketType.DELETE_PRODUCER, {"JMQProducerID": number})


# deliveries


@row(PacketType.ACKNOWLEDGE, "of a delivery", OWNER_ONLY, changes=True, answered=False)
def _acknowledge(cell: JmqCell) -> None:
    packet = cell.delivery()
    cell.on_owners_connection()
    cell.ask(PacketType.ACKNOWLEDGE, {}, blocks(packet), header=encode_header())


@row(PacketType.ACKNOWLEDGE, "as undeliverable", OWNER_ONLY, changes=True, answered=False)
def _give_up(cell: JmqCell) -> None:
    packet = cell.delivery()
    cell.on_owners_connection()
    properties = {"JMQAckType": 2, "JMQDeadReason": 0}
    cell.ask(PacketType.ACKNOWLEDGE, properties, blocks(packet), header=encode_header())


@row(PacketType.REDELIVER, "of a delivery", OWNER_ONLY, changes=True, answered=False)
def _redeliver(cell: JmqCell) -> None:
    packet = cell.delivery()
    cell.owner.send_packet(PacketType.STOP, flags=A)
    cell.owner.receive()
    cell.on_owners_connection()
    properties = {"JMQSetRedelivered": True}
    header = encode_header()
    cell.ask(PacketType.REDELIVER, properties, blocks(packet), flags=0, header=header)


# destinations


@row(PacketType.BROWSE, "of a queue", RIGHTS, right=Operation.BROWSE)
def _browse(cell: JmqCell) -> None:
    cell.fixture.owned()
    cell.ask(PacketType.BROWSE, cell.peer.destination_properties(QUEUE))


@row(PacketType.BROWSE, "of a queue's metrics", RIGHTS, right=Operation.BROWSE)
def _browse_metrics(cell: JmqCell) -> None:
    cell.fixture.owned()
    cell.ask(PacketType.BROWSE, {**cell.peer.destination_properties(QUEUE), "JMQMetrics": True})


@row(PacketType.BROWSE, "of a temporary queue", OWNER_ONLY)
def _browse_temporary(cell: JmqCell) -> None:
    cell.temporary()
    cell.on_owners_connection()
    cell.ask(PacketType.BROWSE, cell.peer.destination_properties(TEMPORARY))


@row(PacketType.DELIVER, "of a browsed queue", OWNER_ONLY, reveals=OWNER_ONLY)
def _deliver(cell: JmqCell) -> None:
    cell.fixture.owned()
    answer = cell.owner.ask(PacketType.BROWSE, cell.owner.destination_properties(QUEUE), expect=200)
    number = Long(int(str(answer.properties["JMQConsumerID"])))
    cell.on_owners_connection()
    cell.ask(PacketType.DELIVER, {"JMQConsumerID": number}, answer.body)


@row(PacketType.CREATE_DESTINATION, "by name", RIGHTS, changes=True)
def _create(cell: JmqCell) -> None:
    cell.ask(PacketType.CREATE_DESTINATION, cell.peer.destination_properties("own.new"))


@row(PacketType.CREATE_DESTINATION, "that is temporary", LOGGED_IN, changes=True)
def _create_temporary(cell: JmqCell) -> None:
    properties = cell.peer.destination_properties(
        "temporary_destination://queue/x/2", temporary=True
    )
    cell.ask(PacketType.CREATE_DESTINATION, properties)


@row(
    PacketType.CREATE_DESTINATION,
    "that is temporary, of any name",
    RIGHTS,
    right=Operation.CREATE,
    changes=True,
)
def _create_temporary_by_name(cell: JmqCell) -> None:
    cell.ask(
        PacketType.CREATE_DESTINATION, cell.peer.destination_properties("own.new", temporary=True)
    )


@row(PacketType.CREATE_DESTINATION, "that is temporary, of a name in use", NO_ACTOR)
def _create_temporary_again(cell: JmqCell) -> None:
    cell.temporary()
    cell.ask(
        PacketType.CREATE_DESTINATION, cell.peer.destination_properties(TEMPORARY, temporary=True)
    )


@row(PacketType.DESTROY_DESTINATION, "by name", RIGHTS, right=Operation.DELETE, changes=True)
def _destroy(cell: JmqCell) -> None:
    cell.fixture.owned()
    cell.ask(PacketType.DESTROY_DESTINATION, cell.peer.destination_properties(QUEUE))


@row(PacketType.DESTROY_DESTINATION, "that is temporary", OWNER_ONLY, changes=True)
def _destroy_temporary(cell: JmqCell) -> None:
    cell.temporary()
    cell.on_owners_connection()
    cell.ask(PacketType.DESTROY_DESTINATION, cell.peer.destination_properties(TEMPORARY))


@row(PacketType.VERIFY_DESTINATION, "by name", RIGHTS, right=Operation.BROWSE)
def _verify(cell: JmqCell) -> None:
    cell.fixture.owned()
    cell.ask(PacketType.VERIFY_DESTINATION, cell.peer.destination_properties(QUEUE))


@row(PacketType.VERIFY_DESTINATION, "that is temporary", OWNER_ONLY)
def _verify_temporary(cell: JmqCell) -> None:
    cell.temporary()
    cell.on_owners_connection()
    cell.ask(PacketType.VERIFY_DESTINATION, cell.peer.destination_properties(TEMPORARY))


# transactions


@row(PacketType.START_TRANSACTION, "that is joined", RIGHTS, changes=True)
def _join(cell: JmqCell) -> None:
    cell.branch("end")
    cell.ask(PacketType.START_TRANSACTION, {"JMQXAFlags": XaFlag.JOIN}, XID)


@row(PacketType.END_TRANSACTION, "of an Xid", RIGHTS, changes=True)
def _end(cell: JmqCell) -> None:
    cell.branch()
    cell.ask(PacketType.END_TRANSACTION, {"JMQXAFlags": XaFlag.SUCCESS}, XID)


@row(PacketType.PREPARE_TRANSACTION, "of an Xid", RIGHTS, changes=True)
def _prepare(cell: JmqCell) -> None:
    cell.branch("end")
    cell.ask(PacketType.PREPARE_TRANSACTION, {}, XID)


@row(PacketType.COMMIT_TRANSACTION, "or is not prepared", RIGHTS, changes=True)
def _commit(cell: JmqCell) -> None:
    cell.branch("end", "prepare")
    cell.ask(PacketType.COMMIT_TRANSACTION, {}, XID)


@row(PacketType.COMMIT_TRANSACTION, "that is not prepared", RIGHTS, changes=True)
def _commit_at_once(cell: JmqCell) -> None:
    cell.branch("end")
    cell.ask(PacketType.COMMIT_TRANSACTION, {"JMQXAFlags": XaFlag.ONEPHASE}, XID)


def _local(cell: JmqCell) -> dict[str, Any]:
    cell.fixture.owned()
    number = cell.owner.begin()
    cell.owner.send(QUEUE, SECRET, transaction_id=number)
    cell.on_owners_connection()
    return {"JMQTransactionID": Long(number)}


@row(PacketType.COMMIT_TRANSACTION, "of a connection", OWNER_ONLY, changes=True)
def _commit_local(cell: JmqCell) -> None:
    cell.ask(PacketType.COMMIT_TRANSACTION, _local(cell))


@row(PacketType.ROLLBACK_TRANSACTION, "of a connection", OWNER_ONLY, changes=True)
def _roll_back_local(cell: JmqCell) -> None:
    cell.ask(PacketType.ROLLBACK_TRANSACTION, _local(cell))


@row(PacketType.ROLLBACK_TRANSACTION, "or is not prepared", RIGHTS, changes=True)
def _roll_back(cell: JmqCell) -> None:
    cell.branch("end", "prepare")
    cell.ask(PacketType.ROLLBACK_TRANSACTION, {}, XID)


@row(PacketType.ROLLBACK_TRANSACTION, "that is not prepared", RIGHTS, changes=True)
def _roll_back_early(cell: JmqCell) -> None:
    cell.branch("end")
    cell.ask(PacketType.ROLLBACK_TRANSACTION, {}, XID)


@row(PacketType.RECOVER_TRANSACTION, "of all", LOGGED_IN, reveals=RIGHTS, marker=XID.hex())
def _recover(cell: JmqCell) -> None:
    cell.branch("end", "prepare")
    flags = XaFlag.STARTRSCAN | XaFlag.ENDRSCAN
    answer = cell.ask(PacketType.RECOVER_TRANSACTION, {"JMQXAFlags": flags})
    body = b"" if answer is None else answer.body
    assert not len(body) % XID_SIZE
    cell.received = body.hex().encode()


@row(PacketType.RECOVER_TRANSACTION, "of a number", RIGHTS)
def _recover_number(cell: JmqCell) -> None:
    number = cell.branch("end", "prepare")
    cell.ask(PacketType.RECOVER_TRANSACTION, {"JMQTransactionID": Long(number)})


@row(PacketType.VERIFY_TRANSACTION, "of an Xid", RIGHTS)
def _verify_transaction(cell: JmqCell) -> None:
    cell.branch("end", "prepare")
    cell.ask(PacketType.VERIFY_TRANSACTION, {}, XID)


# --- tests ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerFixture]:
    fixture = BrokerFixture(Path(tmp_path_factory.mktemp("jmq")))
    yield fixture
    fixture.close()


@cells(TABLE.rows)
def test_packet(broker: BrokerFixture, row: Row[JmqCell], actor: Actor) -> None:
    broker.begin(row.right)
    cell = JmqCell(broker, actor)
    row.issue(cell)
    check(row, cell)


def test_every_packet_of_clients_has_a_row() -> None:
    check_complete(TABLE.rows, set(PacketType) - NOT_FROM_CLIENTS)


@pytest.mark.parametrize("kind", sorted(NOT_FROM_CLIENTS), ids=lambda kind: kind.name)
def test_packets_of_brokers_are_not_served(broker: BrokerFixture, kind: PacketType) -> None:
    broker.begin()
    cell = JmqCell(broker, Actor.ROOT)
    broker.owned()
    answer = cell.ask(kind)
    assert answer is None or status(answer) == Status.NOT_IMPLEMENTED
    assert cell.before == cell.after
