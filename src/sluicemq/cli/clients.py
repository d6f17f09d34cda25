"""Clients of one queue for `send` and `receive`, selected by the protocol of a URL."""

from __future__ import annotations

import ssl
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from sluicemq.model.errors import ClientError, ConfigurationError, RequestTimeout
from sluicemq.server.address import Url
from sluicemq.server.settings import unknown

if TYPE_CHECKING:
    from sluicemq.clients.blocking import BlockingClient

LONG: Final = 10 * 365 * 86_400
"""Seconds that stand for "no expiry" in msglite, whose format has no such value."""

WINDOW: Final = 100
"""Maximum number of unacknowledged messages of a PHPMQ or JMQ consumer."""

GRACE: Final = 0.25
"""Seconds to wait for ready messages of a PHPMQ, VibeMQ or JMQ broker: these protocols do not
report that a queue is empty."""


class ReceivedMessage(NamedTuple):
    """A received message. `settle` acknowledges it."""

    queue: str
    body: bytes
    id: str
    ttl: int
    reply_to: str
    settle: Callable[[], Awaitable[None]]


class QueueClient(ABC):
    """Client operations that `send` and `receive` use, for the queue of a URL.

    All methods raise ClientError. Messages are sent and received in batches, because each call from
    the command's thread takes longer than the message itself.
    """

    most: ClassVar[int] = 64
    """Maximum number of messages that `receive` returns."""

    grace: ClassVar[float] = GRACE
    """Minimum number of seconds to wait for the first of them."""

    def __init__(self, client: Any, url: Url, options: dict[str, str], count: int) -> None:
        self.client = client
        self.queue = url.queue
        self.options = options
        self.window = min(count or WINDOW, WINDOW)

    @staticmethod
    @abstractmethod
    def url_options(url: Url, options: dict[str, str]) -> dict[str, str]:
        """Return the options of the client's own URL. Raises ConfigurationError."""

    @classmethod
    async def open(cls, url: Url, options: dict[str, str], timeout: float, count: int) -> Any:
        """Connect, see `connect`."""
        from sluicemq.clients.connect import connect as open_url

        given = cls.url_options(url, options) | {"timeout": f"{timeout:.3f}"}
        broker = url._replace(queue="", options=tuple(given.items())).format()
        reconnect = {"reconnect": None} if url.protocol in ("jmq", "vibemq") else {}
        client = await open_url(broker, ssl_context=_ssl_context(url, options), **reconnect)
        return cls(client, url, options, count)

    async def send(self, bodies: Sequence[bytes], ttl: int) -> None:
        """Send messages; `ttl` in seconds, 0 = no expiry."""
        try:
            for body in bodies:
                await self._send(body, ttl)
        except ValueError as error:
            raise ConfigurationError(f"{self.queue!r} cannot be sent to: {error}") from None

    async def receive(self, timeout: float | None, most: int) -> list[ReceivedMessage]:
        """Return the messages that have arrived, up to `most`.

        Waits up to `timeout` seconds for the first one, None = without end.
        """
        received: list[ReceivedMessage] = []
        try:
            if timeout is not None:
                timeout = max(timeout, self.grace)
            while len(received) < min(most, self.most):
                received.append(await self._receive(timeout))
                timeout = 0
        except ValueError as error:
            raise ConfigurationError(f"{self.queue!r} cannot be read: {error}") from None
        except RequestTimeout:
            pass
        except ClientError:
            if not received:
                raise
        return received

    async def settle(self, messages: Sequence[ReceivedMessage]) -> None:
        """Acknowledge messages."""
        for message in messages:
            await message.settle()

    async def confirm(self) -> None:
        """Wait until the broker has accepted all sent messages. The client sends nothing
        afterwards."""
        await self.client.confirm()

    async def close(self) -> None:
        """Close the connection after all acknowledgements have been sent."""
        await self.client.close()

    @abstractmethod
    async def _send(self, body: bytes, ttl: int) -> None:
        """Send a message. Raises ValueError if the protocol cannot represent it."""

    @abstractmethod
    async def _receive(self, timeout: float | None) -> ReceivedMessage:
        """Return the next message. Raises RequestTimeout, ValueError."""


def connect(url: Url, timeout: float, count: int = 0) -> BlockingClient:
    """Return a connected QueueClient. Raises ConfigurationError, ClientError.

    timeout  seconds for connecting and for each write
    count    messages that will be received; 0 = no end
    """
    # asyncio and ssl are slow to load
    from sluicemq.clients.blocking import BlockingClient

    if url.protocol not in _CLIENTS:
        known = ", ".join(sorted(_CLIENTS))
        raise ConfigurationError(f"{url}: there is no client for {url.protocol}; use {known}")
    if not url.queue:
        example = url._replace(queue="orders")
        raise ConfigurationError(f"{url}: name the queue, as in {example}")
    if not url.path and not url.port:
        raise ConfigurationError(f"{url}: nothing can be reached at port 0")
    options = dict(url.options)
    for name in options:
        if name not in _OPTIONS[url.protocol]:
            raise unknown(str(url), name, list(_OPTIONS[url.protocol]))
    return BlockingClient(_CLIENTS[url.protocol].open, url, options, timeout, count)


class _Phpmq(QueueClient):
    _subscribed = False

    @staticmethod
    def url_options(url: Url, options: dict[str, str]) -> dict[str, str]:
        # "auto": a released PHP consumer cannot read a message that was sent with a TTL
        return {"dispatch_version": options.get("dispatch_version", "auto")}

    async def _send(self, body: bytes, ttl: int) -> None:
        await self.client.send(self.queue, body, ttl)

    async def _receive(self, timeout: float | None) -> ReceivedMessage:
        if not self._subscribed:
            await self.client.subscribe(self.queue, self.window)
            self._subscribed = True
        message = await self.client.receive(timeout)
        return ReceivedMessage(
            message.queue, message.body, message.id, message.ttl, "", message.ack
        )


class _Msglite(QueueClient):
    most = 1  # the broker acknowledges messages when it sends them
    grace = 0.0

    @staticmethod
    def url_options(url: Url, options: dict[str, str]) -> dict[str, str]:
        return {}

    async def _send(self, body: bytes, ttl: int) -> None:
        await self.client.send(self.queue, body, ttl or LONG)

    async def _receive(self, timeout: float | None) -> ReceivedMessage:
        seconds = LONG if timeout is None else ceil(timeout)
        message = await self.client.ready(self.queue, timeout=seconds)
        if message is None:
            raise RequestTimeout(f"no message in {seconds} s")
        reply_to = message.reply_to or ""
        return ReceivedMessage(
            message.address, message.body, "", message.timeout, reply_to, _already_acked
        )


class _Vibemq(QueueClient):
    """VibeMQ client. Bodies are JSON: a body that is a JSON value other than a string is sent
    unchanged, other text as a JSON string and other bytes in base64. A received string is decoded
    to its text, so bodies survive a round trip."""

    _messages: Any = None

    @staticmethod
    def url_options(url: Url, options: dict[str, str]) -> dict[str, str]:
        return {"token": options["token"]} if "token" in options else {}

    async def _send(self, body: bytes, ttl: int) -> None:
        from sluicemq.clients.vibemq.commands import payload_of

        if ttl:
            raise ConfigurationError(
                "--ttl: in VibeMQ the queue says how long messages live (messageTtl)"
            )
        payload, headers = payload_of(body)
        await self.client.post(self.queue, payload, headers)

    async def _receive(self, timeout: float | None) -> ReceivedMessage:
        if self._messages is None:
            self._messages = await self.client.subscribe(self.queue)
        message = await self._messages.receive(timeout)
        reply_to = message.headers.get("replyTo", "")
        return ReceivedMessage(message.queue, message.text, message.id, 0, reply_to, message.ack)


class _Jmq(QueueClient):
    """JMQ client. A UTF-8 body is sent as a TextMessage, others as a BytesMessage; all are
    persistent. A received MapMessage or StreamMessage is converted to JSON; an ObjectMessage is
    returned unchanged.

    topic      true: the URL names a topic
    durable    name of a durable subscription of that topic; requires client_id
    selector   JMS message selector
    direct     true: the port is that of the JMQ service, not of a port mapper
    """

    _consumer: Any = None
    _producer: Any = None

    @staticmethod
    def url_options(url: Url, options: dict[str, str]) -> dict[str, str]:
        for name in ("topic", "direct"):
            if options.get(name, "true") not in ("true", "false"):
                raise ConfigurationError(f"{url}: {name} is true or false, not {options[name]}")
        try:
            url.queue.encode()
        except UnicodeEncodeError:
            raise ConfigurationError(
                f"{url}: what is not UTF-8 cannot be the name of a destination"
            ) from None
        if "durable" in options and not (options.get("topic") == "true" and "client_id" in options):
            raise ConfigurationError(f"{url}: durable needs topic=true and client_id")
        return {name: text for name, text in options.items() if name in ("client_id", "direct")}

    @property
    def _destination(self) -> Any:
        from sluicemq.clients.jmq import Queue, Topic

        return (Topic if self.options.get("topic") == "true" else Queue)(self.queue)

    async def _send(self, body: bytes, ttl: int) -> None:
        if self._producer is None:
            session = await self.client.session()
            self._producer = await session.producer(self._destination)
        try:
            text: str | bytes = body.decode()
        except UnicodeDecodeError:
            text = body
        await self._producer.send(text, ttl=ttl, wait=False)

    async def _receive(self, timeout: float | None) -> ReceivedMessage:
        if self._consumer is None:
            self._consumer = await self._subscribe()
        message = await self._consumer.receive(timeout)
        reply_to = message.reply_to
        return ReceivedMessage(
            self.queue,
            message.readable_body,
            message.id,
            ceil(message.seconds_left),
            reply_to.name if reply_to else "",
            lambda: message.acknowledge(only=True),
        )

    async def _subscribe(self) -> Any:
        from sluicemq.clients.jmq import AckMode

        session = await self.client.session(AckMode.CLIENT)
        return await session.consumer(
            self._destination,
            selector=self.options.get("selector", ""),
            name=self.options.get("durable", ""),
            durable="durable" in self.options,
            prefetch=self.window,
        )

    async def confirm(self) -> None:
        if self._producer is not None:
            await self._producer.confirm()


async def _already_acked() -> None:
    """Do nothing: msglite messages are acknowledged when they are sent."""


_CLIENTS: Final[dict[str, type[QueueClient]]] = {
    "jmq": _Jmq,
    "msglite": _Msglite,
    "phpmq": _Phpmq,
    "vibemq": _Vibemq,
}
_TLS_OPTIONS: Final = ("ca", "certificate", "key", "password_file", "insecure")
_OPTIONS: Final = {
    "jmq": (*_TLS_OPTIONS, "topic", "durable", "client_id", "selector", "direct"),
    "msglite": _TLS_OPTIONS,
    "phpmq": (*_TLS_OPTIONS, "dispatch_version"),
    "vibemq": (*_TLS_OPTIONS, "token"),
}


def _ssl_context(url: Url, options: dict[str, str]) -> ssl.SSLContext | None:
    """Return the TLS context for the options of a `+tls` URL, or None without TLS. The broker's
    certificate is verified unless `insecure=true`. Raises ConfigurationError."""
    if not url.tls:
        for name in _TLS_OPTIONS:
            if name in options:
                raise ConfigurationError(
                    f"{url}: {name} has a meaning only with TLS ({url.protocol}+tls)"
                )
        return None
    authority, certificate = options.get("ca"), options.get("certificate")
    insecure = options.get("insecure", "false")
    if insecure not in ("true", "false"):
        raise ConfigurationError(f"{url}: insecure is true or false, not {insecure}")
    if insecure == "true" and authority is not None:
        raise ConfigurationError(f"{url}: with insecure=true nothing is verified; leave out ca")
    try:
        context = ssl.create_default_context(cafile=authority)
    except (OSError, ssl.SSLError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigurationError(f"{url}: ca: {authority} cannot be used: {reason}") from None
    if url.path:
        # A Unix socket has no host name to compare with the certificate.
        context.check_hostname = False
    if insecure == "true":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if certificate is not None:
        _show(context, url, Path(certificate), options)
    elif found := {"key", "password_file"} & options.keys():
        raise ConfigurationError(f"{url}: {min(found)} belongs to a certificate; name it too")
    return context


def _show(context: ssl.SSLContext, url: Url, certificate: Path, options: dict[str, str]) -> None:
    """Load a client certificate for mutual TLS."""
    from sluicemq.server.certificates import read_chain

    key, password_file = options.get("key"), options.get("password_file")
    try:
        read_chain(
            certificate,
            None if key is None else Path(key),
            None if password_file is None else Path(password_file),
        ).install(context)
    except ConfigurationError as error:
        raise ConfigurationError(f"{url}: {error}") from None
