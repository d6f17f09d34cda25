"""Bodies beyond the memory budget are dropped and read back when their turn comes."""

from __future__ import annotations

import pytest

from sluicemq.broker import BrokerSettings
from sluicemq.model.message import Durability
from tests.broker.support import OfType, Rig

BUDGET = 30
"""Room for three of the bodies below."""
NAMES = [f"body {number:05}" for number in range(20)]


def rig_with_budget() -> Rig:
    return Rig(BrokerSettings(memory_budget=BUDGET))


@pytest.mark.parametrize("durability", [Durability.SYNC, Durability.LAZY])
def test_a_backlog_stays_within_the_budget_and_comes_back_whole(durability: Durability) -> None:
    rig = rig_with_budget()
    queue = rig.queue()
    rig.send(queue, *NAMES, durability=durability)
    assert rig.broker.core.memory <= BUDGET
    assert queue.bytes == 200
    reader = rig.read(queue, 1)
    for name in NAMES:
        assert rig.broker.core.memory <= BUDGET + len(name)
        assert reader.got() == [name]
        reader.settle()
    assert rig.broker.core.memory == 0


def test_what_the_journal_does_not_have_stays_in_memory() -> None:
    rig = rig_with_budget()
    queue = rig.queue()
    rig.send(queue, *NAMES, durability=Durability.NONE)
    assert rig.broker.core.memory == 200
    assert rig.read(queue).got() == NAMES


def test_what_comes_back_to_a_full_memory_is_dropped_from_it_again() -> None:
    rig = rig_with_budget()
    queue = rig.queue()
    rig.send(queue, *NAMES)
    reader = rig.read(queue, len(NAMES), refill=False)
    assert rig.broker.core.memory == 200
    reader.detach()
    assert rig.broker.core.memory <= BUDGET
    assert rig.read(queue).got() == NAMES


def test_what_a_consumer_holds_is_not_dropped_when_it_becomes_durable() -> None:
    rig = rig_with_budget()
    queue = rig.queue()
    reader = rig.read(queue)
    rig.send(queue, *NAMES, durability=Durability.LAZY)
    assert list(reader.held()) == NAMES


def test_a_topic_counts_a_body_until_its_last_subscription_let_go_of_it() -> None:
    rig = rig_with_budget()
    topic = rig.topic()
    subscriptions = [rig.broker.subscribe(topic, name, durable=name == "s") for name in "st"]
    rig.send(topic, *NAMES)
    assert rig.broker.core.memory <= BUDGET
    readers = [rig.read(subscription) for subscription in subscriptions]
    for reader in readers:
        assert rig.broker.core.memory == 200
        reader.settle()
    assert (rig.broker.core.memory, rig.journal.stats().live) == (0, 0)


def test_the_journal_keeps_a_body_for_the_last_of_several_passing_subscriptions() -> None:
    rig = rig_with_budget()
    topic = rig.topic()
    subscriptions = [rig.broker.subscribe(topic, name) for name in "st"]
    rig.send(topic, *NAMES)
    for subscription in subscriptions:
        reader = rig.read(subscription)
        assert reader.got() == NAMES
        reader.settle()
    assert (rig.broker.core.memory, rig.journal.stats().live) == (0, 0)


def test_a_selector_reads_paged_out_messages_without_keeping_them() -> None:
    rig = rig_with_budget()
    queue = rig.queue()
    rig.send(queue, *NAMES)
    rig.send(queue, "wanted", type="red")
    memory = rig.broker.core.memory
    reader = rig.read(queue, selector=OfType("red"))
    assert reader.got() == ["wanted"]
    assert rig.broker.core.memory <= memory + len("wanted")


@pytest.mark.parametrize("way", ["purge", "expiry", "move", "remove", "dead letters"])
def test_paged_out_messages_go_without_a_trace(way: str) -> None:
    rig = rig_with_budget()
    queue = rig.queue(dead_letter=way == "dead letters")
    expires = way in ("expiry", "dead letters")
    rig.send(queue, *NAMES, expiration=rig.clock.wall + 1000 if expires else 0)
    if way == "purge":
        rig.broker.purge(queue)
    elif way == "move":
        rig.broker.move(queue.queue, rig.queue("target"))
    elif way == "remove":
        rig.broker.remove(queue)
    else:
        rig.wait(1200)
    rig.broker.flush()
    successor = {"move": "target", "dead letters": "q.dlq"}.get(way)
    if successor:
        assert rig.broker.core.memory <= BUDGET
        reader = rig.read(rig.broker.queue(successor))
        assert reader.got() == NAMES
        reader.settle()
    assert (rig.broker.core.memory, rig.journal.stats().live) == (0, 0)
