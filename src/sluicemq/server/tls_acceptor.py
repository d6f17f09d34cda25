"""Accept connections of a TLS listener, and carry out their handshakes.

A connection becomes a `Connection` only when its handshake has succeeded. Until then it is an
`Arrival`: a descriptor and a timer. Nothing is computed for it before its first bytes are there and
are those of a TLS handshake; then it waits for its turn, as public-key cryptography takes about a
millisecond of the event loop, and a thousand clients that come back at once must not stop those
that are in. Arrivals count towards `max_connections`.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import structlog

from sluicemq.server.handshake import ARRIVING
from sluicemq.server.peer_identity import name_of

if TYPE_CHECKING:
    from sluicemq.server.admission import Admission
    from sluicemq.server.connection import Connection
    from sluicemq.server.tls import Tls

HANDSHAKE_SECONDS: Final = 10.0
"""Maximum time from accepting a connection to the end of its handshake."""
SHUTDOWN_SECONDS: Final = 5.0
"""Time for the peer to read the remaining output and to confirm the close."""
HANDSHAKES_PER_ITERATION: Final = 4
"""Handshakes begun in one event-loop iteration."""
EXHAUSTED_SECONDS: Final = 1.0
"""Pause of accepting after the system had no descriptor or memory for a connection."""

_HANDSHAKE: Final = 0x16
"""Type of a TLS record that carries a handshake message (RFC 8446, section 5.1)."""
_MAJOR: Final = 3
"""Major version in the header of every TLS record."""
_PEEK_BYTES: Final = 16

log = structlog.get_logger("sluicemq.tls")


class Arrival:
    """Connection whose handshake has not ended."""

    __slots__ = ("deadline", "peer", "socket", "timer")

    def __init__(self, connection: socket.socket, peer: str) -> None:
        self.socket = connection
        self.peer = peer
        self.deadline = time.monotonic() + HANDSHAKE_SECONDS
        self.timer: asyncio.TimerHandle | None = None


class TlsAcceptor:
    """Acceptor for the sockets of one TLS listener."""

    def __init__(
        self,
        admission: Admission[Connection],
        connect: Callable[[], Connection],
        tls: Tls,
        sockets: list[socket.socket],
    ) -> None:
        """Accept from now on; `connect` creates the connection of a complete handshake."""
        self._admission = admission
        self._connect = connect
        self._tls = tls
        self._loop = admission.batch.loop
        self._sockets = sockets
        self._silent: set[Arrival] = set()
        self._waiting: deque[Arrival] = deque()
        self._handshakes: set[asyncio.Task[None]] = set()
        self._accepting = [self._loop.create_task(self._accept(each)) for each in sockets]

    @property
    def arrivals(self) -> int:
        """Number of connections whose handshake has not ended."""
        return len(self._silent) + len(self._waiting) + len(self._handshakes)

    async def close(self) -> None:
        """Stop accepting and drop the connections whose handshake has not ended."""
        tasks = [*self._accepting, *self._handshakes]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for each in self._sockets:
            each.close()
        for arrival in [*self._silent, *self._waiting]:
            self._forget(arrival)
            arrival.socket.close()
        self._waiting.clear()

    async def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                connection, address = await self._loop.sock_accept(listening)
            except ConnectionError:
                continue  # the peer has gone before it was accepted
            except OSError as error:
                log.error("cannot accept", url=str(self._admission.url), error=str(error))
                await asyncio.sleep(EXHAUSTED_SECONDS)
                continue
            peer = name_of(address)
            if self._admission.may_arrive(peer, self.arrivals):
                self._receive(Arrival(connection, peer))
            else:
                connection.close()

    def _receive(self, arrival: Arrival) -> None:
        self._silent.add(arrival)
        arrival.timer = self._loop.call_later(HANDSHAKE_SECONDS, self._too_slow, arrival)
        self._loop.add_reader(arrival.socket, self._readable, arrival)

    def _readable(self, arrival: Arrival) -> None:
        """Peek at the first bytes of a connection without consuming them."""
        try:
            first = arrival.socket.recv(_PEEK_BYTES, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            first = b""
        self._forget(arrival)
        if not first:
            log.debug("left before the handshake", peer=arrival.peer)
            arrival.socket.close()
        elif first[0] != _HANDSHAKE or (len(first) > 1 and first[1] != _MAJOR):
            self._turn_away(arrival.peer, f"it does not speak TLS: it begins with {first!r}")
            arrival.socket.close()
        else:
            if not self._waiting:
                self._loop.call_soon(self._begin)
            self._waiting.append(arrival)

    def _begin(self) -> None:
        """Start up to HANDSHAKES_PER_ITERATION handshakes, in the order of arrival."""
        for _ in range(min(HANDSHAKES_PER_ITERATION, len(self._waiting))):
            task = self._loop.create_task(self._shake_hands(self._waiting.popleft()))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)
        if self._waiting:
            self._loop.call_soon(self._begin)

    async def _shake_hands(self, arrival: Arrival) -> None:
        left = arrival.deadline - time.monotonic()
        if left <= 0:
            self._too_slow(arrival)
            return
        ARRIVING.set(arrival.socket)
        try:
            if arrival.socket.family != socket.AF_UNIX:
                arrival.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.connect_accepted_socket(
                self._connect,
                arrival.socket,
                ssl=self._tls.context,
                ssl_handshake_timeout=left,
                ssl_shutdown_timeout=SHUTDOWN_SECONDS,
            )
        except ConnectionAbortedError:
            self._too_slow(arrival)
        except OSError as error:
            self._turn_away(arrival.peer, reason(error))

    def _forget(self, arrival: Arrival) -> None:
        self._silent.discard(arrival)
        self._loop.remove_reader(arrival.socket)
        if arrival.timer is not None:
            arrival.timer.cancel()

    def _too_slow(self, arrival: Arrival) -> None:
        if arrival in self._silent:
            self._forget(arrival)
        arrival.socket.close()
        self._turn_away(arrival.peer, f"no handshake within {HANDSHAKE_SECONDS:g} s")

    def _turn_away(self, peer: str, why: str) -> None:
        log.info("turned away", peer=peer, url=str(self._admission.url), reason=why)


def reason(error: OSError) -> str:
    """Return the reason for which a handshake failed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate was refused: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason:
        return f"the handshake failed: {error.reason.replace('_', ' ').lower()}"
    return f"the handshake failed: {error.strerror or 'the connection broke'}"
