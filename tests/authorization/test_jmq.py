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
from sluicemq.protocols.jmq.fields import DEAD_MESSAGES, XID_SIZE, encode_header
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
    ALL_ACTORS,
    ALLOWED,
    DENIED,
    LOGGED_IN,
    NO_ACTOR,
    OWNER_ONLY,
    PERMITTED,
    SECRET,
    SUPERUSER_ONLY,
    Actor,
    Cell,
    Row,
    Table,
    check_cell,
    check_complete,
    parametrize_cells,
)
from tests.protocols.jmq.harness import Peer, blocks, login, status, xid

TEMPORARY: Final = "temporary_destination://queue/own/1"
CLIENT_ID: Final = "own-client"
DURABLE: Final = "own-durable"
XID: Final = xid("own")

DENIALS: Final = frozenset(
    {
        Status.FORBIDDEN,
        Status.NOT_FOUND,
        Status.NOT_ALLOWED,
        Status.CONFLICT,
        Status.GONE,
    }
)
"""Statuses of commands that are not permitted, or whose resource is not visible."""
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
"""Packets that only brokers send."""


class JmqCell(Cell):
    """A connection of the actor, and one of the owner, which may be the same."""

    def __init__(self, fixture: BrokerFixture, actor: Actor) -> None:
        super().__init__(actor)
        self.fixture = fixture
        self.numbers: dict[Peer, int] = {}
        """JMQConnectionID by client."""
        self.owner = self.connect(Actor.OWNER)
        fixture.owner_transports.append(self.owner.transport)
        self.peer = self.connect(actor)

    def open_connection(self, **properties: object) -> Peer:
        """Connect and send HELLO."""
        fixture = self.fixture
        transport = fixture.transport()
        access = fixture.open_with_login(transport, "jmq")
        options = SessionOptions(authentication="basic")
        session = JmqSession(transport, fixture.broker, fixture.coordinator, access, options)
        peer = Peer(fixture, transport, session)
        reply = peer.hello(**properties)
        self.numbers[peer] = int(str(reply.properties["JMQConnectionID"]))
        return peer

    def connect(self, actor: Actor) -> Peer:
        """Connect as the actor."""
        peer = self.open_connection()
        if actor is Actor.REJECTED:
            peer.request(PacketType.AUTHENTICATE, {}, login("owner", WRONG_TOKEN), expect=413)
        elif actor is not Actor.ANONYMOUS:
            token = self.fixture.users.tokens[actor]
            peer.request(PacketType.AUTHENTICATE, {}, login("", token), expect=200)
            peer.send_packet(PacketType.START)
        return peer

    def use_owners_connection(self) -> None:
        """Issue commands of the owner on the connection that owns the resources."""
        if self.actor is Actor.OWNER:
            self.peer = self.owner

    def name(self, rest: str) -> str:
        """Return a name on which the actor has permissions, if it has any."""
        return f"other.{rest}" if self.actor is Actor.OTHER else f"own.{rest}"

    # --- the command -----------------------------------------------------------------------------

    def request(
        self,
        kind: int,
        properties: dict[str, Any] | None = None,
        body: bytes = b"",
        flags: int = A,
        header: bytes = b"",
    ) -> Packet | None:
        """Issue a command and return its reply."""
        peer = self.peer
        peer.numbers += 1
        data = encode_packet(kind, flags, peer.numbers, properties or {}, header, body)
        return self._issue(data)

    def publish(self, kind: int, name: str, **fields: Any) -> None:
        """Publish a message to the queue as the command."""
        self.peer.numbers += 1
        flags = fields.pop("flags", A)
        number = self.peer.numbers
        self._issue(
            self.peer.message(name, "x", flags=flags, kind=kind, consumer_id=number, **fields)
        )

    def _issue(self, data: bytes) -> Packet | None:
        peer = self.peer
        peer.inbox = []
        peer.receive()
        if self.before is None:
            self.before = self.fixture.snapshot()
        peer.send_bytes(data)
        self.received += peer.transport.written
        packets = peer.receive()
        replies = [p for p in packets if p.consumer_id == peer.numbers and not p.is_message]
        self.after = self.fixture.snapshot()
        reply = replies[0] if replies else None
        self.outcome = self._outcome_of(reply)
        return reply

    def _outcome_of(self, reply: Packet | None) -> str:
        if reply is None:
            return DENIED if self.actor is Actor.REJECTED else "no response"
        reply_status = status(reply)
        if reply_status == Status.OK:
            return ALLOWED
        before_login = self.actor is Actor.ANONYMOUS and reply_status == Status.ERROR
        if reply_status in DENIALS or before_login or reply_status == Status.INVALID_LOGIN:
            return DENIED
        return f"{reply_status!r}: {reply.properties.get('JMQReason')!r}"

    # --- resources of the owner ------------------------------------------------------------------

    def consumer(self, topic: bool = False) -> int:
        """Create a consumer on the owner's connection and return its number."""
        if topic:
            self.fixture.create_owned(TOPIC, Kind.TOPIC)
        else:
            self.fixture.create_owned()
        session = self.owner.create_session(AckMode.CLIENT)
        return self.owner.consume(TOPIC if topic else QUEUE, session, topic)

    def delivery(self) -> Packet:
        """Return the message that is unacked on the owner's connection."""
        self.consumer()
        [packet] = self.owner.delivered()
        return packet

    def temporary(self) -> None:
        """Create a temporary queue of the owner's connection, with a message."""
        assert self.owner.create(TEMPORARY, temporary=True) == Status.OK
        self.owner.send(TEMPORARY, SECRET)

    def durable(self, topic: str = TOPIC, close: bool = True) -> None:
        """Create a durable subscription of the owner with a message; with `close`, disconnect."""
        if "*" not in topic:
            self.fixture.create_owned(TOPIC, Kind.TOPIC)
        client = self.connect(Actor.OWNER)
        client.request(PacketType.SET_CLIENTID, {"JMQClientID": CLIENT_ID}, expect=200)
        session = client.create_session(AckMode.CLIENT)
        client.consume(topic, session, True, JMQDurableName=DURABLE)
        if close:
            client.drop()
            if "*" not in topic:
                self.owner.send(TOPIC, SECRET, topic=True)

    def branch(self, *steps: str) -> int:
        """Start a branch of a distributed transaction of the owner and return its number.

        `steps` are "end" and "prepare".
        """
        self.fixture.create_owned()
        started = self.owner.request(PacketType.START_TRANSACTION, {}, XID, expect=200)
        number = int(str(started.properties["JMQTransactionID"]))
        self.owner.send(QUEUE, SECRET, transaction_id=number)
        if "end" in steps:
            flags = {"JMQXAFlags": XaFlag.SUCCESS}
            self.owner.request(PacketType.END_TRANSACTION, flags, XID, expect=200)
        if "prepare" in steps:
            self.owner.request(PacketType.PREPARE_TRANSACTION, {}, XID, expect=200)
        return number


# --- rows ----------------------------------------------------------------------------------------

TABLE: Final[Table[JmqCell]] = Table()
row = TABLE.row


def add_unrestricted(
    kind: PacketType, properties: dict[str, Any] | None = None, **fields: Any
) -> None:
    """Add a row for a command that all users may issue, or the actors in `allowed`."""
    allowed = fields.pop("allowed", LOGGED_IN)

    @row(kind, "", allowed, reveals=NO_ACTOR, **fields)
    def issue(cell: JmqCell) -> None:
        cell.fixture.create_owned()
        cell.request(kind, properties)


# messages


def _message(kind: PacketType) -> None:
    @row(kind, "to a queue", PERMITTED, permission=Operation.PRODUCE, changes=True)
    def to_queue(cell: JmqCell) -> None:
        cell.fixture.create_owned()
        cell.publish(kind, QUEUE)

    @row(kind, "to a temporary queue", LOGGED_IN, changes=True)
    def to_temporary(cell: JmqCell) -> None:
        cell.temporary()
        cell.publish(kind, TEMPORARY)

    @row(kind, "in a transaction", OWNER_ONLY, changes=True)
    def in_transaction(cell: JmqCell) -> None:
        number = cell.branch()
        cell.use_owners_connection()
        cell.publish(kind, QUEUE, transaction_id=number)


for _kind in [kind for kind in PacketType if kind <= LAST_MESSAGE_TYPE]:
    _message(_kind)

# the connection

add_unrestricted(PacketType.GOODBYE, allowed=LOGGED_IN | {Actor.ANONYMOUS})
add_unrestricted(PacketType.PING, allowed=LOGGED_IN | {Actor.ANONYMOUS})
add_unrestricted(PacketType.PING_REPLY, has_response=False)
add_unrestricted(PacketType.FLOW_PAUSED, has_response=False)
add_unrestricted(PacketType.GENERATE_UID)
add_unrestricted(PacketType.GET_LICENSE)
add_unrestricted(PacketType.INFO_REQUEST, {"JMQRequestType": 1})
add_unrestricted(PacketType.CREATE_SESSION, {"JMQAckMode": int(AckMode.AUTO)})
add_unrestricted(PacketType.START, has_response=False)
add_unrestricted(PacketType.STOP)
add_unrestricted(PacketType.START_TRANSACTION, changes=True)


@row(PacketType.HELLO, "", ALL_ACTORS)
def _hello(cell: JmqCell) -> None:
    transport = cell.fixture.transport()
    access = cell.fixture.open_with_login(transport, "jmq")
    session = JmqSession(transport, cell.fixture.broker, cell.fixture.coordinator, access)
    cell.peer = Peer(cell.fixture, transport, session)
    cell.request(PacketType.HELLO, {"JMQProtocolLevel": 500, "JMQVersion": "1"})


@row(
    PacketType.AUTHENTICATE,
    "in place of a connection",
    OWNER_ONLY,
    changes=True,
    has_response=False,
)
def _supersede(cell: JmqCell) -> None:
    old_peer = cell.open_connection(JMQReconnectable=True)
    old_peer.request(
        PacketType.AUTHENTICATE, {}, login("", cell.fixture.users.tokens[Actor.OWNER]), expect=200
    )
    cell.fixture.owner_transports.append(old_peer.transport)
    cell.peer = cell.open_connection(JMQConnectionID=Long(cell.numbers[old_peer]))
    token = cell.fixture.users.tokens.get(cell.actor, WRONG_TOKEN)
    cell.request(PacketType.AUTHENTICATE, {}, login("owner", token))


@row(PacketType.AUTHENTICATE, "", LOGGED_IN)
def _authenticate(cell: JmqCell) -> None:
    cell.peer = cell.open_connection()
    cell.request(
        PacketType.AUTHENTICATE,
        {},
        login("owner", cell.fixture.users.tokens.get(cell.actor, WRONG_TOKEN)),
    )


@row(PacketType.SET_CLIENTID, "unused", LOGGED_IN)
def _client_id(cell: JmqCell) -> None:
    cell.request(PacketType.SET_CLIENTID, {"JMQClientID": "unused"})


@row(PacketType.SET_CLIENTID, "of an offline client with subscriptions", PERMITTED)
def _owned_client_id(cell: JmqCell) -> None:
    cell.durable()
    cell.request(PacketType.SET_CLIENTID, {"JMQClientID": CLIENT_ID})


@row(PacketType.DESTROY_SESSION, "of a connection", OWNER_ONLY, changes=True)
def _destroy_session(cell: JmqCell) -> None:
    cell.fixture.create_owned()
    session = cell.owner.create_session(AckMode.CLIENT)
    cell.owner.consume(QUEUE, session)
    cell.use_owners_connection()
    cell.request(PacketType.DESTROY_SESSION, {"JMQSessionID": Long(session)})


# consumers and producers


def _consume(cell: JmqCell, name: str, topic: bool = False, **fields: Any) -> None:
    """Issue ADD_CONSUMER, with a session of the actor if it has logged in."""
    session = 1
    if cell.actor in LOGGED_IN:
        session = cell.peer.create_session(AckMode.CLIENT)
    properties = {
        **cell.peer.destination_properties(name, topic),
        "JMQSessionID": Long(session),
        "JMQSize": 10,
    }
    cell.request(PacketType.ADD_CONSUMER, {**properties, **fields})


@row(
    PacketType.ADD_CONSUMER,
    "of a queue",
    PERMITTED,
    permission=Operation.CONSUME,
    changes=True,
    reveals=PERMITTED,
)
def _consume_queue(cell: JmqCell) -> None:
    cell.fixture.create_owned()
    _consume(cell, QUEUE)


@row(PacketType.ADD_CONSUMER, "of a topic", PERMITTED, permission=Operation.CONSUME, changes=True)
def _consume_topic(cell: JmqCell) -> None:
    cell.fixture.create_owned(TOPIC, Kind.TOPIC)
    _consume(cell, TOPIC, True)


@row(
    PacketType.ADD_CONSUMER, "of a wildcard", PERMITTED, permission=Operation.CONSUME, changes=True
)
def _consume_wildcard(cell: JmqCell) -> None:
    cell.fixture.create_owned(TOPIC, Kind.TOPIC)
    _consume(cell, "own.>", True)


@row(PacketType.ADD_CONSUMER, "of the dead message queue", SUPERUSER_ONLY, changes=True)
def _consume_dead_messages(cell: JmqCell) -> None:
    _consume(cell, DEAD_MESSAGES.name)


@row(PacketType.ADD_CONSUMER, "of the broker's metrics", SUPERUSER_ONLY, changes=True)
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
    cell.use_owners_connection()
    _consume(cell, TEMPORARY)


@row(
    PacketType.ADD_CONSUMER, "of a durable subscription", PERMITTED, changes=True, reveals=PERMITTED
)
def _consume_durable(cell: JmqCell) -> None:
    cell.durable()
    cell.request(PacketType.SET_CLIENTID, {"JMQClientID": CLIENT_ID})
    if cell.outcome == ALLOWED:
        _consume(cell, TOPIC, True, JMQDurableName=DURABLE)


@row(PacketType.ADD_CONSUMER, "in place of a durable subscription", PERMITTED, changes=True)
def _replace_durable(cell: JmqCell) -> None:
    cell.durable()
    name = cell.name("another.topic")
    cell.fixture.create_owned(name, Kind.TOPIC)
    cell.request(PacketType.SET_CLIENTID, {"JMQClientID": CLIENT_ID})
    if cell.outcome == ALLOWED:
        _consume(cell, name, True, JMQDurableName=DURABLE)


@row(PacketType.ADD_CONSUMER, "in place of a shared durable subscription", PERMITTED, changes=True)
def _replace_shared(cell: JmqCell) -> None:
    cell.fixture.create_owned(TOPIC, Kind.TOPIC)
    client = cell.connect(Actor.OWNER)
    session = client.create_session(AckMode.CLIENT)
    client.consume(TOPIC, session, True, JMQDurableName=DURABLE, JMQJMSShare=True)
    client.drop()
    cell.owner.send(TOPIC, SECRET, topic=True)
    name = cell.name("another.topic")
    cell.fixture.create_owned(name, Kind.TOPIC)
    _consume(cell, name, True, JMQDurableName=DURABLE, JMQJMSShare=True)


@row(PacketType.DELETE_CONSUMER, "of a connection", OWNER_ONLY, changes=True)
def _delete_consumer(cell: JmqCell) -> None:
    number = cell.consumer(topic=True)
    cell.use_owners_connection()
    cell.request(PacketType.DELETE_CONSUMER, {"JMQConsumerID": Long(number)})


@row(PacketType.DELETE_CONSUMER, "that is a durable subscription", PERMITTED, changes=True)
def _unsubscribe(cell: JmqCell) -> None:
    cell.durable()
    cell.request(PacketType.DELETE_CONSUMER, {"JMQDurableName": DURABLE, "JMQClientID": CLIENT_ID})


@row(
    PacketType.DELETE_CONSUMER,
    "that is a durable subscription of a wildcard",
    PERMITTED,
    changes=True,
)
def _unsubscribe_wildcard(cell: JmqCell) -> None:
    cell.durable("own.none.*")
    cell.request(PacketType.DELETE_CONSUMER, {"JMQDurableName": DURABLE, "JMQClientID": CLIENT_ID})


@row(PacketType.RESUME_FLOW, "of a consumer", OWNER_ONLY, changes=True, has_response=False)
def _resume(cell: JmqCell) -> None:
    cell.fixture.create_owned()
    session = cell.owner.create_session(AckMode.CLIENT)
    number = cell.owner.consume(QUEUE, session, size=0)
    cell.use_owners_connection()
    cell.request(PacketType.RESUME_FLOW, {"JMQConsumerID": Long(number), "JMQSize": 10}, flags=0)


@row(PacketType.ADD_PRODUCER, "of a queue", PERMITTED, permission=Operation.PRODUCE)
def _produce(cell: JmqCell) -> None:
    cell.fixture.create_owned()
    cell.request(PacketType.ADD_PRODUCER, cell.peer.destination_properties(QUEUE))


@row(PacketType.ADD_PRODUCER, "of a temporary queue", LOGGED_IN)
def _produce_temporary(cell: JmqCell) -> None:
    cell.temporary()
    cell.request(PacketType.ADD_PRODUCER, cell.peer.destination_properties(TEMPORARY))


@row(PacketType.DELETE_PRODUCER, "of a connection", OWNER_ONLY)
def _delete_producer(cell: JmqCell) -> None:
    cell.fixture.create_owned()
    reply = cell.owner.request(
        PacketType.ADD_PRODUCER, cell.owner.destination_properties(QUEUE), expect=200
    )
    number = Long(int(str(reply.properties["JMQProducerID"])))
    cell.use_owners_connection()
    cell.request(PacketType.DELETE_PRODUCER, {"JMQProducerID": number})


# deliveries


@row(PacketType.ACKNOWLEDGE, "of a delivery", OWNER_ONLY, changes=True, has_response=False)
def _acknowledge(cell: JmqCell) -> None:
    packet = cell.delivery()
    cell.use_owners_connection()
    cell.request(PacketType.ACKNOWLEDGE, {}, blocks(packet), header=encode_header())


@row(PacketType.ACKNOWLEDGE, "as undeliverable", OWNER_ONLY, changes=True, has_response=False)
def _give_up(cell: JmqCell) -> None:
    packet = cell.delivery()
    cell.use_owners_connection()
    properties = {"JMQAckType": 2, "JMQDeadReason": 0}
    cell.request(PacketType.ACKNOWLEDGE, properties, blocks(packet), header=encode_header())


@row(PacketType.REDELIVER, "of a delivery", OWNER_ONLY, changes=True, has_response=False)
def _redeliver(cell: JmqCell) -> None:
    packet = cell.delivery()
    cell.owner.send_packet(PacketType.STOP, flags=A)
    cell.owner.receive()
    cell.use_owners_connection()
    properties = {"JMQSetRedelivered": True}
    header = encode_header()
    cell.request(PacketType.REDELIVER, properties, blocks(packet), flags=0, header=header)


# destinations


@row(PacketType.BROWSE, "of a queue", PERMITTED, permission=Operation.BROWSE)
def _browse(cell: JmqCell) -> None:
    cell.fixture.create_owned()
    cell.request(PacketType.BROWSE, cell.peer.destination_properties(QUEUE))


@row(PacketType.BROWSE, "of a queue's metrics", PERMITTED, permission=Operation.BROWSE)
def _browse_metrics(cell: JmqCell) -> None:
    cell.fixture.create_owned()
    cell.request(PacketType.BROWSE, {**cell.peer.destination_properties(QUEUE), "JMQMetrics": True})


@row(PacketType.BROWSE, "of a temporary queue", OWNER_ONLY)
def _browse_temporary(cell: JmqCell) -> None:
    cell.temporary()
    cell.use_owners_connection()
    cell.request(PacketType.BROWSE, cell.peer.destination_properties(TEMPORARY))


@row(PacketType.DELIVER, "of a browsed queue", OWNER_ONLY, reveals=OWNER_ONLY)
def _deliver(cell: JmqCell) -> None:
    cell.fixture.create_owned()
    reply = cell.owner.request(
        PacketType.BROWSE, cell.owner.destination_properties(QUEUE), expect=200
    )
    number = Long(int(str(reply.properties["JMQConsumerID"])))
    cell.use_owners_connection()
    cell.request(PacketType.DELIVER, {"JMQConsumerID": number}, reply.body)


@row(PacketType.CREATE_DESTINATION, "by name", PERMITTED, changes=True)
def _create(cell: JmqCell) -> None:
    cell.request(PacketType.CREATE_DESTINATION, cell.peer.destination_properties("own.new"))


@row(PacketType.CREATE_DESTINATION, "that is temporary", LOGGED_IN, changes=True)
def _create_temporary(cell: JmqCell) -> None:
    properties = cell.peer.destination_properties(
        "temporary_destination://queue/x/2", temporary=True
    )
    cell.request(PacketType.CREATE_DESTINATION, properties)


@row(
    PacketType.CREATE_DESTINATION,
    "that is temporary, of any name",
    PERMITTED,
    permission=Operation.CREATE,
    changes=True,
)
def _create_temporary_by_name(cell: JmqCell) -> None:
    cell.request(
        PacketType.CREATE_DESTINATION, cell.peer.destination_properties("own.new", temporary=True)
    )


@row(PacketType.CREATE_DESTINATION, "that is temporary, of a name in use", NO_ACTOR)
def _create_temporary_again(cell: JmqCell) -> None:
    cell.temporary()
    cell.request(
        PacketType.CREATE_DESTINATION, cell.peer.destination_properties(TEMPORARY, temporary=True)
    )


@row(
    PacketType.DESTROY_DESTINATION, "by name", PERMITTED, permission=Operation.DELETE, changes=True
)
def _destroy(cell: JmqCell) -> None:
    cell.fixture.create_owned()
    cell.request(PacketType.DESTROY_DESTINATION, cell.peer.destination_properties(QUEUE))


@row(PacketType.DESTROY_DESTINATION, "that is temporary", OWNER_ONLY, changes=True)
def _destroy_temporary(cell: JmqCell) -> None:
    cell.temporary()
    cell.use_owners_connection()
    cell.request(PacketType.DESTROY_DESTINATION, cell.peer.destination_properties(TEMPORARY))


@row(PacketType.VERIFY_DESTINATION, "by name", PERMITTED, permission=Operation.BROWSE)
def _verify(cell: JmqCell) -> None:
    cell.fixture.create_owned()
    cell.request(PacketType.VERIFY_DESTINATION, cell.peer.destination_properties(QUEUE))


@row(PacketType.VERIFY_DESTINATION, "that is temporary", OWNER_ONLY)
def _verify_temporary(cell: JmqCell) -> None:
    cell.temporary()
    cell.use_owners_connection()
    cell.request(PacketType.VERIFY_DESTINATION, cell.peer.destination_properties(TEMPORARY))


# transactions


@row(PacketType.START_TRANSACTION, "that is joined", PERMITTED, changes=True)
def _join(cell: JmqCell) -> None:
    cell.branch("end")
    cell.request(PacketType.START_TRANSACTION, {"JMQXAFlags": XaFlag.JOIN}, XID)


@row(PacketType.END_TRANSACTION, "of an Xid", PERMITTED, changes=True)
def _end(cell: JmqCell) -> None:
    cell.branch()
    cell.request(PacketType.END_TRANSACTION, {"JMQXAFlags": XaFlag.SUCCESS}, XID)


@row(PacketType.PREPARE_TRANSACTION, "of an Xid", PERMITTED, changes=True)
def _prepare(cell: JmqCell) -> None:
    cell.branch("end")
    cell.request(PacketType.PREPARE_TRANSACTION, {}, XID)


@row(PacketType.COMMIT_TRANSACTION, "or is not prepared", PERMITTED, changes=True)
def _commit(cell: JmqCell) -> None:
    cell.branch("end", "prepare")
    cell.request(PacketType.COMMIT_TRANSACTION, {}, XID)


@row(PacketType.COMMIT_TRANSACTION, "that is not prepared", PERMITTED, changes=True)
def _commit_at_once(cell: JmqCell) -> None:
    cell.branch("end")
    cell.request(PacketType.COMMIT_TRANSACTION, {"JMQXAFlags": XaFlag.ONEPHASE}, XID)


def _begin_local(cell: JmqCell) -> dict[str, Any]:
    cell.fixture.create_owned()
    number = cell.owner.begin()
    cell.owner.send(QUEUE, SECRET, transaction_id=number)
    cell.use_owners_connection()
    return {"JMQTransactionID": Long(number)}


@row(PacketType.COMMIT_TRANSACTION, "of a connection", OWNER_ONLY, changes=True)
def _commit_local(cell: JmqCell) -> None:
    cell.request(PacketType.COMMIT_TRANSACTION, _begin_local(cell))


@row(PacketType.ROLLBACK_TRANSACTION, "of a connection", OWNER_ONLY, changes=True)
def _roll_back_local(cell: JmqCell) -> None:
    cell.request(PacketType.ROLLBACK_TRANSACTION, _begin_local(cell))


@row(PacketType.ROLLBACK_TRANSACTION, "or is not prepared", PERMITTED, changes=True)
def _roll_back(cell: JmqCell) -> None:
    cell.branch("end", "prepare")
    cell.request(PacketType.ROLLBACK_TRANSACTION, {}, XID)


@row(PacketType.ROLLBACK_TRANSACTION, "that is not prepared", PERMITTED, changes=True)
def _roll_back_early(cell: JmqCell) -> None:
    cell.branch("end")
    cell.request(PacketType.ROLLBACK_TRANSACTION, {}, XID)


@row(PacketType.RECOVER_TRANSACTION, "of all", LOGGED_IN, reveals=PERMITTED, marker=XID.hex())
def _recover(cell: JmqCell) -> None:
    cell.branch("end", "prepare")
    flags = XaFlag.STARTRSCAN | XaFlag.ENDRSCAN
    reply = cell.request(PacketType.RECOVER_TRANSACTION, {"JMQXAFlags": flags})
    body = b"" if reply is None else reply.body
    assert not len(body) % XID_SIZE
    cell.received = body.hex().encode()


@row(PacketType.RECOVER_TRANSACTION, "of a number", PERMITTED)
def _recover_number(cell: JmqCell) -> None:
    number = cell.branch("end", "prepare")
    cell.request(PacketType.RECOVER_TRANSACTION, {"JMQTransactionID": Long(number)})


@row(PacketType.VERIFY_TRANSACTION, "of an Xid", PERMITTED)
def _verify_transaction(cell: JmqCell) -> None:
    cell.branch("end", "prepare")
    cell.request(PacketType.VERIFY_TRANSACTION, {}, XID)


# --- tests ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerFixture]:
    fixture = BrokerFixture(Path(tmp_path_factory.mktemp("jmq")))
    yield fixture
    fixture.close()


@parametrize_cells(TABLE.rows)
def test_packet_is_permitted_to_its_actors(
    broker: BrokerFixture, row: Row[JmqCell], actor: Actor
) -> None:
    broker.reset(row.permission)
    cell = JmqCell(broker, actor)
    row.issue(cell)
    check_cell(row, cell)


def test_every_packet_of_clients_has_a_row() -> None:
    check_complete(TABLE.rows, set(PacketType) - NOT_FROM_CLIENTS)


@pytest.mark.parametrize("kind", sorted(NOT_FROM_CLIENTS), ids=lambda kind: kind.name)
def test_packets_of_brokers_are_not_served(broker: BrokerFixture, kind: PacketType) -> None:
    broker.reset()
    cell = JmqCell(broker, Actor.ROOT)
    broker.create_owned()
    reply = cell.request(kind)
    assert reply is None or status(reply) == Status.NOT_IMPLEMENTED
    assert cell.before == cell.after
