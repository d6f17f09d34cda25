"""The receiving end of a load: takes messages that all have one length off a connection.

Nothing is parsed: messages lie at a fixed stride, and so do their ids and the times in their
bodies. Each read is answered by one write.
"""

from __future__ import annotations

import socket
import time
from abc import ABC, abstractmethod
from typing import Final

from sluicemq.model.errors import ConnectionLost

STAMP_BYTES: Final = 8
"""At the beginning of the body of a steady message, unless its protocol has another place for it:
when it was due, `time.perf_counter_ns`, little-endian."""

_READ: Final = 1 << 18
_SHOWN: Final = 80
"""Bytes of what is no message that an error shows."""


class Receiver(ABC):
    """One consumer's connection. `_stride` 0 = not known before the first message.

    All reads go into one buffer; what is left of an incomplete message moves to its beginning.
    """

    __slots__ = ("_buffer", "_have", "_head", "_stamp_at", "_stride", "_view", "connection")

    def __init__(self, connection: socket.socket, head: bytes, stride: int, stamp_at: int) -> None:
        """`head` is how every message begins; `stamp_at` is where the time lies in it."""
        self.connection = connection
        self._head = head
        self._stride = stride
        self._stamp_at = stamp_at
        self._have = 0
        self._buffer = bytearray(_READ)
        self._view = memoryview(self._buffer)
        self._make_room()

    def greet(self) -> None:  # noqa: B027
        """Log in, where the broker does not wait for long until a client speaks. Called as soon as
        the connection is there. Raises ConnectionLost."""

    @abstractmethod
    def start(self) -> None:
        """Ask for messages."""

    @abstractmethod
    def _answer(self, data: bytearray, count: int) -> bytes:
        """What to write after `count` messages, which are at the beginning of `data`."""

    def _learn(self, data: bytes) -> int:
        """The stride, from the beginning of the first message; 0 = more of it is needed."""
        raise AssertionError(f"the stride was given, and {len(data)} bytes need not show it")

    def _due(self, data: bytearray, at: int) -> int:
        """When the message was due whose time lies at `at`."""
        return int.from_bytes(data[at : at + STAMP_BYTES], "little")

    def read(self, delays: list[int] | None = None) -> int:
        """Read once, answer, and return how many messages are complete now. Their delays
        (nanoseconds since they were due) are appended to `delays`.

        Raises ConnectionLost, also for anything that is no message.
        """
        buffer = self._buffer
        size = self.connection.recv_into(self._view[self._have :])
        if not size:
            raise ConnectionLost(self._closed())
        now = time.perf_counter_ns()
        have = self._have = self._have + size
        stride = self._stride
        if not stride:
            stride = self._stride = self._learn(bytes(buffer[: min(have, _SHOWN)]))
            if not stride:
                return 0
            self._make_room()
            buffer = self._buffer
        count = have // stride
        if not count:
            return 0
        if not buffer.startswith(self._head):
            raise ConnectionLost(f"this is no message: {bytes(buffer[:_SHOWN])!r}")
        end = count * stride
        self.connection.sendall(self._answer(buffer, count))
        if delays is not None:
            for at in range(self._stamp_at, end, stride):
                delays.append(now - self._due(buffer, at))
        self._have = have - end
        if end < have:
            self._view[: have - end] = self._view[end:have]
        return count

    def _make_room(self) -> None:
        """The buffer takes a read beside the rest of a message."""
        missing = self._stride + _READ - len(self._buffer)
        if self._stride and missing > 0:
            self._buffer = self._buffer + bytes(missing)
            self._view = memoryview(self._buffer)

    def _closed(self) -> str:
        said = bytes(self._buffer[: min(self._have, _SHOWN)])
        text = "the broker closed the connection of a consumer"
        return f"{text}; it last said {said!r}" if said else text
