"""How destinations come, what may be done with them, and how they go."""

from __future__ import annotations

import pytest

from sluicemq.broker import Broker, BrokerSettings, Consumer, Destination, Window
from sluicemq.broker.delivery import DELAYED, READY, TAKEN
from sluicemq.journal.format import UNIT_END, Cause, RecordType
from sluicemq.journal.memory import MemoryJournal
from sluicemq.model.destination import Address, DestinationSettings, Kind
from sluicemq.model.errors import (
    DestinationConflict,
    DestinationInUse,
    DestinationNotFound,
    DestinationPrivate,
    LimitExceeded,
    SubscriptionInUse,
)
from sluicemq.model.message import Durability
from tests.broker.support import Reader, Rig, bodies

Q = Address(Kind.QUEUE, "q")


def test_queues_and_topics_of_one_name_are_two_destinations() -> None:
    broker = Rig().broker
    assert broker.queue("x") is not broker.topic("x")
    assert broker.queue("x") is broker.queue("x")


def test_automatic_creation_is_switched_off_for_each_kind() -> None:
    broker = Rig(BrokerSettings(auto_create_queues=False)).broker
    with pytest.raises(DestinationNotFound):
        broker.queue("q")
    broker.topic("t")
    declared = broker.declare(Q)
    assert broker.queue("q") is declared


def test_automatic_destinations_get_the_default_settings() -> None:
    defaults = DestinationSettings(max_messages=7)
    broker = Rig(BrokerSettings(defaults=defaults)).broker
    assert broker.queue("q").settings is defaults


def test_max_destinations_counts_declared_and_automatic_ones() -> None:
    rig = Rig(BrokerSettings(max_destinations=2))
    rig.queue("q")
    rig.broker.queue("r")
    rig.queue("q", max_messages=1)
    with pytest.raises(LimitExceeded):
        rig.broker.queue("s")
    with pytest.raises(LimitExceeded):
        rig.queue("s")


def test_declaring_again_changes_the_settings_and_keeps_the_messages() -> None:
    rig = Rig()
    queue = rig.broker.queue("q")
    rig.send(queue, "a")
    assert rig.queue("q", max_consumers=1) is queue
    assert bodies(queue) == ["a"]
    rig.read(queue)
    with pytest.raises(SubscriptionInUse):
        rig.read(queue)


def test_declaring_more_active_consumers_wakes_those_that_stand_by() -> None:
    rig = Rig()
    queue = rig.queue(active_consumers=1)
    rig.read(queue, 1)
    standby = rig.read(queue)
    rig.send(queue, "a", "b")
    assert standby.got() == []
    rig.queue(active_consumers=2)
    rig.broker.flush()
    assert standby.got() == ["b"]


def test_a_temporary_destination_cannot_be_declared_by_another() -> None:
    rig = Rig()
    rig.broker.declare(Q, owner="me")
    with pytest.raises(DestinationConflict):
        rig.broker.declare(Q)
    with pytest.raises(DestinationConflict):
        rig.broker.declare(Q, owner="you")


def test_an_existing_destination_does_not_become_temporary() -> None:
    rig = Rig()
    rig.queue()
    with pytest.raises(DestinationConflict):
        rig.broker.declare(Q, owner="me")


def test_a_temporary_destination_serves_its_owner_only() -> None:
    rig = Rig()
    queue = rig.broker.declare(Q, owner="me").queue
    for owner in (None, "you"):
        with pytest.raises(DestinationPrivate):
            rig.broker.attach(queue, Reader(rig.broker), Window(1, True), owner=owner)
    assert not queue.consumers
    rig.broker.attach(queue, Reader(rig.broker), Window(1, True), owner="me")


def test_a_name_for_temporary_destinations_is_used_for_no_other() -> None:
    rig = Rig()
    address = Address(Kind.QUEUE, "temporary_destination://queue/x/1/1")
    with pytest.raises(DestinationNotFound):
        rig.broker.resolve(address)
    with pytest.raises(DestinationConflict):
        rig.broker.declare(address)
    assert rig.broker.declare(address, owner="me").temporary


def test_disown_removes_what_belongs_to_that_owner_only() -> None:
    rig = Rig()
    mine = rig.broker.declare(Q, owner="me")
    yours = rig.broker.declare(Address(Kind.QUEUE, "yours"), owner="you")
    rig.send(mine, "a")
    reader = rig.read(mine)
    rig.broker.delete_temporary("me")
    assert rig.broker.destinations == {yours.address: yours}
    assert reader.detachments == 1
    assert rig.broker.core.memory == 0


def test_a_survey_removes_automatic_destinations_after_their_time_without_use() -> None:
    rig = Rig(BrokerSettings(idle_timeout=1000))
    rig.queue("declared")
    used = rig.broker.queue("used")
    rig.broker.queue("idle")
    rig.clock.advance(999)
    rig.read(used).detach()
    rig.sample_stats()
    assert len(rig.broker.destinations) == 3
    rig.clock.advance(1)
    rig.sample_stats()
    assert {address.name for address in rig.broker.destinations} == {"declared", "used"}


def test_a_survey_leaves_what_holds_messages_or_has_consumers() -> None:
    rig = Rig(BrokerSettings(idle_timeout=1000))
    filled, read = rig.broker.queue("filled"), rig.broker.queue("read")
    rig.send(filled, "a")
    rig.read(read)
    for _ in range(3):
        rig.clock.advance(1000)
        rig.sample_stats()
    assert set(rig.broker.destinations.values()) == {filled, read}


def test_a_destination_that_is_read_is_not_removed_by_mistake() -> None:
    rig = Rig()
    queue = rig.queue()
    reader = rig.read(queue)
    with pytest.raises(DestinationInUse):
        rig.broker.remove(queue)
    rig.send(queue, "a")
    assert reader.got() == ["a"]


class Comeback(Reader):
    """Attaches to the queue's successor as soon as it is told that the queue is gone."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self.consumer = broker.attach(broker.queue("q").queue, self, Window(10, True))

    def detached(self, consumer: Consumer) -> None:
        assert not consumer.unacked
        self.consumer = self.broker.attach(self.broker.queue("q").queue, self, Window(10, True))


def test_a_consumer_may_attach_anew_when_it_is_told_that_the_queue_is_gone() -> None:
    rig = Rig()
    queue = rig.queue()
    reader = Comeback(rig.broker)
    rig.send(queue, "a")
    rig.broker.remove(queue, force=True)
    assert not rig.broker.settle(reader.consumer, 1)
    rig.send(queue, "b")  # a producer that kept the reference sends to the successor
    assert reader.got() == ["a", "b"]
    assert rig.broker.queue("q") is not queue
    assert rig.journal.stats().live == 1


def test_move_takes_those_that_match_in_order_and_keeps_their_time_to_live() -> None:
    rig = Rig()
    source, target = rig.queue(), rig.queue("target")
    rig.send(source, "a", "b", "c", "d", type="red", expiration=rig.clock.wall + 500)
    rig.send(source, "e", type="blue")
    moved = rig.broker.move(source.queue, target, lambda message: message.type == "red", 3)
    rig.broker.flush()
    assert moved == 3
    assert (bodies(source), bodies(target)) == (["d", "e"], ["a", "b", "c"])
    rig.wait(600)
    assert bodies(target) == []


def test_a_crash_can_neither_lose_nor_double_a_moved_message() -> None:
    journal = MemoryJournal(history=True)
    rig = Rig(journal=journal)
    source, target = rig.queue(), rig.queue("target")
    [sequence] = rig.send(source, "a", durability=Durability.LAZY)
    rig.broker.move(source.queue, target)
    rig.broker.flush()
    moved, settled = journal.read_from(sequence + 1)
    assert (moved.type, settled.type) == (RecordType.MESSAGE, RecordType.SETTLED)
    assert (settled.kind, settled.sequences) == (Cause.MOVED, [sequence])
    assert [record.flags & UNIT_END for record in (moved, settled)] == [0, UNIT_END]


def test_purge_leaves_what_is_in_flight_unless_asked() -> None:
    rig = Rig()
    queue = rig.queue()
    reader = rig.read(queue, 1)
    rig.send(queue, "a", "b")
    rig.send(queue, "later", deliver_at=rig.clock.wall + 1000)
    assert rig.broker.purge(queue) == 2
    assert bodies(queue) == ["a"]
    assert rig.broker.purge(queue, unacked=True) == 1
    rig.send(queue, "c")  # the credit of what was forgotten is there again
    assert reader.got() == ["a", "c"]
    assert (queue.waiting, queue.unacked, queue.bytes) == (0, 1, 1)


def test_browse_shows_the_order_of_the_queue_and_takes_nothing() -> None:
    rig = Rig()
    queue = rig.queue()
    reader = rig.read(queue, 1)
    rig.send(queue, "taken", "waits")
    rig.send(queue, "urgent", priority=9)
    rig.send(queue, "later", deliver_at=rig.clock.wall + 1000)
    assert bodies(queue) == ["urgent", "taken", "waits", "later"]
    states = [delivery.state for delivery in queue.queue.browse()]
    assert states == [READY, TAKEN, READY, DELAYED]
    assert len(list(queue.queue.browse(unacked=False))) == 3
    reader.settle()
    assert reader.got() == ["taken", "urgent"]


def test_the_sizes_of_a_queue() -> None:
    rig = Rig()
    queue = rig.queue()
    rig.read(queue, 1)
    rig.send(queue, "four", "seven..")
    rig.broker.publish(queue, rig.message(queue, "staged"))
    assert (queue.waiting, queue.waiting_bytes) == (2, 13)
    assert (queue.unacked, queue.bytes, queue.consumers) == (1, 17, 1)


def test_statistics_count_each_thing_once() -> None:
    rig = Rig()
    queue = rig.queue()
    reader = rig.read(queue)
    rig.send(queue, "ab", "cd")
    reader.release("cd")
    reader.settle()
    totals = queue.statistics
    assert (totals.published, totals.bytes_in) == (2, 4)
    assert (totals.delivered, totals.redelivered, totals.bytes_out) == (3, 1, 6)
    assert totals.settled == 2


def test_rates_approach_the_present_and_fade() -> None:
    rig = Rig()
    queue = rig.queue()
    rig.read(queue, 1000)
    for _ in range(30):
        rig.send(queue, *"0123456789")
        rig.sample_stats()
    assert queue.statistics.rate_in == pytest.approx(10, rel=0.01)
    assert queue.statistics.rate_out == pytest.approx(10, rel=0.01)
    rig.sample_stats(60.0)
    assert queue.statistics.rate_in == pytest.approx(0, abs=0.01)


# --- for protocols whose clients are told of more ------------------------------------------------


def test_a_protocols_defaults_are_for_new_queues_of_a_broker_without_its_own() -> None:
    own = DestinationSettings(max_messages=5)
    rig = Rig()
    assert rig.broker.resolve(Address(Kind.QUEUE, "new"), own).settings == own
    rig.queue("old", max_messages=7)
    assert rig.broker.resolve(Address(Kind.QUEUE, "old"), own).settings.max_messages == 7
    configured = DestinationSettings(max_messages=9)
    rig = Rig(BrokerSettings(defaults=configured))
    assert rig.broker.resolve(Address(Kind.QUEUE, "new"), own).settings == configured


def test_who_waits_for_a_destination_is_called_once_for_either_kind() -> None:
    rig = Rig()
    seen: list[tuple[str, Address]] = []

    def one(destination: Destination) -> None:
        seen.append(("one", destination.address))

    def two(destination: Destination) -> None:
        seen.append(("two", destination.address))

    for callback in (one, two):
        rig.broker.await_creation("q", callback)
        rig.broker.await_creation("gone", callback)
    rig.broker.stop_waiting("gone", one)
    rig.broker.stop_waiting("gone", two)
    rig.queue("gone")
    rig.topic("q")
    rig.queue("q")
    assert seen == [("one", Address(Kind.TOPIC, "q")), ("two", Address(Kind.TOPIC, "q"))]


def test_priorities_count_only_where_they_are_meant_to() -> None:
    rig = Rig()
    for name, by_priority, order in (("p", True, "bca"), ("f", False, "abc")):
        queue = rig.queue(name, by_priority=by_priority)
        for body, priority in zip("abc", (0, 9, 5), strict=True):
            rig.send(queue, body, priority=priority)
        assert "".join(rig.read(queue).got()) == order
