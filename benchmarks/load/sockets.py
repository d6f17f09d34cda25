"""Socket operations of the load generators."""

from __future__ import annotations

import select
import socket
import struct
from typing import Final, NamedTuple

from sluicemq.model.errors import ConnectionLost

STALLED_SECONDS: Final = 60.0
"""Seconds without progress after which a run fails."""


class BrokerAddress(NamedTuple):
    """Address of a broker: a TCP port, or a Unix socket if `path` is not empty."""

    port: int
    host: str = "127.0.0.1"
    path: str = ""

    @property
    def transport(self) -> str:
        """Return `tcp` or `unix`."""
        return "unix" if self.path else "tcp"

    def connect(self, *, no_delay: bool = True) -> socket.socket:
        """Connect; `no_delay` False keeps Nagle's algorithm, as old clients do.

        The socket blocks and has no Python timeout, with which each call would poll first. The
        kernel limits the time of a write. Raises OSError.
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
    """Return the next events. Raises ConnectionLost after STALLED_SECONDS without any."""
    events = poll.poll(STALLED_SECONDS)
    if not events:
        raise ConnectionLost(f"nothing has moved for {STALLED_SECONDS:g} s")
    return events


def receive(connection: socket.socket, size: int) -> bytes:
    """Read up to `size` bytes. Raises ConnectionLost at the end of the stream."""
    try:
        data = connection.recv(size)
    except BlockingIOError:
        raise ConnectionLost(f"nothing has come for {STALLED_SECONDS:g} s") from None
    if not data:
        raise ConnectionLost("the broker closed the connection of a consumer")
    return data


def receive_exactly(connection: socket.socket, size: int) -> bytes:
    """Read exactly `size` bytes. Raises ConnectionLost."""
    data = receive(connection, size)
    while len(data) < size:
        data += receive(connection, size - len(data))
    return data


def send_some(connection: socket.socket, data: memoryview) -> memoryview:
    """Send as many bytes as the socket accepts without blocking; returns the rest."""
    try:
        return data[connection.send(data, socket.MSG_DONTWAIT) :]
    except BlockingIOError:
        return data
