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
from collections import deque
from collections.abc import Callable, Collection
from typing import Final

from sluicemq.clients import urls
from sluicemq.clients.transport import ClientTransport, fail, time_limit
from sluicemq.clients.vibemq import commands
from sluicemq.model.errors import (
    ClientError,
    ConfigurationError,
    ConnectionLost,
    RequestTimeout,
)
from sluicemq.model.url import parse_hosts
from sluicemq.protocols.vibemq import wire
from sluicemq.protocols.vibemq.compression import SUPPORTED, THRESHOLD, Compression
from sluicemq.protocols.vibemq.large import LARGE
from sluicemq.protocols.vibemq.wire import Decoder, Frame, Limits

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
        if "://" in text.partition("?")[0]:
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
        options[name] = value.strip()
    plain = {urls.plain(name): value for name, value in options.items()}
    port = urls.integer("port", plain.pop("port", str(DEFAULT_PORT)))
    host = plain.pop("host", plain.pop("server", "127.0.0.1"))
    return Target(urls.reachable(parse_hosts(host, port)), **urls.read(plain, _OPTIONS))


def _algorithms(name: str, text: str) -> tuple[Compression, ...]:
    known = {how.name.lower(): how for how in Compression}
    words = list(filter(None, (word.strip().lower() for word in text.split(","))))
    for word in words:
        if word not in known:
            raise ConfigurationError(f"{name}: {word!r} is not one of {', '.join(known)}")
    return tuple(known[word] for word in words if known[word] is not Compression.NONE)


_OPTIONS: Final[urls.Known] = {
    **urls.RECONNECTING,
    "userid": ("username", urls.text),
    "uid": ("username", urls.text),
    "pwd": ("password", urls.text),
    "token": ("token", urls.text),
    "authtoken": ("token", urls.text),
    "tls": ("tls", urls.truth),
    "usetls": ("tls", urls.truth),
    "ssl": ("tls", urls.truth),
    "skipcertificatevalidation": ("insecure", urls.truth),
    "commandtimeout": ("timeout", urls.seconds),
    "keepaliveinterval": ("keep_alive", urls.seconds),
    "compression": ("compression", _algorithms),
    "preferredcompressions": ("compression", _algorithms),
    "threshold": ("threshold", urls.integer),
    "compressionthreshold": ("threshold", urls.integer),
}


class ClientConnection(ClientTransport[Frame]):
    """asyncio connection that matches responses to requests."""

    def __init__(
        self,
        limits: Limits,
        timeout: float,
        prefetch: int,
        deliver: Callable[[ClientConnection, Frame], None],
        lost: Callable[[ClientConnection, ClientError], None],
    ) -> None:
        super().__init__(Decoder(limits), timeout)
        self.compression = Compression.NONE
        self.threshold = THRESHOLD
        self._prefetch = prefetch
        self._held = 0
        self._paused = False
        self._deliver = deliver
        self._lost = lost
        self._greeting: asyncio.Future[Frame] | None = None
        self._waiting: dict[str, asyncio.Future[Frame]] = {}
        self._complaint = ""

    async def log_in(self, frame: Frame, offered: Collection[Compression]) -> None:
        """Send CONNECT and wait for the first response. Raises ClientError."""
        self._greeting = asyncio.get_running_loop().create_future()
        try:
            async with time_limit(self.timeout, f"no response to Connect in {self.timeout} s"):
                await self.send(wire.encode(frame))
                answer = await self._greeting
        finally:
            self._greeting = None
        self.compression = commands.agreed(answer, offered)

    async def request(self, identity: str, data: bytes) -> Frame:
        """Send, and return the response. Raises CommandRefused, ConnectionLost, RequestTimeout."""
        future = self.begin(identity)
        try:
            await self.send(await self.packed(data))
            return await self.answer(future)
        finally:
            self.forget(identity, future)

    async def packed(self, data: bytes) -> bytes:
        """Return an encoded frame in the negotiated compression.

        Large frames are compressed in another thread. Raises ValueError if it is too long.
        """
        how, threshold = self.compression, self.threshold
        if len(data) <= LARGE or how is Compression.NONE:
            return commands.packed(data, how, threshold)
        return await asyncio.to_thread(commands.packed, data, how, threshold)

    async def answer(self, future: asyncio.Future[Frame]) -> Frame:
        """Wait for the result of a future of `begin`. Raises as `request`."""
        await asyncio.wait([future], timeout=self.timeout)
        if not future.done():
            raise RequestTimeout(f"no answer in {self.timeout} s")
        return future.result()

    def begin(self, identity: str) -> asyncio.Future[Frame]:
        """Register a request. Raises as `check`; ValueError if the id is already in use."""
        self.check()
        if identity in self._waiting:
            raise ValueError(f"the message id {identity!r} is already in use")
        future: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self._waiting[identity] = future
        self._set_reading()
        return future

    def forget(self, identity: str, future: asyncio.Future[Frame]) -> None:
        """Unregister a request."""
        if self._waiting.get(identity) is future:
            del self._waiting[identity]
        if future.done() and not future.cancelled():
            future.exception()  # mark the exception as retrieved
        self._set_reading()

    async def wait_for_capacity(self, most: int) -> None:
        """Wait until fewer than `most` requests are pending."""
        while len(self._waiting) >= most:
            oldest = next(iter(self._waiting.values()))
            done, _ = await asyncio.wait([oldest], timeout=self.timeout)
            if not done:
                raise RequestTimeout(f"no answer in {self.timeout} s")

    async def wait_until_idle(self) -> None:
        """Wait until no requests are pending, or until the timeout."""
        if self._waiting:
            await asyncio.wait(list(self._waiting.values()), timeout=self.timeout)

    def held(self, change: int) -> None:
        """Change the number of received messages that the application has not taken."""
        self._held += change
        self._set_reading()

    def _set_reading(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        full = self._held >= self._prefetch and not self._waiting
        if full is self._paused:
            return
        self._paused = full
        if full:
            transport.pause_reading()
        else:
            transport.resume_reading()

    def arrived(self, frames: list[Frame]) -> None:
        waiting = self._waiting
        for frame in frames:
            kind = frame.type
            if self._greeting is not None and not self._greeting.done():
                self._greeting.set_result(frame)
            elif kind == wire.DELIVER:
                self._deliver(self, frame)
            elif (future := waiting.pop(frame.id, None)) is not None:
                if future.done():
                    continue
                if kind == wire.ERROR:
                    future.set_exception(commands.refusal(frame))
                else:
                    future.set_result(frame)
            elif kind == wire.ERROR:
                self._complaint = str(commands.refusal(frame))
            elif kind == wire.DISCONNECT:
                self._complaint = frame.headers.get("reason", "Disconnect without a reason")
                self.eof_received()
                self.abort()
        self._set_reading()

    def eof_received(self) -> None:
        reason = f": {self._complaint}" if self._complaint else ""
        self.lose(ConnectionLost(f"the broker closed the connection{reason}"))

    def release(self, reason: ClientError) -> None:
        futures = [*self._waiting.values()]
        self._waiting.clear()
        if self._greeting is not None:
            futures.append(self._greeting)
        for future in futures:
            fail(future, reason)
        self._lost(self, reason)

    def leave(self, transport: asyncio.Transport) -> None:
        transport.write(wire.encode(Frame(wire.DISCONNECT, "bye")))
        self.lose(ConnectionLost("the client is closed"))


class Unconfirmed:
    """Published messages whose confirmations are awaited together."""

    def __init__(self) -> None:
        self._messages: deque[tuple[ClientConnection, str, asyncio.Future[Frame]]] = deque()

    async def publish(
        self, connection: ClientConnection, identity: str, data: bytes, most: int
    ) -> None:
        """Send a message once fewer than `most` requests of the connection are pending.

        Raises as `ClientConnection.request`, also for a message sent before; ValueError.
        """
        packed = await connection.packed(data)
        await connection.wait_for_capacity(most)
        self._messages.append((connection, identity, connection.begin(identity)))
        await connection.send(packed)
        while self._messages and self._messages[0][2].done():
            self._messages.popleft()[2].result()

    async def confirm(self) -> None:
        """Wait until all messages are confirmed.

        Raises as `ClientConnection.request` for the first message that is not, and forgets those
        after it.
        """
        try:
            while self._messages:
                await self._messages[0][0].answer(self._messages[0][2])
                self._messages.popleft()
        finally:
            self.forget()

    def forget(self) -> None:
        """Stop waiting for confirmations."""
        while self._messages:
            connection, identity, future = self._messages.popleft()
            connection.forget(identity, future)
