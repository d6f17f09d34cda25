"""Connection of the asyncio client: its address and options, and the matching of responses.

An address is a URL or a .NET connection string:

    vibemq[+tls]://[user[:password]@]host[:port][,host[:port]…][?option=value&…]
    vibemq+unix:///path[?option=value&…]
    Host=a:2925,b;Port=2925;Username=me;Password=secret;UseTls=true;…

Names of options ignore letter case, `_`, `-` and blanks:

    host, port, username (user, user id, uid), password (pwd), token (auth token)
    tls (use tls, ssl)                              true or false
    insecure (skip certificate validation)          true or false
    ca                                              file of certificates that are trusted
    certificate, key, password file                 the client's own certificate
    timeout (command timeout), keep alive (keep alive interval)    seconds, or hh:mm:ss
    compression (preferred compressions)            `brotli,gzip`, in order of preference; none
    threshold (compression threshold)               bytes
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Hashable
from typing import Final

from sluicemq.clients import urls
from sluicemq.clients.transport import Confirmations, Receiver, RequestTransport
from sluicemq.clients.vibemq import commands
from sluicemq.model.errors import ClientError, ConfigurationError, ConnectionLost
from sluicemq.model.url import parse_hosts
from sluicemq.protocols.offload import LARGE
from sluicemq.protocols.vibemq import wire
from sluicemq.protocols.vibemq.compression import SUPPORTED, THRESHOLD, Compression
from sluicemq.protocols.vibemq.wire import Decoder, Frame

DEFAULT_PORT: Final = 2925


class Target(urls.Target, frozen=True):
    """A broker's address and login.

    token        for brokers that need one instead of user and password
    compression  offered algorithms, in order of preference
    threshold    size in bytes from which a frame is compressed
    """

    token: str = ""
    compression: tuple[Compression, ...] = SUPPORTED
    threshold: int = THRESHOLD

    @classmethod
    def parse(cls, text: str) -> Target:
        """Parse a URL or connection string. Raises ConfigurationError without the password."""
        if "://" in text.partition("=")[0]:
            return cls(**urls.parse(text, "vibemq", _OPTIONS))
        return _parse_pairs(text)


def _parse_pairs(text: str) -> Target:
    options: dict[str, str] = {}
    for item in text.split(";"):
        if not item.strip():
            continue
        name, equals, value = item.partition("=")
        if not equals:
            raise ConfigurationError(
                "a connection string is Host=…;Port=…;Username=…, or a URL vibemq://…"
            )
        options[urls.normalize_name(name)] = value.strip()
    port = urls.integer("port", options.pop("port", str(DEFAULT_PORT)))
    host = options.pop("host", options.pop("server", "127.0.0.1"))
    return Target(urls.check_ports(parse_hosts(host, port)), **urls.read(options, _OPTIONS))


def _algorithms(name: str, text: str) -> tuple[Compression, ...]:
    algorithms = {algorithm.name.lower(): algorithm for algorithm in Compression}
    words = list(filter(None, (word.strip().lower() for word in text.split(","))))
    for word in words:
        if word not in algorithms:
            raise ConfigurationError(f"{name}: {word!r} is not one of {', '.join(algorithms)}")
    return tuple(algorithms[word] for word in words if algorithms[word] is not Compression.NONE)


_OPTIONS: Final[urls.Known] = {
    **urls.RECONNECTING,
    "userid": ("username", urls.text),
    "uid": ("username", urls.text),
    "pwd": ("password", urls.text),
    "token": ("token", urls.text),
    "authtoken": ("token", urls.text),
    "tls": ("tls", urls.boolean),
    "usetls": ("tls", urls.boolean),
    "ssl": ("tls", urls.boolean),
    "skipcertificatevalidation": ("insecure", urls.boolean),
    "commandtimeout": ("timeout", urls.seconds),
    "keepaliveinterval": ("keep_alive", urls.seconds),
    "compression": ("compression", _algorithms),
    "preferredcompressions": ("compression", _algorithms),
    "threshold": ("threshold", urls.integer),
    "compressionthreshold": ("threshold", urls.integer),
}


_LOGIN: Final = ""
"""Id of the login in `RequestTransport`: any frame answers it."""


class ClientConnection(RequestTransport[Frame, Frame]):
    """asyncio connection that stops reading while the application takes no messages."""

    def __init__(
        self,
        timeout: float,
        prefetch: int,
        threshold: int,
        deliver: Callable[[ClientConnection, Frame], None],
        on_lost: Callable[[ClientConnection, ClientError], None],
    ) -> None:
        super().__init__(Decoder(), timeout, on_lost)
        self.compression = Compression.NONE
        self._threshold = threshold
        self._prefetch = prefetch
        self._buffered = 0
        self._deliver = deliver
        self._close_reason = ""

    async def log_in(self, frame: Frame, offered: Collection[Compression]) -> None:
        """Send CONNECT and wait for the first response. Raises ClientError."""
        answer = await self.send_request(
            _LOGIN, wire.encode(frame), timeout_text="no response to Connect"
        )
        self.compression = commands.negotiated_compression(answer, offered)

    async def request(self, identity: str, data: bytes, acks: bytes = b"") -> Frame:
        """Send `acks` and a request in one write, and return the response.

        Raises CommandRefused, ConnectionLost, RequestTimeout.
        """
        return await self.send_request(identity, acks + await self._packed(data))

    async def publish(
        self, identity: str, data: bytes, limit: int, confirmations: Confirmations[Frame]
    ) -> None:
        """Send a message once fewer than `limit` requests are pending.

        Raises as `request`, also for a message sent before; ValueError.
        """
        packed = await self._packed(data)
        await self.pending.wait_for_capacity(limit)
        confirmations.expect(self, identity)
        await self.send(packed)
        confirmations.check()

    async def _packed(self, data: bytes) -> bytes:
        """Return an encoded frame in the negotiated compression.

        Large frames are compressed in another thread. Raises ValueError if it is too long.
        """
        compression, threshold = self.compression, self._threshold
        if len(data) <= LARGE or compression is Compression.NONE:
            return commands.compress(data, compression, threshold)
        return await asyncio.to_thread(commands.compress, data, compression, threshold)

    def expect(self, identity: Hashable, receive: Receiver[Frame]) -> None:
        """Register a request, and read its response in any case."""
        super().expect(identity, receive)
        self._set_reading()

    def count_buffered(self, change: int) -> None:
        """Change the number of received messages that the application has not taken."""
        self._buffered += change
        self._set_reading()

    def _set_reading(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._buffered >= self._prefetch and not self.pending:
            transport.pause_reading()
        else:
            transport.resume_reading()

    def handle_frames(self, frames: list[Frame]) -> None:
        for frame in frames:
            kind = frame.type
            if kind == wire.DELIVER:
                self._deliver(self, frame)
                continue
            response = commands.refusal_error(frame) if kind == wire.ERROR else frame
            if self.deliver_response(_LOGIN, response) or self.deliver_response(frame.id, response):
                continue
            if kind == wire.ERROR:
                self._close_reason = str(response)
            elif kind == wire.DISCONNECT:
                self._close_reason = frame.headers.get("reason", "Disconnect without a reason")
                self.eof_received()
                self.abort()
        self._set_reading()

    def eof_received(self) -> None:
        reason = f": {self._close_reason}" if self._close_reason else ""
        self.mark_lost(ConnectionLost(f"the broker closed the connection{reason}"))

    def request_close(self, transport: asyncio.Transport) -> None:
        transport.write(wire.encode(Frame(wire.DISCONNECT, "bye")))
        self.mark_lost(ConnectionLost("the client is closed"))
