"""Receiving end of a load: reads messages of one length from a connection.

Nothing is parsed: messages, their ids and the times in their bodies are at a fixed stride. Each
read is answered by one write.
"""

from __future__ import annotations

import socket
import time
from abc import ABC, abstractmethod
from typing import Final

from sluicemq.model.errors import ConnectionLost

STAMP_BYTES: Final = 8
"""Due time at the beginning of a steady message's body, unless its protocol has another place for
it: `time.perf_counter_ns`, little-endian."""

_READ: Final = 1 << 18
_EXCERPT_BYTES: Final = 80
"""Number of bytes of invalid data in an error."""


class Receiver(ABC):
    """One consumer's connection. `_stride` 0 = unknown before the first message.

    All reads go into one buffer; the rest of an incomplete message moves to its beginning.
    """

    __slots__ = ("_buffer", "_buffered", "_head", "_stamp_at", "_stride", "_view", "connection")

    def __init__(self, connection: socket.socket, head: bytes, stride: int, stamp_at: int) -> None:
        """Set up the consumer. `head` is the start of every message; `stamp_at` the position of the
        time."""
        self.connection = connection
        self._head = head
        self._stride = stride
        self._stamp_at = stamp_at
        self._buffered = 0
        self._buffer = bytearray(_READ)
        self._view = memoryview(self._buffer)
        self._grow_buffer()

    def handshake(self) -> None:  # noqa: B027
        """Log in as soon as the connection is open; no-op for protocols without a handshake. Raises
        ConnectionLost."""

    @abstractmethod
    def start(self) -> None:
        """Subscribe to the queue."""

    @abstractmethod
    def _acknowledgements(self, data: bytearray, count: int) -> bytes:
        """Return the bytes to write after `count` messages at the beginning of `data`."""

    def _measure_stride(self, data: bytes) -> int:
        """Return the stride from the beginning of the first message; 0 = more bytes are needed."""
        raise AssertionError(f"the stride is fixed; {len(data)} bytes were to be measured")

    def _due_time(self, data: bytearray, at: int) -> int:
        """Return the due time of the message whose time is at `at`."""
        return int.from_bytes(data[at : at + STAMP_BYTES], "little")

    def read(self, delays: list[int] | None = None) -> int:
        """Read once, write the acknowledgements, and return the number of complete messages. Their
        delays (nanoseconds since they were due) are appended to `delays`.

        Raises ConnectionLost, also for invalid data.
        """
        buffer = self._buffer
        size = self.connection.recv_into(self._view[self._buffered :])
        if not size:
            raise ConnectionLost(self._closed())
        now = time.perf_counter_ns()
        have = self._buffered = self._buffered + size
        stride = self._stride
        if not stride:
            stride = self._stride = self._measure_stride(bytes(buffer[: min(have, _EXCERPT_BYTES)]))
            if not stride:
                return 0
            self._grow_buffer()
            buffer = self._buffer
        count = have // stride
        if not count:
            return 0
        if not buffer.startswith(self._head):
            raise ConnectionLost(f"invalid message: {bytes(buffer[:_EXCERPT_BYTES])!r}")
        end = count * stride
        self.connection.sendall(self._acknowledgements(buffer, count))
        if delays is not None:
            for position in range(self._stamp_at, end, stride):
                delays.append(now - self._due_time(buffer, position))
        self._buffered = have - end
        if end < have:
            self._view[: have - end] = self._view[end:have]
        return count

    def _grow_buffer(self) -> None:
        """Make space in the buffer for a read after an incomplete message."""
        missing = self._stride + _READ - len(self._buffer)
        if self._stride and missing > 0:
            self._buffer = self._buffer + bytes(missing)
            self._view = memoryview(self._buffer)

    def _closed(self) -> str:
        data = bytes(self._buffer[: min(self._buffered, _EXCERPT_BYTES)])
        text = "the broker closed the connection of a consumer"
        return f"{text}; the last data received: {data!r}" if data else text
