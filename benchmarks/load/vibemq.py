"""VibeMQ load generator: producers that wait for the PublishAcks of a number of messages, and
consumers that acknowledge every message.

Each message has a unique id, as clients set it; the id of a steady message is its due time, because
a payload has to be JSON.
"""

from __future__ import annotations

import socket
from typing import Final

from sluicemq.model.errors import ConnectionLost
from sluicemq.protocols.vibemq.wire import (
    ACK,
    CONNECT,
    CONNECT_ACK,
    HEADER_SIZE,
    PUBLISH,
    SUBSCRIBE,
    SUBSCRIBE_ACK,
    AckTemplate,
    Decoder,
    Frame,
    encode,
    encode_deliver,
)

from .receiver import Receiver
from .sockets import receive_exactly

_ID_BYTES: Final = 32
_ID_AT: Final = 9
"""Position of the id: after length, flag, version, type and its own length."""
_IDS: Final = 8192
"""Ids of a flood's messages, reused in turn; more than the number of unacked messages."""
_IDS_BYTES: Final = 64 << 20
"""The ids by their payloads."""


class Vibemq:
    """VibeMQ side of a load; implements `load.Dialect`."""

    name: Final = "vibemq"

    def __init__(self, size: int, *, queue: bytes = b"bench", window: int = 256) -> None:
        """Set up the dialect. `window` is how many messages of a producer wait for their
        PublishAck."""
        self.size = size
        self.stamp_at = _ID_AT
        self.queue = queue
        self.max_unconfirmed = window
        self.confirmation_bytes = len(AckTemplate(queue).fill(bytes(_ID_BYTES)))
        self.payload = b'"%b"' % (b"x" * (size - 2))

    def handshake(self, connection: socket.socket) -> None:
        """Perform the handshake. Raises ConnectionLost if the broker refuses it."""
        connection.sendall(encode(Frame(CONNECT, "bench")))
        _expect(connection, CONNECT_ACK)

    def blocks(self, step: int) -> list[bytes]:
        """Return blocks of `step` messages of one length, sent in turn."""
        count = max(1, min(_IDS, _IDS_BYTES // self.size) // step)
        return [
            b"".join(map(self.timestamped_message, range(block * step, (block + 1) * step)))
            for block in range(count)
        ]

    def timestamped_message(self, nanoseconds: int) -> bytes:
        """Return a message with its due time."""
        return encode(Frame(PUBLISH, f"{nanoseconds:032x}", self.queue.decode(), self.payload))

    def receive_request(self) -> bytes:
        """Return the request by which a connection subscribes."""
        subscribe = Frame(SUBSCRIBE, "bench", self.queue.decode())
        return encode(Frame(CONNECT, "bench")) + encode(subscribe)

    def subscribe(self, connection: socket.socket) -> None:
        """Subscribe the connection to the queue."""
        connection.sendall(self.receive_request())

    def receiver(self, connection: socket.socket) -> Receiver:
        """Return a consumer."""
        return _Consumer(connection, self)


class _Consumer(Receiver):
    """Consumer that acknowledges every message; a message's length is constant up to delivery 9."""

    __slots__ = ("_after", "_before", "_wait")

    def __init__(self, connection: socket.socket, dialect: Vibemq) -> None:
        sample = encode_deliver(bytes(_ID_BYTES), dialect.queue, dialect.payload, b"", 1)
        super().__init__(connection, sample[:_ID_AT], len(sample), _ID_AT)
        acknowledge = encode(Frame(ACK, "0" * _ID_BYTES))
        self._before = acknowledge[:_ID_AT]
        self._after = acknowledge[_ID_AT + _ID_BYTES :]
        self._wait = dialect.receive_request()

    def start(self) -> None:
        self.connection.sendall(self._wait)
        _expect(self.connection, CONNECT_ACK)
        _expect(self.connection, SUBSCRIBE_ACK)

    def _acknowledgements(self, data: bytearray, count: int) -> bytes:
        ids = [
            data[position : position + _ID_BYTES]
            for position in range(_ID_AT, count * self._stride, self._stride)
        ]
        return self._before + (self._after + self._before).join(ids) + self._after

    def _due_time(self, data: bytearray, at: int) -> int:
        return int(data[at : at + _ID_BYTES], 16)


def _expect(connection: socket.socket, kind: int) -> None:
    """Read one frame from a connection, and nothing after it."""
    head = receive_exactly(connection, HEADER_SIZE)
    body = receive_exactly(connection, int.from_bytes(head[:4]))
    [frame] = Decoder().feed(head + body) or [Frame(-1, "")]
    if frame.type != kind:
        error = frame.error_message or repr(head + body[:80])
        raise ConnectionLost(f"the broker rejected the generator's connection: {error}")
