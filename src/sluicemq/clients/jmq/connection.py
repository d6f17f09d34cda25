"""The client for asyncio. Public through `client`."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final, Self

from sluicemq.clients.jmq.connecting import Connector
from sluicemq.clients.jmq.consumer import JmqMessage
from sluicemq.clients.jmq.destinations import Destination
from sluicemq.clients.jmq.producer import OUTSTANDING
from sluicemq.clients.jmq.request_channel import RequestChannel
from sluicemq.clients.jmq.requests import Requests
from sluicemq.clients.jmq.session import Session
from sluicemq.clients.jmq.target import DEFAULT_PORT, Target
from sluicemq.clients.transport import ALWAYS, Backoff, ReconnectingClient
from sluicemq.model.errors import ClientError, ConnectionLost
from sluicemq.protocols.java import Long
from sluicemq.protocols.jmq.fields import GUEST
from sluicemq.protocols.jmq.packets import AckMode, PacketType
from sluicemq.protocols.jmq.wire import Limits

PREFETCH: Final = 1000
"""Messages buffered per consumer; the Java client's default."""


class JmqClient(ReconnectingClient[RequestChannel]):
    """Client connection that reconnects when it is lost. Made by `connect` or `open`. Any number
    of tasks may use it.

    timeout, prefetch, outstanding, share_client_id   see `connect`
    """

    def __init__(
        self,
        target: Target,
        ssl_context: ssl.SSLContext | None,
        reconnect: Backoff | None,
        outstanding: int,
        prefetch: int,
        limits: Limits,
    ) -> None:
        super().__init__(target, reconnect, outstanding, prefetch)
        self.outstanding = outstanding
        self.prefetch = prefetch
        self.share_client_id = target.share_client_id
        self._target = target
        self._connector = Connector(target, ssl_context, limits, reconnect is not None)
        self._old = 0
        self._started = True
        self._sessions: list[Session] = []
        self._requests: Requests | None = None
        self._requesting = asyncio.Lock()

    @classmethod
    async def connect(
        cls,
        host: str = "127.0.0.1",
        port: int = DEFAULT_PORT,
        *,
        hosts: Sequence[tuple[str, int]] = (),
        path: str | None = None,
        direct: bool = False,
        service: str = "",
        tls: bool = False,
        ssl_context: ssl.SSLContext | None = None,
        timeout: float = 10.0,
        username: str = GUEST,
        password: str = GUEST,
        client_id: str = "",
        share_client_id: bool = False,
        keep_alive: float = 30.0,
        flow: int = 0,
        reconnect: Backoff | None = ALWAYS,
        outstanding: int = OUTSTANDING,
        prefetch: int = PREFETCH,
        limits: Limits | None = None,
    ) -> Self:
        """Connect and log in to the first reachable one of `hosts` (default: `host` and `port`), or
        to the Unix socket `path`.

        direct       the port is the service's, not the port mapper's
        service      service looked up in the port mapper; "" = jms, or ssljms over TLS
        tls          use TLS, also for the port mapper; `ssl_context` alone applies to the service
        timeout      seconds, > 0; for connecting, each reply, and closing
        client_id    owner of durable subscriptions; `share_client_id` lets other connections use it
        keep_alive   idle seconds before a ping, 0 = no pings. A ping without a reply within
                     `timeout` ends the connection
        flow         messages in transit for all consumers together; 0 = no limit
        reconnect    back-off between attempts; None = do not reconnect
        outstanding  maximum number of unconfirmed messages per session
        prefetch     messages buffered per consumer

        Raises Refused (413 for wrong credentials, 409 for a client id in use, …), ConnectionLost,
        RequestTimeout.
        """
        target = Target(
            tuple(hosts) or ((host, port),),
            path or "",
            tls=tls,
            timeout=timeout,
            keep_alive=keep_alive,
            username=username,
            password=password,
            client_id=client_id,
            share_client_id=share_client_id,
            service=service,
            direct=direct or path is not None,
            flow=flow,
        )
        client = cls(target, ssl_context, reconnect, outstanding, prefetch, limits or Limits())
        return await client._start()

    @classmethod
    async def open(
        cls,
        where: str,
        *,
        ssl_context: ssl.SSLContext | None = None,
        reconnect: Backoff | None = ALWAYS,
        outstanding: int = OUTSTANDING,
        prefetch: int = PREFETCH,
    ) -> Self:
        """Connect to a URL or a list of addresses (see `target`).

        `ssl_context` replaces the options for TLS. Raises as `connect`; ConfigurationError.
        """
        target = Target.parse(where)
        client = cls(target, ssl_context, reconnect, outstanding, prefetch, Limits())
        return await client._start()

    # --- operations

    async def session(
        self, ack_mode: AckMode = AckMode.AUTO, *, transacted: bool = False
    ) -> Session:
        """Create a session; a transacted session ignores `ack_mode`.

        AUTO     the session acknowledges a message when it delivers it
        CLIENT   `JmqMessage.acknowledge` acknowledges all delivered messages
        DUPS_OK  the session acknowledges in batches; the broker may redeliver messages
        NO_ACK   no acknowledgements; the broker removes a message once it is sent

        Raises Refused, ConnectionLost, RequestTimeout.
        """
        session = Session(self, ack_mode, transacted)
        channel = await self.ready()
        await session.begin(channel)
        channel.check()  # reconnects recreate only registered sessions
        self._sessions.append(session)
        return session

    async def request(
        self,
        to: str | Destination,
        body: object = None,
        *,
        timeout: float | None = None,
        properties: Mapping[str, object] | None = None,
        type: str | None = None,
        persistent: bool = False,
        ttl: float | None = None,
    ) -> JmqMessage:
        """Send a request and return its reply.

        The reply arrives in a temporary queue of this client; its correlation id is the request's
        correlation id or message id.

        timeout  seconds to wait for the reply; None = for ever
        ttl      lifetime of the request in seconds; None = `timeout`

        Raises as `Producer.send`; RequestTimeout if no reply arrives.
        """
        async with self._requesting:
            if self._requests is None:
                self._requests = await Requests.start(await self.session())
        return await self._requests.ask(to, body, timeout, properties, type, persistent, ttl)

    async def start(self) -> None:
        """Resume delivery after `stop`. A new client is started. Raises ConnectionLost,
        RequestTimeout."""
        self._started = True
        (await self.ready()).notify(PacketType.START)

    async def stop(self) -> None:
        """Pause delivery until `start`; buffered messages can still be received. Raises Refused,
        ConnectionLost, RequestTimeout."""
        self._started = False
        await (await self.ready()).request(PacketType.STOP)

    async def ping(self) -> float:
        """Ping the broker and return the round-trip time in seconds.

        Raises ConnectionLost, RequestTimeout.
        """
        begun = time.monotonic()
        await (await self.ready()).request(PacketType.PING)
        return time.monotonic() - begun

    async def close(self) -> None:
        """Close all sessions, send GOODBYE and wait for the reply.

        Raises RequestTimeout; Refused if the broker refused a message sent without waiting.
        """
        channel = self._connection
        if self._end is not None or channel is None or channel.lost is not None:
            self._finish(ConnectionLost("the client is closed"))
            return
        try:
            with suppress(ConnectionLost):
                await self._take_leave(channel)
        finally:
            self._finish(ConnectionLost("the client is closed"))
            await channel.close()

    async def _take_leave(self, channel: RequestChannel) -> None:
        """In the order of the Java client (section 5.5)."""
        await channel.request(PacketType.STOP)
        failure: ClientError | None = None
        if self._requests is not None:
            await self._requests.close()
        for session in [*self._sessions]:
            try:
                await session.close()
            except ClientError as error:
                failure = failure or error
        await channel.request(
            PacketType.GOODBYE,
            {"JMQBlock": bool(self._target.client_id), "JMQConnectionID": Long(channel.id)},
        )
        if failure is not None:
            raise failure

    # --- used by sessions

    def leave(self, session: Session) -> None:
        """Remove a closed session."""
        if session in self._sessions:
            self._sessions.remove(session)

    def temporary_origin(self) -> str:
        """Return the client id, or else the local address."""
        assert self._connection is not None
        return self._target.client_id or self._connection.local()[0] or "unix"

    # --- connections

    def _ended(self, reason: ClientError) -> None:
        for session in self._sessions:
            session.finish(reason)

    def _forget(self) -> None:
        for session in self._sessions:
            session.forget()

    async def _ping(self, connection: RequestChannel) -> None:
        if not connection.heard:
            await connection.request(PacketType.PING)
        connection.heard = False

    async def _open(self, host: str, port: int) -> RequestChannel:
        """Connect and recreate the sessions."""
        channel = await self._connector.connect(host, port, self._old, self.lost)
        try:
            await self._restore(channel)
        except BaseException:
            channel.discard()
            self._forget()
            raise
        self._old = channel.id
        return channel

    async def _restore(self, channel: RequestChannel) -> None:
        """Recreate the sessions on a new connection, in the order of section 11."""
        for begin in (
            Session.begin,
            Session.begin_temporaries,
            Session.begin_consumers,
            Session.begin_producers,
        ):
            for session in self._sessions:
                await begin(session, channel)
        if self._started:
            channel.notify(PacketType.START)
