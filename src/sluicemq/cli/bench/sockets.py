"""What the load generators do with their sockets."""

from __future__ import annotations

import select
import socket
import struct
from typing import Final, NamedTuple

from sluicemq.model.errors import ConnectionLost

STALLED_SECONDS: Final = 60.0
"""A run in which nothing moves for so long has failed."""


class Target(NamedTuple):
    """Where a broker listens: a TCP port, or a Unix socket if `path` is not empty."""

    port: int
    host: str = "127.0.0.1"
    path: str = ""

    @property
    def transport(self) -> str:
        """`tcp` or `unix`."""
        return "unix" if self.path else "tcp"

    def connect(self, *, no_delay: bool = True) -> socket.socket:
        """A connection; `no_delay` False leaves Nagle's algorithm on, as old clients do.

        It blocks, and has no timeout of Python's: with one, each call would poll first. Writing is
        limited by the kernel instead. Raises OSError.
        """
        if self.path:
            connection = socket.socket(socket.AF_UNIX)
            connection.settimeout(STALLED_SECONDS)
            connection.connect(self.path)
        else:
            connection = socket.create_connection((self.host, self.port), STALLED_SECONDS)
            if no_delay:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(None)
        limit = struct.pack("@ll", int(STALLED_SECONDS), 0)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        return connection


def wait(poll: select.epoll) -> list[tuple[int, int]]:
    """The next events. Raises ConnectionLost when nothing moves any more."""
    events = poll.poll(STALLED_SECONDS)
    if not events:
        raise ConnectionLost(f"nothing has moved for {STALLED_SECONDS:g} s")
    return events


def receive(connection: socket.socket, size: int) -> bytes:
    """Up to `size` bytes. Raises ConnectionLost at the end of the stream."""
    try:
        data = connection.recv(size)
    except BlockingIOError:
        raise ConnectionLost(f"nothing has come for {STALLED_SECONDS:g} s") from None
    if not data:
        raise ConnectionLost("the broker closed the connection of a consumer")
    return data


def receive_exactly(connection: socket.socket, size: int) -> bytes:
    """`size` bytes. Raises ConnectionLost."""
    data = receive(connection, size)
    while len(data) < size:
        data += receive(connection, size - len(data))
    return data


def send_some(connection: socket.socket, data: memoryview) -> memoryview:
    """Send what the connection takes at once; returns the rest."""
    try:
        return data[connection.send(data, socket.MSG_DONTWAIT) :]
    except BlockingIOError:
        return data
