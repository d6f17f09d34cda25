"""Load on a broker that speaks AMQP 0-9-1: one queue, one producer, one consumer.

Publishing is prebuilt: a block of frames sent again and again. All bodies have one length and fit
a frame, so deliveries lie at a fixed stride, and so do confirms: nothing is taken apart but the
first of each, and the tag of the last confirm of a read.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from contextlib import suppress
from typing import NamedTuple

BLOCK_BYTES = 1 << 16
MAX_BLOCK = 50
OUTSTANDING = 4000
PREFETCH = 2000
STALLED_SECONDS = 60.0
FRAME_MAX = 131_072

FRAME_METHOD, FRAME_HEADER, FRAME_BODY = 1, 2, 3
FRAME_END = b"\xce"
FRAME_OVERHEAD = 8
BASIC_ACK = (60, 80)
ACK_BYTES = FRAME_OVERHEAD + 4 + 8 + 1


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + FRAME_END


def method(channel: int, numbers: tuple[int, int], arguments: bytes = b"") -> bytes:
    return frame(FRAME_METHOD, channel, struct.pack(">HH", *numbers) + arguments)


def short(text: bytes) -> bytes:
    return bytes([len(text)]) + text


def long(text: bytes) -> bytes:
    return struct.pack(">I", len(text)) + text


class Mode(NamedTuple):
    """How a queue is used.

    persistent   messages are written to disk, and the queue is durable; else neither
    confirms     the producer asks for confirms, and has at most OUTSTANDING unconfirmed; without
                 them it has at most OUTSTANDING not yet received
    batch        the consumer acknowledges so many at a time; 0 = it need not (no-ack)
    """

    persistent: bool
    confirms: bool = True
    batch: int = 100

    @property
    def queue(self) -> bytes:
        return b"bench-durable" if self.persistent else b"bench-transient"


class Connection:
    """A connection with channel 1 open. Its socket blocks and has no Python timeout."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=STALLED_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(b"AMQP\x00\x00\x09\x01")
        self._expect((10, 10))
        plain = long(b"") + short(b"PLAIN") + long(b"\0guest\0guest") + short(b"en_US")
        self.socket.sendall(method(0, (10, 11), plain))
        self._expect((10, 30))
        self.socket.sendall(method(0, (10, 31), struct.pack(">HIH", 2047, FRAME_MAX, 0)))
        self.call((10, 40), short(b"/") + short(b"") + b"\0", 0)
        self.call((20, 10), short(b""))
        self.socket.settimeout(None)

    def call(self, numbers: tuple[int, int], arguments: bytes, channel: int = 1) -> None:
        """Send a method and wait for its -ok, whose number is the next one."""
        self.socket.sendall(method(channel, numbers, arguments))
        self._expect((numbers[0], numbers[1] + 1))

    def read(self) -> bytes:
        """Read the available bytes."""
        data = self.socket.recv(1 << 18)
        if not data:
            raise ConnectionError("the broker closed the connection")
        return data

    def _expect(self, numbers: tuple[int, int]) -> None:
        """Read one frame: the broker sends one reply per request."""
        answer = self.read()
        while len(answer) < 7 or len(answer) < FRAME_OVERHEAD + struct.unpack(">I", answer[3:7])[0]:
            answer += self.read()
        if struct.unpack_from(">HH", answer, 7) != numbers:
            raise ConnectionError(f"not what was expected: {answer[:80]!r}")


class Consumer:
    """Counts deliveries: three frames each, of constant lengths."""

    def __init__(self, port: int, mode: Mode) -> None:
        self._connection = Connection(port)
        self.socket = self._connection.socket
        self._batch = mode.batch
        self._stride = 0
        self._rest = b""
        self.received = 0
        self._acknowledged = 0
        durable = b"\2" if mode.persistent else b"\0"
        self._connection.call(
            (50, 10), struct.pack(">H", 0) + short(mode.queue) + durable + long(b"")
        )
        self._connection.call((60, 10), struct.pack(">IH", 0, PREFETCH) + b"\0")
        flags = b"\0" if mode.batch else b"\2"
        start = struct.pack(">H", 0) + short(mode.queue) + short(b"c") + flags + long(b"")
        self.socket.sendall(method(1, (60, 20), start))
        # -ok is a frame of known length; deliveries may follow it in the same read
        self._ok = len(method(1, (60, 21), short(b"c")))

    def read(self, last: int) -> None:
        """Read once. All messages are acknowledged when `last` have been received."""
        data = self._rest + self._connection.read()
        if self._ok:
            if len(data) < self._ok:
                self._rest = data
                return
            data, self._ok = data[self._ok :], 0
        stride = self._stride or self._learn(data)
        count = len(data) // stride if stride else 0
        self._rest = data[count * stride :]
        if not count:
            return
        if data[:1] != b"\1" or data[7:11] != b"\0\x3c\0\x3c":
            raise ConnectionError(f"this is no delivery: {data[:40]!r}")
        self.received += count
        done = self.received >= last
        if self._batch and (self.received - self._acknowledged >= self._batch or done):
            arguments = struct.pack(">Q", self.received) + b"\1"
            self.socket.sendall(method(1, BASIC_ACK, arguments))
            self._acknowledged = self.received

    def close(self) -> None:
        """Wait after the last message until the broker has the acknowledgements, which closing the
        channel might lose."""
        arguments = struct.pack(">H", 200) + short(b"") + struct.pack(">HH", 0, 0)
        self._connection.call((20, 40), arguments)
        self.socket.close()

    def _learn(self, data: bytes) -> int:
        """Return the bytes of a method, a header and a body frame; 0 = incomplete."""
        end = 0
        for _ in range(3):
            if len(data) < end + 7:
                return 0
            end += struct.unpack_from(">I", data, end + 3)[0] + FRAME_OVERHEAD
        self._stride = end
        return end


def flood(port: int, *, messages: int, size: int, mode: Mode) -> float:
    """Return the seconds from the first publish to the last delivery of `messages`."""
    consumer, producer = Consumer(port, mode), Connection(port)
    if mode.confirms:
        producer.call((85, 10), b"\0")
    properties = struct.pack(">HHQH", 60, 0, size, 0x1000) + (b"\2" if mode.persistent else b"\1")
    publish = method(1, (60, 40), struct.pack(">H", 0) + short(b"") + short(mode.queue) + b"\0")
    command = publish + frame(FRAME_HEADER, 1, properties) + frame(FRAME_BODY, 1, bytes(size))
    step = max(1, min(MAX_BLOCK, BLOCK_BYTES // len(command)))
    block = memoryview(command * step)
    poll = select.epoll()
    poll.register(consumer.socket, select.EPOLLIN)
    poll.register(producer.socket, select.EPOLLIN)
    watched = False
    sent = confirmed = 0
    confirms = b""
    rest = memoryview(b"")
    started = time.perf_counter()
    while consumer.received < messages:
        while not watched:
            if not rest:
                acknowledged = confirmed if mode.confirms else consumer.received
                if sent >= messages or sent - acknowledged + step > OUTSTANDING:
                    break
                count = min(step, messages - sent)
                rest = block[: count * len(command)]
                sent += count
            rest = _send_some(producer.socket, rest)
            if rest:
                poll.modify(producer.socket, select.EPOLLIN | select.EPOLLOUT)
                watched = True
        events = poll.poll(STALLED_SECONDS)
        if not events:
            raise ConnectionError(f"nothing has moved for {STALLED_SECONDS:g} s")
        for descriptor, event in events:
            if descriptor == consumer.socket.fileno():
                consumer.read(messages)
                continue
            if event & select.EPOLLIN:
                confirms += producer.read()
                confirmed = max(confirmed, _last_confirm(confirms))
                confirms = confirms[len(confirms) // ACK_BYTES * ACK_BYTES :]
            if event & select.EPOLLOUT:
                rest = _send_some(producer.socket, rest)
                if not rest:
                    poll.modify(producer.socket, select.EPOLLIN)
                    watched = False
    seconds = time.perf_counter() - started
    poll.close()
    consumer.close()
    producer.socket.close()
    return seconds


def _send_some(connection: socket.socket, data: memoryview) -> memoryview:
    with suppress(BlockingIOError):
        return data[connection.send(data, socket.MSG_DONTWAIT) :]
    return data


def _last_confirm(data: bytes) -> int:
    """Return the tag of the last complete confirm, 0 if there is none."""
    position = (len(data) // ACK_BYTES - 1) * ACK_BYTES
    if position < 0:
        return 0
    group, number, tag = struct.unpack_from(">HHQ", data, position + 7)
    if (group, number) != BASIC_ACK:
        raise ConnectionError(f"this is no confirm: {data[position : position + ACK_BYTES]!r}")
    return int(tag)


def one_by_one(
    port: int, *, messages: int, size: int, mode: Mode, producers: int, consumers: int
) -> float:
    """Return the seconds until `messages` are received, each producer waiting for the confirm of
    its message before it sends the next."""
    readers = {c.socket.fileno(): c for c in (Consumer(port, mode) for _ in range(consumers))}
    writers = {c.socket.fileno(): c for c in (Connection(port) for _ in range(producers))}
    properties = struct.pack(">HHQH", 60, 0, size, 0x1000) + (b"\2" if mode.persistent else b"\1")
    publish = method(1, (60, 40), struct.pack(">H", 0) + short(b"") + short(mode.queue) + b"\0")
    command = publish + frame(FRAME_HEADER, 1, properties) + frame(FRAME_BODY, 1, bytes(size))
    poll = select.epoll()
    for connection in writers.values():
        connection.call((85, 10), b"\0")
    for descriptor in (*readers, *writers):
        poll.register(descriptor, select.EPOLLIN)
    started = time.perf_counter()
    for connection in writers.values():
        connection.socket.sendall(command)
    sent = producers
    while sum(reader.received for reader in readers.values()) < messages:
        events = poll.poll(STALLED_SECONDS)
        if not events:
            raise ConnectionError(f"nothing has moved for {STALLED_SECONDS:g} s")
        for descriptor, _ in events:
            reader = readers.get(descriptor)
            if reader is not None:
                reader.read(messages)
            elif writers[descriptor].read() and sent < messages:
                writers[descriptor].socket.sendall(command)
                sent += 1
    seconds = time.perf_counter() - started
    poll.close()
    for reader in readers.values():
        reader.close()
    for connection in writers.values():
        connection.socket.close()
    return seconds


def transactions(port: int, *, messages: int, size: int, each: int) -> float:
    """Return the seconds until `messages` are received that were sent in consecutive transactions
    of `each`."""
    mode = Mode(persistent=True)
    consumer, producer = Consumer(port, mode), Connection(port)
    producer.call((90, 10), b"")
    properties = struct.pack(">HHQH", 60, 0, size, 0x1000) + b"\2"
    publish = method(1, (60, 40), struct.pack(">H", 0) + short(b"") + short(mode.queue) + b"\0")
    command = publish + frame(FRAME_HEADER, 1, properties) + frame(FRAME_BODY, 1, bytes(size))
    block = command * each + method(1, (90, 20))
    poll = select.epoll()
    for connection in (consumer, producer):
        poll.register(connection.socket, select.EPOLLIN)
    sent = committed = 0
    started = time.perf_counter()
    while consumer.received < messages:
        if sent == committed and sent < messages:
            producer.socket.sendall(block)
            sent += each
        events = poll.poll(STALLED_SECONDS)
        if not events:
            raise ConnectionError(f"nothing has moved for {STALLED_SECONDS:g} s")
        for descriptor, _ in events:
            if descriptor == consumer.socket.fileno():
                consumer.read(messages)
            elif producer.read():  # commit-ok, the only expected frame
                committed = sent
    seconds = time.perf_counter() - started
    poll.close()
    consumer.close()
    producer.socket.close()
    return seconds
