"""How much a connection may be sent: nothing before START, and then in portions if the client
wants that.

A connection that asked for it (JMQSize or JMQRBufferSize of HELLO) is sent so many messages, the
last of them with the F bit, and then none until RESUME_FLOW. In safe mode it is sent one, and the
next when that has been acknowledged. (Protocol specification, HELLO and RESUME_FLOW.)

JMQBytes of HELLO and RESUME_FLOW is the same in bytes of packets: the message that reaches the
limit is the last one, so a limit is exceeded by less than one message. JMQMaxMsgBytes is the
largest packet that the client takes; larger messages are not sent to it (consumers.py).

    value     JMQSize of the connection  JMQBytes                    JMQMaxMsgBytes
    positive  so many messages           so many bytes               so many bytes
    0         unlimited, as in Open MQ   nothing until RESUME_FLOW   unlimited
    negative  unlimited                  unlimited                   unlimited
    absent    HELLO: unlimited; RESUME_FLOW: as it was
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sluicemq.protocols.jmq.consumers import JmsConsumer

UNLIMITED: Final = 1 << 40
"""Messages: more than anybody will count."""
UNLIMITED_BYTES: Final = 1 << 62


class ByteCredit:
    """How many bytes of packets may be sent until RESUME_FLOW.

    limit    bytes between two RESUME_FLOWs, or UNLIMITED_BYTES
    left     what remains of them; the flow is paused at 0 or less
    limited  bytes have to be counted
    """

    __slots__ = ("left", "limit", "limited")

    def __init__(self) -> None:
        self.limit = UNLIMITED_BYTES
        self.left = UNLIMITED_BYTES
        self.limited = False

    def resume(self, limit: int | None) -> None:
        """Allow `limit` bytes from now on; None for as many as before."""
        if limit is not None:
            self.limit = limit
            self.limited = limit != UNLIMITED_BYTES
        self.left = self.limit


class Outbound:
    """See the module.

    consumers    those of the connection that are not closed, the one least recently sent a message
                 first: in this order they go on after a pause, so that every consumer has its turn
                 even if a pause lets only some of them receive
    capacity     messages that may be written now
    limit        messages between two RESUME_FLOWs, 0 = unlimited
    credit       what is left of them
    safe         safe mode
    outstanding  in safe mode: a message that has not been acknowledged
    byte_credit  the same limit in bytes
    max_packet   bytes of the largest packet that the client takes
    counts_bytes sizes of packets matter, for one of these two
    """

    __slots__ = (
        "byte_credit",
        "capacity",
        "congested",
        "consumers",
        "counts_bytes",
        "credit",
        "limit",
        "max_packet",
        "outstanding",
        "safe",
        "started",
    )

    def __init__(self) -> None:
        self.consumers: OrderedDict[JmsConsumer, None] = OrderedDict()
        self.capacity = 0
        self.limit = 0
        self.credit = UNLIMITED
        self.byte_credit = ByteCredit()
        self.max_packet = UNLIMITED_BYTES
        self.counts_bytes = False
        self.safe = False
        self.outstanding = False
        self.started = False
        self.congested = False

    def measure(self) -> None:
        """Something has changed: stop the consumers, or let them go on."""
        capacity = 0
        paused = self.congested or self.outstanding or self.byte_credit.left <= 0
        if self.started and not paused:
            capacity = min(self.credit, 1) if self.safe else self.credit
        before, self.capacity = self.capacity, capacity
        if (before == 0) != (capacity == 0):
            for consumer in list(self.consumers):
                consumer.level()
                if (self.capacity == 0) != (capacity == 0):
                    break  # what it has written used up the room, and that stopped all of them

    def limit_packets(self, max_packet: int | None) -> None:
        """Take `max_packet` for the bytes of the largest packet that the client takes; None changes
        nothing."""
        if max_packet is not None:
            self.max_packet = max_packet
            self._count_bytes_or_not()

    def resume(self, limit: int | None, byte_limit: int | None) -> None:
        """Send on: `limit` messages, <= 0 is without limit, and `byte_limit` bytes; None for as
        many as before."""
        if limit is not None:
            self.limit = max(0, limit)
        self.credit = self.limit or UNLIMITED
        self.byte_credit.resume(byte_limit)
        self._count_bytes_or_not()
        self.measure()

    def _count_bytes_or_not(self) -> None:
        self.counts_bytes = self.byte_credit.limited or self.max_packet != UNLIMITED_BYTES

    def spend(self, consumer: JmsConsumer, count: int, size: int = 0) -> None:
        """Count messages written to a consumer, `capacity` at most, and their `size` in bytes if
        bytes matter."""
        if not count:
            return
        self.consumers.move_to_end(consumer)
        if self.limit:
            self.credit -= count
        self.byte_credit.left -= size
        if self.safe:
            self.outstanding = True
        if self.limit or self.safe or size:
            self.measure()

    def acknowledged(self) -> None:
        """In safe mode: nothing is outstanding any more."""
        self.outstanding = False
        self.measure()
