"""Messages that are too old, and messages that are not due yet."""

from __future__ import annotations

import pytest

from sluicemq.broker.timers import NEVER
from sluicemq.model.destination import Overflow
from tests.broker.support import DAY, Rig, bodies


def test_a_message_is_given_until_the_last_millisecond_of_its_life() -> None:
    rig = Rig()
    queue = rig.queue()
    rig.send(queue, "short", expiration=rig.clock.wall + 150)
    rig.send(queue, "long", expiration=rig.clock.wall + 151)
    rig.clock.advance(150)  # and no tick
    assert rig.read(queue).got() == ["long"]
    assert queue.statistics.expired == 1


def test_what_nobody_asks_for_is_cleared_by_a_broker_that_is_called_when_it_wants() -> None:
    rig = Rig()
    queue = rig.queue()
    lives = {"short": 150, "long": DAY}
    for body, life in lives.items():
        rig.send(queue, body, expiration=rig.clock.wall + life)
    start = rig.clock.steady
    ends: dict[str, int] = {}
    calls = 0
    while (due := rig.broker.deadline()) < NEVER:
        rig.wait(due - rig.clock.steady)
        calls += 1
        for body in lives.keys() - ends.keys() - set(bodies(queue)):
            ends[body] = rig.clock.steady - start
    for body, life in lives.items():
        assert life <= ends[body] <= life + 100
    assert calls <= 3
    assert (queue.waiting, queue.statistics.expired) == (0, 2)


def test_message_ttl_is_an_upper_bound_only() -> None:
    rig = Rig()
    queue = rig.queue(message_ttl=1000)
    rig.send(queue, "none")
    rig.send(queue, "longer", expiration=rig.clock.wall + 5000)
    rig.send(queue, "shorter", expiration=rig.clock.wall + 400)
    rig.wait(600)
    assert bodies(queue) == ["none", "longer"]
    rig.wait(500)
    assert bodies(queue) == []


@pytest.mark.parametrize("skew", [DAY, -DAY], ids=["ahead", "behind"])
def test_message_ttl_counts_from_arrival_whatever_the_clock_of_the_client(skew: int) -> None:
    rig = Rig()
    queue = rig.queue(message_ttl=1000)
    message = rig.message(queue, "a")
    message.timestamp += skew
    rig.broker.publish(queue, message)
    rig.broker.flush()
    assert message.arrival == rig.clock.wall
    rig.wait(900)
    assert bodies(queue) == ["a"]
    rig.wait(200)
    assert bodies(queue) == []


@pytest.mark.parametrize("jump", [DAY, -DAY], ids=["ahead", "back"])
def test_a_clock_that_is_set_neither_expires_nor_revives(jump: int) -> None:
    rig = Rig()
    queue = rig.queue()
    rig.send(queue, "a", expiration=rig.clock.wall + 1000)
    rig.clock.set_wall(rig.clock.wall + jump)
    rig.wait(900)
    assert bodies(queue) == ["a"]
    rig.wait(200)
    assert bodies(queue) == []


@pytest.mark.parametrize("jump", [DAY, -DAY], ids=["ahead", "back"])
@pytest.mark.parametrize("held_up_by", ["disk", "full queue", "transaction"])
@pytest.mark.parametrize(("after", "ready"), [(900, ["mortal"]), (1100, ["later"])])
def test_a_clock_that_is_set_before_a_message_is_visible(
    jump: int, held_up_by: str, after: int, ready: list[str]
) -> None:
    rig = Rig()
    broker = rig.broker
    queue = rig.queue(max_messages=1, overflow=Overflow.BLOCK)
    due = rig.clock.wall + 1000
    mortal = rig.message(queue, "mortal", expiration=due)
    later = rig.message(queue, "later", deliver_at=due)
    transaction = broker.transactions.begin()
    if held_up_by == "full queue":
        rig.send(queue, "first")
        for message in (mortal, later):
            assert not broker.publish(queue, message, lambda: None)
    rig.queue()  # no longer full
    for message in (mortal, later):
        if held_up_by == "disk":
            assert broker.publish(queue, message)
        elif held_up_by == "transaction":
            broker.transactions.publish(transaction, queue, message)
    rig.clock.set_wall(rig.clock.wall + jump)
    broker.transactions.commit(transaction)
    broker.flush()
    rig.wait(after)
    assert [body for body in rig.read(queue).got() if body != "first"] == ready


@pytest.mark.parametrize("jump", [DAY, -DAY], ids=["ahead", "back"])
def test_a_clock_that_is_set_does_not_change_the_life_of_what_is_moved(jump: int) -> None:
    rig = Rig()
    queue, target = rig.queue(), rig.queue("target")
    rig.send(queue, "a", expiration=rig.clock.wall + 1000)
    rig.clock.set_wall(rig.clock.wall + jump)
    rig.broker.move(queue.queue, target)
    rig.broker.flush()
    rig.wait(900)
    assert bodies(target) == ["a"]
    rig.wait(200)
    assert bodies(target) == []


def test_a_message_in_flight_does_not_expire_but_is_not_delivered_again() -> None:
    rig = Rig()
    queue = rig.queue()
    reader = rig.read(queue)
    rig.send(queue, "settled", "released", expiration=rig.clock.wall + 100)
    rig.wait(1000)
    assert queue.unacked == 2
    reader.settle("settled")
    reader.got()
    reader.release("released")
    assert reader.got() == []
    assert (queue.statistics.settled, queue.statistics.expired) == (1, 1)


def test_a_message_that_came_too_late_displaces_none() -> None:
    rig = Rig()
    queue = rig.queue(max_messages=1, overflow=Overflow.DROP_OLDEST)
    rig.send(queue, "alive")
    rig.send(queue, "late", expiration=rig.clock.wall - 1)
    assert bodies(queue) == ["alive"]


def test_a_delayed_message_is_delivered_when_it_is_due() -> None:
    rig = Rig()
    queue = rig.queue()
    reader = rig.read(queue)
    rig.send(queue, "later", deliver_at=rig.clock.wall + 500)
    rig.send(queue, "now")
    rig.wait(499)
    assert reader.got() == ["now"]
    assert queue.waiting == 1
    rig.wait(1)
    assert reader.got() == ["later"]


@pytest.mark.parametrize("jump", [DAY, -DAY], ids=["ahead", "back"])
def test_a_clock_that_is_set_does_not_change_the_delay(jump: int) -> None:
    rig = Rig()
    queue = rig.queue()
    reader = rig.read(queue)
    rig.send(queue, "later", deliver_at=rig.clock.wall + 500)
    rig.clock.set_wall(rig.clock.wall + jump)
    rig.wait(499)
    assert reader.got() == []
    rig.wait(1)
    assert reader.got() == ["later"]


def test_a_message_that_expires_before_it_is_due_is_never_delivered() -> None:
    rig = Rig()
    queue = rig.queue()
    reader = rig.read(queue)
    wall = rig.clock.wall
    rig.send(queue, "a", deliver_at=wall + 500, expiration=wall + 300)
    rig.wait(400)
    assert queue.waiting == 0
    rig.wait(200)
    assert reader.got() == []
    assert queue.statistics.expired == 1
