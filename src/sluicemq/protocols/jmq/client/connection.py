"""The client for asyncio. Public through `client`."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Final, Self

from sluicemq.model.errors import ClientError, ConnectionLost, RequestTimeout
from sluicemq.protocols.client_transport import ALWAYS, AsyncClient, Backoff
from sluicemq.protocols.java import Long
from sluicemq.protocols.jmq.client.connecting import Connector
from sluicemq.protocols.jmq.client.consumer import JmqMessage
from sluicemq.protocols.jmq.client.destinations import Destination
from sluicemq.protocols.jmq.client.producer import OUTSTANDING
from sluicemq.protocols.jmq.client.request_channel import RequestChannel
from sluicemq.protocols.jmq.client.requests import Requests
from sluicemq.protocols.jmq.client.session import Session
from sluicemq.protocols.jmq.client.target import DEFAULT_PORT, Target
from sluicemq.protocols.jmq.login import GUEST
from sluicemq.protocols.jmq.packets import AckMode, PacketType
from sluicemq.protocols.jmq.wire import Limits

PREFETCH: Final = 1000
"""Messages that may wait here for somebody to take them, by consumer; as in the Java client."""


class JmqClient(AsyncClient):
    """A connection to a broker, and the next one when it breaks. Made by `connect` or `open`. Any
    number of tasks may use it.

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
        if outstanding < 1 or prefetch < 1:
            raise ValueError("outstanding and prefetch are at least 1")
        self.timeout = target.timeout
        self.outstanding = outstanding
        self.prefetch = prefetch
        self.share_client_id = target.share_client_id
        self._target = target
        self._backoff = reconnect
        self._connector = Connector(target, ssl_context, limits, reconnect is not None)
        self._channel: RequestChannel | None = None
        self._old = 0
        self._up = asyncio.Event()
        self._end: ClientError | None = None
        self._started = True
        self._sessions: list[Session] = []
        self._tasks: set[asyncio.Task[None]] = set()
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
        """Connect to the first of `hosts` that answers, else to `host` and `port`, or to the unix
        socket `path`; log in.

        direct       the port is the service's, not that of a port mapper
        service      which one the port mapper is asked for; "" = jms, or ssljms over TLS
        tls          from the port mapper on; `ssl_context` alone is for a service that wants TLS
        timeout      seconds, > 0; for connecting, each answer, and closing
        client_id    who durable subscriptions belong to; `share_client_id`: others may have it too
        keep_alive   seconds of silence until a ping, 0 = never. One that is not answered within
                     `timeout` ends the connection
        flow         messages of all consumers together that may be on their way; 0 = no limit
        reconnect    None: the first broken connection is the end
        outstanding  messages of a session that may wait for their confirmations
        prefetch     messages that may wait here, by consumer

        Raises Refused (413 for wrong credentials, 409 for a client id in use, …), ConnectionLost,
        RequestTimeout.
        """
        target = Target(
            tuple(hosts) or ((host, port),),
            path or "",
            username,
            password,
            client_id,
            share_client_id,
            service,
            direct or path is not None,
            tls,
            timeout=timeout,
            keep_alive=keep_alive,
            flow=flow,
        )
        client = cls(target, ssl_context, reconnect, outstanding, prefetch, limits or Limits())
        await client._start()
        return client

    @classmethod
    async def open(
        cls,
        where: str,
        *,
        reconnect: Backoff | None = ALWAYS,
        outstanding: int = OUTSTANDING,
        prefetch: int = PREFETCH,
    ) -> Self:
        """Connect to what a URL or a list of addresses says (`target`).

        Raises as `connect`; ConfigurationError.
        """
        client = cls(Target.parse(where), None, reconnect, outstanding, prefetch, Limits())
        await client._start()
        return client

    # --- what it is for

    async def session(
        self, ack_mode: AckMode = AckMode.AUTO, *, transacted: bool = False
    ) -> Session:
        """A session; `ack_mode` is of no effect in a transacted one.

        AUTO     a message is acknowledged when it is handed over
        CLIENT   by `JmqMessage.acknowledge`, with all before it
        DUPS_OK  some time after it has been handed over: it may come a second time
        NO_ACK   never; the broker forgets it when it has sent it

        Raises Refused, ConnectionLost, RequestTimeout.
        """
        session = Session(self, ack_mode, transacted)
        channel = await self.ready()
        await session.begin(channel)
        channel.check()  # from now on a new connection gets it too
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
        """Send, and return the reply: what comes to a temporary queue of this client with the
        correlation id, or with the id, of what was sent.

        timeout  seconds until the reply has to be there; None = for ever
        ttl      of the request, seconds; None = `timeout`

        Raises as `Producer.send`; RequestTimeout without a reply.
        """
        async with self._requesting:
            if self._requests is None:
                self._requests = await Requests.start(await self.session())
        return await self._requests.ask(to, body, timeout, properties, type, persistent, ttl)

    async def start(self) -> None:
        """Let messages come, as they do from the beginning. Raises ConnectionLost,
        RequestTimeout."""
        self._started = True
        (await self.ready()).tell(PacketType.START)

    async def stop(self) -> None:
        """Let no more messages come, until `start`; those that are here can be received. Raises
        Refused, ConnectionLost, RequestTimeout."""
        self._started = False
        await (await self.ready()).request(PacketType.STOP)

    async def unique_ids(self, number: int = 1) -> list[int]:
        """Numbers that the broker gives out once in years. Raises Refused, ConnectionLost,
        RequestTimeout."""
        channel = await self.ready()
        reply = await channel.request(PacketType.GENERATE_UID, {"JMQQuantity": number})
        body = reply.body
        return [
            int.from_bytes(body[at : at + 8], signed=True) for at in range(0, len(body) // 8 * 8, 8)
        ]

    async def ping(self) -> float:
        """Seconds until the broker answers. Raises ConnectionLost, RequestTimeout."""
        begun = time.monotonic()
        await (await self.ready()).request(PacketType.PING)
        return time.monotonic() - begun

    async def close(self) -> None:
        """Close all sessions, say goodbye, and wait for the answer.

        Raises RequestTimeout; Refused for what was sent without waiting and refused.
        """
        channel = self._channel
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

    # --- what its parts need

    async def ready(self) -> RequestChannel:
        """The connection; waits for a new one. Raises ConnectionLost, RequestTimeout."""
        if not self._up.is_set():
            try:
                async with asyncio.timeout(self.timeout):
                    await self._up.wait()
            except TimeoutError:
                raise RequestTimeout(f"no connection in {self.timeout} s") from None
        if self._end is not None:
            raise type(self._end)(str(self._end))
        assert self._channel is not None
        return self._channel

    def leave(self, session: Session) -> None:
        """A session is closed."""
        if session in self._sessions:
            self._sessions.remove(session)

    def temporary_origin(self) -> str:
        """Return the client id, or else the local address."""
        assert self._channel is not None
        return self._target.client_id or self._channel.local()[0] or "unix"

    # --- connections

    async def _start(self) -> None:
        channel = await self._connect()
        if self._target.keep_alive:
            self._run(self._keep_alive())
        self._adopt(channel)

    def _finish(self, reason: ClientError) -> None:
        self._end = self._end or reason
        for task in self._tasks:
            task.cancel()
        for session in self._sessions:
            session.finish(self._end)
        self._up.set()

    def _run(self, coroutine: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self) -> RequestChannel:
        """Connect to a host that answers, and do there what belongs to a connection."""
        target = self._target
        failure: ClientError = ConnectionLost("there is no host to connect to")
        for host, port in target.hosts if not target.path else (("", 0),):
            try:
                channel = await self._connector.connect(host, port, self._old, self._lost)
            except ClientError as error:
                failure = error
                continue
            try:
                await self._restore(channel)
                return channel
            except ClientError as error:
                failure = error
                channel.discard()
                for session in self._sessions:
                    session.forget()
            except BaseException:
                channel.discard()
                raise
        raise failure

    async def _restore(self, channel: RequestChannel) -> None:
        """What there was on the connection before, in the order of section 11."""
        for session in self._sessions:
            await session.begin(channel)
        for session in self._sessions:
            await session.begin_temporaries(channel)
        for session in self._sessions:
            await session.begin_consumers(channel)
        for session in self._sessions:
            await session.begin_producers(channel)
        if self._started:
            channel.tell(PacketType.START)

    def _adopt(self, channel: RequestChannel) -> None:
        self._channel = channel
        self._old = channel.id
        if channel.lost is not None:  # meanwhile
            self._lost(channel, channel.lost)
        else:
            self._up.set()

    def _lost(self, channel: RequestChannel, reason: ClientError) -> None:
        if channel is not self._channel or self._end is not None:
            return
        self._channel = None
        for session in self._sessions:
            session.forget()
        if self._backoff is None or channel.final:
            self._finish(reason)
            return
        self._up.clear()
        self._run(self._reconnect(self._backoff, reason))

    async def _reconnect(self, backoff: Backoff, reason: ClientError) -> None:
        try:
            channel = await backoff.persist(self._connect, reason)
        except ConnectionLost as given_up:
            self._finish(given_up)
        else:
            self._adopt(channel)

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(self._target.keep_alive)
            channel = self._channel
            if channel is None:
                continue
            if channel.heard:
                channel.heard = False
                continue
            try:
                await channel.request(PacketType.PING)
            except RequestTimeout as error:
                channel.lose(ConnectionLost(f"the broker does not answer: {error}"))
                channel.abort()
            except ClientError:
                continue
            channel.heard = False
