"""msglite load generator: receivers that send `ready` after each message, and queries with
replies."""

from __future__ import annotations

import socket
import time
from typing import Final

from sluicemq.model.errors import ConnectionLost
from sluicemq.protocols.msglite.wire import encode_message, encode_query, encode_ready

from .meter import Meter
from .receiver import Receiver
from .result import TransferResult
from .silent import Silent
from .sockets import BrokerAddress, receive, receive_exactly

TIMEOUT: Final = 3600
"""Message timeout in seconds; long enough that no message expires."""


class Msglite(Silent):
    """msglite side of a load; implements `load.Dialect`."""

    name: Final = "msglite"

    def __init__(self, size: int, *, queue: bytes = b"bench", window: int = 1) -> None:
        """Set up the dialect. `window` is the number of outstanding ready commands of a receiver.

        The broker handles them one after the other, so each still requests one message.
        """
        self.size = size
        self.window = window
        self.queue = queue
        sample = self.build_message(bytes(size))
        self.stamp_at = len(sample) - size - 2

    def build_message(self, body: bytes) -> bytes:
        """Return one message; the broker delivers it as the same bytes."""
        return encode_message(TIMEOUT, self.queue, body)

    def receive_request(self) -> bytes:
        """Return the command by which a connection requests a message."""
        return encode_ready(TIMEOUT, (self.queue,))

    def receiver(self, connection: socket.socket) -> Receiver:
        """Return a receiver."""
        return _Receiver(connection, self)


class _Receiver(Receiver):
    __slots__ = ("_commands", "_length", "_window")

    def __init__(self, connection: socket.socket, dialect: Msglite) -> None:
        sample = dialect.build_message(bytes(dialect.size))
        super().__init__(connection, sample[: dialect.stamp_at], len(sample), dialect.stamp_at)
        ready = dialect.receive_request()
        self._commands = ready * dialect.window
        self._length = len(ready)

    def start(self) -> None:
        self.connection.sendall(self._commands)

    def _acknowledgements(self, data: bytearray, count: int) -> bytes:
        return self._commands[: count * self._length]


def query(
    target: BrokerAddress, *, seconds: float, size: int, queue: bytes, pid: int | None
) -> TransferResult:
    """Measure one client that sends queries and one worker that replies with two writes, as the
    Perl client does: over TCP a server that delays its acknowledgements costs such a worker 40 ms
    each time.

    Query and reply follow each other strictly, so this thread serves both ends in turn. Raises
    ConnectionLost, OSError.
    """
    client = target.connect(no_delay=False)
    worker = target.connect(no_delay=False)
    body = bytes(size)
    ask = encode_query(TIMEOUT, queue, body)
    ready = encode_ready(TIMEOUT, (queue,))
    delays: list[int] = []
    try:
        worker.sendall(ready)
        meter = Meter(pid)
        end = meter.started + seconds
        while time.perf_counter() < end:
            before = time.perf_counter_ns()
            client.sendall(ask)
            worker.sendall(encode_message(TIMEOUT, _reply_address(worker, size), body))
            worker.sendall(ready)
            _message(client, size)
            delays.append(time.perf_counter_ns() - before)
        return meter.read(len(delays), delays=delays)
    finally:
        client.close()
        worker.close()


def _message(connection: socket.socket, size: int) -> bytes:
    """Return the line of the next message; reads and drops its body."""
    data = receive(connection, 1 << 16)
    while (end := data.find(b"\n")) < 0:
        data += receive(connection, 1 << 16)
    line = data[:end]
    if not line.startswith(b"> "):
        raise ConnectionLost(f"this is no message: {data[:80]!r}")
    missing = end + 1 + size + 2 - len(data)
    if missing > 0:
        receive_exactly(connection, missing)
    return line


def _reply_address(worker: socket.socket, size: int) -> bytes:
    return _message(worker, size).split()[4]
