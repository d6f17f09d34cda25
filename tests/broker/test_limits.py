"""Limits of destinations and memory."""

from __future__ import annotations

from typing import Any

import pytest

from sluicemq.broker import Destination, EngineSettings
from sluicemq.model.destination import Address, Kind, Overflow
from sluicemq.model.errors import (
    ActionRefused,
    BrokerStopping,
    DestinationPrivate,
    LimitExceeded,
    MessageTooLarge,
)
from sluicemq.model.message import PROPERTY_OVERHEAD, Durability, Property
from tests.support.broker import BrokerFixture, bodies, purge

full_at_two = pytest.mark.parametrize(
    "limit", [{"max_messages": 2}, {"max_bytes": 4}], ids=["count", "bytes"]
)
"""Limits that are each reached by two messages of two bytes."""


class Producer:
    """Producer that appends messages accepted late to a shared list."""

    def __init__(self, fixture: BrokerFixture, unblocked: list[str]) -> None:
        self.fixture = fixture
        self.unblocked = unblocked

    def send(self, queue: Destination, body: str) -> bool:
        message = self.fixture.message(queue, body)
        return self.fixture.broker.publish(queue, message, lambda: self.unblocked.append(body))


@full_at_two
def test_reject_new_refuses_message_and_keeps_others(limit: dict[str, Any]) -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(**limit)
    fixture.send(queue, "aa", "bb")
    with pytest.raises(LimitExceeded):
        fixture.send(queue, "cc")
    assert bodies(queue) == ["aa", "bb"]
    assert queue.statistics.rejected == 1


def test_topic_for_subscriptions_only_accepts_no_messages() -> None:
    fixture = BrokerFixture()
    topic = fixture.topic()
    fixture.broker.destinations.refuse_messages(topic.address)
    fixture.topic(max_messages=5)
    subscription = fixture.broker.subscribe(topic, "s")
    with pytest.raises(DestinationPrivate):
        fixture.send(topic, "a")
    transactions = fixture.broker.transactions
    with pytest.raises(DestinationPrivate):
        transactions.publish(transactions.begin(), topic, fixture.message(topic, "a"))
    queue = fixture.queue()
    fixture.send(queue, "a")
    [delivery] = queue.queue.browse()
    for operation in (fixture.broker.operations.move, fixture.broker.operations.copy):
        with pytest.raises(ActionRefused) as error:
            operation(delivery, topic)
        assert error.value.reason == "target-refused"
    [refusal] = fixture.broker.batches.check([(topic.address, fixture.message(topic, "a"))])
    assert (refusal.row, refusal.is_temporary) == (0, False)
    assert (subscription.waiting, topic.statistics.rejected) == (0, 5)
    assert bodies(queue) == ["a"]


def test_messages_that_are_not_yet_durable_count() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(max_messages=1)
    fixture.broker.publish(queue, fixture.message(queue, "a"))
    with pytest.raises(LimitExceeded):
        fixture.broker.publish(queue, fixture.message(queue, "b"))


def test_unacked_messages_do_not_count_and_may_exceed_limit_when_requeued() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(max_messages=1)
    reader = fixture.read(queue, 1)
    fixture.send(queue, "a")
    fixture.send(queue, "b")
    reader.detach()
    assert bodies(queue) == ["a", "b"]


@full_at_two
def test_drop_oldest_drops_oldest_messages(limit: dict[str, Any]) -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(**limit, overflow=Overflow.DROP_OLDEST)
    fixture.send(queue, "aa", priority=9)
    fixture.send(queue, "bb", "cc")
    assert bodies(queue) == ["bb", "cc"]
    assert queue.statistics.dropped == 1


@full_at_two
def test_drop_lowest_priority_drops_oldest_of_lowest(limit: dict[str, Any]) -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(**limit, overflow=Overflow.DROP_LOWEST)
    fixture.send(queue, "hi", priority=9)
    fixture.send(queue, "l1", "l2", priority=1)
    assert bodies(queue) == ["hi", "l2"]
    fixture.send(queue, "l0", priority=0)
    assert bodies(queue) == ["hi", "l2"]


@pytest.mark.parametrize("overflow", [Overflow.DROP_OLDEST, Overflow.DROP_LOWEST])
def test_scheduled_messages_are_dropped_if_none_is_ready(overflow: Overflow) -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(max_messages=2, overflow=overflow)
    due = fixture.clock.wall + 1000
    fixture.send(queue, "a", "b", "c", deliver_at=due)
    assert (bodies(queue), queue.statistics.dropped) == (["b", "c"], 1)
    fixture.send(queue, "ready")
    assert (bodies(queue), queue.statistics.dropped) == (["b", "c"], 2)
    fixture.wait(1000)
    assert fixture.read(queue).got() == ["b", "c"]


def test_one_large_message_displaces_as_many_as_needed() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(max_bytes=4, overflow=Overflow.DROP_OLDEST)
    fixture.send(queue, "a", "b", "c", "ddd")
    assert bodies(queue) == ["c", "ddd"]


@full_at_two
def test_redirect_dead_letters_new_message(limit: dict[str, Any]) -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(**limit, overflow=Overflow.DEAD_LETTER, dead_letter=True)
    fixture.send(queue, "aa", "bb")
    [sequence] = fixture.send(queue, "cc")
    assert bodies(queue) == ["aa", "bb"]
    [dead_letter] = fixture.dead_letters()
    assert (dead_letter.body, dead_letter.sequence) == (b"cc", sequence)
    assert (dead_letter.properties or {})["deadLetterReason"] == "overflow"


def test_redirect_without_dead_letters_refuses() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(max_messages=1, overflow=Overflow.DEAD_LETTER)
    fixture.send(queue, "a")
    with pytest.raises(LimitExceeded):
        fixture.send(queue, "b")


@full_at_two
def test_blocked_producers_continue_in_order_of_arrival(limit: dict[str, Any]) -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(**limit, overflow=Overflow.BLOCK)
    unblocked: list[str] = []
    first, second = Producer(fixture, unblocked), Producer(fixture, unblocked)
    fixture.send(queue, "aa", "bb")
    assert not first.send(queue, "cc")
    assert not second.send(queue, "dd")
    fixture.broker.flush()
    assert unblocked == []
    reader = fixture.read(queue, 1)
    fixture.broker.flush()
    assert unblocked == ["cc"]
    reader.acknowledge()
    assert unblocked == ["cc", "dd"]
    reader.acknowledge()
    reader.acknowledge()
    assert reader.got() == ["aa", "bb", "cc", "dd"]


def test_small_message_does_not_overtake_parked_one() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(max_bytes=4, overflow=Overflow.BLOCK)
    producer = Producer(fixture, [])
    fixture.send(queue, "aa")
    assert not producer.send(queue, "bbb")
    assert not producer.send(queue, "c")
    purge(fixture.broker, queue)
    fixture.broker.flush()
    assert bodies(queue) == ["bbb", "c"]


@pytest.mark.parametrize("way", ["purge", "expiry", "declare"])
def test_blocked_producers_continue_when_capacity_is_freed(way: str) -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(max_messages=1, overflow=Overflow.BLOCK)
    unblocked: list[str] = []
    fixture.send(queue, "a", expiration=fixture.clock.wall + 100)
    Producer(fixture, unblocked).send(queue, "b")
    if way == "purge":
        purge(fixture.broker, queue)
    elif way == "declare":
        fixture.queue(max_messages=2, overflow=Overflow.BLOCK)
    else:
        fixture.wait(300)
    fixture.broker.flush()
    assert unblocked == ["b"]


def test_blocked_producers_continue_when_queue_drops_messages_instead() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(max_messages=1, overflow=Overflow.BLOCK)
    unblocked: list[str] = []
    producer = Producer(fixture, unblocked)
    fixture.send(queue, "a")
    assert not producer.send(queue, "b")
    assert not producer.send(queue, "c")
    fixture.queue(max_messages=1, overflow=Overflow.DROP_OLDEST)
    fixture.broker.flush()
    assert unblocked == ["b", "c"]
    assert (bodies(queue), queue.statistics.dropped) == (["c"], 2)


def test_parked_message_that_no_longer_fits_is_accepted_once_the_queue_is_empty() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(max_bytes=4, overflow=Overflow.BLOCK)
    unblocked: list[str] = []
    producer = Producer(fixture, unblocked)
    fixture.send(queue, "a", "b")
    assert not producer.send(queue, "cccc")
    assert not producer.send(queue, "d")
    fixture.queue(max_bytes=3, overflow=Overflow.BLOCK)
    reader = fixture.read(queue, 1)
    fixture.broker.flush()
    assert unblocked == []
    reader.acknowledge("a")
    assert unblocked == ["cccc"]
    reader.acknowledge("b")
    assert unblocked == ["cccc", "d"]


def test_message_that_never_fits_is_refused_instead_of_parked() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(max_bytes=4, overflow=Overflow.BLOCK)
    with pytest.raises(MessageTooLarge):
        Producer(fixture, []).send(queue, "12345")
    assert not queue.parked


def test_message_larger_than_byte_limit_is_refused_permanently() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(max_bytes=4)
    with pytest.raises(MessageTooLarge, match=r"q holds up to 4 bytes, this body alone has 5"):
        fixture.send(queue, "12345")
    [refusal] = fixture.broker.batches.check([(queue.address, fixture.message(queue, "12345"))])
    assert not refusal.is_temporary


def test_producer_that_cannot_wait_is_refused() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(max_messages=1, overflow=Overflow.BLOCK)
    fixture.send(queue, "a")
    with pytest.raises(LimitExceeded):
        fixture.send(queue, "b")


def test_parked_messages_of_deleted_queue_go_to_its_successor() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(max_messages=1, overflow=Overflow.BLOCK)
    unblocked: list[str] = []
    fixture.send(queue, "a")
    Producer(fixture, unblocked).send(queue, "b")
    fixture.broker.remove(queue)
    fixture.broker.flush()
    assert unblocked == ["b"]
    assert bodies(fixture.broker.destinations.queue("q")) == ["b"]


def test_producers_of_deleted_queue_continue_even_if_it_is_not_recreated() -> None:
    fixture = BrokerFixture(EngineSettings(auto_create_queues=False))
    queue = fixture.queue(max_messages=1, overflow=Overflow.BLOCK)
    unblocked: list[str] = []
    fixture.send(queue, "a")
    Producer(fixture, unblocked).send(queue, "b")
    fixture.broker.remove(queue)
    assert unblocked == ["b"]
    assert fixture.broker.destinations.find(Address(Kind.QUEUE, "q")) is None


def test_max_message_bytes_is_inclusive() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(max_message_bytes=3)
    fixture.send(queue, "abc")
    with pytest.raises(MessageTooLarge):
        fixture.send(queue, "abcd")
    assert bodies(queue) == ["abc"]
    assert queue.statistics.rejected == 1


def test_topic_is_full_when_its_slowest_subscription_is() -> None:
    fixture = BrokerFixture()
    topic = fixture.topic(max_messages=1)
    fixture.broker.subscribe(topic, "slow")
    fixture.read(fixture.broker.subscribe(topic, "fast"))
    fixture.send(topic, "a")
    with pytest.raises(LimitExceeded):
        fixture.send(topic, "b")


def test_memory_limit_refuses_messages_that_are_not_journaled() -> None:
    fixture = BrokerFixture(EngineSettings(memory_limit=2))
    queue = fixture.queue()
    reader = fixture.read(queue, 3)
    fixture.send(queue, "a", "b", "c", durability=Durability.NONE)
    with pytest.raises(LimitExceeded):
        fixture.send(queue, "d", durability=Durability.NONE)
    fixture.send(queue, "e", durability=Durability.LAZY)
    reader.acknowledge()
    fixture.send(queue, "f", durability=Durability.NONE)
    assert bodies(queue) == ["e", "f"]


def test_memory_limit_refuses_messages_for_dead_letter_queue_that_are_not_journaled() -> None:
    fixture = BrokerFixture(EngineSettings(memory_limit=10_000))
    queue = fixture.queue(max_messages=1, overflow=Overflow.DEAD_LETTER, dead_letter=True)
    fixture.send(queue, "a", "b" * 5000, "c" * 5000, durability=Durability.NONE)
    with pytest.raises(LimitExceeded, match="memory"):
        fixture.send(queue, "d", durability=Durability.NONE)
    assert queue.statistics.dead_lettered == len(fixture.dead_letters()) == 2
    fixture.send(queue, "e", durability=Durability.LAZY)


def test_memory_limit_includes_deliveries_to_many_subscriptions_that_are_not_journaled() -> None:
    fixture = BrokerFixture(EngineSettings(memory_limit=10_000))
    overhead = fixture.broker.settings.delivery_overhead
    topic = fixture.topic()
    subscriptions = [fixture.broker.subscribe(topic, str(number)) for number in range(100)]
    with pytest.raises(LimitExceeded):
        fixture.send(topic, *"abc", durability=Durability.NONE)
    assert fixture.broker.memory == 1 + 99 * overhead
    fixture.send(topic, "d", durability=Durability.LAZY)
    assert fixture.broker.memory == 2 + 99 * overhead
    reader = fixture.read(subscriptions[0])
    reader.acknowledge("a")
    assert fixture.broker.memory == 2 + 98 * overhead
    purge(fixture.broker, topic, unacked=True)
    assert fixture.broker.memory == 0


@pytest.mark.parametrize("native", [b"", b"n" * 50])
def test_memory_includes_headers(native: bytes) -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    properties: dict[str, Property] = {"name": "v" * 1000, "data": b"b" * 500, "n": 5, "x": None}
    message = fixture.message(queue, "body")
    message.properties = properties
    message.native = native
    reader = fixture.read(queue)
    fixture.broker.publish(queue, message)
    fixture.broker.flush()
    size = len(native) or 4 + 4 + 1 + 1 + 1500 + 4 * PROPERTY_OVERHEAD
    assert fixture.broker.memory == 4 + size
    reader.acknowledge()
    assert fixture.broker.memory == 0


def test_memory_limit_includes_messages_that_wait_for_capacity() -> None:
    fixture = BrokerFixture(EngineSettings(memory_limit=2000, memory_budget=0))
    queue = fixture.queue(max_messages=1, overflow=Overflow.BLOCK)
    unblocked: list[str] = []
    producer = Producer(fixture, unblocked)
    assert producer.send(queue, "a")
    large = "b" * 1500
    assert not producer.send(queue, large)
    assert fixture.broker.memory == 1500
    with pytest.raises(LimitExceeded, match=r"broker\.memory_limit"):
        producer.send(queue, "c" * 501)
    assert queue.statistics.rejected == 1
    reader = fixture.read(queue)
    fixture.broker.flush()
    fixture.broker.flush()
    assert unblocked == [large]
    assert reader.got() == ["a", large]
    reader.acknowledge()
    assert fixture.broker.memory == 0


def test_stopping_broker_accepts_no_messages() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    fixture.broker.stop()
    with pytest.raises(BrokerStopping):
        fixture.send(queue, "a")


def test_topic_unblocks_when_no_subscription_matched_messages() -> None:
    fixture = BrokerFixture()
    topic = fixture.topic(max_messages=1, overflow=Overflow.BLOCK)
    unblocked: list[str] = []
    producer = Producer(fixture, unblocked)
    assert producer.send(topic, "a")
    assert not producer.send(topic, "b")
    fixture.broker.flush()
    assert unblocked == ["b"]


def test_blocked_producer_may_cancel() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(max_messages=1, overflow=Overflow.BLOCK)
    fixture.send(queue, "a")
    parked_messages = [fixture.message(queue, body) for body in "bc"]
    accepted_bodies: list[str] = []
    for message in parked_messages:
        body = message.body.decode()
        assert not fixture.broker.publish(
            queue, message, lambda body=body: accepted_bodies.append(body)
        )
    memory = fixture.broker.memory
    assert fixture.broker.publisher.withdraw(queue, parked_messages[0])
    assert fixture.broker.memory == memory - 1
    assert not fixture.broker.publisher.withdraw(queue, parked_messages[0])
    reader = fixture.read(queue)
    fixture.broker.flush()
    fixture.broker.flush()
    assert accepted_bodies == ["c"]
    assert reader.got() == ["a", "c"]
    assert not fixture.broker.publisher.withdraw(queue, parked_messages[1])


@pytest.mark.parametrize("overflow", [Overflow.DROP_OLDEST, Overflow.DROP_LOWEST])
def test_message_larger_than_byte_limit_displaces_no_others(overflow: Overflow) -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(max_bytes=4, overflow=overflow, dead_letter=True)
    fixture.send(queue, "aa", "bb")
    fixture.send(queue, "larger", priority=9)
    fixture.broker.flush()
    assert bodies(queue) == ["aa", "bb"]
    assert [message.body for message in fixture.dead_letters()] == [b"larger"]
    fixture.send(queue, "cc")
    assert bodies(queue) == ["bb", "cc"]


@pytest.mark.parametrize("credit", [0, 1, 2])
def test_messages_larger_than_byte_limit_are_dropped(credit: int) -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(max_bytes=3, overflow=Overflow.DROP_OLDEST)
    reader = fixture.read(queue, credit)
    fixture.send(queue, "long", durability=Durability.LAZY)
    assert (reader.got(), queue.statistics.dropped) == ([], 1)
