"""Common part of protocols without a handshake whose brokers send no reply to a message."""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from functools import cached_property

from .receiver import STAMP_BYTES


class Silent(ABC):
    """Default implementation of most of `load.Dialect`."""

    size: int
    confirmation: int = 0
    ahead: int = 0

    @abstractmethod
    def send(self, body: bytes) -> bytes:
        """Return one message."""

    @abstractmethod
    def wait(self) -> bytes:
        """Return the bytes by which a connection requests messages."""

    def attend(self, connection: socket.socket) -> None:
        """Subscribe the connection to the queue."""
        connection.sendall(self.wait())

    def greet(self, connection: socket.socket) -> None:
        """Do nothing: the protocol has no handshake."""
        return

    def blocks(self, step: int) -> list[bytes]:
        """Return one block: messages need not differ."""
        return [self.send(bytes(self.size)) * step]

    def due(self, nanoseconds: int) -> bytes:
        """Return a message with its due time at the beginning of the body."""
        head, tail = self._around
        return b"%b%b%b" % (head, nanoseconds.to_bytes(STAMP_BYTES, "little"), tail)

    @cached_property
    def _around(self) -> tuple[bytes, bytes]:
        """Return the bytes before and after the time."""
        # the body is 0xff here, which no header contains, so it can be located
        body = b"\xff" * self.size
        command = self.send(body)
        at = command.index(body)
        return command[:at], bytes(self.size - STAMP_BYTES) + command[at + self.size :]
