"""TLS of a listener: its context, which is reloaded while the listener is open, and the handshakes
of its connections.

A reload builds the new context completely before it replaces the old one. If the new files are
invalid, the old context stays in use. Connections keep the context they started with.

A connection becomes a `Connection` only when its handshake has succeeded. Until then it is a
`PendingHandshake`: a descriptor and a timer. No handshake begins before its first bytes have
arrived and are those of TLS. Then it is queued: public-key cryptography takes about a millisecond
of the event loop, and a thousand clients that reconnect at once must not stop the connected ones.
Pending handshakes count towards `max_connections` and `max_connections_per_address`.

When a handshake fails, OpenSSL has written an alert - "unknown ca", "protocol version" - for the
peer, but the event loop closes the connection without sending it, and the peer would only see the
connection end. Therefore the TLS object sends the alert itself, to the socket in the context
variable `HANDSHAKE_SOCKET`.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from sluicemq.model.errors import ConfigurationError
from sluicemq.server.admission import Admission, name_of
from sluicemq.server.connection import Connection
from sluicemq.server.listener_settings import Listener

if TYPE_CHECKING:
    from sluicemq.security.certificates import KeyedChain

REMIND_SECONDS: Final = 86_400.0
"""Interval between two warnings about the same certificate."""

_VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
_DEMANDS: Final = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}
log = structlog.get_logger("sluicemq.tls")


class Tls:
    """TLS of one listener. New connections use `context`."""

    def __init__(self, options: Listener) -> None:
        """Load the files. Raises ConfigurationError if they are invalid or cannot be read."""
        self.options = options
        self._file_states = self._files()
        self.context, self._chain = load(options)
        self._log("certificate in service")

    async def reload(self) -> None:
        """Reload the files. If they are invalid, log the error and keep the old context."""
        self._file_states = self._files()
        try:
            # in a thread: the decryption of a key is slow by design
            self.context, self._chain = await asyncio.to_thread(load, self.options)
        except ConfigurationError as error:
            log.error(
                "certificate rejected; the previous one stays in use",
                url=str(self.options.url),
                error=str(error),
            )
        else:
            self._log("certificate replaced")

    async def reload_if_changed(self) -> None:
        """Reload if a file has changed since the last check; repeat warnings once a day."""
        if self._files() != self._file_states:
            await self.reload()
        elif time.monotonic() - self._reminded >= REMIND_SECONDS:
            self._warn()

    def _log(self, event: str) -> None:
        certificate = self._chain.own
        log.info(
            event,
            url=str(self.options.url),
            subject=certificate.subject.rfc4514_string(),
            serial=f"{certificate.serial_number:x}",
            expires=f"{certificate.not_valid_after_utc:%Y-%m-%d}",
        )
        self._warn()

    def _warn(self) -> None:
        self._reminded = time.monotonic()
        for warning in self._chain.warnings(datetime.now(UTC)):
            log.warning(warning, url=str(self.options.url))

    def _files(self) -> list[tuple[int, int, int] | None]:
        """Return inode, modification time (ns) and size of each file; None if it is missing."""
        options = self.options
        paths = (options.certificate, options.key, options.password_file, options.client_ca)
        return [_file_state(path) for path in paths if path is not None]


def load(options: Listener) -> tuple[ssl.SSLContext, KeyedChain]:
    """Load the files and build a context; return it with the certificate chain.

    Raises ConfigurationError, with the listener's URL first, if a file or setting is invalid.
    """
    # Only where there is TLS: the library that reads certificates is slow to load.
    from sluicemq.security.certificates import read_authorities, read_chain

    try:
        assert options.certificate is not None  # the configuration has been checked
        chain = read_chain(options.certificate, options.key, options.password_file)
        # Python's default ciphers; no compression; sessions end with their context
        context = HandshakeContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = _VERSIONS[options.tls_min_version]
        # renegotiation would let a peer cause CPU load
        context.options |= ssl.OP_NO_RENEGOTIATION
        if options.ciphers is not None:
            _choose_ciphers(context, options.ciphers)
        chain.install(context)
        if options.client_ca is not None:
            context.load_verify_locations(cadata=read_authorities(options.client_ca))
        context.verify_mode = _DEMANDS[options.client_certificate]
    except ConfigurationError as error:
        raise ConfigurationError(f"{options.url}: {error}") from None
    return context, chain


def _choose_ciphers(context: ssl.SSLContext, ciphers: str) -> None:
    try:
        context.set_ciphers(ciphers)
    except ssl.SSLError:
        raise ConfigurationError(
            f"ciphers: OpenSSL knows no cipher in {ciphers!r}; write a list as for "
            "`openssl ciphers`"
        ) from None


def _file_state(path: Path) -> tuple[int, int, int] | None:
    try:
        file_status = path.stat()
    except OSError:
        return None
    return file_status.st_ino, file_status.st_mtime_ns, file_status.st_size


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


@dataclass(slots=True, eq=False)
class PendingHandshake:
    """Connection whose handshake has not ended."""

    socket: socket.socket
    peer: str
    timer: asyncio.TimerHandle
    """Due at the deadline; it is cancelled once the handshake may begin."""


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
        self._silent: set[PendingHandshake] = set()
        self._waiting: deque[PendingHandshake] = deque()
        self._handshakes: set[asyncio.Task[None]] = set()
        self._accepting = [
            self._loop.create_task(self._accept(server_socket)) for server_socket in sockets
        ]

    @property
    def pending_handshakes(self) -> int:
        """Number of connections whose handshake has not ended."""
        return len(self._silent) + len(self._waiting) + len(self._handshakes)

    async def close(self) -> None:
        """Stop accepting and drop the connections whose handshake has not ended."""
        tasks = [*self._accepting, *self._handshakes]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for server_socket in self._sockets:
            server_socket.close()
        for handshake in [*self._silent, *self._waiting]:
            self._stop_watching(handshake)
            self._drop(handshake)
        self._waiting.clear()

    async def _accept(self, server_socket: socket.socket) -> None:
        while True:
            try:
                connection, address = await self._loop.sock_accept(server_socket)
            except ConnectionError:
                continue  # the peer has gone before it was accepted
            except OSError as error:
                log.error("cannot accept", url=str(self._admission.url), error=str(error))
                await asyncio.sleep(EXHAUSTED_SECONDS)
                continue
            peer = name_of(address)
            descriptor = connection.fileno()
            if self._admission.admit_handshake(peer, descriptor, self.pending_handshakes):
                self._receive(connection, peer)
            else:
                connection.close()

    def _receive(self, connection: socket.socket, peer: str) -> None:
        timer = self._loop.call_later(HANDSHAKE_SECONDS, lambda: self._time_out(handshake))
        handshake: PendingHandshake = PendingHandshake(connection, peer, timer)
        self._silent.add(handshake)
        self._loop.add_reader(handshake.socket, self._readable, handshake)

    def _readable(self, handshake: PendingHandshake) -> None:
        """Peek at the first bytes of a connection without consuming them."""
        try:
            first = handshake.socket.recv(_PEEK_BYTES, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            first = b""
        self._stop_watching(handshake)
        if not first:
            log.debug("left before the handshake", peer=handshake.peer)
            self._drop(handshake)
        elif first[0] != _HANDSHAKE or (len(first) > 1 and first[1] != _MAJOR):
            self._log_rejection(handshake.peer, f"it does not speak TLS: it begins with {first!r}")
            self._drop(handshake)
        else:
            if not self._waiting:
                self._loop.call_soon(self._begin)
            self._waiting.append(handshake)

    def _begin(self) -> None:
        """Start up to HANDSHAKES_PER_ITERATION handshakes, in the order of arrival."""
        for _ in range(min(HANDSHAKES_PER_ITERATION, len(self._waiting))):
            task = self._loop.create_task(self._perform(self._waiting.popleft()))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)
        if self._waiting:
            self._loop.call_soon(self._begin)

    async def _perform(self, handshake: PendingHandshake) -> None:
        remaining = handshake.timer.when() - self._loop.time()
        if remaining <= 0:
            self._time_out(handshake)
            return
        HANDSHAKE_SOCKET.set(handshake.socket)
        try:
            if handshake.socket.family != socket.AF_UNIX:
                handshake.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.connect_accepted_socket(
                self._connect,
                handshake.socket,
                ssl=self._tls.context,
                ssl_handshake_timeout=remaining,
                ssl_shutdown_timeout=SHUTDOWN_SECONDS,
            )
        except ConnectionAbortedError:
            self._time_out(handshake)
        except OSError as error:
            self._log_rejection(handshake.peer, reason(error))
        finally:
            self._admission.remove_handshake(handshake.peer)

    def _drop(self, handshake: PendingHandshake) -> None:
        handshake.socket.close()
        self._admission.remove_handshake(handshake.peer)

    def _stop_watching(self, handshake: PendingHandshake) -> None:
        self._silent.discard(handshake)
        self._loop.remove_reader(handshake.socket)
        handshake.timer.cancel()

    def _time_out(self, handshake: PendingHandshake) -> None:
        if handshake in self._silent:
            self._stop_watching(handshake)
        self._drop(handshake)
        self._log_rejection(handshake.peer, f"no handshake within {HANDSHAKE_SECONDS:g} s")

    def _log_rejection(self, peer: str, cause: str) -> None:
        log.info("connection rejected", peer=peer, url=str(self._admission.url), reason=cause)


def reason(error: OSError) -> str:
    """Return the reason for which a handshake failed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate was refused: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason:
        return f"the handshake failed: {error.reason.replace('_', ' ').lower()}"
    return f"the handshake failed: {error.strerror or 'the connection broke'}"


HANDSHAKE_SOCKET: Final[ContextVar[socket.socket | None]] = ContextVar(
    "handshake_socket", default=None
)
"""Socket of the connection whose TLS handshake the current task performs."""


class _Handshake(ssl.SSLObject):
    """TLS object of one connection."""

    outgoing: ssl.MemoryBIO
    peer: socket.socket | None = None

    def do_handshake(self) -> None:
        """Perform the handshake; if it fails, send the alert and raise ssl.SSLError."""
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError:
            alert = self.outgoing.read()
            if alert and self.peer is not None:
                with suppress(OSError):
                    self.peer.send(alert)
            raise
        self.peer = None


class HandshakeContext(ssl.SSLContext):
    """TLS context of a server whose connections send the alert of a failed handshake."""

    sslobject_class = _Handshake

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """Return the TLS object, with the socket to which it sends an alert."""
        tls_object = super().wrap_bio(incoming, outgoing, server_side, server_hostname, session)
        if isinstance(tls_object, _Handshake):
            tls_object.outgoing = outgoing
            tls_object.peer = HANDSHAKE_SOCKET.get()
        return tls_object
