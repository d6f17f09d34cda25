"""Connection establishment: port mapper, HELLO, authentication and client id (sections 1, 5)."""

from __future__ import annotations

import asyncio
import platform
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from sluicemq import __version__
from sluicemq.clients.jmq.request_channel import (
    RequestChannel,
    StatusError,
    check,
    number,
    text,
)
from sluicemq.clients.jmq.target import Target
from sluicemq.clients.transport import reason_of, time_limit
from sluicemq.model.errors import ClientError, ConnectionLost
from sluicemq.protocols.java import Long
from sluicemq.protocols.jmq import fields
from sluicemq.protocols.jmq.packets import Level, PacketType, Status
from sluicemq.protocols.jmq.portmapper import VERSION, Service, read_services
from sluicemq.protocols.jmq.wire import Limits, Packet

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
        try:
            return await self._attempt(host, port, old, lost)
        except _WrongLevel as wrong:
            self._level = wrong.level
        try:
            return await self._attempt(host, port, old, lost)
        except _WrongLevel as wrong:
            raise StatusError("hello", Status.BAD_VERSION, f"level {wrong.level}") from None

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
                    writer.write(b"%d\n" % VERSION)
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
            raise _WrongLevel(level)
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


class _WrongLevel(Exception):
    """BAD_VERSION reply to HELLO, with the protocol level that the broker requires."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.level = level
