"""Connection establishment: targets, port mapper, HELLO, authentication and client id (sections 1
and 5 of the protocol specification).

The target of a client is a URL or a list of Open MQ broker addresses:

    jmq[+tls]://[user[:password]@]host[:port][,host[:port]…][?option=value&…]
    jmq+unix:///path[?option=value&…]
    mq://host:7676/jms mq://other:7676/ssljms       as imqAddressList, separated by blanks or commas
    mqtcp://host:port/jms, mqssl://host:port/ssljms      the service's port, no port mapper
    mq+ssl://host:port                                   TLS, also for the port mapper

The port is that of the host's port mapper, which returns the service's port; with `direct` it is
the service's own port. The client uses TLS for a service that the port mapper lists with `tls`.

Option names ignore letter case, `_`, `-` and blanks between words:

    username (user), password
    client id                    needed for durable subscriptions
    share client id              true or false: other connections may use the client id too
    service                      jms, ssljms, …; the service looked up in the port mapper
    direct                       true or false
    insecure                     true or false
    ca                           file of trusted certificates
    timeout, keep alive (ping interval)     seconds, or hh:mm:ss
    flow                         messages the broker may send before the client requests more
"""

from __future__ import annotations

import asyncio
import platform
import re
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from msgspec.structs import replace

from sluicemq import __version__
from sluicemq.clients import urls
from sluicemq.clients.jmq.request_channel import (
    RequestChannel,
    StatusError,
    check,
    number,
    text,
)
from sluicemq.clients.transport import reason_of, time_limit
from sluicemq.model.errors import ClientError, ConfigurationError, ConnectionLost
from sluicemq.protocols.java import Long
from sluicemq.protocols.jmq import fields
from sluicemq.protocols.jmq.fields import GUEST
from sluicemq.protocols.jmq.packets import Level, PacketType, Status
from sluicemq.protocols.jmq.wire import (
    PORT_MAPPER_VERSION,
    Limits,
    Packet,
    Service,
    read_services,
)

# --- targets

DEFAULT_PORT: Final = 7676

_ADDRESS: Final = re.compile(r"(mq|mqtcp|mqssl|mq\+ssl)://([^/?@]*)(?:/(\w*))?\Z", re.IGNORECASE)
_SPACES: Final = re.compile(r"[\s,]+")


class Target(urls.Target, frozen=True):
    """A broker's address and login. `tls`: also for the port mapper.

    client_id        "" = none
    share_client_id  other connections may use the client id and share its subscriptions
    service          name of the service; "" = jms, or ssljms over TLS
    direct           the port is the service's own, as a Unix socket always is
    flow             messages in transit for the whole connection; 0 = no limit
    """

    username: str = GUEST
    password: str = GUEST
    client_id: str = ""
    share_client_id: bool = False
    service: str = ""
    direct: bool = False
    flow: int = 0

    @classmethod
    def parse(cls, text: str) -> Target:
        """Parse a URL or an address list. Raises ConfigurationError, never with a password."""
        if text[:3].lower() != "jmq":
            return _parse_addresses(text)
        target = cls(**urls.parse(text, "jmq", DEFAULT_PORT, _OPTIONS))
        return replace(target, direct=target.direct or bool(target.path))


def _parse_addresses(text: str) -> Target:
    """Parse a list of addresses of the same scheme and service."""
    found: list[Target] = []
    for item in filter(None, _SPACES.split(text)):
        address = _ADDRESS.match(item)
        if address is None:
            raise ConfigurationError(
                "a broker is named as jmq://host:port or mq://host:port/service"
            )
        scheme, host, service = address.groups()
        scheme = scheme.lower()
        found.append(
            Target(
                urls.hosts(host or "127.0.0.1", DEFAULT_PORT),
                service=service or "",
                direct=scheme in ("mqtcp", "mqssl"),
                tls=scheme in ("mqssl", "mq+ssl"),
            )
        )
    if not found:
        raise ConfigurationError("there is no address of a broker")
    hosts = tuple(host for target in found for host in target.hosts)
    if any(target != replace(found[0], hosts=target.hosts) for target in found):
        raise ConfigurationError("addresses that stand for each other differ in their hosts only")
    return replace(found[0], hosts=hosts)


_OPTIONS: Final[urls.Known] = {
    **urls.RECONNECTING,
    "clientid": ("client_id", urls.text),
    "shareclientid": ("share_client_id", urls.truth),
    "service": ("service", urls.text),
    "direct": ("direct", urls.truth),
    "pinginterval": ("keep_alive", urls.seconds),
    "flow": ("flow", urls.integer),
}


# --- connections

AGENT: Final = f"SluiceMQ/{__version__} (Python; {platform.system()} {platform.machine()})"

_LONGEST: Final = 1 << 16
"""Maximum size of a port mapper's answer, in bytes."""
_ROUNDS: Final = 8
"""Maximum number of AUTHENTICATE_REQUESTs accepted from a broker."""


def choose(services: list[Service], target: Target) -> Service:
    """Return the service that the target selects. Raises ConnectionLost if there is none."""
    name = target.service or ("ssljms" if target.tls else "jms")
    for each in services:
        if each.name == name and each.type == "NORMAL":
            if not 0 < each.port < 65_536:
                raise ConnectionLost(f"the broker's service {name} is paused")
            return each
    known = ", ".join(each.name for each in services if each.type == "NORMAL")
    raise ConnectionLost(f"the broker has no service {name}; it has {known or 'none'}")


class Connector:
    """Factory of successive connections to one target."""

    def __init__(
        self, target: Target, ssl_context: ssl.SSLContext | None, limits: Limits, reconnects: bool
    ) -> None:
        """Create a connector; HELLO reports `reconnects`. Raises ConfigurationError."""
        self._target = target
        self._limits = limits
        self._reconnects = reconnects
        self._level = Level.HIGHEST
        self._context = ssl_context
        if target.tls or target.ca:
            self._tls()

    def _tls(self) -> ssl.SSLContext:
        if self._context is None:
            self._context = self._target.tls_context()
        return self._context

    async def connect(
        self,
        host: str,
        port: int,
        old: int,
        lost: Callable[[RequestChannel, ClientError], None],
    ) -> RequestChannel:
        """Connect to the host and log in.

        `old` is the id of the connection that the new one replaces, or 0. The channel calls `lost`
        when the connection breaks.

        Raises Refused, ConnectionLost, RequestTimeout, ConfigurationError.
        """
        level = self._level
        try:
            return await self._attempt(host, port, old, lost)
        except StatusError:
            if self._level == level:  # else the broker requires another level
                raise
        return await self._attempt(host, port, old, lost)

    async def _attempt(
        self,
        host: str,
        port: int,
        old: int,
        lost: Callable[[RequestChannel, ClientError], None],
    ) -> RequestChannel:
        target = self._target
        encrypted = target.tls
        if not target.direct:
            service = choose(await self._ask(host, port), target)
            port, encrypted = service.port, service.protocol == "tls"
        channel = RequestChannel(self._limits, target.timeout, target.flow, lost)
        await channel.dial(host, port, target.path or None, self._tls() if encrypted else None)
        try:
            await self._hello(channel, old)
            await self._authenticate(channel)
            if target.client_id:
                await channel.request(
                    PacketType.SET_CLIENTID,
                    {"JMQClientID": target.client_id, "JMQShare": target.share_client_id},
                )
        except BaseException:
            # the broker does not answer a GOODBYE before login, so do not wait for a reply
            with suppress(ClientError):
                channel.notify(PacketType.GOODBYE)
            channel.discard()
            raise
        return channel

    async def _ask(self, host: str, port: int) -> list[Service]:
        """Return the services listed by the port mapper."""
        timeout = self._target.timeout
        answer = bytearray()
        try:
            async with time_limit(timeout, f"the port mapper of {host}:{port} says nothing"):
                reader, writer = await asyncio.open_connection(
                    host, port, ssl=self._tls() if self._target.tls else None
                )
                try:
                    writer.write(b"%d\n" % PORT_MAPPER_VERSION)
                    while not answer.endswith(b"\n.\n") and len(answer) < _LONGEST:
                        data = await reader.read(_LONGEST)
                        if not data:
                            break
                        answer += data
                finally:
                    writer.transport.abort()
        except OSError as error:
            raise ConnectionLost(f"cannot connect to {host}:{port}: {reason_of(error)}") from error
        return read_services(bytes(answer))

    async def _hello(self, channel: RequestChannel, old: int) -> None:
        properties: dict[str, object] = {
            "JMQProtocolLevel": self._level,
            "JMQVersion": __version__,
            "JMQUserAgent": AGENT,
            "JMQRBufferSize": self._target.flow,
            "JMQReconnectable": self._reconnects,
        }
        if old:
            properties["JMQConnectionID"] = Long(old)
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
        request = await channel.challenged()
        for _ in range(_ROUNDS):
            reply = await channel.request(
                PacketType.AUTHENTICATE,
                {"JMQAuthType": text(request, "JMQAuthType")},
                self._credentials(request),
                accepted=_ANY,
            )
            if reply.type != PacketType.AUTHENTICATE_REQUEST:
                check(reply)
                return
            request = reply
        raise ConnectionLost("the broker asks again and again who this is")

    def _credentials(self, request: Packet) -> bytes:
        target = self._target
        kind = text(request, "JMQAuthType")
        if kind == fields.DIGEST:
            return fields.digest_login(target.username, target.password, request.body)
        if kind == fields.BASIC:
            return fields.basic_login(target.username, target.password)
        raise ConnectionLost(f"the broker wants a login of the type {kind!r}, which is not known")


_ANY: Final = range(1000)
