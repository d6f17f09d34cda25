"""Single messages handled by hand. What random steps (test_model.py) hardly ever meet."""

from __future__ import annotations

import pytest

from sluicemq.broker import BrokerSettings, Delivery, Destination
from sluicemq.broker.deadletter import Origin, origin_of
from sluicemq.broker.management import delete, find, move, redeliver, send_back
from sluicemq.model.destination import Address, Kind, Overflow
from sluicemq.model.errors import ActionRefused
from sluicemq.model.message import Durability
from tests.broker.support import OfType, Rig, bodies


def found(rig: Rig, queue: Destination, sequence: int) -> Delivery:
    delivery = find(rig.broker, queue.queue, sequence)
    assert delivery is not None
    return delivery


def test_the_last_of_a_page_may_go_and_the_line_is_empty() -> None:
    rig = Rig(BrokerSettings(memory_budget=0, chunk_deliveries=2))
    queue = rig.queue()
    sent = rig.send(queue, *"abcdefgh", durability=Durability.LAZY)
    for sequence in (*sent[2:], *sent[:2]):
        delete(rig.broker, queue.queue, [found(rig, queue, sequence)])
        queue.queue.everything.compact()
    assert queue.waiting == 0
    assert queue.queue.everything.take() is None
    assert rig.journal.stats().live == 0
    reader = rig.read(queue)
    rig.send(queue, "i", priority=0)
    rig.send(queue, "j")
    assert reader.got() == ["i", "j"]


def test_pages_of_one_priority_go_and_those_of_another_stay() -> None:
    rig = Rig(BrokerSettings(memory_budget=0, chunk_deliveries=1))
    queue = rig.queue()
    high = rig.send(queue, *"abcd", durability=Durability.LAZY, priority=9)
    low = rig.send(queue, *"efgh", durability=Durability.LAZY, priority=1)
    for sequence in high:
        delete(rig.broker, queue.queue, [found(rig, queue, sequence)])
    assert [d.sequence for d in queue.queue.everything] == low
    reader = rig.read(queue)
    rig.broker.flush()
    assert [d.sequence for d in reader.consumer.unacked.values()] == low


def test_what_is_taken_back_by_hand_is_no_dead_letter_by_that() -> None:
    rig = Rig()
    queue = rig.queue(max_attempts=1, dead_letter=True)
    reader = rig.read(queue, 1, refill=False)
    [sequence] = rig.send(queue, "a")
    redeliver(rig.broker, found(rig, queue, sequence))
    rig.broker.flush()
    assert bodies(queue) == ["a"]
    assert reader.held() == {}


def test_a_retry_that_was_made_at_once_does_not_cut_the_next_one_short() -> None:
    rig = Rig()
    queue = rig.queue(retry_delay=1000)
    reader = rig.read(queue)
    [sequence] = rig.send(queue, "a")
    rig.broker.time_out(reader.consumer, [sequence])
    rig.wait(500)
    redeliver(rig.broker, found(rig, queue, sequence))
    rig.broker.flush()
    assert reader.got() == ["a", "a"]
    rig.broker.time_out(reader.consumer, [sequence])
    rig.wait(600)  # when the first retry would have been
    assert reader.got() == []
    rig.wait(1400)
    assert reader.got() == ["a"]


def test_a_message_that_a_selector_wants_is_found_and_goes_from_all_lines() -> None:
    rig = Rig()
    queue = rig.queue()
    reader = rig.read(queue, 0, refill=False, selector=OfType("red"))
    first, second = rig.send(queue, "a", "b", type="red")
    delete(rig.broker, queue.queue, [found(rig, queue, first)])
    rig.broker.grant(reader.consumer.window, 5)
    rig.broker.flush()
    assert reader.got() == ["b"]
    assert find(rig.broker, queue.queue, first) is None
    assert found(rig, queue, second).consumer is reader.consumer


def test_a_move_onto_a_queue_that_drops_its_oldest_displaces_that() -> None:
    rig = Rig()
    source, target = rig.queue("s"), rig.queue(max_messages=2, overflow=Overflow.DROP_OLDEST)
    [sequence] = rig.send(source, "moved")
    rig.send(target, "old", "new")
    move(rig.broker, found(rig, source, sequence), target)
    rig.broker.flush()
    assert bodies(target) == ["new", "moved"]


def test_a_move_onto_a_queue_that_sends_on_what_it_has_no_room_for() -> None:
    rig = Rig()
    source = rig.queue("s")
    target = rig.queue(max_messages=1, overflow=Overflow.DEAD_LETTER, dead_letter=True)
    [sequence] = rig.send(source, "moved")
    rig.send(target, "there")
    move(rig.broker, found(rig, source, sequence), target)
    rig.broker.flush()
    assert [m.body for m in rig.dead()] == [b"moved"]
    assert source.waiting == 0
    assert origin_of(rig.dead()[0]) == Origin(Address(Kind.QUEUE, "q"), "")


def test_a_dead_letter_does_not_go_back_where_nothing_comes_into_being() -> None:
    rig = Rig(BrokerSettings(auto_create_queues=False))
    queue = rig.queue(dead_letter=True)
    reader = rig.read(queue)
    [sequence] = rig.send(queue, "a")
    rig.broker.dead_letter(queue.queue, sequence, "rejected")
    reader.detach()
    rig.broker.remove(queue)
    dead = rig.broker.destinations[Address(Kind.QUEUE, "q.dlq")]
    delivery = next(iter(dead.queue.everything))
    with pytest.raises(ActionRefused) as refused:
        send_back(rig.broker, delivery, Origin(Address(Kind.QUEUE, "q"), ""))
    assert refused.value.reason == "origin-gone"
    assert dead.waiting == 1
