"""Expired and scheduled messages."""

from __future__ import annotations

import pytest

from sluicemq.broker import Broker
from sluicemq.broker.scheduler import NEVER
from sluicemq.model.destination import Overflow
from tests.support.broker import DAY, BrokerFixture, bodies, move_ready
from tests.support.scan_time import ScanTime


def test_message_is_delivered_until_last_millisecond_of_its_ttl() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    fixture.send(queue, "short", expiration=fixture.clock.wall + 150)
    fixture.send(queue, "long", expiration=fixture.clock.wall + 151)
    fixture.clock.advance(150)  # and no tick
    assert fixture.read(queue).got() == ["long"]
    assert queue.statistics.expired == 1


def test_expired_messages_are_cleared_without_consumer() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    lifetimes = {"short": 150, "long": DAY}
    for body, lifetime in lifetimes.items():
        fixture.send(queue, body, expiration=fixture.clock.wall + lifetime)
    start = fixture.clock.steady
    end_times: dict[str, int] = {}
    calls = 0
    while (deadline := fixture.broker.deadline()) < NEVER:
        fixture.wait(deadline - fixture.clock.steady)
        calls += 1
        for body in lifetimes.keys() - end_times.keys() - set(bodies(queue)):
            end_times[body] = fixture.clock.steady - start
    for body, lifetime in lifetimes.items():
        assert lifetime <= end_times[body] <= lifetime + 100
    assert calls <= 3
    assert (queue.waiting, queue.statistics.expired) == (0, 2)


def test_message_ttl_is_upper_bound_only() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(message_ttl=1000)
    fixture.send(queue, "none")
    fixture.send(queue, "longer", expiration=fixture.clock.wall + 5000)
    fixture.send(queue, "shorter", expiration=fixture.clock.wall + 400)
    fixture.wait(600)
    assert bodies(queue) == ["none", "longer"]
    fixture.wait(500)
    assert bodies(queue) == []


@pytest.mark.parametrize("ttl", [0, 5000, 400])
def test_message_ttl_is_upper_bound_for_requeued_messages(ttl: int) -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(message_ttl=1000)
    fixture.read(queue, 1)
    sequence, _ = fixture.send(queue, "a", "b")
    fixture.wait(900)
    expiration = fixture.clock.wall + ttl if ttl else 0
    assert fixture.broker.requeue(queue.queue, sequence, expiration)
    fixture.broker.flush()
    fixture.wait(300)
    assert bodies(queue) == ["b", "a"]
    fixture.wait(800)
    assert bodies(queue) == ["b"]


@pytest.mark.parametrize("skew", [DAY, -DAY], ids=["ahead", "behind"])
def test_message_ttl_counts_from_arrival_regardless_of_clients_clock(skew: int) -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(message_ttl=1000)
    message = fixture.message(queue, "a")
    message.timestamp += skew
    fixture.broker.publish(queue, message)
    fixture.broker.flush()
    assert message.arrival == fixture.clock.wall
    fixture.wait(900)
    assert bodies(queue) == ["a"]
    fixture.wait(200)
    assert bodies(queue) == []


@pytest.mark.parametrize("jump", [DAY, -DAY], ids=["ahead", "back"])
def test_setting_clock_neither_expires_nor_revives_messages(jump: int) -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    fixture.send(queue, "a", expiration=fixture.clock.wall + 1000)
    fixture.clock.wall += jump
    fixture.wait(900)
    assert bodies(queue) == ["a"]
    fixture.wait(200)
    assert bodies(queue) == []


@pytest.mark.parametrize("jump", [DAY, -DAY], ids=["ahead", "back"])
@pytest.mark.parametrize("held_up_by", ["disk", "full queue", "transaction"])
@pytest.mark.parametrize(("after", "ready"), [(900, ["mortal"]), (1100, ["later"])])
def test_setting_clock_before_message_is_visible(
    jump: int, held_up_by: str, after: int, ready: list[str]
) -> None:
    fixture = BrokerFixture()
    broker = fixture.broker
    queue = fixture.queue(max_messages=1, overflow=Overflow.BLOCK)
    due_time = fixture.clock.wall + 1000
    mortal = fixture.message(queue, "mortal", expiration=due_time)
    later = fixture.message(queue, "later", deliver_at=due_time)
    transaction = broker.transactions.begin()
    if held_up_by == "full queue":
        fixture.send(queue, "first")
        for message in (mortal, later):
            assert not broker.publish(queue, message, lambda: None)
    fixture.queue()  # no longer full
    for message in (mortal, later):
        if held_up_by == "disk":
            assert broker.publish(queue, message)
        elif held_up_by == "transaction":
            broker.transactions.publish(transaction, queue, message)
    fixture.clock.wall += jump
    broker.transactions.commit(transaction)
    broker.flush()
    fixture.wait(after)
    assert [body for body in fixture.read(queue).got() if body != "first"] == ready


@pytest.mark.parametrize("jump", [DAY, -DAY], ids=["ahead", "back"])
def test_setting_clock_does_not_change_ttl_of_moved_messages(jump: int) -> None:
    fixture = BrokerFixture()
    queue, target = fixture.queue(), fixture.queue("target")
    fixture.send(queue, "a", expiration=fixture.clock.wall + 1000)
    fixture.clock.wall += jump
    move_ready(fixture.broker, queue.queue, target)
    fixture.broker.flush()
    fixture.wait(900)
    assert bodies(target) == ["a"]
    fixture.wait(200)
    assert bodies(target) == []


def test_unacked_message_does_not_expire_but_is_not_redelivered() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    reader = fixture.read(queue)
    fixture.send(queue, "acknowledged", "released", expiration=fixture.clock.wall + 100)
    fixture.wait(1000)
    assert queue.unacked == 2
    reader.acknowledge("acknowledged")
    reader.got()
    reader.release("released")
    assert reader.got() == []
    assert (queue.statistics.acknowledged, queue.statistics.expired) == (1, 1)


def test_message_expired_on_arrival_displaces_none() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(max_messages=1, overflow=Overflow.DROP_OLDEST)
    fixture.send(queue, "alive")
    fixture.send(queue, "late", expiration=fixture.clock.wall - 1)
    assert bodies(queue) == ["alive"]


def test_delayed_message_is_delivered_when_it_is_due() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    reader = fixture.read(queue)
    fixture.send(queue, "later", deliver_at=fixture.clock.wall + 500)
    fixture.send(queue, "now")
    fixture.wait(499)
    assert reader.got() == ["now"]
    assert queue.waiting == 1
    fixture.wait(1)
    assert reader.got() == ["later"]


@pytest.mark.parametrize("jump", [DAY, -DAY], ids=["ahead", "back"])
def test_setting_clock_does_not_change_delay(jump: int) -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    reader = fixture.read(queue)
    fixture.send(queue, "later", deliver_at=fixture.clock.wall + 500)
    fixture.clock.wall += jump
    fixture.wait(499)
    assert reader.got() == []
    fixture.wait(1)
    assert reader.got() == ["later"]


def test_message_that_expires_before_it_is_due_is_never_delivered() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    reader = fixture.read(queue)
    wall = fixture.clock.wall
    fixture.send(queue, "a", deliver_at=wall + 500, expiration=wall + 300)
    fixture.wait(400)
    assert queue.waiting == 0
    fixture.wait(200)
    assert reader.got() == []
    assert queue.statistics.expired == 1


# --- many messages at the same time ---------------------------------------------------------------


class LimitedFixture(BrokerFixture):
    """A broker whose scans have time for three messages in each iteration."""

    def __init__(self) -> None:
        super().__init__()
        self.broker = Broker(self.journal, self.clock, start_deadline=ScanTime(2).start)


def test_many_messages_with_same_expiration_end_in_slices() -> None:
    fixture = LimitedFixture()
    queue = fixture.queue(dead_letter=True)
    fixture.send(queue, *"abcdefgh", expiration=fixture.clock.wall + 50)
    fixture.clock.advance(200)
    fixture.broker.tick()
    counts = [queue.statistics.expired]
    while queue.waiting:
        fixture.broker.flush()
        counts.append(queue.statistics.expired)
    assert counts == [2, 2, 4, 6, 8]
    assert [message.body for message in fixture.dead_letters()] == [b"%c" % c for c in b"abcdefgh"]


def test_expired_message_that_dispatch_finds_first_expires_once() -> None:
    fixture = LimitedFixture()
    fixture.queue("q.dlq", max_messages=1)
    queue = fixture.queue(dead_letter=True)
    fixture.send(queue, *"abcdefgh", expiration=fixture.clock.wall + 50)
    fixture.clock.advance(200)
    fixture.broker.tick()
    reader = fixture.read(queue)
    for _ in range(10):
        fixture.broker.flush()
    assert reader.got() == []
    assert queue.statistics.expired == 8
    assert (len(fixture.dead_letters()), queue.waiting) == (1, 7)


def test_many_messages_with_same_delivery_time_become_ready_in_slices() -> None:
    fixture = LimitedFixture()
    queue = fixture.queue()
    fixture.send(queue, *"abcdefgh", deliver_at=fixture.clock.wall + 50)
    counts = []
    fixture.clock.advance(50)
    while queue.queue.scheduled:
        assert fixture.broker.deadline() <= fixture.clock.steady
        fixture.broker.tick()
        counts.append(queue.queue.ready)
        fixture.broker.flush()
    assert counts == [3, 6, 8]
    assert fixture.read(queue).got() == list("abcdefgh")
