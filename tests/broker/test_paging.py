"""Bodies beyond the memory budget are dropped and read back when their turn comes."""

from __future__ import annotations

import pytest

from sluicemq.broker import EngineSettings
from sluicemq.model.message import Durability
from tests.support.broker import BrokerFixture, TypeSelector, move_ready, purge

BUDGET = 30
"""Memory budget for three of the bodies below."""
NAMES = [f"body {number:05}" for number in range(20)]


def fixture_with_budget() -> BrokerFixture:
    return BrokerFixture(EngineSettings(memory_budget=BUDGET))


@pytest.mark.parametrize("durability", [Durability.SYNC, Durability.LAZY])
def test_backlog_stays_within_budget_and_is_read_back(durability: Durability) -> None:
    fixture = fixture_with_budget()
    queue = fixture.queue()
    fixture.send(queue, *NAMES, durability=durability)
    assert fixture.broker.core.memory <= BUDGET
    assert queue.bytes == 200
    reader = fixture.read(queue, 1)
    for name in NAMES:
        assert fixture.broker.core.memory <= BUDGET + len(name)
        assert reader.got() == [name]
        reader.acknowledge()
    assert fixture.broker.core.memory == 0


def test_messages_that_are_not_journaled_stay_in_memory() -> None:
    fixture = fixture_with_budget()
    queue = fixture.queue()
    fixture.send(queue, *NAMES, durability=Durability.NONE)
    assert fixture.broker.core.memory == 200
    assert fixture.read(queue).got() == NAMES


@pytest.mark.parametrize("durability", [Durability.SYNC, Durability.NONE])
def test_headers_count_as_much_as_bodies(durability: Durability) -> None:
    fixture = fixture_with_budget()
    queue = fixture.queue()
    fixture.send(queue, *NAMES, native=bytes(1000), durability=durability)
    assert fixture.broker.core.memory == (0 if durability else 20 * 1010)
    reader = fixture.read(queue)
    assert reader.got() == NAMES
    assert fixture.broker.core.memory == 20 * 1010
    reader.acknowledge()
    assert fixture.broker.core.memory == 0


@pytest.mark.parametrize("at_the_tail", [False, True])
def test_requeued_bodies_over_budget_are_dropped_from_memory(at_the_tail: bool) -> None:
    fixture = fixture_with_budget()
    queue = fixture.queue()
    fixture.send(queue, *NAMES)
    reader = fixture.read(queue, len(NAMES), refill=False)
    assert fixture.broker.core.memory == 200
    if at_the_tail:
        for sequence in reader.unacked_by_body().values():
            assert fixture.broker.requeue(queue.queue, sequence, 0)
    reader.detach()
    assert fixture.broker.core.memory <= BUDGET
    assert fixture.read(queue).got() == NAMES


@pytest.mark.parametrize("at_the_tail", [False, True])
def test_bodies_requeued_before_they_are_durable_are_dropped_from_memory_then(
    at_the_tail: bool,
) -> None:
    fixture = fixture_with_budget()
    queue = fixture.queue()
    reader = fixture.read(queue, 1, refill=False)
    for name in NAMES:
        message = fixture.message(queue, name, durability=Durability.LAZY)
        assert fixture.broker.publish(queue, message)
        fixture.broker.grant(reader.consumer.window, 1)
    assert reader.got() == NAMES
    if at_the_tail:
        for sequence in reader.unacked_by_body().values():
            assert fixture.broker.requeue(queue.queue, sequence, 0)
    fixture.broker.detach(reader.consumer)
    fixture.broker.flush()
    assert fixture.broker.core.memory <= BUDGET
    assert fixture.read(queue).got() == NAMES


@pytest.mark.parametrize("withdrawn", [False, True])
def test_bodies_acked_in_transaction_over_budget_are_dropped_from_memory(
    withdrawn: bool,
) -> None:
    fixture = fixture_with_budget()
    transactions = fixture.broker.transactions
    queue = fixture.queue()
    fixture.send(queue, *NAMES)
    reader = fixture.read(queue, len(NAMES), refill=False)
    unacked = reader.unacked_by_body()
    transaction = transactions.begin()
    for sequence in unacked.values():
        assert transactions.acknowledge(transaction, reader.consumer, sequence)
    assert fixture.broker.core.memory <= BUDGET
    if withdrawn:
        for delivery in list(transaction.acks):
            assert transactions.withdraw_ack(transaction, delivery)
        assert reader.unacked_by_body() == unacked
        assert fixture.broker.core.memory == 200
        reader.detach()
    transactions.rollback(transaction)
    fixture.broker.flush()
    assert fixture.read(queue).got() == NAMES


def test_unacked_bodies_are_not_dropped_when_they_become_durable() -> None:
    fixture = fixture_with_budget()
    queue = fixture.queue()
    reader = fixture.read(queue)
    fixture.send(queue, *NAMES, durability=Durability.LAZY)
    assert list(reader.unacked_by_body()) == NAMES


def test_topic_counts_body_until_its_last_subscription_releases_it() -> None:
    fixture = fixture_with_budget()
    topic = fixture.topic()
    subscriptions = [fixture.broker.subscribe(topic, name, durable=name == "s") for name in "st"]
    fixture.send(topic, *NAMES)
    assert fixture.broker.core.memory <= BUDGET
    readers = [fixture.read(subscription) for subscription in subscriptions]
    for reader in readers:
        assert fixture.broker.core.memory == 200
        reader.acknowledge()
    assert (fixture.broker.core.memory, fixture.journal.stats().live) == (0, 0)


def test_journal_keeps_body_for_last_of_several_passing_subscriptions() -> None:
    fixture = fixture_with_budget()
    topic = fixture.topic()
    subscriptions = [fixture.broker.subscribe(topic, name) for name in "st"]
    fixture.send(topic, *NAMES)
    for subscription in subscriptions:
        reader = fixture.read(subscription)
        assert reader.got() == NAMES
        reader.acknowledge()
    assert (fixture.broker.core.memory, fixture.journal.stats().live) == (0, 0)


def test_selector_reads_paged_out_messages_without_keeping_them() -> None:
    fixture = fixture_with_budget()
    queue = fixture.queue()
    fixture.send(queue, *NAMES)
    fixture.send(queue, "wanted", type="red")
    memory = fixture.broker.core.memory
    reader = fixture.read(queue, selector=TypeSelector("red"))
    assert reader.got() == ["wanted"]
    assert fixture.broker.core.memory <= memory + len("wanted")


@pytest.mark.parametrize("way", ["purge", "expiry", "move", "remove", "dead letters"])
def test_removed_paged_out_messages_release_all_memory(way: str) -> None:
    fixture = fixture_with_budget()
    queue = fixture.queue(dead_letter=way == "dead letters")
    expires = way in ("expiry", "dead letters")
    fixture.send(queue, *NAMES, expiration=fixture.clock.wall + 1000 if expires else 0)
    if way == "purge":
        purge(fixture.broker, queue)
    elif way == "move":
        move_ready(fixture.broker, queue.queue, fixture.queue("target"))
    elif way == "remove":
        fixture.broker.remove(queue)
    else:
        fixture.wait(1200)
    fixture.broker.flush()
    successor = {"move": "target", "dead letters": "q.dlq"}.get(way)
    if successor:
        assert fixture.broker.core.memory <= BUDGET
        reader = fixture.read(fixture.broker.destinations.queue(successor))
        assert reader.got() == NAMES
        reader.acknowledge()
    assert (fixture.broker.core.memory, fixture.journal.stats().live) == (0, 0)
