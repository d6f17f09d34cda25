"""Load generator: producers and consumers of one queue, all served by one thread through one epoll.
They send prebuilt bytes and parse almost nothing, so that the broker is the bottleneck.

Producers send blocks of prebuilt messages as long as the broker's sockets accept them; the
generator waits for a socket only when a write would block. Compare
`TransferResult.generator_us` with `TransferResult.broker_us`: the generator's cost per message is a
small part of the broker's.
"""

from __future__ import annotations

import select
import socket
import sys
import time
from collections import OrderedDict
from itertools import cycle
from typing import Final, Protocol, Self

from sluicemq.model.errors import ConnectionLost

from .meter import Meter
from .receiver import Receiver
from .result import TransferResult
from .sockets import STALLED_SECONDS, BrokerAddress, receive, send_some, wait

OUTSTANDING: Final = 4000
"""Maximum number of messages sent and not yet received."""
OUTSTANDING_BYTES: Final = 32 * 1024**2
"""Maximum of their body bytes, so that large messages do not make memory the bottleneck."""

_BLOCK: Final = 50
"""Number of messages per write of a producer, if they are at most _BLOCK_BYTES."""
_BLOCK_BYTES: Final = 1 << 16
_READ: Final = 1 << 16
_PAUSE: Final = 200e-6
"""Minimum sleep of a steady producer in seconds. Messages that become due meanwhile are sent
together, at most this late."""


class Dialect(Protocol):
    """A protocol with its queue, body size and consumer window."""

    size: int
    """Number of bytes of each body, at least STAMP_BYTES."""
    stamp_at: int
    """Position of the time in a received message: usually the beginning of the body."""
    confirmation_bytes: int
    """Number of bytes of the broker's reply to a message; 0 = no reply."""
    max_unconfirmed: int
    """Maximum number of a producer's messages without a reply."""

    @property
    def name(self) -> str:
        """Name of the protocol."""

    def handshake(self, connection: socket.socket) -> None:
        """Perform the handshake on a producer's connection."""

    def blocks(self, step: int) -> list[bytes]:
        """Return blocks of `step` messages of one length, sent in turn."""

    def timestamped_message(self, nanoseconds: int) -> bytes:
        """Return a message with its due time."""

    def subscribe(self, connection: socket.socket) -> None:
        """Subscribe the connection to the queue, without reading from it."""

    def receiver(self, connection: socket.socket) -> Receiver:
        """Return a consumer on the connection."""


class _Producer:
    """A connection, its unsent bytes, and its number of messages without a reply.

    events         events that the poll watches for
    partial_reply  bytes of an incomplete reply
    """

    __slots__ = ("connection", "events", "partial_reply", "unconfirmed", "unsent")

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.unsent = memoryview(b"")
        self.events = 0
        self.partial_reply = 0
        self.unconfirmed = 0


class Load:
    """Connections of producers and consumers to a broker. A context manager; may be used for
    several consecutive runs. The consumers subscribe when the first run begins.

    All methods raise ConnectionLost if no data arrives for STALLED_SECONDS or invalid data arrives,
    and OSError if a connection breaks.
    """

    def __init__(
        self,
        target: BrokerAddress,
        dialect: Dialect,
        *,
        producers: int = 1,
        consumers: int = 1,
        pid: int | None = None,
    ) -> None:
        """Connect. `pid` is the broker's process, if its costs are measured."""
        self._dialect = dialect
        self._pid = pid
        # opened first: select() accepts only descriptors below 1024
        self._poll = select.epoll()
        self._sockets: list[socket.socket] = []
        try:
            self._producers = [_Producer(self._connect(target)) for _ in range(producers)]
            for producer in self._producers:
                dialect.handshake(producer.connection)
                self._watch(producer)
            self._consumers: list[Receiver] = []
            for _ in range(consumers):
                consumer = dialect.receiver(self._connect(target))
                consumer.handshake()
                self._consumers.append(consumer)
        except BaseException:
            self.close()
            raise
        self._by_descriptor = {client.connection.fileno(): client for client in self._consumers}
        self._writers = {client.connection.fileno(): client for client in self._producers}
        self._started = False

    def _connect(self, target: BrokerAddress) -> socket.socket:
        connection = target.connect()
        self._sockets.append(connection)
        return connection

    def _start(self) -> Meter:
        if not self._started:
            self._started = True
            for consumer in self._consumers:
                self._poll.register(consumer.connection, select.EPOLLIN)
                consumer.start()
        return Meter(self._pid)

    def _watch(self, producer: _Producer) -> None:
        """Set the events that the poll reports for the connection."""
        events = select.EPOLLOUT if producer.unsent else 0
        if self._dialect.confirmation_bytes:
            events |= select.EPOLLIN
        before, producer.events = producer.events, events
        if events == before:
            return
        if not before:
            self._poll.register(producer.connection, events)
        elif events:
            self._poll.modify(producer.connection, events)
        else:
            self._poll.unregister(producer.connection)

    def _send(self, producer: _Producer, data: memoryview, count: int) -> None:
        """Send `data`, which holds `count` messages, after the bytes that are queued."""
        if self._dialect.confirmation_bytes:
            producer.unconfirmed += count
        if producer.unsent:
            producer.unsent = memoryview(b"".join((producer.unsent, data)))
            return
        producer.unsent = send_some(producer.connection, data)
        if producer.unsent:
            self._watch(producer)

    def _handle_events(self, producer: _Producer, events: int) -> None:
        """Handle events of the connection: send queued bytes, read replies."""
        if events & select.EPOLLIN:
            data = receive(producer.connection, _READ)
            count, producer.partial_reply = divmod(
                producer.partial_reply + len(data), self._dialect.confirmation_bytes
            )
            producer.unconfirmed -= count
        if producer.unsent:
            producer.unsent = send_some(producer.connection, producer.unsent)
            if not producer.unsent:
                self._watch(producer)

    def _may_send(self, producer: _Producer, count: int) -> bool:
        """Return whether the connection has sent everything and its replies are within the
        window."""
        if producer.unsent:
            return False
        dialect = self._dialect
        return (
            not dialect.confirmation_bytes
            or producer.unconfirmed + count <= dialect.max_unconfirmed
        )

    def flood(self, *, messages: int = 0, seconds: float = 0.0) -> TransferResult:
        """Send as fast as the broker accepts, for `seconds` or for a number of messages.

        Ends when all sent messages have been received, and replied to in protocols with replies.
        Without consumers it ends when all have been sent; `messages` is required then.
        """
        dialect = self._dialect
        size = dialect.size
        step = max(1, min(_BLOCK, _BLOCK_BYTES // size))
        if dialect.confirmation_bytes:
            step = min(step, dialect.max_unconfirmed)
        blocks = cycle([memoryview(block) for block in dialect.blocks(step)])
        outstanding = max(step, min(OUTSTANDING, OUTSTANDING_BYTES // size))
        if not self._consumers:
            outstanding = sys.maxsize
        limit = messages or sys.maxsize
        consumers, writers, poll = self._by_descriptor, self._writers, self._poll
        ready = OrderedDict.fromkeys(self._producers)
        sent = received = 0
        meter = self._start()
        end = meter.started + (seconds or float("inf"))
        while True:
            while ready and sent < limit and sent - received + step <= outstanding:
                producer, _ = ready.popitem(last=False)
                count = min(step, limit - sent)
                sent += count
                block = next(blocks)
                self._send(producer, block[: count * len(block) // step], count)
                if self._may_send(producer, step):
                    ready[producer] = None
            if sent >= limit and (received >= sent or not consumers) and self._all_confirmed():
                return meter.read(received if consumers else sent)
            for descriptor, events in wait(poll):
                consumer = consumers.get(descriptor)
                if consumer is not None:
                    received += consumer.read()
                    continue
                producer = writers[descriptor]
                self._handle_events(producer, events)
                if producer not in ready and self._may_send(producer, step):
                    ready[producer] = None
            if limit > sent and time.perf_counter() >= end:
                limit = sent

    def _all_confirmed(self) -> bool:
        return not any(producer.unsent or producer.unconfirmed for producer in self._producers)

    def drain(self, messages: int) -> TransferResult:
        """Receive at least `messages` (> 0) ready messages. Needs consumers."""
        received = 0
        meter = self._start()
        while received < messages:
            for descriptor, _ in wait(self._poll):
                received += self._by_descriptor[descriptor].read()
        return meter.read(received)

    def steady(self, rate: int, seconds: float) -> TransferResult:
        """Send `rate` messages/s by the clock, each with its due time in the body.

        The producers take turns. Bytes that a socket does not accept at once are queued and keep
        their due time. Bodies have at least STAMP_BYTES. Ends when all have been received; replies
        are read without waiting for them.
        """
        stamped = self._dialect.timestamped_message
        total = max(1, int(rate * seconds))
        step = 1e9 / rate
        producers, consumers, writers = self._producers, self._by_descriptor, self._writers
        poll = self._poll
        delays: list[int] = []
        lateness: list[int] = []
        sent = received = 0
        meter = self._start()
        started = time.perf_counter_ns()
        while received < total:
            now = time.perf_counter_ns()
            due_count = min(total, int((now - started) / step) + 1)
            if due_count > sent:
                lateness.append(now - started - int(sent * step))
                batches: list[list[bytes]] = [[] for _ in producers]
                for index in range(sent, due_count):
                    batches[index % len(batches)].append(stamped(started + int(index * step)))
                sent = due_count
                for producer, batch in zip(producers, batches, strict=True):
                    if batch:
                        self._send(producer, memoryview(b"".join(batch)), len(batch))
            pause = STALLED_SECONDS
            if sent < total:
                pause = max(_PAUSE, (started + sent * step - time.perf_counter_ns()) / 1e9)
            # epoll alone waits in whole milliseconds
            if not select.select([poll], [], [], pause)[0]:
                if sent >= total:
                    raise ConnectionLost(f"nothing has moved for {STALLED_SECONDS:g} s")
                continue
            for descriptor, events in poll.poll(0):
                consumer = consumers.get(descriptor)
                if consumer is not None:
                    received += consumer.read(delays)
                else:
                    self._handle_events(writers[descriptor], events)
        lateness.sort()
        return meter.read(
            received,
            target_rate=rate,
            delays=delays,
            late=lateness[min(len(lateness) - 1, int(0.99 * len(lateness)))] / 1e6,
        )

    def close(self) -> None:
        """Close all connections."""
        for connection in self._sockets:
            connection.close()
        self._poll.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
