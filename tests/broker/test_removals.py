"""Notification of deleted destinations to the statistics."""

from __future__ import annotations

from sluicemq.broker import Destination
from tests.support.broker import BrokerFixture


def test_destination_deletion_is_reported_once_with_its_last_counters() -> None:
    fixture = BrokerFixture()
    removals: list[tuple[Destination, int]] = []
    fixture.broker.destinations.removals.append(
        lambda destination: removals.append((destination, published(destination)))
    )
    queue = fixture.broker.destinations.queue("q")
    fixture.send(queue, "a", "b")
    fixture.broker.remove(queue)
    fixture.broker.remove(queue)
    assert removals == [(queue, 2)]
    assert queue.removed
    assert fixture.broker.destinations.find(queue.address) is None


def test_successor_of_same_name_is_another_destination() -> None:
    fixture = BrokerFixture()
    removals: list[Destination] = []
    fixture.broker.destinations.removals.append(removals.append)
    first = fixture.broker.destinations.queue("q")
    fixture.broker.remove(first)
    second = fixture.broker.destinations.queue("q")
    fixture.broker.remove(first)
    assert removals == [first]
    fixture.broker.remove(second)
    assert removals == [first, second]


def published(destination: Destination) -> int:
    return destination.statistics.published
