"""State shared by the parts of one JMQ connection, listener options, and the login.

    client  HELLO                                  broker  HELLO_REPLY, AUTHENTICATE_REQUEST
    client  AUTHENTICATE: user, password or digest  broker  AUTHENTICATE_REPLY

The reply to any level from 100 on is OK, and levels up to 500 are supported, because not all
clients repeat HELLO with a lower level. These are refused, and the connection is closed afterwards:

    505 BAD_VERSION     a level below 100, or none
    400 BAD_REQUEST     JMQClusterID: this broker is not in a cluster
    415 UNSUPPORTED     JMQDestinationProvider other than Open MQ's own
    503 UNAVAILABLE     too many connections, or (AUTHENTICATE_REPLY) too many logins that wait
    413 INVALID_LOGIN   a wrong user name or password (AUTHENTICATE_REPLY)
    403 FORBIDDEN       a login refused without a check of the password, after too many failures
                        (AUTHENTICATE_REPLY)

A client that requests a store session (JMQStoreSession), which only brokers of a cluster have, gets
404 and may continue. A client that was connected before sends JMQConnectionID: an old connection of
the same user that still exists is closed. (Protocol specification, section 5.)
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Final, Literal, NamedTuple

from sluicemq import __version__
from sluicemq.broker import Broker, CompiledSelector, known_selector
from sluicemq.model.access import ANONYMOUS, Identity
from sluicemq.model.errors import ProtocolError, SelectorError, SluiceError
from sluicemq.model.message import Durability, Property
from sluicemq.protocols.channel import Channel
from sluicemq.protocols.java import Long
from sluicemq.protocols.jmq import fields
from sluicemq.protocols.jmq.consumers import UNLIMITED_BYTES, JmsConsumer, JmsSession, Outbound
from sluicemq.protocols.jmq.packets import (
    LAST_MESSAGE_TYPE,
    LONGEST_REASON,
    A,
    Level,
    PacketType,
    RejectedRequest,
    Status,
    status_of,
)
from sluicemq.protocols.jmq.wire import MAX_PACKET, Oversized, Packet, encode_packet, encode_reply
from sluicemq.protocols.transport import Background, Transport
from sluicemq.security.access import Access, Credentials

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
    """Raised if a selector has to be compiled in another thread first.

    The request is processed again afterwards, so it must not have changed anything yet.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


class Sender:
    """No-local token of a connection's messages. It equals itself and the connection's client id.

    (Protocol specification, JMQNoLocal.)
    """

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
    """Result of the compilation of a selector in another thread."""

    text: str
    outcome: CompiledSelector | SelectorError

    @classmethod
    def of(cls, broker: Broker, text: str) -> Compiled:
        """Compile a selector. Thread-safe."""
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
    """State of one connection, which the handlers of its requests share.

    channel      transport, user and replies
    number       JMQConnectionID
    level        protocol level requested by the client
    sessions     JMS sessions by JMQSessionID
    consumers    consumers by JMQConsumerID; also closed ones that hold messages
    outbound     deliveries to this client
    close        closes the connection; called with the reason
    background   compiles long selectors; None = they are compiled on the event loop
    owns         True if it has had temporary destinations
    reconnectable  True if the client may connect again while this connection is still open
    reconnected  True if the client has lost another connection and has not sent START on this one
    compiled     result of a pending selector, until its request is processed again
    """

    __slots__ = (
        "background",
        "broker",
        "channel",
        "close",
        "compiled",
        "consumers",
        "level",
        "number",
        "options",
        "outbound",
        "owns",
        "reconnectable",
        "reconnected",
        "sender",
        "sessions",
        "transport",
    )

    def __init__(
        self,
        transport: Transport,
        broker: Broker,
        number: int,
        access: Access,
        options: SessionOptions,
        background: Background | None,
        close: Callable[[str], None],
    ) -> None:
        self.channel: Channel[Packet | Oversized] = Channel(
            transport, broker, access, "jmq", ANONYMOUS
        )
        self.transport = transport
        self.broker = broker
        self.options = options
        self.background = background
        self.close = close
        self.number = number
        self.level = Level.HIGHEST
        self.sender = Sender()
        self.outbound = Outbound(self.channel, options.held)
        self.sessions: dict[int, JmsSession] = {}
        self.consumers: dict[int, JmsConsumer] = {}
        self.owns = False
        self.reconnectable = False
        self.reconnected = False
        self.compiled: Compiled | None = None

    @property
    def identity(self) -> Identity:
        """User of the connection: anonymous until the login."""
        return self.channel.identity

    def release(self) -> None:
        """Drop the reference to the session, after its end."""
        self.close = _nothing

    def selector(self, packet: Packet) -> CompiledSelector | None:
        """Return the selector of a request, or None.

        The compilation of a short selector counts as a scan, so that many of them cannot exceed the
        time for scans. Raises RejectedRequest, SelectorError, SelectorPending.
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
            self.background is not None
            and known_selector(selector) is None
            and (len(selector) > SHORT_SELECTOR or broker.scans.over())
        ):
            raise SelectorPending(selector)
        return broker.compile_selector(selector)

    # --- replies -----------------------------------------------------------------------------

    def reply(
        self,
        packet: Packet | Oversized,
        status: Status = Status.OK,
        properties: Mapping[str, object] | None = None,
        body: bytes = b"",
    ) -> None:
        """Send the reply to a request, if the client requests one and its type has one."""
        if packet.flags & A and packet.type not in _NEVER_ANSWERED:
            kind = packet.type + 1
            if 0 < packet.type <= LAST_MESSAGE_TYPE:
                kind = PacketType.SEND_REPLY
            self.write(encode_reply(kind, packet.consumer_id, status, properties, body))

    def refuse(self, packet: Packet | Oversized, error: SluiceError) -> None:
        """Send the error reply to a rejected request."""
        properties: dict[str, object] = {"JMQReason": str(error)[:LONGEST_REASON]}
        if isinstance(error, RejectedRequest):
            properties.update(error.properties)
        self.reply(packet, status_of(error), properties)

    def write(self, data: bytes) -> None:
        """Write bytes that are not a delivery."""
        self.channel.write([data])


def _nothing(reason: str) -> None:
    """Do nothing: the callback of a closed session."""


# --- properties of requests ----------------------------------------------------------------------


def number(packet: Packet, name: str, usual: int | None = None) -> int:
    """Return an integral property of any width, or `usual` if it is absent.

    Raises RejectedRequest; also for an absent property without `usual`.
    """
    value = packet.properties.get(name)
    if value is None and usual is not None:
        return usual
    if isinstance(value, bool) or not isinstance(value, int):
        raise _unusable(name, value)
    return value


def byte_limit(packet: Packet, name: str = "JMQBytes", least: int = 0) -> int | None:
    """Return a byte limit: UNLIMITED_BYTES below `least`, None if it is absent.

    JMQBytes is the limit until the next RESUME_FLOW. Raises RejectedRequest.
    """
    if name not in packet.properties:
        return None
    limit = number(packet, name)
    return UNLIMITED_BYTES if limit < least else limit


def max_packet(packet: Packet) -> int | None:
    """Return the size of the largest packet that the client accepts, in bytes; 0 means
    UNLIMITED_BYTES, too."""
    return byte_limit(packet, "JMQMaxMsgBytes", 1)


def text(packet: Packet, name: str) -> str:
    """Return a String property, "" if it is absent. Raises RejectedRequest."""
    value = packet.properties.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise _unusable(name, value)
    return value


def truth(packet: Packet, name: str, usual: bool = False) -> bool:
    """Return a Boolean property, or `usual` if it is absent. Raises RejectedRequest."""
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


# --- HELLO and AUTHENTICATE ----------------------------------------------------------------------

DESTINATION_PROVIDER: Final = "GLASSFISH_MQ"
"""JMQDestinationProvider of clients of Open MQ's own destinations."""


def answer_hello(connection: JmqConnection, packet: Packet, broker_session: int) -> Status:
    """Answer HELLO and return the status: OK and NOT_FOUND let the client log in.

    `broker_session` identifies this run of the broker (JMQBrokerSessionID).
    """
    options = connection.options
    level = _level(packet)
    properties: dict[str, object] = {"JMQVersion": __version__, "JMQService": options.service}
    if level < Level.LOWEST:
        properties["JMQProtocolLevel"] = Level.LOWEST
        properties["JMQReason"] = f"levels {Level.LOWEST} to {Level.HIGHEST} are spoken here"
        connection.reply(packet, Status.BAD_VERSION, properties)
        return Status.BAD_VERSION
    connection.level = min(level, Level.HIGHEST)
    properties["JMQProtocolLevel"] = connection.level
    if options.refusal:
        properties["JMQReason"] = options.refusal
        connection.reply(packet, Status.UNAVAILABLE, properties)
        return Status.UNAVAILABLE
    provider = text(packet, "JMQDestinationProvider")
    if provider and provider != DESTINATION_PROVIDER:
        properties["JMQReason"] = f"JMQDestinationProvider {provider[:80]} is not available here"
        connection.reply(packet, Status.UNSUPPORTED_TYPE, properties)
        return Status.UNSUPPORTED_TYPE
    if text(packet, "JMQClusterID"):
        properties["JMQReason"] = "this broker is not in a cluster"
        connection.reply(packet, Status.BAD_REQUEST, properties)
        return Status.BAD_REQUEST
    status = Status.OK
    store = number(packet, "JMQStoreSession", 0)
    if store:
        status = Status.NOT_FOUND
        properties["JMQReason"] = f"store session {store} is not here"
    outbound = connection.outbound
    outbound.safe = truth(packet, "JMQSafeMode")
    outbound.limit_packets(max_packet(packet))
    if options.connection_flow:
        size = number(packet, "JMQSize", number(packet, "JMQRBufferSize", 0))
        outbound.resume(size, byte_limit(packet))
    properties |= {
        "JMQConnectionID": Long(connection.number),
        "JMQMaxMsgBytes": Long(options.packet),
        "JMQBrokerSessionID": Long(broker_session),
        "JMQHA": False,
    }
    if options.broker_list:
        properties["JMQBrokerList"] = options.broker_list
    connection.reply(packet, status, properties)
    return status


def _level(packet: Packet) -> int:
    """Return the protocol level of a value, 0 if it is not a level."""
    level = packet.properties.get("JMQProtocolLevel")
    return level if isinstance(level, int) and not isinstance(level, bool) else 0


class Challenge:
    """Challenge of one login. `before` is the previous JMQConnectionID of the client, or 0."""

    __slots__ = ("before", "nonce", "way")

    def __init__(self, connection: JmqConnection, before: int) -> None:
        self.way = connection.options.authentication
        self.before = before
        self.nonce = secrets.token_hex(16) if self.way == fields.DIGEST else ""

    def request(self, hello: Packet) -> bytes:
        """Return the AUTHENTICATE_REQUEST, which follows the reply to HELLO."""
        properties: dict[str, object] = {
            "JMQAuthType": self.way,
            "JMQChallenge": True,
            "JMQSequence": hello.sequence,
            "JMQStatus": Status.OK.value,
        }
        return encode_packet(
            PacketType.AUTHENTICATE_REQUEST,
            consumer_id=hello.consumer_id,
            properties=properties,
            body=self.nonce.encode(),
        )

    def credentials(self, packet: Packet) -> Credentials:
        """Return the credentials in AUTHENTICATE. Raises RejectedRequest: INVALID_LOGIN."""
        try:
            given = text(packet, "JMQAuthType") or self.way
            given = fields.PAGE_SPELLINGS.get(given, given)
            if given != self.way:
                raise RejectedRequest(Status.INVALID_LOGIN, f"log in by {self.way}")
            user, secret = fields.read_login(packet.body)
            if self.way == fields.DIGEST:
                return Credentials(user, digest=secret, nonce=self.nonce)
            return Credentials(user, fields.login_password(secret))
        except ProtocolError as error:
            why = f"this is no user name and password: {error}"
            raise RejectedRequest(Status.INVALID_LOGIN, why) from None
