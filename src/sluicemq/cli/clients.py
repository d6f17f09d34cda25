"""Blocking clients of all protocols behind one interface, selected by the protocol of a URL."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from sluicemq.model.errors import ConfigurationError, RequestTimeout
from sluicemq.server.address import Url
from sluicemq.server.settings import unknown

if TYPE_CHECKING:
    from sluicemq.clients.blocking import Blocking, BlockingClient

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
    settle: Callable[[], None]


class MessagingClient(Protocol):
    """Client operations that `send` and `receive` use. All methods raise ClientError."""

    def send(self, body: bytes, ttl: int) -> None:
        """Send to the URL's queue; `ttl` in seconds, 0 = no expiry."""

    def receive(self, timeout: float | None) -> ReceivedMessage | None:
        """Return the next message of the URL's queue, or None after `timeout` seconds without
        one."""

    def confirm(self) -> None:
        """Wait until the broker has accepted all sent messages. The client sends nothing
        afterwards."""

    def close(self) -> None:
        """Close the connection after all acknowledgements have been sent."""


def connect(url: Url, timeout: float, count: int = 0) -> MessagingClient:
    """Connect to the broker and queue of `url`. Raises ConfigurationError, ClientError.

    timeout  seconds for connecting and for each write
    count    messages that will be received; 0 = no end
    """
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
    return _CLIENTS[url.protocol](url, options, timeout, count)


class _Phpmq:
    def __init__(self, url: Url, options: dict[str, str], timeout: float, count: int) -> None:
        # "auto": a released PHP consumer cannot read a message that was sent with a TTL
        dispatch_version = options.get("dispatch_version", "auto")
        self._queue = url.queue
        self._window = min(count or WINDOW, WINDOW)
        self._subscribed = False
        self._client = _open(url, options, timeout, {"dispatch_version": dispatch_version})

    def send(self, body: bytes, ttl: int) -> None:
        try:
            self._client.send(self._queue, body, ttl)
        except ValueError as error:
            raise ConfigurationError(f"{self._queue!r} cannot be sent to: {error}") from None

    def receive(self, timeout: float | None) -> ReceivedMessage | None:
        if not self._subscribed:
            self._subscribe()
        try:
            message = self._client.receive(None if timeout is None else max(GRACE, timeout))
        except RequestTimeout:
            return None
        return ReceivedMessage(
            message.queue, message.body, message.id, message.ttl, "", message.ack
        )

    def _subscribe(self) -> None:
        try:
            self._client.subscribe(self._queue, self._window)
        except ValueError as error:
            raise ConfigurationError(f"{self._queue!r} cannot be read: {error}") from None
        self._subscribed = True

    def confirm(self) -> None:
        self._client.confirm()

    def close(self) -> None:
        self._client.close()


class _Msglite:
    def __init__(self, url: Url, options: dict[str, str], timeout: float, count: int) -> None:
        self._queue = url.queue
        self._client = _open(url, options, timeout, {})

    def send(self, body: bytes, ttl: int) -> None:
        try:
            self._client.send(self._queue, body, ttl or LONG)
        except ValueError as error:
            raise ConfigurationError(f"{self._queue!r} cannot be sent to: {error}") from None

    def receive(self, timeout: float | None) -> ReceivedMessage | None:
        seconds = LONG if timeout is None else ceil(timeout)
        try:
            message = self._client.ready(self._queue, timeout=seconds)
        except ValueError as error:
            raise ConfigurationError(f"{self._queue!r} cannot be read: {error}") from None
        if message is None:
            return None
        return ReceivedMessage(
            message.address,
            message.body,
            "",
            message.timeout,
            message.reply_to or "",
            _already_acked,
        )

    def confirm(self) -> None:
        self._client.confirm()

    def close(self) -> None:
        self._client.close()


class _Vibemq:
    """VibeMQ client. Bodies are JSON: a body that is a JSON value other than a string is sent
    unchanged, other text as a JSON string and other bytes in base64. A received string is decoded
    to its text, so bodies survive a round trip."""

    def __init__(self, url: Url, options: dict[str, str], timeout: float, count: int) -> None:
        self._queue = url.queue
        self._messages: Blocking | None = None
        given = {"token": options["token"]} if "token" in options else {}
        self._client = _open(url, options, timeout, given, reconnect=None)

    def send(self, body: bytes, ttl: int) -> None:
        from sluicemq.clients.vibemq.commands import payload_of

        if ttl:
            raise ConfigurationError(
                "--ttl: in VibeMQ the queue says how long messages live (messageTtl)"
            )
        payload, headers = payload_of(body)
        try:
            self._client.post(self._queue, payload, headers)
        except ValueError as error:
            raise ConfigurationError(f"{self._queue!r} cannot be sent to: {error}") from None

    def receive(self, timeout: float | None) -> ReceivedMessage | None:
        if self._messages is None:
            self._messages = self._client.subscribe(self._queue)
        try:
            message = self._messages.receive(None if timeout is None else max(GRACE, timeout))
        except RequestTimeout:
            return None
        reply_to = message.headers.get("replyTo", "")
        return ReceivedMessage(message.queue, message.text, message.id, 0, reply_to, message.ack)

    def confirm(self) -> None:
        self._client.confirm()

    def close(self) -> None:
        self._client.close()


class _Jmq:
    """JMQ client. A UTF-8 body is sent as a TextMessage, others as a BytesMessage; all are
    persistent. A received MapMessage or StreamMessage is converted to JSON; an ObjectMessage is
    returned unchanged.

    topic      true: the URL names a topic
    durable    name of a durable subscription of that topic; requires client_id
    selector   JMS message selector
    direct     true: the port is that of the JMQ service, not of a port mapper
    """

    def __init__(self, url: Url, options: dict[str, str], timeout: float, count: int) -> None:
        from sluicemq.clients.jmq import Queue, Topic

        for name in ("topic", "direct"):
            if options.get(name, "true") not in ("true", "false"):
                raise ConfigurationError(f"{url}: {name} is true or false, not {options[name]}")
        try:
            url.queue.encode()
        except UnicodeEncodeError:
            raise ConfigurationError(
                f"{url}: what is not UTF-8 cannot be the name of a destination"
            ) from None
        topic = options.get("topic") == "true"
        if "durable" in options and not (topic and "client_id" in options):
            raise ConfigurationError(f"{url}: durable needs topic=true and client_id")
        self._queue = url.queue
        self._selector = options.get("selector", "")
        self._durable = options.get("durable", "")
        self._window = min(count or WINDOW, WINDOW)
        self._destination = Topic(url.queue) if topic else Queue(url.queue)
        self._consumer: Blocking | None = None
        self._producer: Blocking | None = None
        given = {name: text for name, text in options.items() if name in ("client_id", "direct")}
        self._client = _open(url, options, timeout, given, reconnect=None)

    def send(self, body: bytes, ttl: int) -> None:
        if self._producer is None:
            self._producer = self._client.session().producer(self._destination)
        try:
            text: str | bytes = body.decode()
        except UnicodeDecodeError:
            text = body
        self._producer.send(text, ttl=ttl, wait=False)

    def receive(self, timeout: float | None) -> ReceivedMessage | None:
        if self._consumer is None:
            self._consumer = self._subscribe()
        try:
            message = self._consumer.receive(None if timeout is None else max(GRACE, timeout))
        except RequestTimeout:
            return None
        reply_to = message.reply_to
        return ReceivedMessage(
            self._queue,
            message.readable_body,
            message.id,
            ceil(message.seconds_left),
            reply_to.name if reply_to else "",
            lambda: message.acknowledge(only=True),
        )

    def _subscribe(self) -> Blocking:
        from sluicemq.clients.jmq import AckMode

        consumer: Blocking = self._client.session(AckMode.CLIENT).consumer(
            self._destination,
            selector=self._selector,
            name=self._durable,
            durable=bool(self._durable),
            prefetch=self._window,
        )
        return consumer

    def confirm(self) -> None:
        if self._producer is not None:
            self._producer.confirm()

    def close(self) -> None:
        self._client.close()


def _open(
    url: Url, options: dict[str, str], timeout: float, given: dict[str, str], **more: object
) -> BlockingClient:
    """Connect to the broker of `url`; `given` are the options of the client's URL."""
    # Imported only when a client is needed: asyncio and ssl are slow to load.
    from sluicemq.clients.blocking import connect as open_url

    given = {**given, "timeout": f"{timeout:.3f}"}
    broker = url._replace(queue="", options=tuple(given.items())).format()
    return open_url(broker, ssl_context=_ssl_context(url, options), **more)


def _already_acked() -> None:
    """Do nothing: msglite messages are acknowledged when they are sent."""


_CLIENTS: Final[dict[str, type[_Phpmq] | type[_Msglite] | type[_Vibemq] | type[_Jmq]]] = {
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
