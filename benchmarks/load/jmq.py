"""JMQ load generator: producers that wait for the SEND_REPLYs of a number of persistent messages,
and consumers that acknowledge up to ten messages at a time, as in a DUPS_OK session of the Java
client."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from itertools import count
from typing import Final

from sluicemq.model.errors import ConnectionLost
from sluicemq.protocols.java import Long
from sluicemq.protocols.jmq import fields
from sluicemq.protocols.jmq.fields import (
    LONG_BLOCK,
    NULL_ADDRESS,
    QUEUE_CLASS,
    TOPIC_CLASS,
    encode_header,
    encode_sysid,
)
from sluicemq.protocols.jmq.packets import (
    A,
    AckMode,
    DestType,
    Level,
    P,
    PacketType,
    Q,
    Status,
)
from sluicemq.protocols.jmq.wire import Decoder, Packet, encode_head, encode_packet, encode_reply

from .receiver import STAMP_BYTES, Receiver
from .sockets import receive

PREFETCH: Final = 1000
"""Number of messages the broker may send to a consumer before the consumer asks for more."""
BLOCKS: Final = 10
"""Number of messages per acknowledgement."""

_READ: Final = 1 << 16
_IDS: Final = 8192
"""Ids of a flood's messages, reused in turn; more than the number of unacked messages."""
_IDS_BYTES: Final = 64 << 20
"""The ids by their bodies."""
_PORT: Final = 1
_SIZE_AT: Final = 8
_SYSID_AT: Final = 20
_CONSUMER_AT: Final = 64
_SYSID_BYTES: Final = 32
_FIXED_BYTES: Final = 72
_HEAD: Final = encode_packet(PacketType.BYTES_MESSAGE)[:_SIZE_AT]


class Jmq:
    """JMQ side of a load; implements `load.Dialect`."""

    name: Final = "jmq"

    def __init__(
        self, size: int, *, queue: bytes = b"bench", window: int = 256, topic: bool = False
    ) -> None:
        """Set up the dialect. `window` is how many messages of a producer wait for their
        SEND_REPLY."""
        self.size = size
        self.stamp_at = 0  # known after the first message
        self.max_unconfirmed = window
        self.confirmation_bytes = len(encode_reply(PacketType.SEND_REPLY, 0, Status.OK))
        self.destination = {
            "JMQDestination": queue.decode(),
            "JMQDestType": DestType.TOPIC if topic else DestType.QUEUE,
        }
        self._flags = P | A if topic else Q | P | A
        self._class = TOPIC_CLASS if topic else QUEUE_CLASS
        self._producers: list[int] = []

    def handshake(self, connection: socket.socket) -> None:
        """Open a session and a producer. Raises ConnectionLost if the broker refuses."""
        channel = GuestChannel(connection)
        session = channel.session()
        reply = channel.request(
            PacketType.ADD_PRODUCER, {**self.destination, "JMQSessionID": Long(session)}
        )
        self._producers.append(int(reply.properties["JMQProducerID"] or 0))

    def message(
        self,
        number: int,
        body: bytes,
        *,
        timestamp: int = 0,
        transaction: int = 0,
        properties: bytes = b"",
    ) -> bytes:
        """Return a message whose id contains `number` and `timestamp`. A single producer sets its
        producer id, as the Java client does; several producers share their messages and set none,
        as the C client does."""
        header = encode_header(
            str(self.destination["JMQDestination"]),
            destination_class=self._class,
            producer_id=self._producers[0] if len(self._producers) == 1 else 0,
            transaction_id=transaction,
        )
        sysid = encode_sysid(timestamp, NULL_ADDRESS, _PORT, number)
        head = encode_head(
            PacketType.BYTES_MESSAGE,
            self._flags,
            number,
            header,
            properties,
            len(body),
            4,
            sysid=sysid,
        )
        return head + body

    def blocks(self, step: int) -> list[bytes]:
        """Return blocks of `step` messages of one length, sent in turn."""
        body = bytes(self.size)
        blocks = max(1, min(_IDS, _IDS_BYTES // self.size) // step)
        return [
            b"".join(
                self.message(number, body) for number in range(block * step, (block + 1) * step)
            )
            for block in range(blocks)
        ]

    def timestamped_message(self, nanoseconds: int) -> bytes:
        """Return a message with its due time."""
        stamp = nanoseconds.to_bytes(STAMP_BYTES, "little")
        return self.message(0, stamp + bytes(self.size - STAMP_BYTES), timestamp=nanoseconds)

    def subscribe(self, connection: socket.socket) -> None:
        """Subscribe the connection to the queue."""
        self.consume(GuestChannel(connection))

    def consume(self, channel: GuestChannel, selector: str = "") -> int:
        """Subscribe to the queue with credit for PREFETCH messages. Returns the consumer's id."""
        properties: dict[str, object] = {
            **self.destination,
            "JMQSessionID": Long(channel.session()),
            "JMQAckMode": AckMode.DUPS_OK,
            "JMQNoLocal": False,
            "JMQReconnect": False,
            "JMQShare": False,
            "JMQSize": PREFETCH,
        }
        if selector:
            properties["JMQSelector"] = selector
        reply = channel.request(PacketType.ADD_CONSUMER, properties)
        channel.start()
        return int(reply.properties["JMQConsumerID"] or 0)

    def receiver(self, connection: socket.socket, selector: str = "") -> Receiver:
        """Return a consumer."""
        return _Consumer(connection, self, selector)


class _Consumer(Receiver):
    """Consumer that learns the stride from the first message and acknowledges in groups."""

    __slots__ = ("_acknowledge", "_channel", "_credit", "_dialect", "_resume", "_selector")

    def __init__(self, connection: socket.socket, dialect: Jmq, selector: str) -> None:
        super().__init__(connection, _HEAD, 0, 0)
        self._dialect = dialect
        self._channel: GuestChannel | None = None
        self._selector = selector
        self._credit = PREFETCH
        self._resume = b""
        self._acknowledge = encode_packet(PacketType.ACKNOWLEDGE, body=bytes(BLOCKS * LONG_BLOCK))[
            :_FIXED_BYTES
        ]

    def handshake(self) -> None:
        """Log in at once: the broker answers a silent client as the port mapper."""
        self._channel = GuestChannel(self.connection)

    def start(self) -> None:
        assert self._channel is not None
        consumer = self._dialect.consume(self._channel, self._selector)
        self._resume = encode_packet(
            PacketType.RESUME_FLOW,
            properties={"JMQConsumerID": Long(consumer), "JMQSize": PREFETCH},
        )

    def _measure_stride(self, data: bytes) -> int:
        if len(data) < _SIZE_AT + 4:
            return 0
        stride = int.from_bytes(data[_SIZE_AT : _SIZE_AT + 4])
        self._stamp_at = stride - self._dialect.size
        return stride

    def _acknowledgements(self, data: bytearray, count: int) -> bytes:
        """Return acknowledgement packets of BLOCKS each, and the remainder in a packet of its own,
        because no later call would acknowledge it."""
        stride = self._stride
        consumer = data[_CONSUMER_AT : _CONSUMER_AT + 8]
        blocks = [
            consumer + data[position : position + _SYSID_BYTES]
            for position in range(_SYSID_AT, count * stride, stride)
        ]
        answer: list[bytes | bytearray] = []
        full_count = count - count % BLOCKS
        for position in range(0, full_count, BLOCKS):
            answer.append(self._acknowledge)
            answer += blocks[position : position + BLOCKS]
        if full_count < count:
            answer.append(encode_packet(PacketType.ACKNOWLEDGE, body=b"".join(blocks[full_count:])))
        self._credit -= count
        if self._credit <= 0:
            self._credit += PREFETCH
            answer.append(self._resume)
        return b"".join(answer)


class GuestChannel:
    """Connection logged in as `guest`, for one request at a time.

    All methods raise ConnectionLost, also for an error reply.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._decoder = Decoder()
        self._packets: list[Packet] = []
        self._numbers = count(1)
        self.request(PacketType.HELLO, {"JMQProtocolLevel": Level.HIGHEST, "JMQVersion": "bench"})
        challenge = self.next_packet()
        kind = challenge.properties.get("JMQAuthType")
        credentials = fields.basic_login(fields.GUEST, fields.GUEST)
        if kind == fields.DIGEST:
            credentials = fields.digest_login(fields.GUEST, fields.GUEST, challenge.body)
        self.request(PacketType.AUTHENTICATE, {"JMQAuthType": kind}, credentials)

    def start(self) -> None:
        """Start the delivery of messages."""
        self._connection.sendall(encode_packet(PacketType.START))

    def session(self) -> int:
        """Create a session and return its id."""
        reply = self.request(PacketType.CREATE_SESSION, {"JMQAckMode": AckMode.DUPS_OK})
        return int(reply.properties["JMQSessionID"] or 0)

    def request(
        self, kind: PacketType, properties: Mapping[str, object] | None = None, body: bytes = b""
    ) -> Packet:
        """Send a request and return its reply."""
        data = encode_packet(kind, A, next(self._numbers), properties, body=body)
        self._connection.sendall(data)
        reply = self.next_packet()
        if reply.properties.get("JMQStatus") != Status.OK:
            raise ConnectionLost(f"the broker refuses {kind.name}: {reply.properties}")
        return reply

    def next_packet(self) -> Packet:
        """Return the next packet."""
        while not self._packets:
            packets = self._decoder.feed(receive(self._connection, _READ))
            if self._decoder.error is not None:
                raise ConnectionLost(f"the bytes are not a JMQ packet: {self._decoder.error}")
            self._packets = packets
        return self._packets.pop(0)
