"""asyncio clients that reconnect when their connection breaks."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Coroutine
from typing import Any, Generic, Self, TypeVar

from sluicemq.clients.transport import AsyncClient, Backoff, ClientTransport, again, time_limit
from sluicemq.clients.urls import Target
from sluicemq.model.errors import ClientError, ConnectionLost, RequestTimeout

ConnectionT = TypeVar("ConnectionT", bound=ClientTransport[Any])


class ReconnectingClient(AsyncClient, Generic[ConnectionT]):
    """Client that tries its hosts in turn. A protocol's subclass opens the connections, restores
    its state on them, and passes `lost` to them.
    """

    def __init__(
        self,
        target: Target,
        reconnect: Backoff | None,
        outstanding: int,
        prefetch: int,
    ) -> None:
        """`reconnect` None: not at all. Raises ValueError unless `outstanding` and `prefetch` are
        at least 1."""
        if outstanding < 1 or prefetch < 1:
            raise ValueError("outstanding and prefetch must be at least 1")
        self.timeout = target.timeout
        self._hosts = (("", 0),) if target.path else target.hosts
        self._keep_alive = target.keep_alive
        self._backoff = reconnect
        self._connection: ConnectionT | None = None
        self._established = False
        """True once there has been a connection."""
        self._up = asyncio.Event()
        self._end: ClientError | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def ready(self) -> ConnectionT:
        """Return the connection; waits for a new one. Raises ConnectionLost, RequestTimeout."""
        if not self._up.is_set():
            async with time_limit(self.timeout, f"no connection in {self.timeout} s"):
                await self._up.wait()
        if self._end is not None:
            raise again(self._end)
        assert self._connection is not None
        return self._connection

    async def _start(self) -> Self:
        """Connect, and return the client. Raises the error of the last host."""
        connection = await self._connect()
        if self._keep_alive:
            self._run(self._ping_regularly())
        self._adopt(connection)
        return self

    def lost(self, connection: ConnectionT, reason: ClientError) -> None:
        """Reconnect after a connection has broken."""
        if connection is not self._connection or self._end is not None:
            return
        self._connection = None
        self._forget()
        if self._backoff is None or connection.final:
            self._finish(reason)
            return
        self._up.clear()
        self._run(self._reconnect(self._backoff, reason))

    @abstractmethod
    async def _open(self, host: str, port: int) -> ConnectionT:
        """Connect to a host and restore the client's state there. Raises ClientError."""

    @abstractmethod
    async def _ping(self, connection: ConnectionT) -> None:
        """Ping the broker. Raises ClientError."""

    @abstractmethod
    def _forget(self) -> None:
        """Drop what belonged to the lost connection."""

    @abstractmethod
    def _ended(self, reason: ClientError) -> None:
        """Handle the end of the client: no connection will follow."""

    def _finish(self, reason: ClientError) -> None:
        self._end = self._end or reason
        for task in self._tasks:
            task.cancel()
        self._ended(self._end)
        self._up.set()

    def _run(self, coroutine: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self) -> ConnectionT:
        failure: ClientError = ConnectionLost("there is no host to connect to")
        for host, port in self._hosts:
            try:
                return await self._open(host, port)
            except ClientError as error:
                failure = error
        raise failure

    def _adopt(self, connection: ConnectionT) -> None:
        self._connection = connection
        self._established = True
        if connection.lost is not None:  # it broke before this call
            self.lost(connection, connection.lost)
        else:
            self._up.set()

    async def _reconnect(self, backoff: Backoff, reason: ClientError) -> None:
        try:
            connection = await backoff.persist(self._connect, reason)
        except ConnectionLost as given_up:
            self._finish(given_up)
        else:
            self._adopt(connection)

    async def _ping_regularly(self) -> None:
        while True:
            await asyncio.sleep(self._keep_alive)
            connection = self._connection
            if connection is None:
                continue
            try:
                await self._ping(connection)
            except RequestTimeout as error:
                connection.lose(ConnectionLost(f"the broker does not answer: {error}"))
                connection.abort()
            except ClientError:
                continue
