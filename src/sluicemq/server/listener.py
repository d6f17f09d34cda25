"""An address that clients connect to: opening it, counting its connections, closing it."""

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
from sluicemq.server.connection import Connection
from sluicemq.server.doorkeeper import Doorkeeper
from sluicemq.server.listening import Listener
from sluicemq.server.turns import Turns

if TYPE_CHECKING:
    from sluicemq.server.rooms import Room
    from sluicemq.server.tls import Tls

BACKLOG: Final = 1024

log = structlog.get_logger("sluicemq.listener")


class OpenListener:
    """A listener in service. `url` has the port that the operating system chose for port 0."""

    def __init__(self, options: Listener, room: Room, turns: Turns) -> None:
        self.options = options
        self.room = room
        self.turns = turns
        self.url: Url = options.url
        self.connections: set[Connection] = set()
        self.unread: set[Connection] = set()
        """Those of them that are not read for now."""
        self.accepted = 0
        self.refused = 0
        self.bytes_in = 0
        """Of connections that have gone."""
        self.bytes_out = 0
        self._servers: list[asyncio.Server] = []
        self._doorkeeper: Doorkeeper | None = None
        self.tls: Tls | None = None
        """None without TLS, and before `open`."""

    async def open(self) -> None:
        """Begin to accept. Raises ConfigurationError if the address or certificate is unusable."""
        loop = self.turns.loop
        if self.options.url.tls:
            # Only where there is TLS: the library that reads certificates is slow to load.
            from sluicemq.server.tls import Tls

            self.tls = Tls(self.options)
        sockets = await _bind(loop, self.options)
        if not self.options.url.path:
            self.url = self.options.url._replace(port=sockets[0].getsockname()[1])
        if self.tls is not None:
            self._doorkeeper = Doorkeeper(self, self.tls, sockets)
        elif self.url.path:
            self._servers.append(await loop.create_unix_server(self._connect, sock=sockets[0]))
        else:
            for each in sockets:
                self._servers.append(await loop.create_server(self._connect, sock=each))
        log.info("listening", url=str(self.url))

    def _connect(self) -> Connection:
        return Connection(self)

    def admit(self, connection: Connection) -> bool:
        """Count a connection in, unless there are too many already."""
        if not self.has_room():
            return False
        self.connections.add(connection)
        self.accepted += 1
        return True

    def has_room(self, arrivals: int = 0) -> bool:
        """Whether one more may connect, beside `arrivals` whose handshake goes on."""
        if len(self.connections) + arrivals >= self.options.max_connections:
            self.refused += 1
            if self.refused & (self.refused - 1) == 0:
                log.warning(
                    "connection refused: too many",
                    url=str(self.url),
                    max_connections=self.options.max_connections,
                    refused=self.refused,
                )
            return False
        return True

    def leave(self, connection: Connection) -> None:
        """Count a connection out."""
        if connection in self.connections:
            self.connections.remove(connection)
            self.bytes_in += connection.bytes_in
            self.bytes_out += connection.bytes_out

    def sweep(self, now: int) -> None:
        """Find connections that have ended unread, and close those that have sent nothing for the
        listener's idle time. `now` is steady ms."""
        for connection in list(self.unread):
            connection.look_for_the_end()
        timeout = self.options.idle_timeout
        if timeout:
            for connection in list(self.connections):
                if now - connection.active_at > timeout * 1000:
                    connection.abort(f"idle for {timeout:g} s")

    async def stop_accepting(self) -> None:
        """Close the listening sockets; connections stay."""
        if not self._servers and self._doorkeeper is None:
            return
        servers, self._servers = self._servers, []
        for server in servers:
            server.close()
        doorkeeper, self._doorkeeper = self._doorkeeper, None
        if doorkeeper is not None:
            await doorkeeper.close()
        if self.url.path:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.url.path)


async def _bind(loop: asyncio.AbstractEventLoop, options: Listener) -> list[socket.socket]:
    """Sockets that listen: one, or one for each address that the host's name has.

    Raises ConfigurationError.
    """
    url = options.url
    sockets: list[socket.socket] = []
    try:
        if url.path:
            _remove_stale_socket(url)
            sockets.append(socket.socket(socket.AF_UNIX))
            sockets[0].bind(url.path)
            # before anybody can connect
            os.chmod(url.path, options.mode)
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


def _remove_stale_socket(url: Url) -> None:
    """A socket file that nobody listens on is left over from a broker that was killed."""
    try:
        if not stat.S_ISSOCK(os.stat(url.path).st_mode):
            raise ConfigurationError(f"{url}: {url.path} exists and is not a socket")
    except FileNotFoundError:
        return
    probe = socket.socket(socket.AF_UNIX)
    try:
        probe.connect(url.path)
    except ConnectionRefusedError:
        os.unlink(url.path)
    except OSError as error:
        raise ConfigurationError(f"cannot use {url}: {error.strerror or error}") from error
    else:
        raise ConfigurationError(f"cannot listen on {url}: another program does so already")
    finally:
        probe.close()
