"""Blocking JMQ client. Public through `client`.

It runs the asyncio client on an event loop in its own thread, which reads messages, answers pings
and reconnects also between calls. Any number of threads may use it. Each method has the arguments
and errors of the asyncio method of the same name.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from typing import Any, Self, TypeVar

from sluicemq.clients.jmq.browser import Browser
from sluicemq.clients.jmq.connection import PREFETCH, JmqClient
from sluicemq.clients.jmq.consumer import Consumer, JmqMessage
from sluicemq.clients.jmq.destinations import Destination, TemporaryQueue, TemporaryTopic
from sluicemq.clients.jmq.messages import Message
from sluicemq.clients.jmq.producer import OUTSTANDING, Producer
from sluicemq.clients.jmq.session import Session
from sluicemq.clients.jmq.xa import XaResource
from sluicemq.clients.transport import ALWAYS, Backoff, BlockingClient
from sluicemq.model.errors import ConnectionLost
from sluicemq.protocols.jmq.ids import Xid
from sluicemq.protocols.jmq.packets import AckMode, XaFlag

T = TypeVar("T")


class _Loop:
    """Event loop in a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="jmq-client", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for it; an interrupt (Ctrl-C) cancels it.

        Raises ConnectionLost when the loop has ended.
        """
        if self._loop.is_closed() or not self._thread.is_alive():
            coroutine.close()
            raise ConnectionLost("the client is closed")
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def end(self) -> None:
        """Stop the loop and its thread. Must not run concurrently with `call`."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()


class BlockingJmqMessage(Message):
    """Message received by a BlockingJmqClient."""

    __slots__ = ("_loop", "message")

    def __init__(self, loop: _Loop, message: JmqMessage) -> None:
        super().__init__(message.packet)
        self._loop = loop
        self.message = message

    def acknowledge(self, *, only: bool = False) -> None:
        """Acknowledge all delivered messages of a CLIENT session, or one with `only`."""
        self._loop.call(self.message.acknowledge(only=only))


class BlockingProducer(BlockingClient):
    """Blocking counterpart of Producer."""

    def __init__(self, loop: _Loop, producer: Producer) -> None:
        self._loop = loop
        self._producer = producer

    @property
    def destination(self) -> Destination | None:
        return self._producer.destination

    def send(
        self,
        body: object = None,
        *,
        to: str | Destination | None = None,
        properties: Mapping[str, object] | None = None,
        correlation_id: str | None = None,
        reply_to: str | Destination | None = None,
        type: str | None = None,
        persistent: bool | None = None,
        priority: int | None = None,
        ttl: float | None = None,
        delay: float | None = None,
        compress: bool = False,
        wait: bool = True,
    ) -> str:
        """Send a message and return its id once the broker has confirmed it."""
        return self._loop.call(
            self._producer.send(
                body,
                to=to,
                properties=properties,
                correlation_id=correlation_id,
                reply_to=reply_to,
                type=type,
                persistent=persistent,
                priority=priority,
                ttl=ttl,
                delay=delay,
                compress=compress,
                wait=wait,
            )
        )

    def send_all(self, bodies: Iterable[object], **options: Any) -> int:
        """Send many messages and return their number. The client's thread iterates `bodies`."""
        return self._loop.call(self._producer.send_all(bodies, **options))

    def confirm(self) -> None:
        """Wait until the broker has confirmed all messages of the session."""
        self._loop.call(self._producer.confirm())

    def close(self) -> None:
        """Close the producer after its messages are confirmed."""
        self._loop.call(self._producer.close())


class BlockingConsumer(BlockingClient):
    """Blocking counterpart of Consumer."""

    def __init__(self, loop: _Loop, consumer: Consumer) -> None:
        self._loop = loop
        self._consumer = consumer

    def receive(self, timeout: float | None = None) -> BlockingJmqMessage:
        """Return the next message, waiting up to `timeout` seconds (None = for ever)."""
        return BlockingJmqMessage(self._loop, self._loop.call(self._consumer.receive(timeout)))

    def __iter__(self) -> Iterator[BlockingJmqMessage]:
        while True:
            yield self.receive()

    def close(self) -> None:
        """Close the consumer; the broker requeues its buffered messages."""
        self._loop.call(self._consumer.close())


class BlockingBrowser:
    """Blocking counterpart of Browser."""

    def __init__(self, loop: _Loop, browser: Browser) -> None:
        self._loop = loop
        self._browser = browser

    def __iter__(self) -> Iterator[Message]:
        messages = aiter(self._browser)
        try:
            while (message := self._loop.call(anext(messages, None))) is not None:
                yield message
        finally:
            self._loop.call(messages.aclose())


class BlockingXaResource:
    """Blocking counterpart of XaResource."""

    def __init__(self, loop: _Loop, resource: XaResource) -> None:
        self._loop = loop
        self._resource = resource

    def start(self, xid: Xid, flags: int = XaFlag.NOFLAGS) -> None:
        self._loop.call(self._resource.start(xid, flags))

    def end(self, xid: Xid, flags: int = XaFlag.SUCCESS) -> None:
        self._loop.call(self._resource.end(xid, flags))

    def prepare(self, xid: Xid) -> None:
        self._loop.call(self._resource.prepare(xid))

    def commit(self, xid: Xid, *, one_phase: bool = False) -> None:
        self._loop.call(self._resource.commit(xid, one_phase=one_phase))

    def rollback(self, xid: Xid) -> None:
        self._loop.call(self._resource.rollback(xid))

    def recover(self) -> list[Xid]:
        return self._loop.call(self._resource.recover())


class BlockingSession(BlockingClient):
    """Blocking counterpart of Session."""

    def __init__(self, loop: _Loop, session: Session) -> None:
        self._loop = loop
        self._session = session
        self.xa = BlockingXaResource(loop, session.xa)

    def producer(
        self,
        destination: str | Destination | None = None,
        *,
        persistent: bool = True,
        priority: int = 4,
        ttl: float = 0.0,
        delay: float = 0.0,
    ) -> BlockingProducer:
        """Create a producer for a destination or, without one, for any destination."""
        producer = self._session.producer(
            destination, persistent=persistent, priority=priority, ttl=ttl, delay=delay
        )
        return BlockingProducer(self._loop, self._loop.call(producer))

    def consumer(
        self,
        destination: str | Destination,
        *,
        selector: str = "",
        no_local: bool = False,
        name: str = "",
        durable: bool = False,
        shared: bool = False,
        prefetch: int = 0,
    ) -> BlockingConsumer:
        """Create a consumer of a destination; parameters as for Session.consumer."""
        consumer = self._session.consumer(
            destination,
            selector=selector,
            no_local=no_local,
            name=name,
            durable=durable,
            shared=shared,
            prefetch=prefetch,
        )
        return BlockingConsumer(self._loop, self._loop.call(consumer))

    def browser(self, queue: str | Destination, selector: str = "") -> BlockingBrowser:
        """Create a browser, which reads the messages of a queue without consuming them."""
        return BlockingBrowser(self._loop, self._session.browser(queue, selector))

    def temporary_queue(self) -> TemporaryQueue:
        """Create a temporary queue, which is deleted with the connection."""
        return self._loop.call(self._session.temporary_queue())

    def temporary_topic(self) -> TemporaryTopic:
        """Create a temporary topic, which is deleted with the connection."""
        return self._loop.call(self._session.temporary_topic())

    def delete(self, temporary: TemporaryQueue | TemporaryTopic) -> None:
        """Delete a temporary destination of this session."""
        self._loop.call(self._session.delete(temporary))

    def unsubscribe(self, name: str) -> None:
        """Delete a durable subscription of this client id."""
        self._loop.call(self._session.unsubscribe(name))

    def reply(
        self,
        request: BlockingJmqMessage,
        body: object = None,
        *,
        properties: Mapping[str, object] | None = None,
        persistent: bool = False,
    ) -> str:
        """Send a reply to a request and return its id."""
        return self._loop.call(
            self._session.reply(request.message, body, properties=properties, persistent=persistent)
        )

    def recover(self) -> None:
        """Return unacked messages to the broker, which redelivers them before any others."""
        self._loop.call(self._session.recover())

    def commit(self) -> None:
        """Commit all sends and receives since the last commit or rollback, atomically."""
        self._loop.call(self._session.commit())

    def rollback(self) -> None:
        """Roll back all sends and receives since the last commit or rollback."""
        self._loop.call(self._session.rollback())

    def close(self) -> None:
        """Close the session; the broker requeues messages not acknowledged or committed."""
        self._loop.call(self._session.close())


class BlockingJmqClient(BlockingClient):
    """Blocking counterpart of JmqClient. Made by `connect` or `open`; closed by `close` or by its
    `with`."""

    def __init__(self, loop: _Loop, client: JmqClient) -> None:
        self._loop = loop
        self._client = client

    @classmethod
    def connect(cls, *where: Any, **options: Any) -> Self:
        """Connect to a broker; parameters as for JmqClient.connect."""
        return cls._begin(JmqClient.connect(*where, **options))

    @classmethod
    def open(
        cls,
        where: str,
        *,
        reconnect: Backoff | None = ALWAYS,
        outstanding: int = OUTSTANDING,
        prefetch: int = PREFETCH,
    ) -> Self:
        """Connect to a URL or a list of addresses."""
        return cls._begin(
            JmqClient.open(where, reconnect=reconnect, outstanding=outstanding, prefetch=prefetch)
        )

    @classmethod
    def _begin(cls, connecting: Coroutine[Any, Any, JmqClient]) -> Self:
        loop = _Loop()
        try:
            return cls(loop, loop.call(connecting))
        except BaseException:
            loop.end()
            raise

    def session(
        self, ack_mode: AckMode = AckMode.AUTO, *, transacted: bool = False
    ) -> BlockingSession:
        """Create a session; a transacted session ignores `ack_mode`."""
        return BlockingSession(
            self._loop, self._loop.call(self._client.session(ack_mode, transacted=transacted))
        )

    def request(
        self,
        to: str | Destination,
        body: object = None,
        *,
        timeout: float | None = None,
        properties: Mapping[str, object] | None = None,
        type: str | None = None,
        persistent: bool = False,
        ttl: float | None = None,
    ) -> BlockingJmqMessage:
        """Send a request and return its reply."""
        reply = self._client.request(
            to,
            body,
            timeout=timeout,
            properties=properties,
            type=type,
            persistent=persistent,
            ttl=ttl,
        )
        return BlockingJmqMessage(self._loop, self._loop.call(reply))

    def start(self) -> None:
        """Resume delivery after `stop`."""
        self._loop.call(self._client.start())

    def stop(self) -> None:
        """Pause delivery until `start`; buffered messages can still be received."""
        self._loop.call(self._client.stop())

    def unique_ids(self, number: int = 1) -> list[int]:
        """Return unique ids generated by the broker."""
        return self._loop.call(self._client.unique_ids(number))

    def ping(self) -> float:
        """Ping the broker and return the round-trip time in seconds."""
        return self._loop.call(self._client.ping())

    def close(self) -> None:
        """Close all sessions and the connection, and stop the client's thread."""
        try:
            self._loop.call(self._client.close())
        except ConnectionLost:
            return  # already closed
        finally:
            self._loop.end()
