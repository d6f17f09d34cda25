"""State that the parts of a VibeMQ connection share, and its responses except deliveries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from sluicemq.broker import Broker
from sluicemq.model.access import ANONYMOUS
from sluicemq.model.errors import (
    AccessError,
    AuthenticationMissing,
    BrokerError,
    DestinationConflict,
    DestinationNotFound,
    DestinationPrivate,
    FrameTooLarge,
    LoginBusy,
    MessageTooLarge,
    TooManyConnections,
    TooManyFailures,
)
from sluicemq.model.message import Durability
from sluicemq.protocols.channel import Channel, SentDeliveries
from sluicemq.protocols.transport import Transport
from sluicemq.protocols.vibemq import error_texts
from sluicemq.protocols.vibemq.compression import SUPPORTED, THRESHOLD, Compression
from sluicemq.protocols.vibemq.creation import ListenerDefaults
from sluicemq.protocols.vibemq.outgoing import LargeDeliveries
from sluicemq.protocols.vibemq.unacked import UnackedDeliveries
from sluicemq.protocols.vibemq.wire import (
    BLOCK_TIMEOUT,
    ERROR,
    MAX_BODY,
    MAX_UNPACKED,
    Frame,
    compressed,
    encode,
)
from sluicemq.security.access import Access

WINDOW: Final = 256
"""Default window, in messages."""
WINDOW_BYTES: Final = 1 << 20
ACK_TIMEOUT: Final = 30.0
"""Default acknowledgement timeout, in seconds."""
_LONGEST_REASON: Final = 1000
"""Maximum length of an error's message, in bytes."""


def error_code(error: BrokerError) -> str:
    """Return the protocol's error code."""
    if isinstance(error, DestinationNotFound):
        return "QUEUE_NOT_FOUND"
    if isinstance(error, DestinationConflict):
        return "QUEUE_EXISTS"
    if isinstance(error, DestinationPrivate):
        return "NOT_AUTHORIZED"
    if isinstance(error, MessageTooLarge):
        return "INVALID_MESSAGE"
    return "SERVER_ERROR"


def login_error(error: AccessError, connect: Frame) -> tuple[str, str]:
    """Return code and text of the Error that answers `connect`.

    The code tells the client whether it may repeat the same login.
    """
    headers = connect.headers
    has_credentials = "authToken" in headers or {"authUsername", "authPassword"} <= headers.keys()
    if isinstance(error, AuthenticationMissing):
        return "AUTH_REQUIRED", error_texts.CREDENTIALS_MISSING
    if isinstance(error, (LoginBusy, TooManyFailures)):
        return "RATE_LIMITED", str(error)
    if isinstance(error, TooManyConnections):
        return "CONNECTION_LIMIT", error_texts.TOO_MANY_CONNECTIONS
    # a password without a user name may be a token, so it was checked
    if not has_credentials:
        return "AUTH_REQUIRED", error_texts.CREDENTIALS_MISSING
    return "AUTH_FAILED", error_texts.CREDENTIALS_WRONG


class DeliveryTerms(NamedTuple):
    """Delivery terms of a connection's subscriptions.

    window         messages
    window_bytes   bytes of their bodies
    ack_timeout    ms, for queues without a timeout of their own; 0 = never
    threshold      size of a frame's body in bytes from which it is compressed, if negotiated
    detect_json    deliver text of other protocols that is a JSON object or array as JSON
    """

    window: int = WINDOW
    window_bytes: int = WINDOW_BYTES
    ack_timeout: int = round(ACK_TIMEOUT * 1000)
    threshold: int = THRESHOLD
    detect_json: bool = True


def _ignore(_: str) -> None:
    return None


class SessionOptions(NamedTuple):
    """Settings of a listener for its connections.

    durability      durability of published messages: the protocol leaves it open
    frame           maximum size of a frame's body as transferred, in bytes
    unpacked        maximum size of a frame's body after decompression, in bytes
    terms           delivery terms of subscriptions
    compression     algorithms offered to clients
    strict_create   CreateQueue answers QUEUE_EXISTS even if the options are the same
    foreign_delete  DeleteQueue deletes queues that others have created or use (ownership.py)
    notify          called with messages for the operator; must not raise
    rate_limit      requests per second and connection, without acknowledgements and pings;
                    0 = no limit
    login_bytes     maximum size of a frame's body before the login, in bytes
    login_failures  failed logins, from 1, after which the connection is closed
    refused         the connection exceeds the connection limit: its Connect is refused
    block_timeout   ms that a publish waits for room in a queue with the BlockPublisher strategy
    defaults        defaults of queues for which a client gives no options
    """

    durability: Durability = Durability.SYNC
    frame: int = MAX_BODY
    unpacked: int = MAX_UNPACKED
    terms: DeliveryTerms = DeliveryTerms()
    compression: tuple[Compression, ...] = SUPPORTED
    strict_create: bool = False
    foreign_delete: bool = False
    notify: Callable[[str], None] = _ignore
    rate_limit: int = 0
    login_bytes: int = 64 * 1024
    login_failures: int = 5
    refused: bool = False
    block_timeout: int = BLOCK_TIMEOUT
    defaults: ListenerDefaults = ListenerDefaults()


class VibemqConnection:
    """State of one connection.

    name         unique name of the connection
    compression  negotiated compression
    sent         deliveries of queues without acknowledgements
    large        frames of large messages, of all connections
    """

    __slots__ = ("broker", "channel", "compression", "large", "name", "sent", "terms", "unacked")

    def __init__(
        self,
        transport: Transport,
        broker: Broker,
        access: Access,
        terms: DeliveryTerms,
        name: str,
        large: LargeDeliveries,
    ) -> None:
        self.channel: Channel[Frame] = Channel(transport, broker, access, "vibemq", ANONYMOUS)
        self.broker = broker
        self.large = large
        self.terms = terms
        self.name = name
        self.sent = SentDeliveries(broker, refill=True)
        self.unacked = UnackedDeliveries(transport, broker)
        self.compression = Compression.NONE

    def send(self, frame: Frame) -> None:
        """Send one frame, with the negotiated compression."""
        try:
            data = encode(frame)
        except FrameTooLarge as error:
            self.refuse(frame.id, "SERVER_ERROR", str(error))
            return
        if self.compression:
            data = compressed(data, self.compression, self.terms.threshold)
        self.channel.write([data])

    def refuse(self, identity: str, code: str, why: str) -> None:
        """Answer the request of that id with an Error. Clients show users only `why`."""
        text = why.encode(errors="replace")[:_LONGEST_REASON].decode(errors="replace")
        self.send(Frame(ERROR, identity, error_code=code, error_message=text))
