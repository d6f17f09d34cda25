"""Requests and their replies. Public through `JmqClient.request`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Self
from uuid import uuid4

from sluicemq.clients.jmq.consumer import Consumer, JmqMessage
from sluicemq.clients.jmq.destinations import Destination, TemporaryQueue
from sluicemq.clients.jmq.producer import Producer
from sluicemq.clients.jmq.session import Session
from sluicemq.clients.transport import fail, time_limit
from sluicemq.model.errors import ClientError, ConnectionLost


class Requests:
    """Request-reply exchange over one session with a temporary reply queue."""

    def __init__(
        self, session: Session, queue: TemporaryQueue, consumer: Consumer, producer: Producer
    ) -> None:
        self._session = session
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

    async def ask(
        self,
        to: str | Destination,
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
        names = [correlation_id]
        self._waiting[correlation_id] = reply
        try:
            async with time_limit(timeout, f"no reply in {timeout} s"):
                identity = await self._producer.send(
                    body,
                    to=to,
                    properties=properties,
                    correlation_id=correlation_id,
                    reply_to=self._queue,
                    type=type,
                    persistent=persistent,
                    ttl=timeout if ttl is None else ttl,
                    wait=False,  # the id must be registered before a reply can arrive
                )
                names.append(identity)
                self._waiting[identity] = reply
                await self._producer.confirm()
                return await reply
        finally:
            for name in names:
                self._waiting.pop(name, None)

    async def _receive(self, consumer: Consumer) -> None:
        while True:
            try:
                message = await consumer.receive()
                reply = self._waiting.get(message.correlation_id)
            except ConnectionLost as lost:
                for waiting in self._waiting.values():
                    fail(waiting, lost)
                return
            except (ClientError, ValueError):
                continue  # the reply cannot be decoded or acknowledged
            if reply is not None and not reply.done():
                reply.set_result(message)

    async def close(self) -> None:
        """Close the session; pending requests fail with ConnectionLost. Raises as Session.close."""
        await self._session.close()
        await self._task
