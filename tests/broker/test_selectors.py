"""Consumers that want only some of the messages, and what their selectors cost."""

from __future__ import annotations

import pytest

from sluicemq.broker import compile_selector
from tests.broker.support import OfType, Rig, bodies


def test_each_consumer_gets_only_what_it_selects_and_the_rest_waits() -> None:
    rig = Rig()
    queue = rig.queue()
    red, blue = rig.read(queue, selector=OfType("red")), rig.read(queue, selector=OfType("blue"))
    for type in ("red", "blue", "green", "red"):
        rig.send(queue, type, type=type)
    assert (red.got(), blue.got()) == (["red", "red"], ["blue"])
    assert queue.waiting == 1


def test_each_message_goes_to_one_of_all_that_match() -> None:
    rig = Rig()
    queue = rig.queue()
    readers = [rig.read(queue), rig.read(queue, selector=OfType("red"))]
    rig.send(queue, "1", "2", "3", "4", type="red")
    shares = [reader.got() for reader in readers]
    assert all(shares)
    assert sorted(shares[0] + shares[1]) == ["1", "2", "3", "4"]


@pytest.mark.parametrize("group", [1, 3, 6])
def test_consumers_with_different_selectors_that_match_take_turns(group: int) -> None:
    rig = Rig()
    queue = rig.queue()
    selectors = [None, compile_selector("1 = 1"), compile_selector("2 = 2")]
    readers = [rig.read(queue, selector=selector) for selector in selectors * 2]
    for _ in range(12 // group):
        rig.send(queue, *"123456"[:group])
    assert all(1 <= len(reader.got()) <= 3 for reader in readers)


def test_a_selector_is_evaluated_once_per_message_for_all_who_use_it() -> None:
    rig = Rig()
    queue = rig.queue()
    red, same, blue = OfType("red"), OfType("red"), OfType("blue")
    for selector in (red, same, blue):
        rig.read(queue, selector=selector)
    rig.send(queue, "1", "2", type="red")
    rig.send(queue, "3", type="green")
    rig.wait(10)
    assert (red.calls + same.calls, blue.calls) == (3, 3)


def test_a_message_that_comes_back_is_offered_to_those_who_select_it_in_its_place() -> None:
    rig = Rig()
    queue = rig.queue()
    reader = rig.read(queue, 1)
    rig.send(queue, "1", "2", type="red")
    red = rig.read(queue, 0, refill=False, selector=OfType("red"))
    rig.broker.suspend(reader.consumer)
    reader.release()
    rig.broker.grant(red.consumer.window, 2)
    assert red.got() == ["1", "2"]


def test_priority_counts_among_selected_messages() -> None:
    rig = Rig()
    queue = rig.queue()
    rig.send(queue, "low", type="red", priority=1)
    rig.send(queue, "other", priority=9)
    rig.send(queue, "high", type="red", priority=8)
    assert rig.read(queue, selector=OfType("red")).got() == ["high", "low"]


def test_an_expired_message_is_not_delivered_through_a_selector() -> None:
    rig = Rig()
    queue = rig.queue()
    rig.send(queue, "a", type="red", expiration=rig.clock.wall + 100)
    rig.clock.advance(100)
    assert rig.read(queue, selector=OfType("red")).got() == []
    assert queue.statistics.expired == 1


def test_a_topic_evaluates_a_selector_once_for_all_its_subscriptions() -> None:
    rig = Rig()
    topic = rig.topic()
    red, same = OfType("red"), OfType("red")
    readers = [
        rig.read(rig.broker.subscribe(topic, name, selector=selector))
        for name, selector in (("s", red), ("t", same))
    ]
    rig.send(topic, "1", type="red")
    rig.send(topic, "2", type="blue")
    assert [reader.got() for reader in readers] == [["1"], ["1"]]
    assert red.calls + same.calls == 2


def test_a_message_that_came_back_through_a_selector_is_there_once() -> None:
    rig = Rig()
    queue = rig.queue()
    reader = rig.read(queue, 1, refill=False, selector=OfType("red"))
    rig.send(queue, "a", type="red")
    reader.release()
    assert bodies(queue) == ["a"]
    assert rig.broker.purge(queue) == 1
    assert (queue.waiting, queue.bytes) == (0, 0)


def test_a_turn_of_large_bodies_ends_for_selectors_too() -> None:
    rig = Rig()
    queue = rig.queue()
    body = "x" * 600_000
    rig.send(queue, *[body] * 6, type="red")
    reader = rig.read(queue, selector=OfType("red"))
    assert 2 <= len(reader.got()) < 6
    for _ in range(3):
        rig.broker.flush()
    assert queue.waiting == 0
