"""Load over PHPMQ: one producer, one consumer that acknowledges, on two connections.

All bodies have one length, so every dispatch has one length too, and the ids lie at a fixed
stride: acknowledging costs a slice per message.
"""

from __future__ import annotations

import select
import time
from typing import Final

from sluicemq.cli.bench.result import Latency, Result
from sluicemq.cli.bench.sockets import STALLED_SECONDS, connect, receive, send_some, wait
from sluicemq.model.errors import ConnectionLost
from sluicemq.protocols.phpmq.wire import encode_acknowledge, encode_consume, encode_send

QUEUE: Final = b"bench"
BLOCK: Final = 50
"""Messages per write of a producer that is not paced."""

_ID_BYTES: Final = 32
_READ: Final = 1 << 18


class Bench:
    """One run; `connect` gives a new connection to the message port."""

    def __init__(
        self, host: str, port: int, *, messages: int, size: int, window: int, outstanding: int
    ) -> None:
        self.messages = messages
        self.size = size
        self.outstanding = outstanding
        self._producer = connect(host, port)
        self._consumer = connect(host, port)
        self._consumer.sendall(encode_consume(QUEUE, window))
        body = bytes(size)
        # H0100304, then queue, body, id and "0" as ttl, each behind a header of 32 bytes
        self._body_at = 8 + 32 + len(QUEUE) + 32
        self._id_at = self._body_at + len(body) + 32
        self._stride = self._id_at + _ID_BYTES + 32 + 1
        prefix = encode_acknowledge(QUEUE, b"x" * _ID_BYTES)
        self._ack = prefix[:-_ID_BYTES]

    def flood(self) -> Result:
        """As fast as the broker takes them, at most `outstanding` not yet received."""
        block = encode_send(QUEUE, bytes(self.size), 0) * BLOCK
        total, sent, received = self.messages, 0, 0
        rest = memoryview(b"")
        buffer = b""
        poll = select.poll()
        poll.register(self._consumer, select.POLLIN)
        poll.register(self._producer, select.POLLOUT)
        consumer = self._consumer.fileno()
        started = time.perf_counter()
        writing = True
        while received < total:
            for descriptor, _ in wait(poll):
                if descriptor == consumer:
                    data = receive(self._consumer, _READ)
                    buffer = buffer + data if buffer else data
                    count = self._acknowledge(buffer)
                    received += count
                    buffer = buffer[count * self._stride :]
                elif rest:
                    rest = send_some(self._producer, rest)
                elif sent < total and sent - received < self.outstanding:
                    rest = memoryview(block)
                    rest = send_some(self._producer, rest)
                    sent += BLOCK
            wanted = bool(rest) or (sent < total and sent - received < self.outstanding)
            if wanted is not writing:
                writing = wanted
                poll.modify(self._producer, select.POLLOUT if wanted else 0)
        seconds = time.perf_counter() - started
        return Result(
            "phpmq",
            received,
            self.size,
            round(seconds, 3),
            round(received / seconds),
        )

    def pace(self, rate: int) -> Result:
        """One message every 1/rate s by the clock; each carries the time it was due (ns)."""
        if self.size < 8:
            raise ValueError("a paced body carries its time and has at least 8 bytes")
        total, sent, received = self.messages, 0, 0
        sample = encode_send(QUEUE, bytes(self.size), 0)
        at = sample.index(bytes(self.size), 8 + 32 + len(QUEUE) + 32)
        head, tail = sample[:at], bytes(self.size - 8) + sample[at + self.size :]
        buffer = b""
        latencies: list[int] = []
        poll = select.poll()
        poll.register(self._consumer, select.POLLIN)
        step = 1e9 / rate
        started = time.perf_counter_ns()
        while received < total:
            now = time.perf_counter_ns()
            chunks: list[bytes] = []
            while sent < total and (due := started + int(sent * step)) <= now:
                chunks += (head, due.to_bytes(8, "little"), tail)
                sent += 1
            if chunks:
                self._producer.sendall(b"".join(chunks))
            if not poll.poll(1 if sent < total else STALLED_SECONDS * 1000):
                if sent >= total:
                    raise ConnectionLost("nothing arrives any more")
                continue
            data = receive(self._consumer, _READ)
            buffer = buffer + data if buffer else data
            now = time.perf_counter_ns()
            count = self._acknowledge(buffer)
            for index in range(count):
                place = index * self._stride + self._body_at
                latencies.append(now - int.from_bytes(buffer[place : place + 8], "little"))
            received += count
            buffer = buffer[count * self._stride :]
        seconds = (time.perf_counter_ns() - started) / 1e9
        return Result(
            "phpmq",
            received,
            self.size,
            round(seconds, 3),
            round(received / seconds),
            paced=rate,
            latency=Latency.of(latencies),
        )

    def _acknowledge(self, buffer: bytes) -> int:
        stride, start, ack = self._stride, self._id_at, self._ack
        count = len(buffer) // stride
        if count:
            end = start + _ID_BYTES
            self._consumer.sendall(
                b"".join(
                    [
                        ack + buffer[base + start : base + end]
                        for base in range(0, count * stride, stride)
                    ]
                )
            )
        return count

    def close(self) -> None:
        """Close both connections."""
        self._producer.close()
        self._consumer.close()
