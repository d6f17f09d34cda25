"""Consumers with selectors, and the number of evaluations."""

from __future__ import annotations

import pytest

from sluicemq.broker import EngineSettings, compile_selector
from sluicemq.model.destination import Overflow
from sluicemq.model.message import Durability
from tests.support.broker import BrokerFixture, TypeSelector, bodies, purge


def test_each_consumer_gets_only_matching_messages_and_rest_stay_ready() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    red, blue = (
        fixture.read(queue, selector=TypeSelector("red")),
        fixture.read(queue, selector=TypeSelector("blue")),
    )
    for type in ("red", "blue", "green", "red"):
        fixture.send(queue, type, type=type)
    assert (red.got(), blue.got()) == (["red", "red"], ["blue"])
    assert queue.waiting == 1


def test_each_message_goes_to_one_of_all_that_match() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    readers = [fixture.read(queue), fixture.read(queue, selector=TypeSelector("red"))]
    fixture.send(queue, "1", "2", "3", "4", type="red")
    shares = [reader.got() for reader in readers]
    assert all(shares)
    assert sorted(shares[0] + shares[1]) == ["1", "2", "3", "4"]


@pytest.mark.parametrize("group", [1, 3, 6])
def test_consumers_with_different_matching_selectors_alternate(group: int) -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    selectors = [None, compile_selector("1 = 1"), compile_selector("2 = 2")]
    readers = [fixture.read(queue, selector=selector) for selector in selectors * 2]
    for _ in range(12 // group):
        fixture.send(queue, *"123456"[:group])
    assert all(1 <= len(reader.got()) <= 3 for reader in readers)


def test_selector_is_evaluated_once_per_message_for_all_consumers() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    red, equal_selector, blue = TypeSelector("red"), TypeSelector("red"), TypeSelector("blue")
    for selector in (red, equal_selector, blue):
        fixture.read(queue, selector=selector)
    fixture.send(queue, "1", "2", type="red")
    fixture.send(queue, "3", type="green")
    fixture.wait(10)
    assert (red.calls + equal_selector.calls, blue.calls) == (3, 3)


def test_requeued_message_is_offered_in_order_to_matching_consumers() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    reader = fixture.read(queue, 1)
    fixture.send(queue, "1", "2", type="red")
    red = fixture.read(queue, 0, refill=False, selector=TypeSelector("red"))
    fixture.broker.suspend(reader.consumer)
    reader.release()
    fixture.broker.grant(red.consumer.window, 2)
    assert red.got() == ["1", "2"]


def test_priority_counts_among_selected_messages() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    fixture.send(queue, "low", type="red", priority=1)
    fixture.send(queue, "other", priority=9)
    fixture.send(queue, "high", type="red", priority=8)
    assert fixture.read(queue, selector=TypeSelector("red")).got() == ["high", "low"]


def test_expired_message_is_not_delivered_through_selector() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    fixture.send(queue, "a", type="red", expiration=fixture.clock.wall + 100)
    fixture.clock.advance(100)
    assert fixture.read(queue, selector=TypeSelector("red")).got() == []
    assert queue.statistics.expired == 1


def test_topic_evaluates_selector_once_for_all_its_subscriptions() -> None:
    fixture = BrokerFixture()
    topic = fixture.topic()
    red, equal_selector = TypeSelector("red"), TypeSelector("red")
    readers = [
        fixture.read(fixture.broker.subscribe(topic, name, selector=selector))
        for name, selector in (("s", red), ("t", equal_selector))
    ]
    fixture.send(topic, "1", type="red")
    fixture.send(topic, "2", type="blue")
    assert [reader.got() for reader in readers] == [["1"], ["1"]]
    assert red.calls + equal_selector.calls == 2


def test_message_requeued_through_selector_exists_once() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    reader = fixture.read(queue, 1, refill=False, selector=TypeSelector("red"))
    fixture.send(queue, "a", type="red")
    reader.release()
    assert bodies(queue) == ["a"]
    assert purge(fixture.broker, queue) == 1
    assert (queue.waiting, queue.bytes) == (0, 0)


def test_messages_displaced_while_queue_is_paused_leave_pending_queues() -> None:
    fixture = BrokerFixture(EngineSettings(chunk_deliveries=4))
    queue = fixture.queue(max_messages=20, overflow=Overflow.DROP_OLDEST)
    reader = fixture.read(queue, selector=TypeSelector("red"))
    fixture.broker.destinations.set_paused(queue, True)
    for _ in range(50):
        fixture.send(queue, *"abcdefghij", type="red", durability=Durability.LAZY)
    assert reader.consumer.pending_queue.length < 150
    fixture.broker.destinations.set_paused(queue, False)
    fixture.broker.flush()
    assert reader.got() == list("abcdefghij" * 2)


def test_iteration_of_large_bodies_ends_for_selectors_too() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    body = "x" * 600_000
    fixture.send(queue, *[body] * 6, type="red")
    reader = fixture.read(queue, selector=TypeSelector("red"))
    assert 2 <= len(reader.got()) < 6
    for _ in range(3):
        fixture.broker.flush()
    assert queue.waiting == 0
