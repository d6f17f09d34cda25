"""What protocols have in common that need no greeting and whose brokers answer no message."""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from functools import cached_property

from sluicemq.cli.bench.receiver import STAMP_BYTES


class Silent(ABC):
    """Most of a `load.Dialect`."""

    size: int
    confirmation: int = 0
    ahead: int = 0

    @abstractmethod
    def send(self, body: bytes) -> bytes:
        """One message to the broker."""

    @abstractmethod
    def wait(self) -> bytes:
        """What a connection says that waits for messages."""

    def attend(self, connection: socket.socket) -> None:
        """See `load.Dialect`."""
        connection.sendall(self.wait())

    def greet(self, connection: socket.socket) -> None:
        """Nothing is to be said."""
        return

    def blocks(self, step: int) -> list[bytes]:
        """One block is enough: messages need not differ."""
        return [self.send(bytes(self.size)) * step]

    def due(self, nanoseconds: int) -> bytes:
        """The time is at the beginning of the body."""
        head, tail = self._around
        return b"%b%b%b" % (head, nanoseconds.to_bytes(STAMP_BYTES, "little"), tail)

    @cached_property
    def _around(self) -> tuple[bytes, bytes]:
        """What stands before and behind the time."""
        # the body is 0xff here, which no header contains: so it is found
        body = b"\xff" * self.size
        command = self.send(body)
        at = command.index(body)
        return command[:at], bytes(self.size - STAMP_BYTES) + command[at + self.size :]
