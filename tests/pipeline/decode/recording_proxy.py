"""A TCP proxy that records the traffic of both sides, as a reference for the decoder."""

from __future__ import annotations

import socket
import threading
import time
from types import TracebackType
from typing import Final, NamedTuple, Self

READ: Final = 1 << 16


class RecordedChunk(NamedTuple):
    """Data of one side of a connection.

    time        µs
    connection  number, from 0
    side        0 = client, 1 = server
    data        b"" at the end of the stream
    """

    time: int
    connection: int
    side: int
    data: bytes


class Proxy:
    """A proxy on loopback that forwards connections to a port there."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.chunks: list[RecordedChunk] = []
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()

    def _accept(self) -> None:
        number = 0
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._target))
            self._sockets += [client, server]
            for side, (source, target) in enumerate(((client, server), (server, client))):
                thread = threading.Thread(target=self._forward, args=(number, side, source, target))
                self._threads.append(thread)
                thread.start()
            number += 1

    def _forward(
        self, number: int, side: int, source: socket.socket, target: socket.socket
    ) -> None:
        while True:
            try:
                data = source.recv(READ)
            except OSError:
                data = b""
            with self._lock:
                now = time.time_ns() // 1000
                self.chunks.append(RecordedChunk(now, number, side, data))
            try:
                if not data:
                    target.shutdown(socket.SHUT_WR)
                    break
                target.sendall(data)
            except OSError:
                break

    def close(self) -> None:
        """Wait until all connections have ended."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._accepting.join()
        for thread in self._threads:
            thread.join()
        for connection in self._sockets:
            connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
