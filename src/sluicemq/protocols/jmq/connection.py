"""Options of a JMQ listener, and what the parts of one JMQ connection share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, NoReturn

from sluicemq.broker import Broker, CompiledSelector, Delivery, known_selector
from sluicemq.model.access import ANONYMOUS, Identity, Operation
from sluicemq.model.errors import AccessDenied, ProtocolError, SelectorError, SluiceError
from sluicemq.model.message import Durability, Property
from sluicemq.protocols.jmq.flow import UNLIMITED_BYTES, Outbound
from sluicemq.protocols.jmq.packets import (
    LAST_MESSAGE_TYPE,
    A,
    Level,
    PacketType,
    RejectedRequest,
    Status,
    reply_properties,
    status_of,
)
from sluicemq.protocols.jmq.wire import MAX_PACKET, Oversized, Packet, encode_reply
from sluicemq.protocols.transport import Transport
from sluicemq.security.access import Access, demand

if TYPE_CHECKING:
    from sluicemq.protocols.jmq.consumers import JmsConsumer
    from sluicemq.protocols.jmq.coordinator import Coordinator
    from sluicemq.protocols.jmq.session_registry import JmsSession

MISSED_PINGS: Final = 6
"""Number of consecutive unanswered pings after which the session closes the connection."""


class SessionOptions(NamedTuple):
    """Options of a JMQ listener.

    Defaults follow Open MQ where it has the option (protocol specification, sections 5 to 7).

    durability           of all messages; None = SYNC for persistent messages, NONE for others
    packet               maximum packet size in bytes
    login_bytes          maximum packet size before the login, in bytes
    authentication       login type requested; "digest" requires users with a digest password
    service              JMQService: "jms", or "ssljms" with TLS
    broker_list          JMQBrokerList: URLs of alternative brokers as mq://host:port/, separated
                         by commas; "" = not sent
    prefetch             maximum number of messages sent to a consumer before it requests more
    shared_prefetch      the same for consumers of a shared topic subscription
    held                 maximum number of unacked messages per consumer, regardless of its credit
    producer_flow        messages after which a producer waits for RESUME_FLOW; 0 = never
    connection_flow      apply the flow limit that a client sets for its whole connection
    most                 maximum number of sessions, of producers, of consumers and of transactions
                         per connection; also of transactions of a user without a connection
    browsed              maximum number of messages that BROWSE lists
    ping_interval        idle seconds before the broker pings a client; 0 = never
    transaction_timeout  ms from its first message or acknowledgement until the broker rolls back
                         an unprepared transaction; 0 = never
    detached_timeout     ms without a connection until the broker rolls back an unprepared
                         transaction; 0 = never
    refusal              reason for answering HELLO with 503 UNAVAILABLE; "" = accept
    """

    durability: Durability | None = None
    packet: int = MAX_PACKET
    login_bytes: int = 64 * 1024
    authentication: Literal["basic", "digest"] = "digest"
    service: str = "jms"
    broker_list: str = ""
    prefetch: int = 1000
    shared_prefetch: int = 5
    held: int = 100_000
    producer_flow: int = 1000
    connection_flow: bool = True
    most: int = 10_000
    browsed: int = 1_000_000
    ping_interval: float = 120.0
    transaction_timeout: int = 0
    detached_timeout: int = 600_000
    refusal: str = ""


MOST_UNREAD: Final = 1 << 20
"""Bytes of answers to a client that does not read, at which nothing more is read from it."""

_NEVER_ANSWERED: Final = frozenset(
    {
        PacketType.START,
        PacketType.REDELIVER,
        PacketType.RESUME_FLOW,
        PacketType.FLOW_PAUSED,
        0x7FFF,  # there is no type above it
    }
)


SHORT_SELECTOR: Final = 1024
"""Characters of a selector that is compiled on the event loop: up to 5 ms."""


class SelectorPending(Exception):
    """A selector has to be compiled in another thread first. The request that needs it is carried
    out again after that, so nothing may have happened yet but checks."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


class Sender:
    """Who has sent a message, for no-local: it equals itself, which stands for the connection, and
    its client id. (Protocol specification, JMQNoLocal.)"""

    __slots__ = ("client_id",)

    def __init__(self) -> None:
        self.client_id = ""

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str):
            return bool(self.client_id) and self.client_id == other
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __str__(self) -> str:
        return self.client_id


class Compiled(NamedTuple):
    """What has become of a selector in another thread."""

    text: str
    outcome: CompiledSelector | SelectorError

    @classmethod
    def of(cls, broker: Broker, text: str) -> Compiled:
        """Compile it. Thread-safe."""
        try:
            return cls(text, broker.compile_selector(text))
        except SelectorError as error:
            return cls(text, error)

    def result(self) -> CompiledSelector:
        """Return the selector. Raises SelectorError."""
        if isinstance(self.outcome, SelectorError):
            raise self.outcome
        return self.outcome


class JmqConnection:
    """See the module.

    number       JMQConnectionID
    identity     whom it acts as, since its login
    level        of the protocol, as the client wants it
    sessions     by JMQSessionID
    consumers    by JMQConsumerID; those that are closed too, while they hold something
    unsent       deliveries that are settled when their bytes have left
    pressed      called when `unread` may have changed
    owns         it has had temporary destinations
    traffic      of all JMQ clients
    unread       bytes of answers since the client stopped reading
    reconnected  the client has lost another connection, and has not said START on this one
    closed       nothing is said any more
    compiled     what has become of a pending selector, until its request is carried out again
    """

    __slots__ = (
        "access",
        "broker",
        "closed",
        "compiled",
        "consumers",
        "coordinator",
        "identity",
        "level",
        "number",
        "options",
        "outbound",
        "owns",
        "pressed",
        "reconnected",
        "sender",
        "sessions",
        "traffic",
        "transport",
        "unread",
        "unsent",
    )

    def __init__(
        self,
        transport: Transport,
        broker: Broker,
        coordinator: Coordinator,
        access: Access,
        options: SessionOptions,
        pressed: Callable[[], None],
    ) -> None:
        self.transport = transport
        self.broker = broker
        self.coordinator = coordinator
        self.access = access
        self.options = options
        self.pressed = pressed
        self.traffic = broker.traffic_of("jmq")
        self.number = coordinator.uid()
        self.identity: Identity = ANONYMOUS
        self.level = Level.HIGHEST
        self.sender = Sender()
        self.outbound = Outbound()
        self.sessions: dict[int, JmsSession] = {}
        self.consumers: dict[int, JmsConsumer] = {}
        self.unsent: list[tuple[JmsConsumer, Delivery]] = []
        self.owns = False
        self.unread = 0
        self.reconnected = False
        self.closed = False
        self.compiled: Compiled | None = None

    @property
    def client_id(self) -> str:
        """ "" while there is none."""
        return self.sender.client_id

    def demand(self, operation: Operation, name: str) -> None:
        """AccessDenied unless the user may do that."""
        demand(self.access, self.transport.peer, self.identity, operation, name)

    def release(self) -> None:
        """Let go of the session, after its end."""
        self.pressed = _nothing

    def deny(self, what: str, why: str) -> NoReturn:
        """Raise AccessDenied, and write a line to the audit log; `what` is like "produce x"."""
        self.access.denied(self.transport.peer, self.identity, what)
        raise AccessDenied(why)

    def selector(self, packet: Packet) -> CompiledSelector | None:
        """Return the selector that a request has, if any.

        Raises Refused, SelectorError, SelectorPending. A short one counts as a scan, so that many
        of them are no way around the time that scans may take.
        """
        selector = text(packet, "JMQSelector")
        if not selector.strip():
            return None
        compiled, self.compiled = self.compiled, None
        if compiled is not None and compiled.text == selector:
            return compiled.result()
        broker = self.broker
        broker.settings.selectors.check_text(selector)
        if (
            self.coordinator.background is not None
            and known_selector(selector) is None
            and (len(selector) > SHORT_SELECTOR or broker.scans.over())
        ):
            raise SelectorPending(selector)
        return broker.compile_selector(selector)

    # --- answers -----------------------------------------------------------------------------

    def reply(
        self,
        packet: Packet | Oversized,
        status: Status = Status.OK,
        properties: Mapping[str, object] | None = None,
        body: bytes = b"",
    ) -> None:
        """Answer a request, if it wants an answer and its type has one."""
        if packet.flags & A and packet.type not in _NEVER_ANSWERED:
            kind = packet.type + 1
            if 0 < packet.type <= LAST_MESSAGE_TYPE:
                kind = PacketType.SEND_REPLY
            self.write(encode_reply(kind, packet.consumer_id, status, properties, body))

    def refuse(self, packet: Packet | Oversized, error: SluiceError) -> None:
        """Answer a request that cannot be granted."""
        self.reply(packet, status_of(error), reply_properties(error))

    def fail_transaction(self, packet: Packet | Oversized, error: SluiceError) -> None:
        """Make the transaction of a message or acknowledgement fail that was refused without an
        answer: its client does not know, and must not be told that all of it was committed."""
        if packet.flags & A:
            return
        try:
            transaction = packet.transaction_id
        except ProtocolError:
            return  # it does not say which
        if transaction:
            self.coordinator.branches.fail(transaction, self, error)

    def write(self, data: bytes) -> None:
        """Bytes that are no delivery."""
        if self.closed:
            return
        self.transport.write((data,))
        if self.outbound.congested:
            self.unread += len(data)
            self.pressed()


def _nothing() -> None:
    """Stands for the callback of a session that has gone."""


# --- properties of requests ----------------------------------------------------------------------


def number(packet: Packet, name: str, usual: int | None = None) -> int:
    """An integral property of whatever width. Without `usual` it has to be there: Refused."""
    value = packet.properties.get(name)
    if value is None and usual is not None:
        return usual
    if isinstance(value, bool) or not isinstance(value, int):
        raise _unusable(name, value)
    return value


def byte_limit(packet: Packet) -> int | None:
    """Return the bytes that a request allows until RESUME_FLOW (JMQBytes): UNLIMITED_BYTES if it
    is negative, None if it is absent. Raises Refused."""
    if "JMQBytes" not in packet.properties:
        return None
    limit = number(packet, "JMQBytes")
    return UNLIMITED_BYTES if limit < 0 else limit


def max_packet(packet: Packet) -> int | None:
    """Return the bytes of the largest packet that the client takes (JMQMaxMsgBytes):
    UNLIMITED_BYTES if it is 0 or less, None if it is absent. Raises Refused."""
    if "JMQMaxMsgBytes" not in packet.properties:
        return None
    limit = number(packet, "JMQMaxMsgBytes")
    return limit if limit > 0 else UNLIMITED_BYTES


def text(packet: Packet, name: str) -> str:
    """A String, "" if there is none. Raises Refused."""
    value = packet.properties.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise _unusable(name, value)
    return value


def truth(packet: Packet, name: str, usual: bool = False) -> bool:
    """A Boolean. Raises Refused."""
    value = packet.properties.get(name)
    if value is None:
        return usual
    if not isinstance(value, bool):
        raise _unusable(name, value)
    return value


def _unusable(name: str, value: Property) -> RejectedRequest:
    if value is None:
        return RejectedRequest(Status.BAD_REQUEST, f"{name} is missing")
    return RejectedRequest(Status.BAD_REQUEST, f"{name} cannot be {str(value)[:80]!r}")
