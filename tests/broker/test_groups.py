"""Groups: unacked messages of the last member of a topic stay with the topic."""

from __future__ import annotations

import pytest

from sluicemq.broker import Destination, Subscription
from sluicemq.model.destination import DestinationSettings, Overflow
from sluicemq.model.message import Durability
from tests.broker.disk_broker import TOPIC, DiskBroker
from tests.support.broker import BrokerFixture, Reader, bodies, purge


@pytest.fixture
def fixture() -> BrokerFixture:
    return BrokerFixture()


def join(
    fixture: BrokerFixture | DiskBroker, topic: Destination, name: str, credit: int = 100
) -> Reader:
    return fixture.read(fixture.broker.subscribe(topic, name, member=True), credit)


def leave(fixture: BrokerFixture | DiskBroker, reader: Reader) -> None:
    fixture.broker.unsubscribe(reader.consumer.subscription)
    fixture.broker.flush()


def restored_topic(disk: DiskBroker) -> Destination:
    """Return the topic of the restarted broker."""
    return disk.broker.destinations[TOPIC]


def test_unacked_messages_of_last_member_go_to_next_in_order(
    fixture: BrokerFixture,
) -> None:
    topic = fixture.topic(retain_without_subscriptions=True)
    fixture.send(topic, "1", "2")
    first = join(fixture, topic, "first", 3)
    fixture.send(topic, "3", "4", "5")
    fixture.broker.flush()
    assert first.got() == ["1", "2", "3"]
    first.acknowledge("2")
    assert first.got() == ["4"]
    leave(fixture, first)
    fixture.send(topic, "6")
    assert topic.waiting == 5
    second = join(fixture, topic, "second")
    fixture.broker.flush()
    assert second.got() == ["1", "3", "4", "5", "6"]
    assert second.attempts == {"1": 2, "3": 2, "4": 2, "5": 1, "6": 1}
    second.acknowledge()
    assert (topic.waiting, topic.unacked, fixture.journal.stats().live) == (0, 0, 0)
    assert fixture.broker.core.memory == 0


def test_copies_of_leaving_member_are_dropped_while_others_remain(fixture: BrokerFixture) -> None:
    topic = fixture.topic(retain_without_subscriptions=True)
    first, second = join(fixture, topic, "first"), join(fixture, topic, "second")
    fixture.send(topic, "1", "2", "3")
    second.acknowledge("1")
    leave(fixture, first)
    assert fixture.journal.stats().live == 2
    leave(fixture, second)
    third = join(fixture, topic, "third")
    fixture.broker.flush()
    assert third.got() == ["2", "3"]
    third.acknowledge()
    assert fixture.journal.stats().live == 0


def test_only_first_member_gets_retained_messages(fixture: BrokerFixture) -> None:
    topic = fixture.topic(retain_without_subscriptions=True)
    fixture.send(topic, "1")
    first, second = join(fixture, topic, "first"), join(fixture, topic, "second")
    fixture.send(topic, "2")
    fixture.broker.flush()
    assert (first.got(), second.got()) == (["1", "2"], ["2"])


def test_requeueing_ignores_limits(fixture: BrokerFixture) -> None:
    topic = fixture.topic(
        retain_without_subscriptions=True, max_messages=2, overflow=Overflow.DROP_OLDEST
    )
    member = join(fixture, topic, "m")
    for body in "abcdef":
        fixture.send(topic, body)
    assert member.got() == list("abcdef")
    leave(fixture, member)
    assert bodies(topic.queue) == list("abcdef")
    new_member = join(fixture, topic, "n")
    fixture.broker.flush()
    assert new_member.got() == list("abcdef")


def test_time_to_live_and_delays_continue(fixture: BrokerFixture) -> None:
    topic = fixture.topic(retain_without_subscriptions=True, message_ttl=1000, retry_delay=300)
    member = join(fixture, topic, "m", 1)
    fixture.send(topic, "late", "mortal")
    [sequence] = member.unacked_by_body().values()
    fixture.wait(400)
    fixture.broker.release(member.consumer, [sequence], timed_out=True)
    leave(fixture, member)
    fixture.wait(200)
    second = join(fixture, topic, "n", 1)
    fixture.broker.flush()
    assert second.got() == ["mortal"]
    second.acknowledge()
    fixture.wait(100)
    assert second.got() == ["late"]
    second.release()
    leave(fixture, second)
    fixture.wait(500)
    assert bodies(topic.queue) == []


def test_message_without_attempts_left_is_not_redelivered(fixture: BrokerFixture) -> None:
    topic = fixture.topic(retain_without_subscriptions=True, max_attempts=1, dead_letter=True)
    member = join(fixture, topic, "m", 1)
    fixture.send(topic, "1", "2")
    leave(fixture, member)
    assert bodies(topic.queue) == ["2"]
    assert [message.body for message in fixture.dead_letters("t.dlq")] == [b"1"]


def test_other_subscriptions_are_not_members(fixture: BrokerFixture) -> None:
    topic = fixture.topic(retain_without_subscriptions=True)
    member = join(fixture, topic, "m")
    other_reader = fixture.read(fixture.broker.subscribe(topic, "other"))
    durable = fixture.read(fixture.broker.subscribe(topic, "durable", durable=True))
    fixture.send(topic, "1")
    leave(fixture, member)
    fixture.send(topic, "2")
    assert other_reader.got() == durable.got() == ["1", "2"]
    late_reader = fixture.read(fixture.broker.subscribe(topic, "late"))
    fixture.broker.flush()
    assert late_reader.got() == []
    rejoined = join(fixture, topic, "m")
    fixture.broker.flush()
    assert rejoined.got() == ["1", "2"]
    for reader in (other_reader, durable, rejoined):
        reader.acknowledge()
    assert fixture.journal.stats().live == 0


def test_group_ends_with_its_topic(fixture: BrokerFixture) -> None:
    topic = fixture.topic(retain_without_subscriptions=True)
    leave(fixture, join(fixture, topic, "m"))
    fixture.send(topic, "1")
    fixture.broker.remove(topic)
    topic = fixture.topic(retain_without_subscriptions=True)
    other_reader = fixture.read(fixture.broker.subscribe(topic, "other"))
    fixture.send(topic, "2")
    assert other_reader.got() == ["2"]
    assert bodies(topic.queue) == []


def test_message_that_was_not_durable_yet_when_last_member_left(
    fixture: BrokerFixture,
) -> None:
    topic = fixture.topic(retain_without_subscriptions=True)
    first, second = join(fixture, topic, "first"), join(fixture, topic, "second")
    fixture.broker.publish(topic, fixture.message(topic, "1"))
    fixture.broker.unsubscribe(first.consumer.subscription)
    fixture.broker.unsubscribe(second.consumer.subscription)
    fixture.broker.flush()
    third = join(fixture, topic, "third")
    fixture.broker.flush()
    assert third.got() == ["1"]
    third.acknowledge()
    assert fixture.journal.stats().live == 0


@pytest.mark.parametrize("members", [0, 1])
def test_message_that_expires_before_it_is_durable_ends_for_every_subscription(
    fixture: BrokerFixture, members: int
) -> None:
    topic = fixture.topic(retain_without_subscriptions=True)
    first = join(fixture, topic, "first")
    if not members:
        leave(fixture, first)
    other_reader = fixture.read(fixture.broker.subscribe(topic, "other"))
    message = fixture.message(topic, "1", expiration=fixture.clock.wall + 100)
    fixture.broker.publish(topic, message)
    fixture.clock.advance(200)
    fixture.broker.flush()
    fixture.send(topic, "2")
    assert other_reader.got() == ["2"]
    assert topic.statistics.expired == 2
    other_reader.acknowledge()
    if members:
        first.acknowledge()
    else:
        purge(fixture.broker, topic)
    fixture.broker.flush()
    assert fixture.journal.stats().live == 0


def test_leaving_with_long_backlog_takes_constant_time(fixture: BrokerFixture) -> None:
    """The subscription itself changes its role: no message is touched."""
    topic = fixture.topic(retain_without_subscriptions=True)
    fixture.send(topic, *map(str, range(5000)))
    member = join(fixture, topic, "m", 0)
    subscription = member.consumer.subscription
    leave(fixture, member)
    assert topic.queue is subscription
    assert isinstance(subscription, Subscription)
    assert topic.waiting == 5000


# --- restarts --------------------------------------------------------------------------------


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("members", [1, 2])
def test_crash_keeps_unacked_messages_of_member(
    disk: DiskBroker, members: int, sealed: bool
) -> None:
    topic = disk.broker.destinations.declare(
        TOPIC, DestinationSettings(retain_without_subscriptions=True)
    )
    readers = [join(disk, topic, f"m{n}", 4) for n in range(members)]
    disk.send(topic, "a", "b", "c", "d", "e")
    disk.sync()
    readers[0].acknowledge("a", "b")
    readers[-1].acknowledge("b" if members > 1 else "c")
    disk.sync()
    if sealed:
        disk.seal()
    disk.crash()
    topic = restored_topic(disk)
    late_reader = disk.read(disk.broker.subscribe(topic, "late"))
    reader = join(disk, topic, "next")
    disk.sync()
    assert late_reader.got() == []
    expected = ["d", "e"] if members == 1 else ["a", "c", "d", "e"]
    assert reader.got() == expected
    attempts = dict.fromkeys(expected, 2)
    assert {body: reader.attempts[body] for body in expected} == attempts
    reader.acknowledge()
    disk.sync()
    assert disk.journal.stats().live == 0


@pytest.mark.parametrize("crash", [False, True])
def test_members_that_leave_at_shutdown_keep_their_messages(disk: DiskBroker, crash: bool) -> None:
    topic = disk.broker.destinations.declare(
        TOPIC, DestinationSettings(retain_without_subscriptions=True)
    )
    first, second = join(disk, topic, "one"), join(disk, topic, "two")
    disk.send(topic, "a", "b", "c")
    disk.sync()
    first.acknowledge("a", "c")
    second.acknowledge("b", "c")
    disk.broker.stop()
    leave(disk, first)
    leave(disk, second)
    disk.sync()
    if not crash:
        disk.seal()
    disk.crash()
    reader = join(disk, restored_topic(disk), "next")
    disk.sync()
    assert reader.got() == ["a", "b"]
    assert reader.attempts == {"a": 2, "b": 2}


@pytest.mark.parametrize("sealed", [False, True])
def test_durable_subscriptions_and_group_get_their_messages_after_crash(
    disk: DiskBroker, sealed: bool
) -> None:
    topic = disk.broker.destinations.declare(
        TOPIC, DestinationSettings(retain_without_subscriptions=True)
    )
    member = join(disk, topic, "m")
    durable = disk.read(disk.broker.subscribe(topic, "d", durable=True))
    disk.send(topic, "a", "b", "c")
    disk.sync()
    member.acknowledge("a")
    durable.acknowledge("b")
    disk.sync()
    if sealed:
        disk.seal()
    disk.crash()
    topic = restored_topic(disk)
    durable = disk.read(topic.subscriptions["d"])
    member = join(disk, topic, "m")
    disk.sync()
    assert (member.got(), durable.got()) == (["b", "c"], ["a", "c"])
    member.acknowledge()
    durable.acknowledge()
    disk.sync()
    assert disk.journal.stats().live == 0


@pytest.mark.parametrize("sealed", [False, True])
def test_messages_are_retained_for_members_after_crash(disk: DiskBroker, sealed: bool) -> None:
    topic = disk.broker.destinations.declare(
        TOPIC, DestinationSettings(retain_without_subscriptions=True)
    )
    leave(disk, join(disk, topic, "m"))
    disk.sync()
    if sealed:
        disk.seal()
    disk.crash()
    topic = restored_topic(disk)
    other_reader = disk.read(disk.broker.subscribe(topic, "other"))
    disk.send(topic, "a")
    disk.sync()
    assert other_reader.got() == ["a"]
    member = join(disk, topic, "m")
    disk.sync()
    assert member.got() == ["a"]


def test_messages_of_last_member_survive_crash_with_their_attempts(disk: DiskBroker) -> None:
    topic = disk.broker.destinations.declare(
        TOPIC, DestinationSettings(retain_without_subscriptions=True)
    )
    for _ in range(2):
        member = join(disk, topic, "m")
        if not topic.queue.waiting and not member.got():
            disk.send(topic, "a", durability=Durability.LAZY)
        disk.sync()
        leave(disk, member)
    disk.sync()
    disk.crash()
    member = join(disk, restored_topic(disk), "m")
    disk.sync()
    assert member.attempts == {"a": 3}


def test_snapshot_contains_group_messages_after_retention_is_disabled(
    disk: DiskBroker,
) -> None:
    topic = disk.broker.destinations.declare(
        TOPIC, DestinationSettings(retain_without_subscriptions=True)
    )
    join(disk, topic, "m")
    disk.send(topic, "a")
    disk.sync()
    disk.broker.destinations.declare(TOPIC, DestinationSettings())
    disk.seal()
    disk.crash()
    assert restored_topic(disk).queue.waiting == 1
