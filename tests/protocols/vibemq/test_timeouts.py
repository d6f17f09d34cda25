"""Ack timeouts of a .NET client, which handles one message at a time."""

from __future__ import annotations

from collections import Counter, deque

import pytest

from sluicemq.protocols.vibemq import wire
from sluicemq.protocols.vibemq.connection import SessionOptions
from sluicemq.protocols.vibemq.consumers import Subscriber
from sluicemq.protocols.vibemq.wire import Frame
from tests.protocols.vibemq.harness import Harness, Peer

SECOND = 1000


class NetClient:
    """A client that handles its frames in order, each for some seconds.

    It acknowledges a message unless its handler fails.
    """

    def __init__(self, peer: Peer, seconds: int, failing: frozenset[str] = frozenset()) -> None:
        self.peer = peer
        self.seconds = seconds
        self.failing = failing
        self.waiting: deque[Frame] = deque()
        self.left = 0
        self.begun: Counter[str] = Counter()
        self.attempts: Counter[str] = Counter()
        """The highest number that a message came with."""

    def take(self, frames: list[Frame]) -> None:
        for frame in frames:
            self.waiting.append(frame)
            attempts = int(frame.headers["deliveryAttempts"])
            self.attempts[frame.id] = max(self.attempts[frame.id], attempts)

    def subscribe(self, queue: str) -> None:
        self.peer.subscribe(queue)
        self.take(self.peer.more)

    def pass_second(self) -> None:
        """Continue handling after the clock has advanced by a second."""
        self.take(self.peer.deliveries())
        if self.left:
            self.left -= 1
            if not self.left:
                frame = self.waiting.popleft()
                if frame.id not in self.failing:
                    self.take(self.peer.acknowledge(frame.id))
        while self.waiting and not self.left:
            frame = self.waiting[0]
            self.begun[frame.id] += 1
            if frame.id in self.failing:
                self.waiting.popleft()
            else:
                self.left = self.seconds


def run(harness: Harness, seconds: int, *clients: NetClient) -> None:
    for _ in range(seconds):
        harness.run_event_loop(SECOND)
        for client in clients:
            client.pass_second()


def attempts(frames: list[Frame]) -> dict[str, str]:
    return {frame.id: frame.headers["deliveryAttempts"] for frame in frames}


def test_messages_of_silent_consumer_are_requeued_uncounted(harness: Harness) -> None:
    silent, other = harness.connect(), harness.connect()
    ids = [str(n) for n in range(256)]
    silent.publish("q", *ids)
    assert silent.subscribe("q") == ids
    other.subscribe("q")
    harness.run_event_loop(30 * SECOND - 1)
    assert other.ids() == []
    harness.run_event_loop(1)
    moved, kept = other.deliveries(), silent.deliveries()
    assert len(moved) == 255
    assert len(kept) == 1
    attempts_by_id = attempts([*moved, *kept])
    assert attempts_by_id.pop("0") == "2"
    assert set(attempts_by_id.values()) == {"1"}


def test_silent_consumer_gets_one_message_until_it_acknowledges(harness: Harness) -> None:
    silent, other = (
        harness.connect(),
        harness.connect(SessionOptions(window=1)),
    )
    silent.publish("q", "1", "2", "3", "4", "5")
    silent.subscribe("q")
    other.subscribe("q")
    harness.run_event_loop(30 * SECOND)
    [moved_id] = other.ids()
    [kept_id] = silent.ids()
    harness.connect().publish("q", "6")
    assert silent.ids() == []
    rest = {"1", "2", "3", "4", "5", "6"} - {moved_id, kept_id}
    assert {frame.id for frame in silent.acknowledge(kept_id)} == rest


def test_new_subscription_of_silent_consumer_gets_one_message(harness: Harness) -> None:
    silent = harness.connect()
    silent.publish("q", "1")
    silent.subscribe("q")
    harness.run_event_loop(30 * SECOND)
    assert silent.ids() == ["1"]
    harness.connect().publish("other", "2", "3", "4")
    assert silent.subscribe("other") == ["2"]
    assert [frame.id for frame in silent.acknowledge("1")] == ["3", "4"]


def test_late_acknowledgement_of_requeued_message_counts(harness: Harness) -> None:
    """It acks the message, whichever consumer has it now, and ends the silence."""
    silent, other = (
        harness.connect(),
        harness.connect(SessionOptions(window=1)),
    )
    silent.publish("q", "1", "2", "3", "4")
    silent.subscribe("q")
    other.subscribe("q")
    harness.run_event_loop(30 * SECOND)
    [moved_id] = other.ids()
    silent.frames()
    assert len(silent.acknowledge(moved_id)) == 1
    assert len(other.ids()) == 1
    assert len(harness.bodies("q")) == 3
    assert harness.destination("q").unacked == 3


def test_acknowledgements_of_one_read_restore_window_once(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent, other = harness.connect(), harness.connect(SessionOptions(window=1))
    ids = [str(n) for n in range(100)]
    silent.publish("q", *ids)
    silent.subscribe("q")
    other.subscribe("q")
    harness.run_event_loop(30 * SECOND)
    restore = Subscriber.restore_window
    requeued_counts: list[int] = []

    def record(subscriber: Subscriber, requeued: int) -> None:
        requeued_counts.append(requeued)
        restore(subscriber, requeued)

    monkeypatch.setattr(Subscriber, "restore_window", record)
    silent.acknowledge(*ids[:90])
    # the others, and the second copy of a message that is acknowledged now
    assert requeued_counts == [11]


def test_only_oldest_delivery_of_connection_times_out(harness: Harness) -> None:
    """It has three subscriptions, each with an oldest unacked message."""
    peer = harness.connect()
    for queue in "abc":
        peer.publish(queue, f"{queue}1", f"{queue}2")
        harness.run_event_loop(1)
        peer.subscribe(queue)
    harness.run_event_loop(29_999)
    [frame] = peer.deliveries()
    assert (frame.id, frame.headers["deliveryAttempts"]) == ("a1", "2")
    peer.drop()
    other = harness.connect()
    for queue, expected in (("a", "3"), ("b", "2"), ("c", "2")):
        other.subscribe(queue)
        assert attempts(other.more) == {f"{queue}1": expected, f"{queue}2": "2"}


def test_ack_timeout_of_subscription_starts_when_another_has_finished(harness: Harness) -> None:
    peer = harness.connect()
    peer.publish("a", "a1")
    peer.publish("b", "b1")
    peer.subscribe("a")
    harness.run_event_loop(1)
    peer.subscribe("b")
    harness.run_event_loop(25 * SECOND)
    peer.acknowledge("a1")
    harness.run_event_loop(30 * SECOND - 1)
    assert peer.ids() == []
    harness.run_event_loop(1)
    assert peer.ids() == ["b1"]


@pytest.mark.parametrize("consumers", [1, 2, 3])
def test_slow_handler_uses_up_no_attempts_of_later_messages(
    harness: Harness, consumers: int
) -> None:
    clients = [NetClient(harness.connect(), 45) for _ in range(consumers)]
    ids = [str(n) for n in range(20)]
    clients[0].peer.create("q", enableDeadLetterQueue=True)
    clients[0].peer.publish("q", *ids)
    for client in clients:
        client.subscribe("q")
    for _ in range(3600):
        run(harness, 1, *clients)
        begun_counts = sum((client.begun for client in clients), Counter[str]())
        for client in clients:
            for name, count in client.attempts.items():
                assert count <= 1 + begun_counts[name]
        if not harness.bodies("q"):
            break
    assert harness.bodies("q") == []
    assert harness.bodies("q.dlq") == []


def test_message_that_always_fails_is_dead_lettered_after_three_timeouts(
    harness: Harness,
) -> None:
    client = NetClient(harness.connect(), 1, frozenset({"poison"}))
    client.peer.create("q", enableDeadLetterQueue=True)
    client.peer.publish("q", "1", "poison", "2", "3")
    client.subscribe("q")
    run(harness, 89, client)
    assert harness.bodies("q") == [b'"poison"']
    run(harness, 8, client)
    assert harness.bodies("q") == []
    assert len(harness.bodies("q.dlq")) == 1
    assert client.begun == {"1": 1, "poison": 3, "2": 1, "3": 1}


def test_message_that_blocks_every_consumer_is_dead_lettered_after_three_timeouts(
    harness: Harness,
) -> None:
    """And what waited behind it is handled: the consumers are started anew one by one."""
    first, second = harness.connect(), harness.connect()
    first.create("q", enableDeadLetterQueue=True)
    first.subscribe("q")
    second.subscribe("q")
    first.publish("q", "poison")
    for _ in range(3):
        harness.run_event_loop(30 * SECOND)
    assert harness.bodies("q") == []
    assert len(harness.bodies("q.dlq")) == 1


def test_redelivery_is_not_hidden_by_full_window_of_only_consumer(
    harness: Harness,
) -> None:
    peer = harness.connect(SessionOptions(window=2))
    peer.publish("q", "1", "2", "3")
    assert peer.subscribe("q") == ["1", "2"]
    harness.run_event_loop(30 * SECOND)
    assert peer.ids() == ["1"]
    assert harness.destination("q").unacked == 2


def test_suspended_consumer_is_sent_nothing_again(harness: Harness) -> None:
    peer = harness.connect()
    peer.subscribe("q")
    peer.publish("q", "1")
    peer.frames()
    peer.stop_reading()
    harness.run_event_loop(30 * SECOND)
    assert peer.frames() == []
    peer.read_again()
    harness.run_event_loop()
    [frame] = peer.deliveries()
    assert frame.headers["deliveryAttempts"] == "2"


def test_acknowledgement_of_second_copy_passes_nothing(harness: Harness) -> None:
    """The client acknowledges the first copy of 1; 2 and 3 were sent before the second one."""
    peer = harness.connect()
    peer.create("q", maxRetryAttempts=2)
    peer.publish("q", "1", "2", "3")
    peer.subscribe("q")
    harness.run_event_loop(30 * SECOND)
    assert peer.ids() == ["1"]
    harness.run_event_loop(15 * SECOND)
    peer.send(Frame(wire.ACK, "1"))
    harness.run_event_loop(29 * SECOND)
    assert peer.ids() == []
    harness.run_event_loop(SECOND)
    assert peer.ids() == ["2"]


def test_acknowledgement_of_what_was_taken_back_leaves_others_of_its_id(
    harness: Harness,
) -> None:
    """The client handles the message of `a`, which another one has by now, before that of `b`."""
    slow, other = harness.connect(), harness.connect()
    for queue in "ab":
        slow.publish(queue, "m")
        slow.subscribe(queue)
    other.subscribe("a")
    harness.run_event_loop(30 * SECOND)
    assert other.ids() == ["m"]
    slow.acknowledge("m")
    assert (harness.bodies("a"), harness.bodies("b")) == ([], [b'"m"'])
    slow.acknowledge("m")
    assert harness.bodies("b") == []
