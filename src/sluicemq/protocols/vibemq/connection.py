"""State that the parts of a VibeMQ connection share, its responses, and its published messages.

The .NET client passes only the message of an Error to its application, and applications compare it.
Errors that the original server (1.8.0) also reports therefore have exactly its text.

The broker sends a PublishAck once the message is on disk; those of one read are sent together. A
message for a full queue with the BlockPublisher strategy waits for capacity, and so does its
PublishAck, but no longer than clients wait for a response. The session keeps reading meanwhile,
because the client's own acknowledgements may free capacity.

Clients may reply to any existing destination that a replyTo header names, even if its name is not a
valid VibeMQ queue name, as that of a JMS client's destination may be.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from sluicemq.broker import Destination
from sluicemq.model.access import Operation
from sluicemq.model.destination import is_temporary
from sluicemq.model.errors import (
    AccessDenied,
    BrokerError,
    DestinationConflict,
    DestinationNotFound,
    DestinationPrivate,
    FrameTooLarge,
    LimitExceeded,
    MessageTooLarge,
    ProtocolError,
    SluiceError,
)
from sluicemq.model.message import Durability
from sluicemq.protocols.channel import Channel, Publisher, cache_target
from sluicemq.protocols.offload import LARGE
from sluicemq.protocols.vibemq.compression import SUPPORTED, THRESHOLD, Compression
from sluicemq.protocols.vibemq.large import LargeDeliveries, LargeFrame
from sluicemq.protocols.vibemq.mapping import (
    MAX_QUEUE_NAME,
    check_headers,
    check_payload,
    decoded_body,
    is_queue_name,
    make_message,
    read_address,
    utf16_units,
)
from sluicemq.protocols.vibemq.queues import QueueCreation, WrittenOptions
from sluicemq.protocols.vibemq.wire import (
    BLOCK_TIMEOUT,
    CREATE_QUEUE,
    DELETE_QUEUE,
    ERROR,
    MAX_BODY,
    MAX_UNPACKED,
    PUBLISH,
    QUEUE_INFO,
    SUBSCRIBE,
    UNSUBSCRIBE,
    AckTemplate,
    Frame,
    compressed,
    encode,
)

_MAX_RESPONSE: Final = 4 * MAX_BODY
"""Maximum size of a response's body before its compression, in bytes: a list of queues."""
_MAX_REASON: Final = 1000
"""Maximum length of an error's message, in bytes."""
_MAX_PARKED: Final = 1000
"""Messages of a connection that may wait for capacity; a further one is refused at once."""
_NEEDS_QUEUE: Final = {
    PUBLISH: "publish",
    SUBSCRIBE: "subscribe",
    UNSUBSCRIBE: "unsubscribe",
    CREATE_QUEUE: "CreateQueue",
    DELETE_QUEUE: "DeleteQueue",
    QUEUE_INFO: "QueueInfo",
}
"""Commands in the original server's error for a missing queue name."""
_ERROR_CODES: Final[tuple[tuple[type[SluiceError], str], ...]] = (
    (DestinationNotFound, "QUEUE_NOT_FOUND"),
    (DestinationConflict, "QUEUE_EXISTS"),
    (DestinationPrivate, "NOT_AUTHORIZED"),
    (AccessDenied, "NOT_AUTHORIZED"),
    (MessageTooLarge, "INVALID_MESSAGE"),
    (ProtocolError, "INVALID_MESSAGE"),
)
"""The protocol's error codes; other errors are SERVER_ERROR."""


class RejectedRequest(SluiceError):
    """The answer to a request is an Error with this code of the protocol."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


ANSWERED: Final = (RejectedRequest, ProtocolError, BrokerError, AccessDenied)
"""Errors of a request that `VibemqConnection.fail` answers."""

Request = tuple[AckTemplate, str]
"""Template of the PublishAck, and the id of the Publish."""


class SessionOptions(NamedTuple):
    """Settings of a listener for its connections.

    durability      durability of published messages: the protocol leaves it open
    frame           maximum size of a frame's body as transferred, in bytes
    unpacked        maximum size of a frame's body after decompression, in bytes
    window          unacked messages of a subscription
    window_bytes    bytes of their bodies
    ack_timeout     ms, for queues without a timeout of their own; 0 = never
    compression     algorithms offered to clients
    threshold       size of a frame's body in bytes from which it is compressed, if negotiated
    detect_json     deliver text of other protocols that is a JSON object or array as JSON
    strict_create   CreateQueue of a queue that exists is answered with QUEUE_EXISTS
    foreign_delete  DeleteQueue deletes queues that others have created or use
    notify          called with messages for the operator; must not raise
    rate_limit      requests per second and connection, without acknowledgements and pings;
                    0 = no limit
    login_bytes     maximum size of a frame's body before the login, in bytes
    login_failures  failed logins, from 1, after which the connection is closed
    refused         the connection exceeds the connection limit: its Connect is refused
    block_timeout   ms that a publish waits for capacity in a queue with the BlockPublisher strategy
    defaults        options of queues for which a client gives none
    """

    durability: Durability = Durability.SYNC
    frame: int = MAX_BODY
    unpacked: int = MAX_UNPACKED
    window: int = 256
    window_bytes: int = 1 << 20
    ack_timeout: int = 30_000
    compression: tuple[Compression, ...] = SUPPORTED
    threshold: int = THRESHOLD
    detect_json: bool = True
    strict_create: bool = False
    foreign_delete: bool = False
    notify: Callable[[str], None] = lambda _: None
    rate_limit: int = 0
    login_bytes: int = 64 * 1024
    login_failures: int = 5
    refused: bool = False
    block_timeout: int = BLOCK_TIMEOUT
    defaults: WrittenOptions = WrittenOptions()


class VibemqConnection:
    """State of one connection. Implements `channel.ConfirmingSession`.

    name              unique name of the connection
    compression       negotiated compression
    reads_mode_names  the client reads the names of delivery modes, not their numbers
    large             frames of large messages, of all connections
    publisher         accepts the messages; the session confirms those of a read
    targets           destinations to which this client may publish, with their PublishAck templates
    """

    __slots__ = (
        "broker",
        "channel",
        "compression",
        "creation",
        "large",
        "name",
        "options",
        "publisher",
        "reads_mode_names",
        "targets",
    )

    def __init__(
        self,
        channel: Channel[Frame],
        options: SessionOptions,
        large: LargeDeliveries,
    ) -> None:
        self.channel = channel
        self.broker = channel.broker
        self.creation = QueueCreation(channel.broker, options.defaults)
        self.large = large
        self.options = options
        self.name = secrets.token_hex(8)
        self.compression = Compression.NONE
        self.reads_mode_names = False
        self.targets: dict[str, tuple[Destination, AckTemplate]] = {}
        self.publisher: Publisher[Request] = Publisher(
            channel, self.finish_parked, self, options.block_timeout
        )

    # --- responses ---------------------------------------------------------------------------

    def send(self, frame: Frame) -> None:
        """Send one frame, with the negotiated compression."""
        data = encode(frame)
        self.channel.write([compressed(data, self.compression, self.options.threshold)])

    def send_list(self, request: Frame, items: Sequence[object]) -> bytes | None:
        """Answer a request with a list, or return the encoded response if it is long: another
        thread has to compress it before it is sent. Raises RejectedRequest if it is too long."""
        frame = Frame(request.type, request.id, payload=msgspec.json.encode(items))
        try:
            data = encode(frame, limit=_MAX_RESPONSE if self.compression else MAX_BODY)
        except FrameTooLarge as error:
            raise RejectedRequest("SERVER_ERROR", str(error)) from None
        if self.compression and len(data) > LARGE:
            return data
        self.channel.write([compressed(data, self.compression, self.options.threshold)])
        return None

    def refuse(self, identity: str, code: str, reason: str) -> None:
        """Answer the request of that id with an Error. Clients show users only `reason`."""
        text = reason.encode(errors="replace")[:_MAX_REASON].decode(errors="replace")
        self.send(Frame(ERROR, identity, error_code=code, error_message=text))

    def fail(self, identity: str, error: SluiceError) -> None:
        """Answer the request of that id with an error, one of `ANSWERED`."""
        codes = (code for kind, code in _ERROR_CODES if isinstance(error, kind))
        code = error.code if isinstance(error, RejectedRequest) else next(codes, "SERVER_ERROR")
        reason = "Access denied." if isinstance(error, AccessDenied) else str(error)
        self.refuse(identity, code, reason)

    # --- permissions -------------------------------------------------------------------------

    def demand(self, frame: Frame, operation: Operation) -> None:
        """Raise an error unless the user may perform the operation on the queue that the frame
        names: ProtocolError, RejectedRequest, AccessDenied."""
        check_queue_name(frame)
        self.channel.demand(operation, frame.queue)

    # --- published messages ------------------------------------------------------------------

    def publish(self, frame: Frame, large: LargeFrame | None = None) -> None:
        """Publish the message of a PUBLISH frame, which is also `large` if it is a large one."""
        _, identity, name, payload, headers, _, _, _ = frame
        decoded: bytes | None = None
        try:
            if large is not None:
                decoded = large.decoded
            elif payload:
                check_payload(payload)
            if headers:
                check_headers(headers)
                if large is None:
                    decoded = decoded_body(frame)
            target = self.targets.get(name)
            if target is None or target[0].removed:
                target = self._find_target(frame)
        except ANSWERED as error:
            self.fail(identity, error)
            return
        destination, template = target
        durability = self.options.durability
        now = self.broker.clock.wall
        message = make_message(destination.address, frame, decoded, durability, now)
        request = (template, identity)
        try:
            if self.publisher.publish(destination, message, request):
                self.publisher.accepted.append(request)
        except BrokerError as error:
            self._refuse_message(identity, error)

    def _refuse_message(self, identity: str, error: BrokerError) -> None:
        if isinstance(error, LimitExceeded) and not isinstance(error, MessageTooLarge):
            self.refuse(identity, "QUEUE_FULL", str(error))
        else:
            self.fail(identity, error)

    def _find_target(self, frame: Frame) -> tuple[Destination, AckTemplate]:
        """Return the destination of a publish. Raises as `demand`; BrokerError."""
        name = frame.queue
        address = read_address(name)
        destination = self.broker.destinations.find(address)
        if destination is not None and destination.temporary:
            pass  # any client that knows its name may use it
        elif is_temporary(address.name):
            raise DestinationNotFound(f"{name} is no longer waited for")
        elif destination is None or is_queue_name(name):
            self.demand(frame, Operation.PRODUCE)
            destination = self.creation.find_or_create(name, self.channel.identity.creator)
        else:
            self.channel.demand(Operation.PRODUCE, destination.name)
        target = (destination, AckTemplate(name.encode()))
        cache_target(self.targets, name, target)
        return target

    def encode_confirms(self, batch: list[Request]) -> list[bytes]:
        """Return the PublishAcks."""
        return [template.fill(identity.encode()) for template, identity in batch]

    def may_park(self, destination: Destination) -> bool:
        """Return whether one more message may wait for capacity."""
        return self.options.block_timeout > 0 and self.publisher.parked < _MAX_PARKED

    def finish_parked(self, request: Request, error: BrokerError | None) -> None:
        """Answer a Publish that has waited for capacity."""
        if error is None:
            self.channel.traffic.published += 1
            self.publisher.confirm_parked(request)
        else:
            self._refuse_message(request[1], error)


def check_queue_name(frame: Frame) -> None:
    """Raise RejectedRequest or ProtocolError unless the frame has a valid queue name."""
    name = frame.queue
    if not name:
        reason = f"Queue name is required for {_NEEDS_QUEUE[frame.type]}."
        raise RejectedRequest("INVALID_QUEUE", reason)
    if is_queue_name(name):
        return
    if utf16_units(name) > MAX_QUEUE_NAME:
        raise ProtocolError(f"Queue name exceeds maximum length ({MAX_QUEUE_NAME}).")
    raise ProtocolError(
        "Queue name contains invalid characters. Allowed: alphanumeric, hyphens, underscores, dots."
    )
