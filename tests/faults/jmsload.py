"""A JMS sender and consumer that exchange packets, in order to observe every confirmation."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import count

from sluicemq.model.errors import RequestTimeout
from sluicemq.protocols.jmq.packets import Status
from sluicemq.protocols.jmq.wire import Packet
from tests.faults.load import BURST, FENCE, Client, make_body, number_of
from tests.faults.recorder import Recorder
from tests.protocols.jmq.raw import RawJmq, status_of

QUEUE = "jms.load"
END = b"end "
CLIENT_ACKNOWLEDGE = 2
ACKS_AT_ONCE = 100
SENDS_AT_ONCE = 200


def send_confirmed(client: RawJmq, bodies: list[bytes]) -> None:
    """Send persistent messages and wait until the broker has confirmed each of them."""
    for number in client.send_all(QUEUE, bodies):
        status = status_of(client.reply_to(number))
        assert status == Status.OK, status


class JmsSender(Client):
    """Sends numbered messages in bursts and waits for the reply to each message."""

    def __init__(self, port: int, first: int, recorder: Recorder, size: int) -> None:
        self.next = first
        self.stop = threading.Event()
        self._client = RawJmq.login(port)
        self._recorder = recorder
        self._size = size
        super().__init__()

    def work(self) -> None:
        with self._client as client:
            assert status_of(client.produce(QUEUE)) == Status.OK
            while not self.stop.is_set():
                numbers = range(self.next, self.next + BURST)
                self.next += BURST
                send_confirmed(client, [make_body(number, self._size) for number in numbers])
                self._recorder.confirmed(numbers)


class JmsConsumer(Client):
    """Receives messages; acknowledges most immediately, some late, some never.

    A message that is confirmed after the reply to an acknowledgement proves that the
    acknowledgement is on disk."""

    def __init__(self, port: int, recorder: Recorder, rng: random.Random) -> None:
        self._client = RawJmq.login(port)
        self._recorder = recorder
        self._rng = rng
        super().__init__()

    def work(self) -> None:
        recorder = self._recorder
        recorder.connected()
        unacked: list[Packet] = []
        with self._client as client:
            client.session = client.create_session(CLIENT_ACKNOWLEDGE)
            subscribe(client)
            for index in count():
                message = client.receive()
                if not message.body.startswith(FENCE):
                    recorder.delivered(number_of(message.body))
                unacked.append(message)
                if index % 20 == 19:
                    self._rng.shuffle(unacked)
                    keep = self._rng.randrange(4)
                    acknowledge(client, unacked[keep:], recorder, fence=self._rng.random() < 0.5)
                    del unacked[keep:]


class JmsLoad:
    """A sender and a consumer of one broker process."""

    def __init__(
        self, port: int, first: int, recorder: Recorder, rng: random.Random, size: int
    ) -> None:
        """`first` is the number of the first message that will be sent."""
        recorder.started(first)
        self._consumer = JmsConsumer(port, recorder, random.Random(rng.random()))
        self._sender = JmsSender(port, first, recorder, size)

    def end(self) -> int:
        """Wait for the clients after the broker has ended, and return the next message number."""
        self._sender.stop.set()
        self._sender.finish()
        self._consumer.finish()
        return self._sender.next


def drain_jms(port: int, recorder: Recorder) -> None:
    """Consume all messages up to an end marker that is sent now."""
    recorder.connected()
    end = END + b"%d" % time.monotonic_ns()
    with RawJmq.login(port) as client:
        client.session = client.create_session(CLIENT_ACKNOWLEDGE)
        send_confirmed(client, [end])
        subscribe(client)
        while True:
            message = client.receive()
            if message.body == end:
                acknowledge(client, [message], recorder)
                return
            if not message.body.startswith((FENCE, END)):
                recorder.delivered(number_of(message.body))
            acknowledge(client, [message], recorder)


def subscribe(client: RawJmq) -> None:
    reply = client.consume(QUEUE, JMQAckMode=CLIENT_ACKNOWLEDGE)
    assert status_of(reply) == Status.OK, reply.properties


def acknowledge(
    client: RawJmq, messages: list[Packet], recorder: Recorder, *, fence: bool = False
) -> None:
    """Acknowledge messages; with `fence`, the acknowledgement is on disk on return."""
    numbers = {
        number_of(message.body) for message in messages if not message.body.startswith((FENCE, END))
    }
    for number in numbers:
        recorder.acknowledged(number)
    assert client.acknowledge(*messages) == Status.OK
    if fence:
        send_confirmed(client, [FENCE + b"%d" % time.monotonic_ns()])
        recorder.fenced(numbers)


def consume_all(port: int, queue: str) -> list[bytes]:
    """Receive and acknowledge all ready messages of a queue, and return their bodies."""
    bodies: list[bytes] = []
    unacked: list[Packet] = []
    with RawJmq.login(port) as client:
        assert client.send(queue, END) == Status.OK
        assert status_of(client.consume(queue)) == Status.OK
        while not bodies or bodies[-1] != END:
            message = client.receive()
            bodies.append(message.body)
            unacked.append(message)
            if len(unacked) == ACKS_AT_ONCE or message.body == END:
                assert client.acknowledge(*unacked) == Status.OK
                unacked.clear()
        with suppress(RequestTimeout):
            raise AssertionError(f"{client.receive(0.05).body!r} was received after the end")
    return bodies[:-1]


def send_in_bursts(
    client: RawJmq, queue: str, bodies: Sequence[bytes], transaction: int = 0
) -> list[int]:
    """Send persistent messages in bursts, and return the status of each reply."""
    statuses = []
    for start in range(0, len(bodies), SENDS_AT_ONCE):
        numbers = client.send_all(queue, bodies[start : start + SENDS_AT_ONCE], transaction)
        statuses += [status_of(client.reply_to(number)) for number in numbers]
    return statuses
