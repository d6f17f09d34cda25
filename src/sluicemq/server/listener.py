"""An address that clients connect to: opening it, counting its connections, closing it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import stat
from typing import TYPE_CHECKING, Final

import structlog

from sluicemq.model.errors import ConfigurationError
from sluicemq.server.address import Url
from sluicemq.server.config import Listener
from sluicemq.server.connection import Connection
from sluicemq.server.turns import Turns

if TYPE_CHECKING:
    from sluicemq.server.rooms import Room

BACKLOG: Final = 1024
HANDSHAKE_SECONDS: Final = 10.0

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
        self.refused = 0
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Begin to accept. Raises ConfigurationError if the address cannot be used."""
        url = self.options.url
        context = _tls_context(self.options) if url.tls else None
        handshake = HANDSHAKE_SECONDS if context else None
        loop = self.turns.loop
        try:
            if url.path:
                _remove_stale_socket(url)
                self._server = await loop.create_unix_server(
                    self._connect,
                    url.path,
                    ssl=context,
                    backlog=BACKLOG,
                    ssl_handshake_timeout=handshake,
                )
                os.chmod(url.path, self.options.mode)
            else:
                self._server = await loop.create_server(
                    self._connect,
                    url.host,
                    url.port,
                    ssl=context,
                    backlog=BACKLOG,
                    ssl_handshake_timeout=handshake,
                    reuse_address=True,
                )
                port = self._server.sockets[0].getsockname()[1]
                self.url = url._replace(port=port)
        except OSError as error:
            raise ConfigurationError(
                f"cannot listen on {url}: {error.strerror or error}; is another program using it?"
            ) from error
        log.info("listening", url=str(self.url))

    def _connect(self) -> Connection:
        return Connection(self)

    def admit(self, connection: Connection) -> bool:
        """Count a connection in, unless there are too many already."""
        if len(self.connections) >= self.options.max_connections:
            self.refused += 1
            if self.refused & (self.refused - 1) == 0:
                log.warning(
                    "connection refused: too many",
                    url=str(self.url),
                    max_connections=self.options.max_connections,
                    refused=self.refused,
                )
            return False
        self.connections.add(connection)
        return True

    def leave(self, connection: Connection) -> None:
        """Count a connection out."""
        self.connections.discard(connection)

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
        """Close the listening socket; connections stay."""
        if self._server is not None:
            self._server.close()
            self._server = None
            if self.url.path:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self.url.path)


def _tls_context(options: Listener) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    password = None
    try:
        if options.password_file is not None:
            password = options.password_file.read_text().split("\n", 1)[0]
        assert options.certificate is not None  # the configuration has been checked
        context.load_cert_chain(options.certificate, options.key, password)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(
            f"{options.url}: cannot use the certificate {options.certificate}: {error}; it must be "
            "a PEM file with the certificate, its chain and, unless `key` names another, its key"
        ) from error
    return context


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
