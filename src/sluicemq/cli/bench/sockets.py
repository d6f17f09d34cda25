"""What the load generators do with their sockets."""

from __future__ import annotations

import select
import socket
from typing import Final

from sluicemq.model.errors import ConnectionLost

STALLED_SECONDS: Final = 60.0
"""A run in which nothing moves for so long has failed."""


def connect(host: str, port: int, *, no_delay: bool = True) -> socket.socket:
    """A connection; `no_delay` False leaves Nagle's algorithm on, as old clients do."""
    connection = socket.create_connection((host, port), timeout=STALLED_SECONDS)
    if no_delay:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def wait(poll: select.poll) -> list[tuple[int, int]]:
    """The next events. Raises ConnectionLost when nothing moves any more."""
    events = poll.poll(STALLED_SECONDS * 1000)
    if not events:
        raise ConnectionLost(f"nothing has moved for {STALLED_SECONDS:g} s")
    return events


def receive(connection: socket.socket, size: int) -> bytes:
    """Up to `size` bytes. Raises ConnectionLost at the end of the stream."""
    data = connection.recv(size)
    if not data:
        raise ConnectionLost("the broker closed the connection of a consumer")
    return data


def send_some(connection: socket.socket, data: memoryview) -> memoryview:
    """Send what the connection takes at once; returns the rest."""
    try:
        return data[connection.send(data, socket.MSG_DONTWAIT) :]
    except BlockingIOError:
        return data
