"""Browsing of queues (protocol specification, BROWSE and DELIVER).

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

from sluicemq.broker import Broker, Selector, scan
from sluicemq.model.destination import Address, Kind
from sluicemq.model.errors import JournalDamaged, ProtocolError, RecordNotFound
from sluicemq.model.message import Message, Origin
from sluicemq.protocols.java import Long, dumps_map
from sluicemq.protocols.jmq.connection import JmqConnection, number, truth
from sluicemq.protocols.jmq.destinations import (
    address_of,
    longs,
    metrics_of,
    missing,
    visible,
)
from sluicemq.protocols.jmq.fields import SYSID_SIZE, decode_sysids
from sluicemq.protocols.jmq.mapping import deliver_chunks, sysid_of
from sluicemq.protocols.jmq.packets import DestType, L, RejectedRequest, Status
from sluicemq.protocols.jmq.wire import Packet

SLICE_BYTES: Final = 1 << 20
"""Maximum number of bytes of bodies delivered in one slice."""
MOST_VIEWS: Final = 8
"""Maximum number of BROWSE replies to which DELIVER may refer; older ones are dropped."""
MOST_WAITING: Final = 1000
"""Maximum number of waiting requests of a connection."""

Work = Iterator[None]
"""Steps of a request, of which each slice runs some."""


@dataclass(slots=True, eq=False)
class View:
    """Messages listed by one BROWSE_REPLY.

    ids        all ids, as in the reply
    sequences  sequence numbers in the same order
    messages   messages that are not in the journal, by sequence number
    cursor     index of the message after the one that was found last
    """

    ids: bytearray = field(default_factory=bytearray)
    sequences: array[int] = field(default_factory=partial(array, "Q"))
    messages: dict[int, Message] = field(default_factory=dict)
    cursor: int = 0

    def add(self, sysid: bytes, sequence: int, message: Message | None) -> None:
        """Add a message; `message` is set if it is not in the journal."""
        self.ids += sysid
        self.sequences.append(sequence)
        if message is not None:
            self.messages[sequence] = message

    def find(self, broker: Broker, sysid: bytes) -> Message | None:
        """Return the message if it still exists, or None. Fast for ids in order."""
        at = self.cursor * SYSID_SIZE
        if self.ids[at : at + SYSID_SIZE] != sysid:
            at = self.ids.find(sysid)
            while at >= 0 and at % SYSID_SIZE:  # these bytes belong to two ids
                at = self.ids.find(sysid, at + 1)
            if at < 0:
                return None
        place = at // SYSID_SIZE
        self.cursor = place + 1
        sequence = self.sequences[place]
        message = self.messages.get(sequence)
        if message is not None:
            return message if message.references else None
        return read(broker, sequence)


def read(broker: Broker, sequence: int) -> Message | None:
    """Return a message from the journal; None if it has ended or cannot be read."""
    try:
        message = broker.fetch(sequence)
    except (RecordNotFound, JournalDamaged):
        return None
    message.sequence = sequence
    return message


def address_of_queue(packet: Packet) -> Address:
    """Return the queue named by a request, also without JMQDestType.

    Raises RejectedRequest if it is a topic.
    """
    address = address_of(packet, DestType.QUEUE)
    if address.kind is not Kind.QUEUE:
        raise RejectedRequest(Status.BAD_REQUEST, f"{address}: only queues can be browsed")
    return address


class Browsing:
    """BROWSE and DELIVER requests of one connection."""

    __slots__ = (
        "_broker",
        "_connection",
        "_ended",
        "_running",
        "_scans",
        "_views",
        "_waiting",
    )

    def __init__(self, connection: JmqConnection) -> None:
        self._connection = connection
        self._broker = connection.broker
        self._scans = connection.broker.scans
        self._views: dict[int, View] = {}
        """Views by the JMQConsumerID in BROWSE_REPLY."""
        self._waiting: deque[Work] = deque()
        self._running = False
        """True while the next slice is scheduled."""
        self._ended = False

    # --- requests ----------------------------------------------------------------------------

    def browse(self, packet: Packet) -> None:
        """Handle BROWSE."""
        address = address_of_queue(packet)
        destination = visible(self._connection, address)
        compiled = self._connection.selector(packet)
        if destination is None:
            raise missing(self._broker, address)
        if truth(packet, "JMQMetrics"):
            properties: dict[str, object] = {
                "JMQConsumerID": Long(self._connection.uid()),
                "JMQMetrics": True,
            }
            self._connection.reply(
                packet, properties=properties, body=dumps_map(longs(metrics_of(destination)))
            )
            return
        self._begin(self._list(packet, compiled))

    def deliver(self, packet: Packet) -> None:
        """Handle DELIVER."""
        consumer_id = number(packet, "JMQConsumerID")
        sysids = decode_sysids(packet.body)
        self._begin(self._send(packet, consumer_id, sysids))

    # --- one after the other -----------------------------------------------------------------

    def _begin(self, work: Work) -> None:
        if len(self._waiting) >= MOST_WAITING:
            raise RejectedRequest(
                Status.UNAVAILABLE, "too much is being browsed on this connection"
            )
        self._waiting.append(work)
        if not self._running:
            self._running = True
            self._scans.begin(self._step)

    def go_on(self) -> None:
        """Continue after the client has read."""
        if self._waiting and not self._running:
            self._running = True
            self._scans.schedule(self._step)

    def end(self) -> None:
        """Stop all browsing at the end of the connection."""
        self._ended = True
        self._waiting.clear()
        self._views.clear()

    def _step(self) -> None:
        self._running = False
        while self._waiting and not self._ended:
            if self._connection.channel.congested:
                return  # until `go_on`
            if next(self._waiting[0], self) is self:
                if self._waiting:
                    self._waiting.popleft()
                if not self._scans.over():
                    continue
            self._running = bool(self._waiting)
            if self._running:
                self._scans.schedule(self._step)
            return

    # --- BROWSE ------------------------------------------------------------------------------

    def _list(self, packet: Packet, selector: Selector | None) -> Work:
        """List the messages and send BROWSE_REPLY."""
        broker = self._broker
        destination = broker.destinations.find(address_of_queue(packet))
        view = View()
        # it may have been deleted meanwhile, and created again by another connection
        if destination is not None and destination.owner in (None, self._connection):
            most = self._connection.options.browsed
            identity = broker.identity
            over = self._scans.over
            for listed in scan(destination.queue):
                if listed is not None:
                    sequence, unjournaled = listed
                    message = unjournaled or read(broker, sequence)
                    if message is not None and (selector is None or selector(message)):
                        view.add(sysid_of(message, identity), sequence, unjournaled)
                        if len(view.sequences) >= most:
                            break
                if over():
                    yield
        number = self._connection.uid()
        self._views[number] = view
        if len(self._views) > MOST_VIEWS:
            del self._views[next(iter(self._views))]
        properties = {"JMQConsumerID": Long(number)}
        self._connection.reply(packet, properties=properties, body=bytes(view.ids))

    # --- DELIVER -----------------------------------------------------------------------------

    def _send(self, packet: Packet, consumer_id: int, sysids: list[bytes]) -> Work:
        """Send the messages that still exist, each once the next one is found.

        The last one has the L bit.
        """
        found: Message | None = None
        answered = False
        size = 0
        over = self._scans.over
        for sysid in sysids:
            message = self._find(consumer_id, sysid)
            if message is not None:
                if found is not None:
                    if not answered:
                        answered = True
                        self._connection.reply(packet)
                    size += self._write(found, consumer_id, 0)
                found = message
            if over() or size > SLICE_BYTES:
                size = 0
                yield
        if found is None:
            self._connection.refuse(
                packet, RejectedRequest(Status.NOT_FOUND, "none of these is there any more")
            )
            return
        if not answered:
            self._connection.reply(packet)
        self._write(found, consumer_id, L)

    def _find(self, consumer_id: int, sysid: bytes) -> Message | None:
        """Find a message in the view of the request; without such a view, in any view."""
        view = self._views.get(consumer_id)
        message = None
        for each in [view] if view is not None else reversed(self._views.values()):
            message = each.find(self._broker, sysid)
            if message is not None:
                break
        if message is not None and message.origin is not Origin.JMQ:
            try:
                deliver_chunks(message, consumer_id, 0, 0, self._broker.identity)
            except ProtocolError:
                return None  # no packet can carry it
        return message

    def _write(self, message: Message, consumer_id: int, flags: int) -> int:
        """Write a message and return the size of its body."""
        connection = self._connection
        if not connection.channel.closed:
            connection.channel.transport.write(
                deliver_chunks(message, consumer_id, flags, 0, self._broker.identity)
            )
        return len(message.body)
