"""State shared by the parts of one JMQ connection, listener options, and how a connection begins:
port mapper and login.

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

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Literal, NamedTuple

from sluicemq import __version__
from sluicemq.broker import Broker, CompiledSelector, known_selector
from sluicemq.model.access import Identity
from sluicemq.model.errors import ProtocolError, SelectorError, SluiceError
from sluicemq.model.message import Durability
from sluicemq.protocols.channel import Channel
from sluicemq.protocols.java import Long, dumps_map
from sluicemq.protocols.jmq import fields
from sluicemq.protocols.jmq.consumers import UNLIMITED_BYTES, JmsSession, Outbound
from sluicemq.protocols.jmq.packets import (
    MAX_REASON,
    A,
    Level,
    PacketType,
    RejectedRequest,
    Status,
    status_of,
)
from sluicemq.protocols.jmq.subscriptions import Sender
from sluicemq.protocols.jmq.wire import (
    MAX_LINE,
    MAX_PACKET,
    Packet,
    boolean,
    encode_packet,
    encode_reply,
    number,
    text,
)
from sluicemq.protocols.transport import (
    Alarm,
    Background,
    Login,
    NoConsumers,
    SessionInfo,
    Transport,
)
from sluicemq.security.access import Credentials

MISSED_PINGS: Final = 6
"""Number of consecutive pings without a reply after which the session closes the connection."""


class SessionOptions(NamedTuple):
    """Options of a JMQ listener.

    Defaults  follow Open MQ where it has the option (protocol specification, sections 5 to 7).

    durability           of all messages; None = SYNC for persistent messages, NONE for others
    max_packet_size      maximum packet size in bytes
    login_bytes          maximum packet size before the login, in bytes
    authentication       login type requested; "digest" requires users with a digest password
    service              JMQService: "jms", or "ssljms" with TLS
    broker_list          JMQBrokerList: URLs of alternative brokers as mq://host:port/, separated
                         by commas; "" = not sent
    prefetch             maximum number of messages sent to a consumer before it requests more
    shared_prefetch      the same for consumers of a shared topic subscription
    max_unacked          maximum number of unacked messages per consumer, regardless of its credit
    producer_flow        messages after which a producer waits for RESUME_FLOW; 0 = never
    max_per_connection   maximum number of sessions, of producers, of consumers and of transactions
                         per connection; also of a user's transactions without a connection and of a
                         user's prepared transactions
    max_browsed          maximum number of messages that BROWSE lists
    ping_interval        idle seconds before the broker pings a client; 0 = never
    transaction_timeout  ms from its first message or acknowledgement until the broker rolls back
                         an unprepared transaction; 0 = never
    detached_timeout     ms without a connection until the broker rolls back an unprepared
                         transaction; 0 = never
    unavailable_reason   reason for replying to HELLO with 503 UNAVAILABLE; "" = accept
    """

    durability: Durability | None = None
    max_packet_size: int = MAX_PACKET
    login_bytes: int = 64 * 1024
    authentication: Literal["basic", "digest"] = "digest"
    service: str = "jms"
    broker_list: str = ""
    prefetch: int = 1000
    shared_prefetch: int = 5
    max_unacked: int = 100_000
    producer_flow: int = 1000
    max_per_connection: int = 10_000
    max_browsed: int = 1_000_000
    ping_interval: float = 120.0
    transaction_timeout: int = 0
    detached_timeout: int = 600_000
    unavailable_reason: str = ""


_WITHOUT_REPLY: Final = frozenset(
    {
        PacketType.START,
        PacketType.REDELIVER,
        PacketType.RESUME_FLOW,
        PacketType.FLOW_PAUSED,
        0x7FFF,  # the type of its reply would be out of range
    }
)


SHORT_SELECTOR: Final = 1024
"""Characters of a selector that is compiled on the event loop: up to 5 ms."""


class SelectorPending(Exception):
    """Raised if a selector has to be compiled in another thread, of `background`, first.

    The request is processed again when the engine knows the selector, so it must not have changed
    anything yet.
    """

    def __init__(self, background: Background, selector: str) -> None:
        super().__init__(selector)
        self.background = background
        self.selector = selector


class RequestPending(Exception):
    """Raised if a request takes longer than this iteration allows: the search for a message that
    is sent again, or the acknowledgement or redelivery of many messages, also by a rollback.

    The packet is processed again in a later iteration, which continues the request.
    """


_INFO_STATUS: Final = 1
_INFO_CLUSTER: Final = 2
_INFO_CONSUMERS: Final = 3
"""Values of JMQRequestType."""
_OPERATING: Final = 1
"""State of a broker that serves clients."""

CompilationResult = CompiledSelector | SelectorError
"""Result of the compilation of a selector in another thread."""


@dataclass(slots=True, eq=False)
class JmqConnection:
    """State of one connection, which the handlers of its requests share.

    channel      transport, user and replies
    outbound     deliveries to this client
    uid          returns a number that is unique within the broker
    number       JMQConnectionID
    background   compiles long selectors; None = they are compiled on the event loop
    level        protocol level requested by the client
    sessions     JMS sessions by JMQSessionID
    reconnectable  True if the client may connect again while this connection is still open
    previous_number  JMQConnectionID of the connection that the client has lost; 0 = none, or it has
                 sent START on this one
    unanswered   number of requests whose replies wait for the journal
    on_answered  functions to call once there are none, see `when_answered`
    """

    channel: Channel[Packet]
    broker: Broker
    outbound: Outbound
    options: SessionOptions
    uid: Callable[[], int]
    number: int
    background: Background | None
    level: int = Level.HIGHEST
    sender: Sender = field(default_factory=Sender)
    sessions: dict[int, JmsSession] = field(default_factory=dict)
    reconnectable: bool = False
    previous_number: int = 0
    unanswered: int = 0
    on_answered: list[Callable[[], None]] = field(default_factory=list)

    @property
    def identity(self) -> Identity:
        """User of the connection: anonymous until the login."""
        return self.channel.identity

    def check_limit(self, count: int, objects: str, status: Status) -> None:
        """Raise RejectedRequest with the status if the connection cannot have more objects.

        `count` is their present number, `objects` their name in the plural.
        """
        if count >= self.options.max_per_connection:
            raise RejectedRequest(status, f"the connection has {count} {objects}, the limit")

    def selector(self, packet: Packet) -> CompiledSelector | None:
        """Return the selector of a request, or None.

        The compilation of a short selector counts as a scan, so that many of them cannot exceed the
        time for scans. Raises RejectedRequest, SelectorError, SelectorPending.
        """
        selector = text(packet, "JMQSelector")
        if not selector.strip():
            return None
        broker = self.broker
        broker.settings.selectors.check_text(selector)
        if (
            self.background is not None
            and known_selector(selector) is None
            and (len(selector) > SHORT_SELECTOR or broker.scans.is_time_up())
        ):
            raise SelectorPending(self.background, selector)
        return broker.compile_selector(selector)

    def compile(self, selector: str) -> CompilationResult:
        """Return the compiled selector, or its error. Thread-safe."""
        try:
            return self.broker.compile_selector(selector)
        except SelectorError as error:
            return error

    # --- replies -----------------------------------------------------------------------------

    def reply(
        self,
        packet: Packet,
        status: Status = Status.OK,
        properties: Mapping[str, object] | None = None,
        body: bytes = b"",
        flags: int = 0,
    ) -> None:
        """Send the reply to a request, if the client requests one and its type has one."""
        if packet.flags & A and packet.type not in _WITHOUT_REPLY:
            kind = PacketType.SEND_REPLY if packet.is_message else packet.type + 1
            self.write(encode_reply(kind, packet.consumer_id, status, properties, body, flags))

    def refuse(self, packet: Packet, error: SluiceError) -> None:
        """Send the error reply to a rejected request."""
        properties: dict[str, object] = {"JMQReason": str(error)[:MAX_REASON]}
        if isinstance(error, RejectedRequest):
            properties.update(error.properties)
        self.reply(packet, status_of(error), properties)

    def reply_later(
        self,
        wait: Callable[[Callable[[], None]], object],
        reply: Callable[[], None],
        size: int = 0,
    ) -> None:
        """Call `wait` with a function to call once the reply to a request may be sent.

        That function calls `reply`. The connection stays open until then, unless `wait` raises.
        `size` is the number of bytes that wait for the disk, so that reading pauses if many do.
        """
        wait(partial(self.channel.transport.call, self._reply_now, reply, size))
        self.unanswered += 1
        self.channel.unconfirmed += size

    def _reply_now(self, reply: Callable[[], None], size: int) -> None:
        self.unanswered -= 1
        self.channel.unconfirmed -= size
        reply()
        self.channel.update_reading()
        if not self.unanswered:
            callbacks, self.on_answered = self.on_answered, []
            for callback in callbacks:
                callback()

    def when_answered(self, callback: Callable[[], None]) -> None:
        """Call `callback` once no reply waits for the journal, before a connection closes."""
        if self.unanswered:
            self.on_answered.append(callback)
        else:
            callback()

    def reply_info(self, packet: Packet) -> None:
        """Reply to INFO_REQUEST about the broker or its cluster (specification, section 9.3).

        Notifications of added and removed consumers (JMQRequestType 3) are not supported. Raises
        RejectedRequest.
        """
        request_type = number(packet, "JMQRequestType")
        properties: dict[str, object] = {"JMQRequestType": request_type}
        broker_list = self.options.broker_list
        if broker_list:
            properties["JMQBrokerList"] = broker_list
        name = self.broker.identity.hex()
        info: dict[str, object] = {
            "BrokerID": name,
            "brokerURL": broker_list.partition(",")[0],
            "State": _OPERATING,
            "StateString": "OPERATING",
            "isLocal": True,
        }
        if request_type == _INFO_CLUSTER:
            info = {name: info, "BrokerIDs": name}
        elif request_type == _INFO_CONSUMERS:
            raise RejectedRequest(
                Status.NOT_IMPLEMENTED,
                "notifications of consumers (JMQRequestType 3) are not supported",
                properties,
            )
        elif request_type != _INFO_STATUS:
            raise RejectedRequest(
                Status.BAD_REQUEST,
                f"JMQRequestType {request_type} is unknown; use 1 (this broker) or 2 (cluster)",
                properties,
            )
        self.reply(packet, properties=properties, body=dumps_map(info, hashtable=True))

    def write(self, data: bytes) -> None:
        """Write bytes that are not a delivery."""
        self.channel.write([data])


# --- limits in requests -------------------------------------------------------------------------


def byte_limit(packet: Packet) -> int | None:
    """Return the limit in bytes until the next RESUME_FLOW: UNLIMITED_BYTES if it is negative, None
    if it is absent. Raises RejectedRequest."""
    if "JMQBytes" not in packet.properties:
        return None
    limit = number(packet, "JMQBytes")
    return limit if limit >= 0 else UNLIMITED_BYTES


def client_packet_limit(packet: Packet, default: int) -> int:
    """Return the size of the largest packet that the client accepts, in bytes; `default` if it is
    absent, UNLIMITED_BYTES if it is 0 or negative. Raises RejectedRequest."""
    limit = number(packet, "JMQMaxMsgBytes", default)
    return limit if limit > 0 else UNLIMITED_BYTES


# --- HELLO and AUTHENTICATE ----------------------------------------------------------------------

LOGIN_STATUSES: Final = frozenset({Status.OK, Status.NOT_FOUND})
"""Statuses of HELLO_REPLY after which a client may log in."""
DESTINATION_PROVIDER: Final = "GLASSFISH_MQ"
"""JMQDestinationProvider of clients of Open MQ's own destinations."""


def reply_to_hello(connection: JmqConnection, packet: Packet, broker_session: int) -> Status:
    """Reply to HELLO and return the status of the reply.

    `broker_session` identifies this run of the broker (JMQBrokerSessionID).
    """
    options = connection.options
    connection.reconnectable = boolean(packet, "JMQReconnectable")
    connection.previous_number = number(packet, "JMQConnectionID", 0)
    value = packet.properties.get("JMQProtocolLevel")
    level = value if isinstance(value, int) and not isinstance(value, bool) else 0
    connection.level = max(Level.LOWEST, min(level, Level.HIGHEST))
    properties: dict[str, object] = {
        "JMQVersion": __version__,
        "JMQService": options.service,
        "JMQProtocolLevel": connection.level,
    }
    status, reason = _hello_status(options, level, packet)
    if reason:
        properties["JMQReason"] = reason
    if status in LOGIN_STATUSES:
        outbound = connection.outbound
        outbound.safe = boolean(packet, "JMQSafeMode")
        outbound.max_packet_size = client_packet_limit(packet, outbound.max_packet_size)
        buffer_size = number(packet, "JMQRBufferSize", 0)
        outbound.resume(number(packet, "JMQSize", buffer_size), byte_limit(packet))
        properties |= {
            "JMQConnectionID": Long(connection.number),
            "JMQMaxMsgBytes": Long(options.max_packet_size),
            "JMQBrokerSessionID": Long(broker_session),
            "JMQHA": False,
        }
        if options.broker_list:
            properties["JMQBrokerList"] = options.broker_list
    connection.reply(packet, status, properties)
    return status


def _hello_status(options: SessionOptions, level: int, packet: Packet) -> tuple[Status, str]:
    """Return the status of the reply to HELLO, and its reason. Raises RejectedRequest."""
    if level < Level.LOWEST:
        return (
            Status.BAD_VERSION,
            f"the broker supports the levels {Level.LOWEST} to {Level.HIGHEST}",
        )
    if options.unavailable_reason:
        return Status.UNAVAILABLE, options.unavailable_reason
    provider = text(packet, "JMQDestinationProvider")
    if provider and provider != DESTINATION_PROVIDER:
        reason = f"the broker does not support the JMQDestinationProvider {provider[:80]}"
        return Status.UNSUPPORTED_TYPE, reason
    if text(packet, "JMQClusterID"):
        return Status.BAD_REQUEST, "this broker is not in a cluster"
    if store := number(packet, "JMQStoreSession", 0):
        return Status.NOT_FOUND, f"the broker does not have the store session {store}"
    return Status.OK, ""


def encode_challenge(options: SessionOptions, hello: Packet, nonce: str) -> bytes:
    """Return the AUTHENTICATE_REQUEST, which follows the reply to HELLO."""
    return encode_packet(
        PacketType.AUTHENTICATE_REQUEST,
        consumer_id=hello.consumer_id,
        properties={
            "JMQAuthType": options.authentication,
            "JMQChallenge": True,
            "JMQSequence": hello.sequence,
            "JMQStatus": Status.OK.value,
        },
        body=nonce.encode(),
    )


def read_credentials(options: SessionOptions, packet: Packet, nonce: str) -> Credentials:
    """Return the credentials in AUTHENTICATE. Raises RejectedRequest: INVALID_LOGIN."""
    required_type = options.authentication
    try:
        auth_type = text(packet, "JMQAuthType") or required_type
        if fields.PAGE_SPELLINGS.get(auth_type, auth_type) != required_type:
            raise RejectedRequest(
                Status.INVALID_LOGIN, f"the broker requires the authentication type {required_type}"
            )
        user, secret = fields.read_login(packet.body)
        if required_type == fields.DIGEST:
            return Credentials(user, digest=secret, nonce=nonce)
        return Credentials(user, fields.login_password(secret))
    except ProtocolError as error:
        raise RejectedRequest(
            Status.INVALID_LOGIN, f"the body does not contain a user name and a password: {error}"
        ) from None


# --- port mapper ---------------------------------------------------------------------------------


class PortMapperSession(NoConsumers):
    """Session of one port mapper client. The content of the client's line is ignored.

    `encode_services` returns the list of services; `line_timeout` is the timeout for the client's
    line in seconds, 0 = none.
    """

    buffered = 0
    """The line is discarded."""
    incomplete = False

    def __init__(
        self, transport: Transport, encode_services: Callable[[], bytes], line_timeout: float
    ) -> None:
        self._transport = transport
        self._encode_services = encode_services
        self._received_bytes = 0
        self._answered = False
        self._timer = Alarm(transport)
        if line_timeout:
            self._timer.set(line_timeout, self.end_of_input)

    def receive(self, data: bytes) -> None:
        """Read up to the end of a line (CR or LF), then reply."""
        self._received_bytes += len(data)
        if b"\n" in data or b"\r" in data or self._received_bytes >= MAX_LINE:
            self.end_of_input()

    @property
    def login(self) -> Login:
        """Login state: due until the reply, so that the login timeout applies."""
        return Login.DONE if self._answered else Login.DUE

    def end_of_input(self) -> None:
        """Reply to a client that has sent its line, or that sends none."""
        if not self._answered:
            self.closed()
            self._transport.write((self._encode_services(),))
            self._transport.close()

    def closed(self) -> None:
        """Cancel the timer: the connection is closed."""
        self._answered = True
        self._timer.cancel()

    def disconnect(self, reason: str, *, stopping: bool = False) -> None:
        """Close the connection without a reply."""
        if not self._answered:
            self.closed()
            self._transport.close("" if stopping else reason)

    def discard_input(self) -> None:
        """Do nothing: no input is buffered."""

    def session_info(self) -> SessionInfo:
        """Return the session's protocol and state."""
        return SessionInfo("jmq", state="connecting")
