"""Creation, operations and deletion of destinations."""

from __future__ import annotations

import pytest

from sluicemq.broker import Broker, Consumer, Destination, EngineSettings, Window
from sluicemq.broker.pending.entry import READY, SCHEDULED, UNACKED
from sluicemq.journal.format import UNIT_END, Cause, RecordType
from sluicemq.model.destination import (
    Address,
    CreatedBy,
    DestinationSettings,
    Kind,
    Provenance,
)
from sluicemq.model.errors import (
    DestinationConflict,
    DestinationInUse,
    DestinationNotFound,
    DestinationPrivate,
    LimitExceeded,
    SubscriptionInUse,
)
from sluicemq.model.message import Durability
from tests.support.broker import BrokerFixture, Reader, bodies, move_ready, purge
from tests.support.journal import RecordingJournal, read_from

Q = Address(Kind.QUEUE, "q")


def test_queues_and_topics_of_one_name_are_two_destinations() -> None:
    broker = BrokerFixture().broker
    assert broker.destinations.queue("x") is not broker.destinations.topic("x")
    assert broker.destinations.queue("x") is broker.destinations.queue("x")


def test_automatic_creation_is_switched_off_for_each_kind() -> None:
    broker = BrokerFixture(EngineSettings(auto_create_queues=False)).broker
    with pytest.raises(DestinationNotFound):
        broker.destinations.queue("q")
    broker.destinations.topic("t")
    declared = broker.destinations.declare(Q)
    assert broker.destinations.queue("q") is declared


def test_automatic_destinations_get_default_settings() -> None:
    defaults = DestinationSettings(max_messages=7)
    broker = BrokerFixture(EngineSettings(default_destination=defaults)).broker
    assert broker.destinations.queue("q").settings is defaults


def test_max_destinations_counts_declared_and_automatic_ones() -> None:
    fixture = BrokerFixture(EngineSettings(max_destinations=2))
    fixture.queue("q")
    fixture.broker.destinations.queue("r")
    fixture.queue("q", max_messages=1)
    with pytest.raises(LimitExceeded):
        fixture.broker.destinations.queue("s")
    with pytest.raises(LimitExceeded):
        fixture.queue("s")


def test_configured_destination_is_created_beyond_max_destinations() -> None:
    """Otherwise clients that have reached the limit would keep the broker from starting."""
    fixture = BrokerFixture(EngineSettings(max_destinations=1))
    fixture.broker.destinations.queue("q")
    address = Address(Kind.QUEUE, "r")
    provenance = Provenance(CreatedBy.CONFIGURATION)
    declared = fixture.broker.destinations.declare(address, provenance=provenance)
    assert fixture.broker.destinations[address] is declared


def test_declaring_again_changes_settings_and_keeps_messages() -> None:
    fixture = BrokerFixture()
    queue = fixture.broker.destinations.queue("q")
    fixture.send(queue, "a")
    assert fixture.queue("q", max_consumers=1) is queue
    assert bodies(queue) == ["a"]
    fixture.read(queue)
    with pytest.raises(SubscriptionInUse):
        fixture.read(queue)


def test_declaring_more_active_consumers_activates_standby_consumers() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(active_consumers=1)
    fixture.read(queue, 1)
    standby = fixture.read(queue)
    fixture.send(queue, "a", "b")
    assert standby.got() == []
    fixture.queue(active_consumers=2)
    fixture.broker.flush()
    assert standby.got() == ["b"]


def test_temporary_destination_cannot_be_declared_by_another() -> None:
    fixture = BrokerFixture()
    fixture.broker.destinations.declare(Q, owner="me")
    with pytest.raises(DestinationConflict):
        fixture.broker.destinations.declare(Q)
    with pytest.raises(DestinationConflict):
        fixture.broker.destinations.declare(Q, owner="you")


def test_existing_destination_does_not_become_temporary() -> None:
    fixture = BrokerFixture()
    fixture.queue()
    with pytest.raises(DestinationConflict):
        fixture.broker.destinations.declare(Q, owner="me")


def test_temporary_destination_can_be_consumed_by_its_owner_only() -> None:
    fixture = BrokerFixture()
    queue = fixture.broker.destinations.declare(Q, owner="me").queue
    for owner in (None, "you"):
        with pytest.raises(DestinationPrivate):
            fixture.broker.attach(queue, Reader(fixture.broker), Window(1, True), owner=owner)
    assert not queue.consumers
    fixture.broker.attach(queue, Reader(fixture.broker), Window(1, True), owner="me")


def test_names_of_temporary_destinations_are_reserved() -> None:
    fixture = BrokerFixture()
    address = Address(Kind.QUEUE, "temporary_destination://queue/x/1/1")
    with pytest.raises(DestinationNotFound):
        fixture.broker.destinations.resolve(address)
    with pytest.raises(DestinationConflict):
        fixture.broker.destinations.declare(address)
    assert fixture.broker.destinations.declare(address, owner="me").temporary


def test_delete_temporary_deletes_only_destinations_of_that_owner() -> None:
    fixture = BrokerFixture()
    own_queue = fixture.broker.destinations.declare(Q, owner="me")
    other_queue = fixture.broker.destinations.declare(Address(Kind.QUEUE, "yours"), owner="you")
    fixture.send(own_queue, "a")
    reader = fixture.read(own_queue)
    fixture.broker.delete_temporary("me")
    assert list(fixture.broker.destinations.values()) == [other_queue]
    assert reader.detachments == 1
    assert fixture.broker.core.memory == 0


def test_unused_automatic_destinations_are_deleted_after_idle_timeout() -> None:
    fixture = BrokerFixture(EngineSettings(destination_idle_timeout=1000))
    fixture.queue("declared")
    used_queue = fixture.broker.destinations.queue("used")
    fixture.broker.destinations.queue("idle")
    fixture.clock.advance(999)
    fixture.read(used_queue).detach()
    fixture.sample_stats()
    assert len(fixture.broker.destinations) == 3
    fixture.clock.advance(1)
    fixture.sample_stats()
    assert {address.name for address in fixture.broker.destinations} == {"declared", "used"}


def test_destinations_with_messages_or_consumers_are_not_deleted() -> None:
    fixture = BrokerFixture(EngineSettings(destination_idle_timeout=1000))
    filled_queue, read_queue = (
        fixture.broker.destinations.queue("filled"),
        fixture.broker.destinations.queue("read"),
    )
    fixture.send(filled_queue, "a")
    fixture.read(read_queue)
    for _ in range(3):
        fixture.clock.advance(1000)
        fixture.sample_stats()
    assert set(fixture.broker.destinations.values()) == {filled_queue, read_queue}


def test_idle_timeout_begins_after_last_message() -> None:
    fixture = BrokerFixture(EngineSettings(destination_idle_timeout=2000))
    queue = fixture.broker.destinations.queue("q")
    fixture.send(queue, "a", expiration=fixture.clock.wall + 5000)
    for _ in range(5):
        fixture.sample_stats()
        fixture.wait(1000)
    fixture.wait(100)
    assert (queue.waiting, queue.statistics.expired) == (0, 1)
    fixture.sample_stats()
    assert not queue.removed
    fixture.clock.advance(2000)
    fixture.sample_stats()
    assert queue.removed


def test_consumed_destination_is_not_deleted() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    reader = fixture.read(queue)
    with pytest.raises(DestinationInUse):
        fixture.broker.remove(queue)
    fixture.send(queue, "a")
    assert reader.got() == ["a"]


class ReattachingReader(Reader):
    """Attaches to the queue's successor when notified that the queue was deleted."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self.consumer = broker.attach(broker.destinations.queue("q").queue, self, Window(10, True))

    def detached(self, consumer: Consumer) -> None:
        assert not consumer.unacked
        self.consumer = self.broker.attach(
            self.broker.destinations.queue("q").queue, self, Window(10, True)
        )


def test_consumer_may_reattach_when_notified_of_deletion() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    reader = ReattachingReader(fixture.broker)
    fixture.send(queue, "a")
    fixture.broker.remove(queue, force=True)
    assert not fixture.broker.acknowledge(reader.consumer, 1)
    fixture.send(queue, "b")  # a producer that kept the reference sends to the successor
    assert reader.got() == ["a", "b"]
    assert fixture.broker.destinations.queue("q") is not queue
    assert fixture.journal.stats().live == 1


def test_move_takes_matching_messages_in_order_and_keeps_their_ttl() -> None:
    fixture = BrokerFixture()
    source, target = fixture.queue(), fixture.queue("target")
    fixture.send(source, "a", "b", "c", "d", type="red", expiration=fixture.clock.wall + 500)
    fixture.send(source, "e", type="blue")
    count = move_ready(fixture.broker, source.queue, target, lambda m: m.type == "red", 3)
    fixture.broker.flush()
    assert count == 3
    assert (bodies(source), bodies(target)) == (["d", "e"], ["a", "b", "c"])
    fixture.wait(600)
    assert bodies(target) == []


def test_crash_neither_loses_nor_duplicates_moved_message() -> None:
    journal = RecordingJournal()
    fixture = BrokerFixture(journal=journal)
    source, target = fixture.queue(), fixture.queue("target")
    [sequence] = fixture.send(source, "a", durability=Durability.LAZY)
    move_ready(fixture.broker, source.queue, target)
    fixture.broker.flush()
    message, completion = read_from(journal, sequence + 1)
    assert (message.type, completion.type) == (RecordType.MESSAGE, RecordType.COMPLETED)
    assert (completion.kind, completion.sequences) == (Cause.MOVED, [sequence])
    assert [record.flags & UNIT_END for record in (message, completion)] == [0, UNIT_END]


def test_purge_keeps_unacked_messages_unless_requested() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    reader = fixture.read(queue, 1)
    fixture.send(queue, "a", "b")
    fixture.send(queue, "later", deliver_at=fixture.clock.wall + 1000)
    assert purge(fixture.broker, queue) == 2
    assert bodies(queue) == ["a"]
    assert purge(fixture.broker, queue, unacked=True) == 1
    fixture.send(queue, "c")  # the credit of the dropped deliveries is restored
    assert reader.got() == ["a", "c"]
    assert (queue.waiting, queue.unacked, queue.bytes) == (0, 1, 1)


def test_browse_lists_queue_in_order_and_removes_nothing() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    reader = fixture.read(queue, 1)
    fixture.send(queue, "taken", "waits")
    fixture.send(queue, "urgent", priority=9)
    fixture.send(queue, "later", deliver_at=fixture.clock.wall + 1000)
    assert bodies(queue) == ["urgent", "taken", "waits", "later"]
    states = [delivery.state for delivery in queue.queue.browse()]
    assert states == [READY, UNACKED, READY, SCHEDULED]
    reader.acknowledge()
    assert reader.got() == ["taken", "urgent"]


def test_sizes_of_queue() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    fixture.read(queue, 1)
    fixture.send(queue, "four", "seven..")
    fixture.broker.publish(queue, fixture.message(queue, "staged"))
    assert (queue.waiting, queue.waiting_bytes) == (2, 13)
    assert (queue.unacked, queue.bytes, queue.consumers) == (1, 17, 1)


def test_statistics_count_each_event_once() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    reader = fixture.read(queue)
    fixture.send(queue, "ab", "cd")
    reader.release("cd")
    reader.acknowledge()
    totals = queue.statistics
    assert (totals.published, totals.published_bytes) == (2, 4)
    assert (totals.delivered, totals.redelivered, totals.delivered_bytes) == (3, 1, 6)
    assert totals.acknowledged == 2


def test_rates_follow_recent_traffic_and_decay() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    fixture.read(queue, 1000)
    for _ in range(30):
        fixture.send(queue, *"0123456789")
        fixture.sample_stats()
    assert queue.statistics.publish_rate == pytest.approx(10, rel=0.01)
    assert queue.statistics.deliver_rate == pytest.approx(10, rel=0.01)
    fixture.sample_stats(60.0)
    assert queue.statistics.publish_rate == pytest.approx(0, abs=0.01)


# --- defaults and notifications for protocols ----------------------------------------------------


def test_protocol_defaults_apply_to_new_queues_without_broker_defaults() -> None:
    own_settings = DestinationSettings(max_messages=5)
    fixture = BrokerFixture()
    assert (
        fixture.broker.destinations.resolve(Address(Kind.QUEUE, "new"), own_settings).settings
        == own_settings
    )
    fixture.queue("old", max_messages=7)
    assert (
        fixture.broker.destinations.resolve(
            Address(Kind.QUEUE, "old"), own_settings
        ).settings.max_messages
        == 7
    )
    configured = DestinationSettings(max_messages=9)
    fixture = BrokerFixture(EngineSettings(default_destination=configured))
    assert (
        fixture.broker.destinations.resolve(Address(Kind.QUEUE, "new"), own_settings).settings
        == configured
    )


def test_waiters_for_destination_are_called_once_for_either_kind() -> None:
    fixture = BrokerFixture()
    calls: list[tuple[str, Address]] = []

    def first_callback(destination: Destination) -> None:
        calls.append(("first", destination.address))

    def second_callback(destination: Destination) -> None:
        calls.append(("second", destination.address))

    for callback in (first_callback, second_callback):
        fixture.broker.destinations.await_creation("q", callback)
        fixture.broker.destinations.await_creation("gone", callback)
    fixture.broker.destinations.cancel_wait("gone", first_callback)
    fixture.broker.destinations.cancel_wait("gone", second_callback)
    fixture.queue("gone")
    fixture.topic("q")
    fixture.queue("q")
    assert calls == [("first", Address(Kind.TOPIC, "q")), ("second", Address(Kind.TOPIC, "q"))]


def test_priorities_apply_only_where_enabled() -> None:
    fixture = BrokerFixture()
    for name, priority_ordering, order in (("p", True, "bca"), ("f", False, "abc")):
        queue = fixture.queue(name, priority_ordering=priority_ordering)
        for body, priority in zip("abc", (0, 9, 5), strict=True):
            fixture.send(queue, body, priority=priority)
        assert "".join(fixture.read(queue).got()) == order
