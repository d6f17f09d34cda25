"""Requests about destinations: CREATE_DESTINATION, DESTROY_DESTINATION, VERIFY_DESTINATION; BROWSE
and DELIVER, which browse queues.

Clients send CREATE_DESTINATION before they add a producer or a consumer, whether the destination
exists or not, so the request requires only the permission to produce or to consume. A temporary
destination whose name is not one of those requires the permission to create it.

A queue created by CREATE_DESTINATION gets the flavour in JMQDestType; an existing queue keeps its
settings:

| flavour     | max_consumers | active_consumers | consumers                                     |
|-------------|---------------|------------------|-----------------------------------------------|
| SINGLE      | 1             | 0                | one; another is refused: 409                  |
| FAILOVER    | 0             | 1                | one is active, the others standby, in order   |
| ROUND_ROBIN | 0             | 0                | all in turn                                   |
| none        | by the broker's default settings                                                 |

The reply to BROWSE has the SysMessageIDs of the messages in queue order; DELIVER requests messages
of these ids, the last of which has the L bit. They are sent even while the connection is stopped.
Messages that have ended meanwhile are skipped.

A queue may be long and its messages in the journal, so both requests are processed in slices of
the time for scans (broker/scheduler.py), and nothing is sent to a client that does not read. A
connection processes one request at a time, in order.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from msgspec.structs import replace

from sluicemq.broker import Broker, Delivery, Destination, Selector, scan
from sluicemq.model.access import Operation
from sluicemq.model.destination import (
    Address,
    CreatedBy,
    DestinationSettings,
    Kind,
    Provenance,
    is_jms_temporary,
    is_temporary,
)
from sluicemq.model.errors import (
    DestinationNotFound,
    JournalDamaged,
    ProtocolError,
    RecordNotFound,
)
from sluicemq.model.message import Message, Origin
from sluicemq.protocols.java import Long, dumps_map
from sluicemq.protocols.jmq.connection import JmqConnection
from sluicemq.protocols.jmq.destinations import (
    DEFAULTS,
    accepts_replies,
    address_of,
    find_or_create,
    is_reserved,
    is_wildcard,
    metrics_of,
    permission_name,
    to_longs,
)
from sluicemq.protocols.jmq.fields import DEAD_MESSAGES, SYSID_SIZE, format_name
from sluicemq.protocols.jmq.mapping import encode_delivery, sysid_of
from sluicemq.protocols.jmq.packets import DestType, L, RejectedRequest, Status, W
from sluicemq.protocols.jmq.wire import Packet, boolean, number

SLICE_BYTES: Final = 1 << 20
"""Maximum number of bytes of bodies delivered in one slice."""
MAX_RESULTS: Final = 1000
"""Maximum number of results to which DELIVER may refer; older ones are dropped."""
MAX_RESULT_MESSAGES: Final = 1_000_000
"""Maximum number of messages in these results, 40 bytes each, unless there is only one."""
MAX_WAITING: Final = 1000
"""Maximum number of waiting requests of a connection."""
MAX_WAITING_BYTES: Final = 1 << 20
"""Maximum size of its waiting requests in bytes, unless there is only one."""

_FLAVOURS: Final = {
    DestType.SINGLE: (1, 0),
    DestType.ROUND_ROBIN: (0, 0),
    DestType.FAILOVER: (0, 1),
}
"""max_consumers and active_consumers."""
_FLAVOUR_BITS: Final = DestType.SINGLE | DestType.ROUND_ROBIN | DestType.FAILOVER

Steps = Iterator[None]
"""Steps of a request; each slice of the time for scans runs some of them."""


# --- CREATE, DESTROY, VERIFY -----------------------------------------------------------------


def _with_flavour(
    settings: DestinationSettings, address: Address, bits: int
) -> DestinationSettings:
    """Return the settings with the flavour in JMQDestType, which topics do not have.

    Raises RejectedRequest if there is more than one.
    """
    flavour = bits & _FLAVOUR_BITS
    if not flavour or address.kind is Kind.TOPIC:
        return settings
    if flavour not in _FLAVOURS:
        raise RejectedRequest(Status.BAD_REQUEST, f"JMQDestType {bits} has more than one flavour")
    max_consumers, active_consumers = _FLAVOURS[flavour]
    return replace(settings, max_consumers=max_consumers, active_consumers=active_consumers)


def _flavour_bits(destination: Destination) -> int:
    """Return the flavour of a queue; 0 for round robin, the default."""
    settings = destination.settings
    if destination.topic:
        return 0
    if settings.max_consumers == 1:
        return DestType.SINGLE
    return DestType.FAILOVER if settings.active_consumers == 1 else 0


def type_bits(destination: Destination) -> int:
    """Return the JMQDestType of a destination."""
    bits = DestType.TOPIC if destination.topic else DestType.QUEUE
    bits |= _flavour_bits(destination)
    if destination.temporary:
        bits |= DestType.TEMP
    elif destination.automatic:
        bits |= DestType.AUTO
    if destination.address == DEAD_MESSAGES:
        bits |= DestType.INTERNAL | DestType.DMQ
    return bits


def owns(connection: JmqConnection, destination: Destination | None) -> bool:
    """Return whether it is a temporary destination of this connection."""
    return destination is not None and destination.owner is connection.channel


def find_permitted(
    connection: JmqConnection, operation: Operation, address: Address
) -> Destination | None:
    """Return the destination if it exists. Raises AccessDenied, whether it exists or not, unless
    the client owns it, the name is one of temporary destinations, or the user has the permission.
    """
    destination = connection.broker.destinations.find(address)
    if not (is_temporary(address.name) or owns(connection, destination)):
        connection.channel.demand(operation, permission_name(address))
    return destination


def find_visible(connection: JmqConnection, address: Address) -> Destination | None:
    """Return the destination if it exists, for a request that only reads.

    Raises AccessDenied, and RejectedRequest: NOT_FOUND for a temporary one of another connection.
    """
    destination = find_permitted(connection, Operation.BROWSE, address)
    if accepts_replies(destination) and not owns(connection, destination):
        raise not_found_error(connection.broker, address)
    return destination


def create_destination(connection: JmqConnection, packet: Packet) -> None:
    """Handle CREATE_DESTINATION."""
    address = address_of(packet)
    bits = number(packet, "JMQDestType")
    wildcard = is_wildcard(address)
    if bits & DestType.TEMP:
        _create_temporary(connection, address, bits)
    elif is_temporary(address.name):
        find_or_create(connection.broker, address, None)
    elif not wildcard and not is_reserved(address):
        _create(connection, address, bits)
    destination = connection.broker.destinations.find(address)
    if destination is not None:
        flavour = _flavour_bits(destination) or bits & DestType.ROUND_ROBIN
        bits = bits & ~_FLAVOUR_BITS | flavour
    connection.reply(
        packet,
        properties={
            "JMQDestType": bits,
            "JMQDestUID": format_name(address.name),
            "JMQValidateXMLSchema": False,
            "JMQReloadXMLSchemaOnFailure": False,
        },
        flags=W if wildcard else 0,
    )


def _create_temporary(connection: JmqConnection, address: Address, bits: int) -> None:
    if is_wildcard(address) or is_reserved(address):
        raise RejectedRequest(Status.ERROR, f"{address.name} cannot be a temporary destination")
    if not is_jms_temporary(address.name):
        connection.channel.demand(Operation.CREATE, address.name)
    connection.broker.destinations.check_temporary(connection.channel)
    connection.broker.destinations.declare(
        address,
        _with_flavour(DEFAULTS, address, bits),
        owner=connection.channel,
        creator=connection.identity.creator,
        provenance=Provenance(CreatedBy.JMQ),
    )


def create_lost_temporary(connection: JmqConnection, address: Address) -> None:
    """Create a temporary destination that has ended with the previous connection of a client that
    has reconnected; do nothing if the name is in use or not one of a JMS client.

    Raises LimitExceeded.
    """
    if is_jms_temporary(address.name) and connection.broker.destinations.find(address) is None:
        _create_temporary(connection, address, 0)


def _create(connection: JmqConnection, address: Address, bits: int) -> None:
    identity = connection.identity
    existing = connection.broker.destinations.find(address)
    if accepts_replies(existing):
        return
    if not (
        identity.may(Operation.PRODUCE, address.name)
        or identity.may(Operation.CONSUME, address.name)
    ):
        connection.channel.demand(Operation.CREATE, address.name)
    _with_flavour(DEFAULTS, address, bits)  # refused before anything is created
    try:
        destination = find_or_create(connection.broker, address, identity.creator)
    except DestinationNotFound as error:
        raise RejectedRequest(Status.FORBIDDEN, str(error)) from None
    if existing is None:
        settings = _with_flavour(destination.settings, address, bits)
        # clients of other protocols may have waited for the queue and be attached
        connection.broker.destinations.apply(destination, settings)


def destroy_destination(connection: JmqConnection, packet: Packet) -> None:
    """Handle DESTROY_DESTINATION. Only its connection may destroy a temporary destination.

    Without the permission the reply does not tell whether the destination exists.
    """
    address = address_of(packet)
    destination = find_permitted(connection, Operation.DELETE, address)
    if destination is None:
        raise RejectedRequest(Status.NOT_FOUND, f"{address} does not exist")
    if destination.temporary and not owns(connection, destination):
        raise RejectedRequest(Status.FORBIDDEN, f"{address} belongs to another connection")
    if is_reserved(address):
        raise RejectedRequest(Status.FORBIDDEN, f"{address} belongs to the broker")
    connection.broker.remove(destination)
    connection.reply(packet)


def verify_destination(connection: JmqConnection, packet: Packet) -> None:
    """Handle VERIFY_DESTINATION, which changes nothing."""
    address = address_of(packet)
    destination = find_visible(connection, address)
    connection.selector(packet)  # raises if the selector is invalid
    if is_wildcard(address):
        connection.reply(packet, properties={"JMQDestType": DestType.TOPIC}, flags=W)
        return
    if destination is None:
        raise not_found_error(connection.broker, address)
    connection.reply(packet, properties={"JMQDestType": type_bits(destination)})


def not_found_error(broker: Broker, address: Address) -> RejectedRequest:
    """Return the error for a destination that does not exist or is not visible."""
    settings, queue = broker.settings, address.kind is Kind.QUEUE
    can_create = (
        broker.destinations.find(address) is None
        and not is_temporary(address.name)
        and not is_reserved(address)
        and (settings.auto_create_queues if queue else settings.auto_create_topics)
    )
    return RejectedRequest(
        Status.NOT_FOUND, f"{address} does not exist", {"JMQCanCreate": can_create}
    )


# --- browsing --------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class BrowseResult:
    """Messages listed by one BROWSE_REPLY.

    ids        all ids, as in the reply
    sequences  sequence numbers in the same order
    deliveries those of messages that are not in the journal, by sequence number. They have the
               message until they end, so that the result keeps no bodies in memory
    cursor     index after the message that was found last
    """

    ids: bytearray = field(default_factory=bytearray)
    sequences: array[int] = field(default_factory=partial(array, "Q"))
    deliveries: dict[int, Delivery] = field(default_factory=dict)
    cursor: int = 0

    def add(self, sysid: bytes, sequence: int, delivery: Delivery | None) -> None:
        """Add a message; `delivery` is set if it is not in the journal."""
        self.ids += sysid
        self.sequences.append(sequence)
        if delivery is not None:
            self.deliveries[sequence] = delivery

    def find(self, broker: Broker, sysid: bytes) -> Message | None:
        """Return the message if it still exists, or None. Fast for ids in order."""
        offset = self.cursor * SYSID_SIZE
        if self.ids[offset : offset + SYSID_SIZE] != sysid:
            offset = self.ids.find(sysid)
            while offset >= 0 and offset % SYSID_SIZE:  # these bytes belong to two ids
                offset = self.ids.find(sysid, offset + 1)
            if offset < 0:
                return None
        index = offset // SYSID_SIZE
        self.cursor = index + 1
        sequence = self.sequences[index]
        delivery = self.deliveries.get(sequence)
        if delivery is not None:
            return delivery.message
        return read_message(broker, sequence)


def read_message(broker: Broker, sequence: int) -> Message | None:
    """Return a message from the journal; None if it has ended or cannot be read."""
    try:
        return broker.fetch(sequence)
    except (RecordNotFound, JournalDamaged):
        return None


class Browsing:
    """BROWSE and DELIVER requests of one connection."""

    __slots__ = (
        "_broker",
        "_connection",
        "_request_bytes",
        "_requests",
        "_results",
        "_running",
        "_scans",
    )

    def __init__(self, connection: JmqConnection) -> None:
        self._connection = connection
        self._broker = connection.broker
        self._scans = connection.broker.scans
        self._results: dict[int, BrowseResult] = {}
        """Results by the JMQConsumerID in BROWSE_REPLY."""
        self._requests: deque[tuple[Steps, int]] = deque()
        """Requests in order, with their sizes in bytes."""
        self._request_bytes = 0
        self._running = False
        """True while the next slice is scheduled."""

    # --- requests ----------------------------------------------------------------------------

    def browse(self, packet: Packet) -> None:
        """Handle BROWSE, in which JMQDestType may be absent."""
        address = address_of(packet, DestType.QUEUE)
        if address.kind is not Kind.QUEUE:
            raise RejectedRequest(Status.BAD_REQUEST, f"{address}: only queues can be browsed")
        destination = find_visible(self._connection, address)
        compiled = self._connection.selector(packet)
        if destination is None:
            raise not_found_error(self._broker, address)
        if boolean(packet, "JMQMetrics"):
            self._connection.reply(
                packet,
                properties={"JMQConsumerID": Long(self._connection.uid()), "JMQMetrics": True},
                body=dumps_map(to_longs(metrics_of(destination))),
            )
            return
        self._enqueue(self._list(packet, address, compiled), packet)

    def deliver(self, packet: Packet) -> None:
        """Handle DELIVER."""
        consumer_id = number(packet, "JMQConsumerID")
        if len(packet.body) % SYSID_SIZE:
            raise RejectedRequest(Status.BAD_REQUEST, "the body is not a list of SysMessageIDs")
        self._enqueue(self._send(packet, consumer_id), packet)

    # --- one after the other -----------------------------------------------------------------

    def _enqueue(self, steps: Steps, packet: Packet) -> None:
        size = len(packet.head) + len(packet.body)
        too_large = self._request_bytes + size > MAX_WAITING_BYTES
        if len(self._requests) >= MAX_WAITING or (self._requests and too_large):
            raise RejectedRequest(
                Status.UNAVAILABLE,
                "the connection has too many requests to browse queues in progress",
            )
        self._requests.append((steps, size))
        self._request_bytes += size
        if not self._running:
            self._running = True
            self._scans.begin(partial(self._connection.channel.transport.call, self._step))

    def resume(self) -> None:
        """Continue after the client has read."""
        if self._requests and not self._running:
            self._running = True
            self._scans.schedule(partial(self._connection.channel.transport.call, self._step))

    def end(self) -> None:
        """Stop all browsing at the end of the connection."""
        self._requests.clear()
        self._results.clear()

    def _step(self) -> None:
        """Run the requests in order until a slice or the time for scans ends, or the client does
        not read; then `resume` continues."""
        channel = self._connection.channel
        while self._requests and not channel.congested:
            has_finished = next(self._requests[0][0], self) is self
            if has_finished and self._requests:  # the connection may have ended
                self._request_bytes -= self._requests.popleft()[1]
            if not has_finished or self._scans.is_time_up():
                break
        self._running = False
        if not channel.congested:
            self.resume()

    # --- BROWSE ------------------------------------------------------------------------------

    def _list(self, packet: Packet, address: Address, selector: Selector | None) -> Steps:
        """List the messages and send BROWSE_REPLY."""
        broker = self._broker
        destination = broker.destinations.find(address)
        result = BrowseResult()
        # it may have been deleted meanwhile, and created again by another connection
        if destination is not None and destination.owner in (None, self._connection.channel):
            limit = self._connection.options.max_browsed
            identity = broker.identity
            is_time_up = self._scans.is_time_up
            for entry in scan(destination.queue):
                if entry is not None:
                    sequence, delivery = entry
                    message = delivery.message if delivery else read_message(broker, sequence)
                    if message is not None and (selector is None or selector(message)):
                        result.add(sysid_of(message, identity), sequence, delivery)
                        if len(result.sequences) >= limit:
                            break
                if is_time_up():
                    yield
        number = self._connection.uid()
        self._results[number] = result
        self._drop_old_results()
        self._connection.reply(
            packet, properties={"JMQConsumerID": Long(number)}, body=bytes(result.ids)
        )

    def _drop_old_results(self) -> None:
        results = self._results
        message_count = sum(len(result.sequences) for result in results.values())
        while len(results) > MAX_RESULTS or (
            len(results) > 1 and message_count > MAX_RESULT_MESSAGES
        ):
            message_count -= len(results.pop(next(iter(results))).sequences)

    # --- DELIVER -----------------------------------------------------------------------------

    def _send(self, packet: Packet, consumer_id: int) -> Steps:
        """Send the messages that still exist, each once the next one is found.

        The last one has the L bit.
        """
        previous: Message | None = None
        size = 0
        is_time_up = self._scans.is_time_up
        body = packet.body
        for offset in range(0, len(body), SYSID_SIZE):
            message = self._find_message(consumer_id, body[offset : offset + SYSID_SIZE])
            if message is not None:
                if previous is None:
                    self._connection.reply(packet)
                else:
                    size += self._write(previous, consumer_id, 0)
                previous = message
            if is_time_up() or size > SLICE_BYTES:
                size = 0
                yield
        if previous is None:
            self._connection.refuse(
                packet, RejectedRequest(Status.NOT_FOUND, "none of these messages exists any more")
            )
        else:
            self._write(previous, consumer_id, L)

    def _find_message(self, consumer_id: int, sysid: bytes) -> Message | None:
        """Find a message in the result to which the request refers, or else in any result."""
        result = self._results.get(consumer_id)
        message = None
        for candidate in [result] if result is not None else reversed(self._results.values()):
            message = candidate.find(self._broker, sysid)
            if message is not None:
                break
        if message is not None and message.origin is not Origin.JMQ:
            try:
                encode_delivery(message, consumer_id, 0, 0, self._broker.identity)
            except ProtocolError:
                return None  # no packet can carry it
        return message

    def _write(self, message: Message, consumer_id: int, flags: int) -> int:
        """Write a message and return the size of its body."""
        connection = self._connection
        if not connection.channel.closed:
            connection.channel.transport.write(
                encode_delivery(message, consumer_id, flags, 0, self._broker.identity)
            )
        return len(message.body)
