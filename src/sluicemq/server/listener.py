"""Open listeners: open an address, list its connections, close it."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import stat
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import structlog

from sluicemq.broker import Consumer
from sluicemq.management.broker import InputItem, ListenerItem
from sluicemq.model.errors import AddressUnavailable, ConfigurationError
from sluicemq.model.url import Url
from sluicemq.server.admission import Admission
from sluicemq.server.connection import Connection
from sluicemq.server.input_budget import InputBudget
from sluicemq.server.listener_settings import Listener
from sluicemq.server.tls import Tls, TlsAcceptor

BACKLOG: Final = 1024
"""Connections that the kernel holds until the event loop accepts them."""

_NO_IPV6: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""Errors of a machine that does not have an IPv6 address, or IPv6."""

log = structlog.get_logger("sluicemq.listener")


class OpenListener:
    """Open listener; its connections are in `admission`."""

    def __init__(self, admission: Admission[Connection]) -> None:
        """Create a closed listener."""
        self.admission = admission
        self.options = admission.options
        self._accepting = AsyncExitStack()
        """Closes what accepts connections, and removes the file of a Unix socket."""
        self.tls: Tls | None = None
        """None without TLS, and before `open`."""

    async def open(self) -> None:
        """Start to accept. Raises ConfigurationError if the certificate or the path of the socket
        is unusable, AddressUnavailable if the address is."""
        loop = self.admission.batch.loop
        if self.options.url.tls:
            self.tls = Tls(self.options)
        sockets = await bind(self.options)
        if self.url.path:
            self._accepting.callback(Path(self.url.path).unlink, missing_ok=True)
        else:
            port = sockets[0].getsockname()[1]
            self.admission.url = self.options.url._replace(port=port)
        if self.tls is not None:
            tls_acceptor = TlsAcceptor(self.admission, self._connect, self.tls, sockets)
            self._accepting.push_async_callback(tls_acceptor.close)
        else:
            create_server = loop.create_unix_server if self.url.path else loop.create_server
            for server_socket in sockets:
                server = await create_server(self._connect, sock=server_socket, backlog=BACKLOG)
                self._accepting.callback(server.close)
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
        for connection in list(self.admission.reading_paused):
            connection.resume_if_peer_closed()
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
        for connection in list(self.admission.refusals):
            connection.abort("the broker stops")
        await self._accepting.aclose()


async def bind(options: Listener) -> list[socket.socket]:
    """Return the listening sockets, one for each address of the host name.

    An IPv6 address is left out on a machine without IPv6 if there are others: in containers,
    `localhost` often has one. Raises ConfigurationError, AddressUnavailable.
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
            sockets[0].listen(BACKLOG)
        else:
            port = url.port
            infos = await asyncio.get_running_loop().getaddrinfo(
                url.host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            ipv6_error: OSError | None = None
            for family, address in dict.fromkeys((info[0], info[4]) for info in infos):
                # the port that the system chose for the first address is that of the others too
                socket_address: tuple[Any, ...] = (address[0], port, *address[2:])
                try:
                    server_socket = socket.create_server(
                        socket_address, family=family, backlog=BACKLOG
                    )
                except OSError as error:
                    if family != socket.AF_INET6 or error.errno not in _NO_IPV6:
                        raise
                    ipv6_error = error
                    continue
                sockets.append(server_socket)
                port = server_socket.getsockname()[1]
            if ipv6_error is not None and not sockets:
                raise ipv6_error
        for server_socket in sockets:
            server_socket.setblocking(False)
    except OSError as error:
        for server_socket in sockets:
            server_socket.close()
        # not `strerror`, to which `create_server` adds the address
        number = error.errno or 0
        reason = os.strerror(number) if number > 0 else error.strerror or error
        problem = f"cannot listen on {url}: {reason}"
        if error.errno == errno.EADDRINUSE:
            problem += "; is another program using it?"
        raise AddressUnavailable(problem) from error
    return sockets


def is_stale(url: Url) -> bool:
    """Return whether the socket file of `url` is left over from a broker that was killed: it exists
    and no process listens on it. Raises ConfigurationError if the path is no socket's,
    AddressUnavailable if a process listens on it."""
    try:
        if not stat.S_ISSOCK(os.stat(url.path).st_mode):
            raise ConfigurationError(f"{url}: {url.path} exists and is not a socket")
    except FileNotFoundError:
        return False
    with socket.socket(socket.AF_UNIX) as probe:
        error = probe.connect_ex(url.path)
    if error == errno.ECONNREFUSED:
        return True
    if error:
        raise ConfigurationError(f"cannot use {url}: {os.strerror(error)}")
    raise AddressUnavailable(f"cannot listen on {url}: the address is in use by another program")


class ConnectionRegistry:
    """Connections of all listeners (`sluicemq.admin.endpoints.Connections`)."""

    def __init__(self, listeners: Sequence[OpenListener], budget: InputBudget) -> None:
        """Register the connections of `listeners`, a list that may grow; they share `budget`."""
        self._listeners = listeners
        self._budget = budget
        self._faults: dict[Consumer, Exception] = {}
        """Errors of consumers whose connections are about to be ended."""

    def __len__(self) -> int:
        return sum(len(listener.admission.connections) for listener in self._listeners)

    def __iter__(self) -> Iterator[Connection]:
        for listener in list(self._listeners):
            yield from list(listener.admission.connections)

    def end_faulty(self, consumer: Consumer, error: Exception) -> None:
        """End the connection of a consumer whose session cannot process its deliveries, in the next
        iteration of the event loop.

        One message may have many such consumers, so their connections are searched together.
        """
        if not self._faults:
            asyncio.get_running_loop().call_soon(self._end_faulty)
        self._faults[consumer] = error

    def _end_faulty(self) -> None:
        faults, self._faults = self._faults, {}
        for connection in self:
            errors = [faults.pop(item) for item in connection.consumers() if item in faults]
            if errors:
                connection.fault(errors[0])
        for error in faults.values():
            log.error("internal error of a closed connection", exc_info=error)

    def listeners(self) -> list[ListenerItem]:
        """Return the open listeners, in the order of the configuration."""
        return [
            ListenerItem(
                str(listener.url),
                listener.url.protocol,
                listener.url.tls,
                len(listener.admission.connections),
                listener.options.max_connections,
                listener.admission.accepted,
                listener.admission.refused,
                listener.admission.received_bytes
                + sum(connection.received_bytes for connection in listener.admission.connections),
                listener.admission.sent_bytes
                + sum(connection.sent_bytes for connection in listener.admission.connections),
                dict(listener.admission.closed),
            )
            for listener in self._listeners
        ]

    def input(self) -> InputItem:
        """Return the memory use of unfinished input."""
        budget = self._budget
        return InputItem(budget.used, budget.limit, budget.holders, len(budget.suspended))
