"""kill -9 at random moments under load: nothing that was visible is lost, nothing that was
durably acknowledged comes back, and the order is kept."""

from __future__ import annotations

import os
import random
import threading
import time
from collections import deque
from contextlib import ExitStack, suppress
from pathlib import Path

from sluicemq.cli.local import LocalBroker
from sluicemq.model.errors import ClientError, RequestTimeout
from sluicemq.protocols.phpmq.client import BlockingPhpmqClient, BlockingPhpmqMessage
from tests.faults.recorder import Recorder

KILLS = int(os.environ.get("FAULT_KILLS", "20"))
QUEUE = "load"
FENCE = b"fence "
BURST = 20
WINDOW = 400
MOST_HELD = 200
"""Messages the consumer keeps unacknowledged; half its window, so that it goes on."""
AHEAD = (30, 5000)
"""Messages the producer may be ahead of the consumer, in turns. A consumer that keeps up sees
messages while they are young, which is when a broker that shows them too early would be caught; one
that lags behind leaves a backlog."""


def number_of(message: BlockingPhpmqMessage) -> int:
    """The number that the producer gave it."""
    return int(message.body.split(b" ", 1)[0])


class Producer(threading.Thread):
    """Sends numbered messages until the connection breaks or it is told to stop."""

    def __init__(self, port: int, first: int, recorder: Recorder, size: int, ahead: int) -> None:
        super().__init__(daemon=True)
        self.next = first
        self._first = first
        self._ahead = ahead
        self.stop = threading.Event()
        self._client = BlockingPhpmqClient.connect(port=port)
        self._recorder = recorder
        self._padding = bytes(size)

    def run(self) -> None:
        try:
            while not self.stop.is_set():
                if self.next - max(self._first, self._recorder.highest) > self._ahead:
                    time.sleep(0.0002)
                    continue
                for _ in range(BURST):
                    self._client.send(QUEUE, b"%d %b" % (self.next, self._padding))
                    self.next += 1
        except ClientError:
            pass
        finally:
            with suppress(ClientError):
                self._client.close()


class Consumer(threading.Thread):
    """Receives, acknowledges most at once, some late and out of order, some never, and now and
    then sends a fence through the queue."""

    def __init__(self, port: int, recorder: Recorder, chance: random.Random) -> None:
        super().__init__(daemon=True)
        self.failure: AssertionError | None = None
        self._client = BlockingPhpmqClient.connect(port=port)
        self._recorder = recorder
        self._chance = chance

    def run(self) -> None:
        recorder = self._recorder
        recorder.connected()
        fences: dict[bytes, set[int]] = {}
        acknowledged: set[int] = set()
        held: deque[BlockingPhpmqMessage] = deque()

        def settle(message: BlockingPhpmqMessage) -> None:
            message.ack()
            number = number_of(message)
            recorder.acknowledged(number)
            acknowledged.add(number)

        try:
            self._client.subscribe(QUEUE, WINDOW)
            for count in range(1 << 40):
                message = self._client.receive()
                if message.body.startswith(FENCE):
                    recorder.fenced(fences.pop(message.body, set()))
                    message.ack()
                else:
                    recorder.delivered(number_of(message))
                    held.append(message)
                    if self._chance.random() < 0.9:
                        settle(held.pop())
                    elif len(held) > MOST_HELD:
                        settle(held.popleft())
                if count % 50 == 49:
                    fence = FENCE + self._chance.randbytes(8).hex().encode()
                    fences[fence], acknowledged = acknowledged, set()
                    self._client.send(QUEUE, fence)
        except ClientError:
            pass
        except AssertionError as failure:
            self.failure = failure
        finally:
            with suppress(ClientError):
                self._client.close()


def drain(port: int, recorder: Recorder) -> None:
    """Take everything that is there, without load and without a crash."""
    recorder.connected()
    with BlockingPhpmqClient.connect(port=port) as client:
        client.subscribe(QUEUE, 1000)
        while True:
            try:
                message = client.receive(2.0)
            except RequestTimeout:
                return
            if not message.body.startswith(FENCE):
                recorder.delivered(number_of(message))
            message.ack()


def test_kill_at_random_moments(tmp_path: Path) -> None:
    seed = int(os.environ.get("FAULT_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"to repeat: FAULT_SEED={seed}")
    chance = random.Random(seed)
    recorder = Recorder()
    # small segments, so that the kills also meet sealing, snapshots and reclaim
    broker = LocalBroker(
        tmp_path,
        ["phpmq://127.0.0.1:0"],
        environment={"SLUICEMQ_JOURNAL__SEGMENT_BYTES": "1 MiB"},
    )
    with ExitStack() as stack:
        stack.callback(broker.stop)
        _kill_repeatedly(broker, recorder, chance)
        broker.start()
        drain(broker.port("phpmq"), recorder)
        assert recorder.highest > 0
        recorder.drained()
        assert broker.stop() == 0


def _kill_repeatedly(broker: LocalBroker, recorder: Recorder, chance: random.Random) -> None:
    following = 0
    for turn in range(KILLS):
        broker.start()
        port = broker.port("phpmq")
        recorder.started(following)
        consumer = Consumer(port, recorder, chance)
        size, ahead = chance.choice((0, 100, 1000)), AHEAD[turn % 2]
        producer = Producer(port, following, recorder, size, ahead)
        consumer.start()
        producer.start()
        time.sleep(chance.uniform(0.02, 0.6))
        broker.kill()
        producer.stop.set()
        producer.join(10)
        consumer.join(10)
        assert not producer.is_alive()
        assert not consumer.is_alive()
        if consumer.failure is not None:
            raise consumer.failure
        following = producer.next
