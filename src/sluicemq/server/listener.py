"""Open listener: opens an address, counts its connections, closes it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
from typing import TYPE_CHECKING, Final

import structlog

from sluicemq.model.errors import ConfigurationError
from sluicemq.server.address import Url
from sluicemq.server.admission import Admission
from sluicemq.server.connection import Connection
from sluicemq.server.event_loop_batch import EventLoopBatch
from sluicemq.server.input import InputBudget
from sluicemq.server.listener_settings import Listener
from sluicemq.server.tls_acceptor import TlsAcceptor

if TYPE_CHECKING:
    from sluicemq.server.session_factories import SessionFactory
    from sluicemq.server.tls import Tls

BACKLOG: Final = 1024

log = structlog.get_logger("sluicemq.listener")


class OpenListener:
    """Open listener; its connections are in `admission`."""

    def __init__(
        self,
        options: Listener,
        session_factory: SessionFactory,
        batch: EventLoopBatch,
        budget: InputBudget,
        refusing: SessionFactory | None = None,
    ) -> None:
        """Create a closed listener; all listeners share `budget`.

        `refusing` creates the sessions that reject clients beyond `max_connections` with an error;
        None closes these connections immediately.
        """
        self.options = options
        self.batch = batch
        self.admission: Admission[Connection] = Admission(
            options, session_factory, batch, budget, refusing
        )
        self._servers: list[asyncio.Server] = []
        self._tls_acceptor: TlsAcceptor | None = None
        self.tls: Tls | None = None
        """None without TLS, and before `open`."""

    async def open(self) -> None:
        """Start to accept. Raises ConfigurationError if the address or certificate is unusable."""
        loop = self.batch.loop
        if self.options.url.tls:
            # Only where there is TLS: the library that reads certificates is slow to load.
            from sluicemq.server.tls import Tls

            self.tls = Tls(self.options)
        sockets = await bind(loop, self.options)
        if not self.options.url.path:
            port = sockets[0].getsockname()[1]
            self.admission.url = self.options.url._replace(port=port)
        if self.tls is not None:
            self._tls_acceptor = TlsAcceptor(self.admission, self._connect, self.tls, sockets)
        elif self.url.path:
            self._servers.append(await loop.create_unix_server(self._connect, sock=sockets[0]))
        else:
            for each in sockets:
                self._servers.append(await loop.create_server(self._connect, sock=each))
        log.info("listening", url=str(self.url))

    @property
    def url(self) -> Url:
        """Address with the port that the operating system chose for port 0."""
        return self.admission.url

    def _connect(self) -> Connection:
        return Connection(self.admission)

    def sweep(self, now: int) -> None:
        """Find connections that have ended unread, and close those that have sent nothing for the
        listener's idle time, or have not logged in in time. `now` is steady ms."""
        for connection in list(self.admission.unread):
            connection.look_for_the_end()
        for connection in list(self.admission.logging_in):
            if connection.review_login(now):
                self.admission.logging_in.discard(connection)
        timeout = self.options.idle_timeout
        if timeout:
            for connection in list(self.admission.connections):
                if now - connection.active_at > timeout * 1000:
                    self.admission.closed["idle-timeout"] += 1
                    connection.abort(f"idle for {timeout:g} s")

    async def stop_accepting(self) -> None:
        """Close the listening sockets; connections stay."""
        if not self._servers and self._tls_acceptor is None:
            return
        for connection in list(self.admission.refusals):
            connection.abort("the broker stops")
        servers, self._servers = self._servers, []
        for server in servers:
            server.close()
        tls_acceptor, self._tls_acceptor = self._tls_acceptor, None
        if tls_acceptor is not None:
            await tls_acceptor.close()
        if self.url.path:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.url.path)


async def bind(loop: asyncio.AbstractEventLoop, options: Listener) -> list[socket.socket]:
    """Return the listening sockets, one for each address of the host name.

    Raises ConfigurationError.
    """
    url = options.url
    sockets: list[socket.socket] = []
    try:
        if url.path:
            if is_stale(url):
                os.unlink(url.path)
            sockets.append(socket.socket(socket.AF_UNIX))
            sockets[0].bind(url.path)
            # before clients can connect
            os.chmod(url.path, options.socket_mode)
        else:
            port = url.port
            found = await loop.getaddrinfo(
                url.host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            for family, kind, protocol, _, address in dict.fromkeys(found):
                each = socket.socket(family, kind, protocol)
                sockets.append(each)
                each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    each.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                # the port that the system chose for the first address is that of the others too
                each.bind((address[0], port, *address[2:]))
                port = each.getsockname()[1]
        for each in sockets:
            each.listen(BACKLOG)
            each.setblocking(False)
    except OSError as error:
        for each in sockets:
            each.close()
        raise ConfigurationError(
            f"cannot listen on {url}: {error.strerror or error}; is another program using it?"
        ) from error
    return sockets


def is_stale(url: Url) -> bool:
    """Return whether the socket file of `url` is left over from a broker that was killed: it exists
    and no process listens on it. Raises ConfigurationError if the path is used otherwise."""
    try:
        if not stat.S_ISSOCK(os.stat(url.path).st_mode):
            raise ConfigurationError(f"{url}: {url.path} exists and is not a socket")
    except FileNotFoundError:
        return False
    probe = socket.socket(socket.AF_UNIX)
    try:
        probe.connect(url.path)
    except ConnectionRefusedError:
        return True
    except OSError as error:
        raise ConfigurationError(f"cannot use {url}: {error.strerror or error}") from error
    else:
        raise ConfigurationError(f"cannot listen on {url}: another program does so already")
    finally:
        probe.close()
