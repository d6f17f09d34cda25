"""Load on a broker that speaks AMQP 0-9-1: one durable queue, one producer, one consumer.

Publishing is prebuilt: a block of frames sent again and again. The consumer looks only at frame
boundaries and acknowledges in batches.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from contextlib import suppress

QUEUE = b"bench"
BLOCK = 20
UNCONFIRMED = 4000
BATCH = 100
STALLED_SECONDS = 60.0

FRAME_METHOD, FRAME_HEADER, FRAME_BODY = 1, 2, 3
FRAME_END = b"\xce"
BASIC_DELIVER = (60, 60)
BASIC_ACK = (60, 80)


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + FRAME_END


def method(channel: int, numbers: tuple[int, int], arguments: bytes = b"") -> bytes:
    return frame(FRAME_METHOD, channel, struct.pack(">HH", *numbers) + arguments)


def short(text: bytes) -> bytes:
    return bytes([len(text)]) + text


def long(text: bytes) -> bytes:
    return struct.pack(">I", len(text)) + text


class Connection:
    """A connection with channel 1 open; `frames` takes apart what has been read."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=STALLED_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""
        self.socket.sendall(b"AMQP\x00\x00\x09\x01")
        self.expect((10, 10))
        plain = long(b"") + short(b"PLAIN") + long(b"\0guest\0guest") + short(b"en_US")
        self.socket.sendall(method(0, (10, 11), plain))
        self.expect((10, 30))
        self.socket.sendall(method(0, (10, 31), struct.pack(">HIH", 2047, 131_072, 0)))
        self.call((10, 40), short(b"/") + short(b"") + b"\0", 0)
        self.call((20, 10), short(b""))

    def call(self, numbers: tuple[int, int], arguments: bytes, channel: int = 1) -> None:
        """A method and its -ok, which is always the next number."""
        self.socket.sendall(method(channel, numbers, arguments))
        self.expect((numbers[0], numbers[1] + 1))

    def expect(self, numbers: tuple[int, int]) -> None:
        while True:
            for kind, payload in self.read():
                if kind == FRAME_METHOD and struct.unpack_from(">HH", payload) == numbers:
                    return

    def read(self) -> list[tuple[int, bytes]]:
        """What one read completes, as (frame type, payload)."""
        data = self.socket.recv(1 << 18)
        if not data:
            raise ConnectionError("the broker closed the connection")
        buffer = self._buffer + data
        position, found = 0, []
        while len(buffer) - position >= 7:
            kind, _, size = struct.unpack_from(">BHI", buffer, position)
            end = position + 7 + size
            if end >= len(buffer):
                break
            found.append((kind, buffer[position + 7 : end]))
            position = end + 1
        self._buffer = buffer[position:]
        return found


def flood(port: int, *, messages: int, size: int, persistent: bool) -> float:
    """Messages per second from the first publish to the last delivery."""
    consumer, producer = Connection(port), Connection(port)
    consumer.call((50, 10), struct.pack(">H", 0) + short(QUEUE) + b"\2" + long(b""))
    consumer.call((60, 10), struct.pack(">IH", 0, 1000) + b"\0")
    start = struct.pack(">H", 0) + short(QUEUE) + short(b"c") + b"\0" + long(b"")
    consumer.call((60, 20), start)
    producer.call((85, 10), b"\0")
    properties = struct.pack(">HHQH", 60, 0, size, 0x1000) + (b"\2" if persistent else b"\1")
    publish = method(1, (60, 40), struct.pack(">H", 0) + short(b"") + short(QUEUE) + b"\0")
    block = (
        publish + frame(FRAME_HEADER, 1, properties) + frame(FRAME_BODY, 1, bytes(size))
    ) * BLOCK
    poll = select.poll()
    poll.register(consumer.socket, select.POLLIN)
    poll.register(producer.socket, select.POLLIN | select.POLLOUT)
    sent = confirmed = received = acknowledged = 0
    rest = memoryview(b"")
    writing = True
    started = time.perf_counter()
    while received < messages:
        events = poll.poll(STALLED_SECONDS * 1000)
        if not events:
            raise ConnectionError(f"nothing has moved for {STALLED_SECONDS:g} s")
        for descriptor, event in events:
            if descriptor == consumer.socket.fileno():
                received += sum(1 for kind, _ in consumer.read() if kind == FRAME_BODY)
                if received - acknowledged >= BATCH or received >= messages:
                    upto = struct.pack(">Q", received) + b"\1"
                    consumer.socket.sendall(method(1, BASIC_ACK, upto))
                    acknowledged = received
                continue
            if event & select.POLLIN:
                for kind, payload in producer.read():
                    if kind == FRAME_METHOD and struct.unpack_from(">HH", payload) == BASIC_ACK:
                        confirmed = max(confirmed, struct.unpack_from(">Q", payload, 4)[0])
            if event & select.POLLOUT:
                if not rest and sent < messages and sent - confirmed < UNCONFIRMED:
                    rest = memoryview(block)
                    sent += BLOCK
                with suppress(BlockingIOError):
                    rest = rest[producer.socket.send(rest, socket.MSG_DONTWAIT) :]
        wanted = bool(rest) or (sent < messages and sent - confirmed < UNCONFIRMED)
        if wanted is not writing:
            writing = wanted
            poll.modify(producer.socket, select.POLLIN | (select.POLLOUT if wanted else 0))
    seconds = time.perf_counter() - started
    consumer.socket.close()
    producer.socket.close()
    return messages / seconds
