"""Open listener: opens an address, counts its connections, closes it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
from collections import Counter
from typing import TYPE_CHECKING, Final

import structlog

from sluicemq.model.errors import ConfigurationError, TooManyConnections
from sluicemq.security.failures import address_of
from sluicemq.server.address import Url
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
    """Open listener. `url` has the port that the operating system chose for port 0."""

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
        self.budget = budget
        self.session_factory = session_factory
        self._refusing = refusing
        self.refusals: set[Connection] = set()
        """Connections beyond the limit, whose sessions send an error. `connections` does not
        contain them; the login timeout bounds their lifetime."""
        self.batch = batch
        self.url: Url = options.url
        self.connections: set[Connection] = set()
        self.unread: set[Connection] = set()
        """Connections whose reading is paused."""
        self.logging_in: set[Connection] = set()
        """Connections whose client has not logged in."""
        self.closed: Counter[str] = Counter()
        """Number of connections closed because of a limit or deadline, by its code."""
        self._by_address: Counter[str] = Counter()
        """Number of connections by client address; empty without a limit per address."""
        self._by_user: Counter[str] = Counter()
        self.accepted = 0
        self.refused = 0
        self.received_bytes = 0
        """Bytes received from closed connections."""
        self.sent_bytes = 0
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
            self.url = self.options.url._replace(port=sockets[0].getsockname()[1])
        if self.tls is not None:
            self._tls_acceptor = TlsAcceptor(self, self.tls, sockets)
        elif self.url.path:
            self._servers.append(await loop.create_unix_server(self._connect, sock=sockets[0]))
        else:
            for each in sockets:
                self._servers.append(await loop.create_server(self._connect, sock=each))
        log.info("listening", url=str(self.url))

    def _connect(self) -> Connection:
        return Connection(self)

    def admit(self, connection: Connection) -> SessionFactory | None:
        """Count a connection in and return what makes its session. Beyond `max_connections` that is
        a session which refuses, for up to `max_rejections` connections; None for the others."""
        reached = self._limit_reached(connection.peer)
        if not reached:
            self.connections.add(connection)
            self.accepted += 1
            if self.options.max_connections_per_address:
                self._by_address[address_of(connection.peer)] += 1
            return self.session_factory
        self._refuse(reached)
        if reached != "max_connections" or len(self.refusals) >= self.options.max_rejections:
            return None
        if self._refusing is not None:
            self.refusals.add(connection)
        return self._refusing

    def may_arrive(self, peer: str, arrivals: int) -> bool:
        """Return whether a connection from `peer` may begin its handshake, beside `arrivals` that
        have: it will be admitted, or can be told that there are too many."""
        reached = self._limit_reached(peer, arrivals)
        if not reached:
            return True
        if reached == "max_connections" and self._refusing is not None:
            present = len(self.connections) + len(self.refusals) + arrivals
            if present < self.options.max_connections + self.options.max_rejections:
                return True
        self._refuse(reached)
        return False

    def _limit_reached(self, peer: str, arrivals: int = 0) -> str:
        """Return the setting that allows no more connection from `peer`, beside `arrivals` whose
        handshake goes on; "" if one more may connect."""
        options = self.options
        limit = options.max_connections_per_address
        if limit:
            address = address_of(peer)
            if address and self._by_address[address] >= limit:
                return "max_connections_per_address"
        present = len(self.connections) + arrivals
        return "max_connections" if present >= options.max_connections else ""

    def _refuse(self, setting: str) -> None:
        """Count a refused connection; log the first, second, fourth, eighth ... of them."""
        self.refused += 1
        if self.refused & (self.refused - 1) == 0:
            log.warning(
                "connection refused: too many",
                url=str(self.url),
                refused=self.refused,
                **{setting: getattr(self.options, setting)},
            )

    def claim_user(self, connection: Connection, user: str) -> None:
        """Count a connection as one of `user`, and of no other user any more. Raises
        TooManyConnections."""
        limit = self.options.max_connections_per_user
        if not limit or user == connection.claimed:
            return
        if user and self._by_user[user] >= limit:
            self.closed["user-limit"] += 1
            raise TooManyConnections(f"{user} has {limit} connections already, which is the limit")
        self._forget_user(connection)
        if user:
            self._by_user[user] += 1
            connection.claimed = user

    def _forget_user(self, connection: Connection) -> None:
        user, connection.claimed = connection.claimed, ""
        if user:
            self._by_user[user] -= 1
            if not self._by_user[user]:
                del self._by_user[user]

    def leave(self, connection: Connection) -> None:
        """Count a connection out."""
        self.unread.discard(connection)
        self.logging_in.discard(connection)
        self.refusals.discard(connection)
        if connection in self.connections:
            self.connections.remove(connection)
            self.received_bytes += connection.received_bytes
            self.sent_bytes += connection.sent_bytes
            self._forget_user(connection)
            if self.options.max_connections_per_address:
                address = address_of(connection.peer)
                self._by_address[address] -= 1
                if not self._by_address[address]:
                    del self._by_address[address]

    def sweep(self, now: int) -> None:
        """Find connections that have ended unread, and close those that have sent nothing for the
        listener's idle time, or have not logged in in time. `now` is steady ms."""
        for connection in list(self.unread):
            connection.look_for_the_end()
        for connection in list(self.logging_in):
            if connection.review_login(now):
                self.logging_in.discard(connection)
        timeout = self.options.idle_timeout
        if timeout:
            for connection in list(self.connections):
                if now - connection.active_at > timeout * 1000:
                    self.closed["idle-timeout"] += 1
                    connection.abort(f"idle for {timeout:g} s")

    async def stop_accepting(self) -> None:
        """Close the listening sockets; connections stay."""
        if not self._servers and self._tls_acceptor is None:
            return
        for connection in list(self.refusals):
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
