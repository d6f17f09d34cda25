"""Common part of protocols without a handshake whose brokers send no reply to a message."""

from __future__ import annotations

import secrets
import socket
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cached_property
from itertools import cycle
from typing import Final

from .receiver import STAMP_BYTES

BODIES: Final = 8192
"""Different bodies: more than fit into a dictionary of Parquet or the window of a compressor."""


class Silent(ABC):
    """Default implementation of most of `load.Dialect`."""

    size: int
    varied: bool = False
    """True if the bodies of `timestamped_message` have random hexadecimal digits, not zeros."""
    confirmation_bytes: int = 0
    max_unconfirmed: int = 0

    @abstractmethod
    def build_message(self, body: bytes) -> bytes:
        """Return one message."""

    @abstractmethod
    def receive_request(self) -> bytes:
        """Return the bytes by which a connection requests messages."""

    def subscribe(self, connection: socket.socket) -> None:
        """Subscribe the connection to the queue."""
        connection.sendall(self.receive_request())

    def handshake(self, connection: socket.socket) -> None:
        """Do nothing: the protocol has no handshake."""
        return

    def blocks(self, step: int) -> list[bytes]:
        """Return one block: messages need not differ."""
        return [self.build_message(bytes(self.size)) * step]

    def timestamped_message(self, nanoseconds: int) -> bytes:
        """Return a message with its due time at the beginning of the body."""
        head, tails = self._message_parts
        return b"%b%b%b" % (head, nanoseconds.to_bytes(STAMP_BYTES, "little"), next(tails))

    @cached_property
    def _message_parts(self) -> tuple[bytes, Iterator[bytes]]:
        """Return the bytes before the time, and those after it of one message after the other."""
        # the body is 0xff here, which no header contains, so it can be located
        body = b"\xff" * self.size
        command = self.build_message(body)
        position = command.index(body)
        length = self.size - STAMP_BYTES
        rests = [bytes(length)]
        if self.varied:
            rests = [secrets.token_hex(length).encode()[:length] for _ in range(BODIES)]
        return command[:position], cycle([rest + command[position + self.size :] for rest in rests])
