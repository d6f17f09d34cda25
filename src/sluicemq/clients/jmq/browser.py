"""Queue browsers. Public through `client`."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from typing import Final

from sluicemq.clients.jmq.confirmations import SessionPort
from sluicemq.clients.jmq.destinations import Destination
from sluicemq.clients.jmq.messages import Message
from sluicemq.clients.jmq.request_channel import RequestChannel, check, number
from sluicemq.clients.transport import time_limit
from sluicemq.model.errors import RequestTimeout
from sluicemq.protocols.java import Long
from sluicemq.protocols.jmq import packets
from sluicemq.protocols.jmq.fields import SYSID_SIZE
from sluicemq.protocols.jmq.packets import PacketType, Status
from sluicemq.protocols.jmq.wire import Packet

BATCH: Final = 1000
"""Number of messages requested at a time."""


class _BrowseInbox:
    """Inbox for the requested messages."""

    def __init__(self) -> None:
        self.packets: deque[Packet] = deque()
        self.news = asyncio.Event()

    def put(self, packet: Packet) -> None:
        """Append a message and wake the browser."""
        self.packets.append(packet)
        self.news.set()


class Browser:
    """Messages of a queue, in queue order, without consuming them. Made by `Session.browser`.

    Each iteration takes a new snapshot and skips messages that have left the queue since.

        async for message in session.browser("orders"): …

    Raises Refused (400 for a wrong selector, 403, …), ConnectionLost, RequestTimeout.
    """

    def __init__(self, session: SessionPort, queue: Destination, selector: str) -> None:
        self._session = session
        self._properties: dict[str, object] = {
            "JMQDestination": queue.name,
            "JMQDestType": queue.type,
        }
        if selector:
            self._properties["JMQSelector"] = selector

    async def __aiter__(self) -> AsyncGenerator[Message]:
        channel = await self._session.ready()
        for kind in (PacketType.VERIFY_DESTINATION, PacketType.BROWSE):
            reply = await channel.request(
                kind, self._properties, accepted=(Status.OK, Status.NOT_FOUND)
            )
            if number(reply, "JMQStatus") == Status.NOT_FOUND:
                if reply.properties.get("JMQCanCreate") is True:
                    return
                check(reply)
        identity = number(reply, "JMQConsumerID")
        size = BATCH * SYSID_SIZE
        inbox = channel.inboxes[identity] = _BrowseInbox()
        try:
            for at in range(0, len(reply.body), size):
                answer = await channel.request(
                    PacketType.DELIVER,
                    {"JMQConsumerID": Long(identity)},
                    reply.body[at : at + size],
                    accepted=(Status.OK, Status.NOT_FOUND),
                )
                last = number(answer, "JMQStatus") == Status.NOT_FOUND
                while not last:
                    while not inbox.packets:
                        await _news(inbox, channel)
                    packet = inbox.packets.popleft()
                    last = bool(packet.flags & packets.L)
                    yield Message(packet)
        finally:
            channel.inboxes.pop(identity, None)


async def _news(inbox: _BrowseInbox, channel: RequestChannel) -> None:
    inbox.news.clear()
    try:
        async with time_limit(channel.timeout, f"no message in {channel.timeout} s"):
            await inbox.news.wait()
    except RequestTimeout:
        channel.check()
        raise
