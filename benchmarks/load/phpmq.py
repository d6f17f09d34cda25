"""PHPMQ load generator: consumers with a window that acknowledge every message."""

from __future__ import annotations

import socket
from typing import Final

from sluicemq.model.errors import ConnectionLost
from sluicemq.protocols.phpmq.wire import encode_acknowledge, encode_consume, encode_send

from .receiver import Receiver
from .silent import Silent

_ID_BYTES: Final = 32
_HEADER_BYTES: Final = 8
_PACKET_HEADER_BYTES: Final = 32


class Phpmq(Silent):
    """PHPMQ side of a load; implements `load.Dialect`."""

    name: Final = "phpmq"

    def __init__(
        self, size: int, *, queue: bytes = b"bench", window: int = 1000, varied: bool = False
    ) -> None:
        """Set up the dialect. `window` is the maximum number of unacked messages of a consumer."""
        self.size = size
        self.window = window
        self.varied = varied
        self.queue = queue
        self.stamp_at = _HEADER_BYTES + 2 * _PACKET_HEADER_BYTES + len(queue)

    def build_message(self, body: bytes) -> bytes:
        """Return one message."""
        return encode_send(self.queue, body)

    def receive_request(self) -> bytes:
        """Return the request by which a connection consumes."""
        return encode_consume(self.queue, self.window)

    def receiver(self, connection: socket.socket) -> Receiver:
        """Return a consumer."""
        return _Consumer(connection, self)


class _Consumer(Receiver):
    """Consumer that learns the stride from the first message: a dispatch of version 2 has one more
    packet. Its time to live is always 0, one digit."""

    __slots__ = ("_consume", "_id_at", "_prefix")

    def __init__(self, connection: socket.socket, dialect: Phpmq) -> None:
        super().__init__(connection, b"H01003", 0, dialect.stamp_at)
        self._consume = dialect.receive_request()
        self._id_at = dialect.stamp_at + dialect.size + _PACKET_HEADER_BYTES
        self._prefix = encode_acknowledge(dialect.queue, bytes(_ID_BYTES))[:-_ID_BYTES]

    def start(self) -> None:
        self.connection.sendall(self._consume)

    def _measure_stride(self, data: bytes) -> int:
        header = data[:_HEADER_BYTES]
        if len(header) < _HEADER_BYTES:
            return 0
        shortest = self._id_at + _ID_BYTES
        if header == b"H0100303":
            return shortest
        if header == b"H0100304":
            return shortest + _PACKET_HEADER_BYTES + 1
        raise ConnectionLost(f"this is no dispatch: {data[:80]!r}")

    def _acknowledgements(self, data: bytearray, count: int) -> bytes:
        stride, prefix = self._stride, self._prefix
        ids = [
            data[position : position + _ID_BYTES]
            for position in range(self._id_at, count * stride, stride)
        ]
        return prefix + prefix.join(ids)
