"""The client for asyncio: connections, requests and replies. Public through the package."""

from __future__ import annotations

import asyncio
import platform
import ssl
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Final, Self
from uuid import uuid4

from sluicemq import __version__
from sluicemq.clients.jmq.consumer import Consumer, JmqMessage
from sluicemq.clients.jmq.producer import OUTSTANDING, Producer
from sluicemq.clients.jmq.request_channel import RequestChannel, StatusError, check, number, text
from sluicemq.clients.jmq.session import Session, create_or_abandon
from sluicemq.clients.jmq.target import DEFAULT_PORT, Target
from sluicemq.clients.transport import (
    ALWAYS,
    Backoff,
    ReconnectingClient,
    copy_error,
    fail,
    time_limit,
)
from sluicemq.clients.urls import reason_of
from sluicemq.model.destination import Address
from sluicemq.model.errors import ClientError, ConnectionLost
from sluicemq.protocols.java import Long
from sluicemq.protocols.jmq import fields
from sluicemq.protocols.jmq.packets import AckMode, Level, PacketType, Status
from sluicemq.protocols.jmq.wire import (
    PORT_MAPPER_VERSION,
    Packet,
    Service,
    read_services,
)

PREFETCH: Final = 1000
"""Messages buffered per consumer; the Java client's default."""


AGENT: Final = f"SluiceMQ/{__version__} (Python; {platform.system()} {platform.machine()})"

_MAX_REPLY: Final = 1 << 16
"""Maximum size of a port mapper's reply, in bytes."""
_MAX_CHALLENGES: Final = 8
"""Maximum number of AUTHENTICATE_REQUESTs accepted from a broker."""


def choose_service(services: list[Service], name: str) -> Service:
    """Return the service of this name. Raises ConnectionLost if there is none."""
    for service in services:
        if service.name == name and service.type == "NORMAL":
            if not 0 < service.port < 65_536:
                raise ConnectionLost(f"the broker's service {name} is paused")
            return service
    names = ", ".join(service.name for service in services if service.type == "NORMAL")
    raise ConnectionLost(f"the broker has no service {name}; it has {names or 'none'}")


class Requests:
    """Request-reply exchange over one session with a temporary reply queue.

    Pending requests fail with ConnectionLost when the session is closed.
    """

    def __init__(
        self, session: Session, queue: Address, consumer: Consumer, producer: Producer
    ) -> None:
        self.session = session
        self._queue = queue
        self._producer = producer
        self._waiting: dict[str, asyncio.Future[JmqMessage]] = {}
        self._task = asyncio.create_task(self._receive(consumer))

    @classmethod
    async def start(cls, session: Session) -> Self:
        """Create the reply queue with its consumer and a producer. Raises ClientError."""
        queue = await session.temporary_queue()
        consumer = await session.consumer(queue)
        return cls(session, queue, consumer, await session.producer())

    @property
    def ended(self) -> bool:
        """True if no reply can arrive any more."""
        return self._task.done()

    async def request(
        self,
        to: str | Address,
        body: object,
        timeout: float | None,
        properties: Mapping[str, object] | None,
        type: str | None,
        persistent: bool,
        ttl: float | None,
    ) -> JmqMessage:
        """Send a request and return its reply. Raises as JmqClient.request."""
        correlation_id = uuid4().hex
        reply: asyncio.Future[JmqMessage] = asyncio.get_running_loop().create_future()

        def expect_reply(name: str) -> None:
            self._waiting[name] = reply
            reply.add_done_callback(lambda _: self._waiting.pop(name, None))

        expect_reply(correlation_id)
        try:
            async with time_limit(timeout, f"no reply in {timeout} s"):
                await self._producer.send(
                    body,
                    to=to,
                    properties=properties,
                    correlation_id=correlation_id,
                    reply_to=self._queue,
                    type=type,
                    persistent=persistent,
                    ttl=timeout if ttl is None else ttl,
                    on_id=expect_reply,
                )
                return await reply
        finally:
            reply.cancel()

    async def _receive(self, consumer: Consumer) -> None:
        while True:
            try:
                message = await consumer.receive()
                reply = self._waiting.get(message.correlation_id)
            except ConnectionLost as lost:
                for future in self._waiting.values():
                    fail(future, copy_error(lost))
                return
            except (ClientError, ValueError):
                continue  # the reply cannot be decoded or acknowledged
            if reply is not None and not reply.done():
                reply.set_result(message)


class JmqClient(ReconnectingClient[RequestChannel, Target]):
    """Client connection that reconnects when it is lost. Made by `connect` or `open`. Any number
    of tasks may use it.

    timeout, prefetch, outstanding   see `connect`
    """

    def __init__(
        self,
        target: Target,
        ssl_context: ssl.SSLContext | None,
        reconnect: Backoff | None,
        outstanding: int,
        prefetch: int,
    ) -> None:
        super().__init__(target, reconnect, outstanding, prefetch)
        self._context = ssl_context
        self._encrypted = target.tls or ssl_context is not None
        """The service must use TLS."""
        if target.tls or target.ca or target.certificate:
            self._tls_context()
        self._level = Level.HIGHEST
        self._replaced_id = 0
        """Id of the connection that the next one replaces."""
        self._started = True
        self._sessions: list[Session] = []
        self._requests: Requests | None = None
        self._requests_lock = asyncio.Lock()

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
        username: str = fields.GUEST,
        password: str = fields.GUEST,
        client_id: str = "",
        share_client_id: bool = False,
        keep_alive: float = 30.0,
        flow: int = 0,
        reconnect: Backoff | None = ALWAYS,
        outstanding: int = OUTSTANDING,
        prefetch: int = PREFETCH,
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

        Raises StatusError (413 for wrong credentials, 409 for a client id in use, …),
        ConnectionLost, RequestTimeout.
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
        return await cls(target, ssl_context, reconnect, outstanding, prefetch)._start()

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        ssl_context: ssl.SSLContext | None = None,
        reconnect: Backoff | None = ALWAYS,
        outstanding: int = OUTSTANDING,
        prefetch: int = PREFETCH,
    ) -> Self:
        """Connect to a URL or a list of addresses (module `target`).

        `ssl_context` replaces the options for TLS. Raises as `connect`; ConfigurationError.
        """
        target = Target.parse(url)
        return await cls(target, ssl_context, reconnect, outstanding, prefetch)._start()

    # --- operations

    async def session(
        self, ack_mode: AckMode = AckMode.AUTO, *, transacted: bool = False
    ) -> Session:
        """Create a session; a transacted session ignores `ack_mode`.

        AUTO     the session acknowledges a message when it delivers it
        CLIENT   `JmqMessage.acknowledge` acknowledges all delivered messages
        DUPS_OK  the session acknowledges in batches; the broker may redeliver messages
        NO_ACK   no acknowledgements; the broker removes a message once it is sent

        Raises StatusError, ConnectionLost, RequestTimeout.
        """
        session = Session(self, ack_mode, transacted)
        await create_or_abandon(self, session)
        self._sessions = [*(other for other in self._sessions if not other.closed), session]
        return session

    async def request(
        self,
        to: str | Address,
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

        timeout  seconds to wait for the reply; None = no limit
        ttl      lifetime of the request in seconds; None = `timeout`

        Raises as `Producer.send`; RequestTimeout if no reply arrives.
        """
        async with self._requests_lock:
            if self._requests is not None and self._requests.ended:
                ended, self._requests = self._requests, None
                with suppress(ClientError):
                    await ended.session.close()
            if self._requests is None:
                async with AsyncExitStack() as stack:
                    session = await stack.enter_async_context(await self.session())
                    self._requests = await Requests.start(session)
                    stack.pop_all()  # the session stays open
        return await self._requests.request(to, body, timeout, properties, type, persistent, ttl)

    async def start(self) -> None:
        """Resume delivery after `stop`. A new client is started. Raises ConnectionLost,
        RequestTimeout."""
        self._started = True
        (await self.ready()).notify(PacketType.START)

    async def stop(self) -> None:
        """Pause delivery until `start`; buffered messages can still be received.

        Raises StatusError, ConnectionLost, RequestTimeout.
        """
        self._started = False
        await (await self.ready()).request(PacketType.STOP)

    async def ping(self) -> float:
        """Ping the broker and return the round-trip time in seconds.

        Raises ConnectionLost, RequestTimeout.
        """
        start = time.monotonic()
        await (await self.ready()).request(PacketType.PING)
        return time.monotonic() - start

    async def close(self) -> None:
        """Close all sessions, send GOODBYE and wait for the reply (section 5.5).

        Raises RequestTimeout; StatusError and ConnectionLost for a message sent without waiting.
        """
        channel = self._connection if self._end is None else None
        failure: ClientError | None = None
        try:
            if channel is not None:
                with suppress(ConnectionLost):
                    await channel.request(PacketType.STOP)
            for session in [*self._sessions]:
                try:
                    await session.close()
                except ClientError as error:
                    failure = failure or error
            if channel is not None:
                with suppress(ConnectionLost):
                    await channel.request(
                        PacketType.GOODBYE,
                        {
                            "JMQBlock": bool(self.target.client_id),
                            "JMQConnectionID": Long(channel.id),
                        },
                    )
            if failure is not None:
                raise failure
        finally:
            self._finish(ConnectionLost("the client is closed"))
            if channel is not None:
                await channel.close()

    # --- connections

    def _ended(self, reason: ClientError) -> None:
        for session in self._sessions:
            session.finish(reason)

    def _forget(self) -> None:
        for session in self._sessions:
            session.forget()

    async def _ping(self, connection: RequestChannel) -> None:
        if not connection.was_active:
            await connection.request(PacketType.PING)
        connection.was_active = False

    async def _open(self, host: str, port: int) -> RequestChannel:
        """Connect and recreate the sessions."""
        level = self._level
        try:
            channel = await self._connect_to(host, port)
        except StatusError:
            if self._level == level:
                raise
            channel = await self._connect_to(host, port)  # at the level that the broker requires
        self._replaced_id = channel.id
        return channel

    async def _restore(self, channel: RequestChannel) -> None:
        """Recreate the sessions on a new connection, in the order of section 11."""
        for recreate in (
            Session.create_on_broker,
            Session.recreate_temporaries,
            Session.recreate_endpoints,
        ):
            for session in self._sessions:
                if not session.closed:
                    await recreate(session, channel)
        if self._started:
            channel.notify(PacketType.START)

    # --- connection establishment

    def _tls_context(self) -> ssl.SSLContext:
        if self._context is None:
            self._context = self.target.tls_context()
        return self._context

    async def _connect_to(self, host: str, port: int) -> RequestChannel:
        """Connect to the host, log in and recreate the sessions."""
        target = self.target
        encrypted = self._encrypted
        if not target.direct:
            name = target.service or ("ssljms" if encrypted else "jms")
            service = choose_service(await self._query_port_mapper(host, port), name)
            port, encrypted = service.port, encrypted or service.protocol == "tls"
        channel = RequestChannel(target.timeout, target.flow, self.handle_lost_connection)
        await channel.dial(
            host, port, target.path or None, self._tls_context() if encrypted else None
        )
        try:
            await self._send_hello(channel)
            await self._authenticate(channel)
            if target.client_id:
                await channel.request(
                    PacketType.SET_CLIENTID,
                    {"JMQClientID": target.client_id, "JMQShare": target.share_client_id},
                )
            await self._restore(channel)
        except BaseException:
            # the broker does not reply to a GOODBYE before the login
            with suppress(ClientError):
                channel.notify(PacketType.GOODBYE)
            channel.discard()
            self._forget()
            raise
        return channel

    async def _query_port_mapper(self, host: str, port: int) -> list[Service]:
        """Return the services listed by the port mapper."""
        timeout = self.target.timeout
        reply = bytearray()
        try:
            async with time_limit(timeout, f"the port mapper of {host}:{port} does not reply"):
                reader, writer = await asyncio.open_connection(
                    host, port, ssl=self._tls_context() if self.target.tls else None
                )
                try:
                    writer.write(b"%d\n" % PORT_MAPPER_VERSION)
                    while not reply.endswith(b"\n.\n") and len(reply) < _MAX_REPLY:
                        data = await reader.read(_MAX_REPLY)
                        if not data:
                            break
                        reply += data
                finally:
                    writer.transport.abort()
        except OSError as error:
            raise ConnectionLost(f"cannot connect to {host}:{port}: {reason_of(error)}") from error
        return read_services(bytes(reply))

    async def _send_hello(self, channel: RequestChannel) -> None:
        properties: dict[str, object] = {
            "JMQProtocolLevel": self._level,
            "JMQVersion": __version__,
            "JMQUserAgent": AGENT,
            "JMQRBufferSize": self.target.flow,
            "JMQReconnectable": self._backoff is not None,
        }
        if self._replaced_id:
            properties["JMQConnectionID"] = Long(self._replaced_id)
        reply = await channel.request(
            PacketType.HELLO, properties, accepted=(Status.OK, Status.BAD_VERSION)
        )
        level = number(reply, "JMQProtocolLevel", self._level)
        if number(reply, "JMQStatus") == Status.BAD_VERSION:
            self._level = level
            raise StatusError("hello", Status.BAD_VERSION, f"level {level}")
        channel.level = min(level, self._level)
        channel.id = number(reply, "JMQConnectionID")
        channel.credit.grant(number(reply, "JMQSize", -1) or -1)

    async def _authenticate(self, channel: RequestChannel) -> None:
        request = await channel.authentication_request()
        for _ in range(_MAX_CHALLENGES):
            reply = await channel.request(
                PacketType.AUTHENTICATE,
                {"JMQAuthType": text(request, "JMQAuthType")},
                self._credentials(request),
                accepted=range(1000),
            )
            if reply.type != PacketType.AUTHENTICATE_REQUEST:
                check(reply)
                return
            request = reply
        raise ConnectionLost("the broker keeps requesting authentication")

    def _credentials(self, request: Packet) -> bytes:
        target = self.target
        kind = text(request, "JMQAuthType")
        if kind == fields.DIGEST:
            return fields.digest_login(target.username, target.password, request.body)
        if kind == fields.BASIC:
            return fields.basic_login(target.username, target.password)
        raise ConnectionLost(
            f"the broker requires the authentication type {kind!r}, which is unknown"
        )
