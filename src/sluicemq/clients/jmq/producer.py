"""Producers. Public through the package."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from ipaddress import ip_address
from itertools import count
from typing import Any, Final
from weakref import WeakValueDictionary

from sluicemq.clients.jmq.messages import (
    Message,
    MessageFormatError,
    SendOptions,
    encode_content,
    now_ms,
    properties_of,
    to_address,
)
from sluicemq.clients.jmq.request_channel import (
    ACCEPTED,
    Credit,
    RequestChannel,
    SessionState,
    check,
    declare,
    number,
)
from sluicemq.clients.transport import AsyncClient
from sluicemq.model.destination import Address, Kind
from sluicemq.model.errors import ConnectionLost, ProtocolError
from sluicemq.model.message import COMPRESS
from sluicemq.protocols.java import Long
from sluicemq.protocols.jmq import packets
from sluicemq.protocols.jmq.fields import (
    class_of,
    encode_header,
    encode_sysid,
    sysid_text,
)
from sluicemq.protocols.jmq.packets import PacketType, Status
from sluicemq.protocols.jmq.wire import Packet, encode_head

OUTSTANDING: Final = 256
"""Maximum number of unconfirmed messages per session."""

MAX_ROUTES: Final = 1000
"""Maximum number of destinations of a producer; for another one, the oldest is deleted on the
broker."""

_PSEUDO_MAC: Final = bytes([os.urandom(1)[0] | 0x80]) + os.urandom(5)
"""Random id of this process; part of a SysMessageID with address, port, number (section 4)."""
_numbers: Final = count(1)
_LOOPBACK: Final = b"\x7f\0\0\x01"


class _Route:
    """Broker-side producer for one destination on one connection.

    origin  local address and port
    """

    __slots__ = ("credit", "destination", "id", "origin")

    def __init__(self, destination: Address, channel: RequestChannel, reply: Packet) -> None:
        self.destination = destination
        self.id = number(reply, "JMQProducerID")
        self.credit = Credit(number(reply, "JMQSize", -1))
        self.origin = _origin(*channel.local())
        channel.producers[self.id] = self.credit

    def header(
        self,
        transaction: int,
        correlation_id: str | None,
        reply_to: Address | None,
        type: str | None,
        delivery_time: int,
    ) -> bytes:
        """Return a variable header. Raises MessageFormatError if a field does not fit."""
        try:
            return encode_header(
                self.destination.name,
                correlation_id,
                reply_to.name if reply_to else None,
                type,
                class_of(self.destination),
                class_of(reply_to) if reply_to else None,
                transaction,
                self.id,
                delivery_time,
            )
        except ProtocolError as error:
            raise MessageFormatError(str(error)) from None


class Producer(AsyncClient):
    """Producer for one destination or, without one, for any. Made by `Session.producer`."""

    def __init__(
        self,
        session: SessionState,
        destination: Address | None,
        options: SendOptions,
        unregister: Callable[[Producer], None],
    ) -> None:
        """`unregister` removes the producer from its session."""
        self.destination = destination
        self._session = session
        self._options = options
        self._unregister = unregister
        self._routes: dict[Address, _Route] = {}
        self._adding = WeakValueDictionary[Address, asyncio.Lock]()
        """Held while the route to a destination is added, so that concurrent sends add it once."""
        self._closed = False

    async def send(
        self,
        body: object = None,
        *,
        to: str | Address | None = None,
        properties: Mapping[str, object] | None = None,
        correlation_id: str | None = None,
        reply_to: str | Address | None = None,
        type: str | None = None,
        persistent: bool | None = None,
        priority: int | None = None,
        ttl: float | None = None,
        delay: float | None = None,
        compress: bool = False,
        wait: bool = True,
        on_id: Callable[[str], None] | None = None,
    ) -> str:
        """Send a message and return its id once the broker has confirmed it.

        body        a value (see `messages`), or a received Message, whose properties, correlation
                    id, reply-to and type are copied unless they are given
        to          for a producer without a destination
        persistent, priority, ttl, delay    override the producer's defaults; see SendOptions
        wait        False: return without the confirmation unless the client's `outstanding` limit
                    is reached; `confirm` and a commit wait for it
        on_id       called with the id before the message is sent, and a reply to it can arrive

        The broker does not confirm non-persistent messages. Raises StatusError, ConnectionLost,
        RequestTimeout; after the last two the outcome is unknown.
        MessageFormatError and ValueError for invalid arguments.
        """
        if isinstance(body, Message):
            properties = body.own_properties if properties is None else properties
            correlation_id = correlation_id or body.correlation_id or None
            reply_to = reply_to or body.reply_to
            type = type or body.type or None
        options = self._options.with_overrides(persistent, priority, ttl, delay)
        compress = compress or bool(properties and properties.get(COMPRESS) is True)
        kind, content, block = encode_content(body, properties, compress)
        session = self._session
        channel = await session.ready()
        route = await self._route(channel, to)
        await session.confirmations.pending.wait_for_capacity(session.client.outstanding)
        while not (route.credit.is_open and channel.credit.is_open):
            await route.credit.wait(channel.timeout)
            await channel.credit.wait(channel.timeout)
        channel.check()
        now = now_ms()
        header = route.header(
            session.transaction,
            correlation_id or None,
            to_address(reply_to) if reply_to else None,
            type or None,
            now + round(options.delay * 1000) if options.delay else 0,
        )
        session.mark_transaction_used()
        flags = (packets.Z if compress else 0) | _spend_credit(route.credit, channel.credit)
        if route.destination.kind is Kind.QUEUE:
            flags |= packets.Q
        if options.persistent:
            flags |= packets.P | packets.A
        sysid = encode_sysid(now, *route.origin, next(_numbers) & 0x7FFF_FFFF)
        message_id = sysid_text(sysid)
        if on_id is not None:
            on_id(message_id)
        request_id = next(channel.ids) if options.persistent else 0
        head = encode_head(
            kind,
            flags,
            request_id,
            header,
            block,
            len(content),
            options.priority,
            now + round(options.ttl * 1000) if options.ttl else 0,
            sysid,
        )
        if wait and options.persistent:
            check(await channel.send_request(request_id, head + content), ACCEPTED)
        else:
            if options.persistent:
                session.confirmations.expect(channel, request_id)
            await channel.send(head + content)
        return message_id

    async def send_all(self, bodies: Iterable[object], **options: Any) -> int:
        """Send many messages with pipelined confirmations, and return their number.

        Returns once the broker has confirmed all. `options` are those of `send`.
        Raises as `send` for the first failure; later messages may have been sent.
        """
        number = 0
        for body in bodies:
            await self.send(body, **options, wait=False)
            number += 1
        await self.confirm()
        return number

    async def confirm(self) -> None:
        """Wait until the broker has confirmed all messages of the session. Raises StatusError,
        ConnectionLost, RequestTimeout."""
        await self._session.confirmations.wait_for_all()

    async def close(self) -> None:
        """Close the producer after its messages are confirmed. Raises as `confirm`."""
        if self._closed:
            return
        self._closed = True
        self._unregister(self)
        try:
            await self.confirm()
        finally:
            with suppress(ConnectionLost):  # a lost connection has closed the producer
                channel = await self._session.ready()
                await self.delete_on_broker(channel)

    async def delete_on_broker(self, channel: RequestChannel) -> None:
        """Delete the producer on the broker. Raises ClientError."""
        while self._routes:
            await self._delete_oldest(channel)

    async def create_on_broker(self, channel: RequestChannel) -> None:
        """Create the producer on the broker, again after a reconnect. Raises ClientError.

        Other routes than that to its own destination are created with the next message.
        """
        self._routes.clear()
        if self.destination is not None:
            await self._add(channel, self.destination)

    async def _delete_oldest(self, channel: RequestChannel) -> None:
        route = self._routes.pop(next(iter(self._routes)))
        channel.producers.pop(route.id, None)
        route.credit.grant(-1)  # for a sender that waits; the broker grants no more
        await channel.request(
            PacketType.DELETE_PRODUCER,
            {"JMQProducerID": Long(route.id)},
            accepted=(Status.OK, Status.NOT_FOUND),
        )

    async def _add(self, channel: RequestChannel, destination: Address) -> None:
        await declare(channel, destination)

        def added(packet: Packet) -> None:
            self._routes[destination] = _Route(destination, channel, packet)

        await channel.request(
            PacketType.ADD_PRODUCER,
            {
                **properties_of(destination),
                "JMQSessionID": Long(self._session.id),
            },
            on_response=added,
        )

    def _check_open(self) -> None:
        if self._closed:
            raise ConnectionLost("the producer is closed")

    async def _route(self, channel: RequestChannel, to: str | Address | None) -> _Route:
        self._check_open()
        if (to is None) == (self.destination is None):
            raise ValueError(
                "`to` is missing: the producer has no destination"
                if to is None
                else f"this producer sends to {self.destination} only"
            )
        destination = self.destination if to is None else to_address(to)
        assert destination is not None
        route = self._routes.get(destination)
        if route is not None:
            return route
        async with self._adding.setdefault(destination, asyncio.Lock()):
            if destination not in self._routes:
                if len(self._routes) >= MAX_ROUTES:
                    await self._delete_oldest(channel)
                await self._add(channel, destination)
            if self._closed:  # meanwhile
                await self.delete_on_broker(channel)
            self._check_open()
            return self._routes[destination]


def _spend_credit(producer: Credit, connection: Credit) -> int:
    """Spend one credit of each and return the flags for an exhausted credit."""
    flags = packets.C if producer.spend() else 0
    return flags | packets.F if connection.spend() else flags


def _origin(host: str, port: int) -> tuple[bytes, int]:
    """Return an address and a port for a SysMessageID."""
    address = ip_address(host.partition("%")[0]).packed if host else _LOOPBACK
    if len(address) == 4:
        address = b"\xff\0\0\0" + _PSEUDO_MAC + b"\xff\xff" + address
    return address, port
