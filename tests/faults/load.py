"""Clients that send and receive numbered messages and report their observations to the recorder."""

from __future__ import annotations

import random
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from itertools import count
from zlib import crc32

from sluicemq.clients.blocking import BlockingClient
from sluicemq.clients.msglite import MsgliteClient
from sluicemq.clients.phpmq import PhpmqClient, PhpmqMessage
from sluicemq.model.errors import ClientError
from tests.faults.recorder import Recorder

QUEUE = "load"
MSGLITE_QUEUE = "msglite"
"""The queue of the msglite clients."""
FENCE = b"fence "
END = b"end "
BURST = 20
WINDOW = 400
MAX_UNACKED = 200
"""Maximum unacked messages of the consumer: half its window, so that deliveries continue."""
MAX_LEAD = (30, 5000)
"""Messages that the producer may be ahead of the consumer, used alternately.

A small lead detects deliveries before the sync; a large lead creates a backlog."""
TIMEOUT_SECONDS = 60.0
"""Time limit for expected events, also on a busy machine."""
LONG_TTL_SECONDS = 30 * 86_400
"""Time to live of msglite messages that must not expire."""


def make_body(number: int, size: int) -> bytes:
    """Return a unique body of about `size` bytes that contains its checksum."""
    pattern = b"%016x" % (number * 0x9E3779B97F4A7C15 % (1 << 64)) * (size // 16 + 1)
    return b"%d %08x %b" % (number, crc32(pattern, number & 0xFFFFFFFF), pattern)


def number_of(body: bytes) -> int:
    """Return the number of a message. Raises AssertionError for a body that was not sent."""
    try:
        number, checksum, pattern = body.split(b" ")
        intact = crc32(pattern, int(number) & 0xFFFFFFFF) == int(checksum, 16)
    except ValueError:
        intact = False
    assert intact, f"a body was delivered that no client has sent: {body[:80]!r}"
    return int(number)


class Client(ABC, threading.Thread):
    """A client that runs until its connection breaks. `failure` is an unexpected exception."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.failure: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.work()
        except ClientError:
            pass
        except BaseException as failure:
            self.failure = failure

    @abstractmethod
    def work(self) -> None:
        """Run the client until the connection breaks."""

    def finish(self) -> None:
        """Wait for the end of the client, and raise its failure."""
        self.join(60)
        assert not self.is_alive()
        if self.failure is not None:
            raise self.failure


class Producer(Client):
    """Sends numbered messages until the connection breaks or `stop` is set."""

    def __init__(self, port: int, first: int, recorder: Recorder, size: int, max_lead: int) -> None:
        self.next = first
        self._first = first
        self._ahead = max_lead
        self.stop = threading.Event()
        self._client = BlockingClient(PhpmqClient.connect, port=port)
        self._recorder = recorder
        self._size = size
        super().__init__()

    def work(self) -> None:
        with self._client as client:
            while not self.stop.is_set():
                if self.next - max(self._first, self._recorder.highest) > self._ahead:
                    time.sleep(0.0002)
                    continue
                for _ in range(BURST):
                    client.send(QUEUE, make_body(self.next, self._size))
                    self.next += 1


class Consumer(Client):
    """Receives messages; acknowledges most immediately, some late and out of order, some never.

    Sends a fence through the queue at intervals."""

    def __init__(self, port: int, recorder: Recorder, rng: random.Random) -> None:
        self._client = BlockingClient(PhpmqClient.connect, port=port)
        self._recorder = recorder
        self._rng = rng
        super().__init__()

    def work(self) -> None:
        recorder = self._recorder
        recorder.connected()
        fences: dict[bytes, set[int]] = {}
        acked_numbers: set[int] = set()
        unacked: deque[PhpmqMessage] = deque()

        def acknowledge(message: PhpmqMessage) -> None:
            message.ack()
            number = number_of(message.body)
            recorder.acknowledged(number)
            acked_numbers.add(number)

        with self._client as client:
            client.subscribe(QUEUE, WINDOW)
            for index in count():
                message = client.receive()
                if message.body.startswith(FENCE):
                    recorder.fenced(fences.pop(message.body, set()))
                    message.ack()
                else:
                    recorder.delivered(number_of(message.body))
                    unacked.append(message)
                    if self._rng.random() < 0.9:
                        acknowledge(unacked.pop())
                    elif len(unacked) > MAX_UNACKED:
                        acknowledge(unacked.popleft())
                if index % 50 == 49:
                    fence = FENCE + self._rng.randbytes(8).hex().encode()
                    fences[fence], acked_numbers = acked_numbers, set()
                    client.send(QUEUE, fence)


class Load:
    """A producer and a consumer of one broker process."""

    def __init__(
        self,
        port: int,
        first: int,
        recorder: Recorder,
        rng: random.Random,
        size: int,
        max_lead: int,
    ) -> None:
        """`first` is the number of the first message that will be sent."""
        recorder.started(first)
        self._consumer = Consumer(port, recorder, random.Random(rng.random()))
        self._producer = Producer(port, first, recorder, size, max_lead)

    def end(self) -> int:
        """End the load, also after the broker has ended. Return the next number."""
        self._producer.stop.set()
        self._producer.finish()
        self._consumer.finish()
        return self._producer.next


def drain(port: int, recorder: Recorder) -> None:
    """Consume all messages up to an end marker that is sent now."""
    recorder.connected()
    end = END + b"%d" % time.monotonic_ns()
    with BlockingClient(PhpmqClient.connect, port=port) as client:
        client.send(QUEUE, end)
        client.subscribe(QUEUE, 1000)
        while True:
            message = client.receive(30.0)
            if message.body == end:
                message.ack()
                return
            if not message.body.startswith((FENCE, END)):
                number = number_of(message.body)
                recorder.delivered(number)
                recorder.acknowledged(number)
            message.ack()


class MsgliteSender(Client):
    """Sends by msglite, a few messages per connection.

    Once the broker has processed the close of a connection, its messages are on disk."""

    def __init__(self, port: int, first: int, recorder: Recorder) -> None:
        self.next = first
        self.stop = threading.Event()
        self._port = port
        self._recorder = recorder
        super().__init__()

    def work(self) -> None:
        while not self.stop.is_set():
            first = self.next
            with BlockingClient(MsgliteClient.connect, port=self._port) as client:
                for _ in range(BURST):
                    client.send(MSGLITE_QUEUE, make_body(self.next, 100), LONG_TTL_SECONDS)
                    self.next += 1
            # `close` does not report that the broker was killed: the next response proves that it
            # still ran, and had therefore processed the close
            with BlockingClient(MsgliteClient.connect, port=self._port) as client:
                client.ready("unused", timeout=0)
            self._recorder.confirmed(range(first, self.next))


class MsgliteReader(Client):
    """Receives by msglite, which acknowledges on arrival; a fence proves that this is on disk."""

    def __init__(self, port: int, recorder: Recorder) -> None:
        self._client = BlockingClient(MsgliteClient.connect, port=port)
        self._recorder = recorder
        super().__init__()

    def work(self) -> None:
        recorder = self._recorder
        recorder.connected()
        numbers: set[int] = set()
        fences: dict[bytes, set[int]] = {}
        with self._client as client:
            for index in count():
                message = client.ready(MSGLITE_QUEUE, timeout=60)
                assert message is not None
                if message.body.startswith(FENCE):
                    recorder.fenced(fences.pop(message.body, set()))
                    continue
                number = number_of(message.body)
                recorder.delivered(number)
                recorder.acknowledged(number)
                numbers.add(number)
                if index % 20 == 19:
                    fence = FENCE + b"%d" % time.monotonic_ns()
                    fences[fence], numbers = numbers, set()
                    client.send(MSGLITE_QUEUE, fence, LONG_TTL_SECONDS)


class MsgliteLoad:
    """A sender and a reader of one broker process."""

    def __init__(self, port: int, first: int, recorder: Recorder) -> None:
        recorder.started(first)
        self._reader = MsgliteReader(port, recorder)
        self._sender = MsgliteSender(port, first, recorder)

    def end(self) -> int:
        """End the clients after the broker has ended. Return the next number."""
        self._sender.stop.set()
        self._sender.finish()
        self._reader.finish()
        return self._sender.next


def drain_msglite(port: int, recorder: Recorder) -> None:
    """Consume all ready messages by msglite."""
    recorder.connected()
    with BlockingClient(MsgliteClient.connect, port=port) as client:
        while (message := client.ready(MSGLITE_QUEUE, timeout=0)) is not None:
            if not message.body.startswith(FENCE):
                recorder.delivered(number_of(message.body))
