"""Crashes at chosen moments that random restarts (test_recovery.py) rarely reach."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.msgpack import Ext

from sluicemq.broker import Broker
from sluicemq.broker.codec import (
    EngineState,
    as_text,
    decode_attempts,
    decode_prepared,
    decode_settings,
    decode_state,
    decode_subscription,
    encode,
)
from sluicemq.broker.recovery import recover
from sluicemq.journal import FileJournal, JournalOptions
from sluicemq.journal.format import UNIT_END, RecordType
from sluicemq.model.destination import Address, DestinationSettings, Kind, Overflow
from sluicemq.model.errors import ConfigurationError, JournalDamaged, JournalFailed
from sluicemq.model.message import BodyKind, Durability, Message, Origin
from tests.broker.disk_broker import QUEUE, TOPIC, DiskBroker
from tests.support.broker import TypeSelector
from tests.support.journal import read_from


def test_deleted_queue_with_undurable_messages_is_not_restored(disk: DiskBroker) -> None:
    queue = disk.queue()
    disk.send(queue, "a")
    disk.broker.remove(queue)
    disk.crash_when_durable()
    assert QUEUE not in disk.broker.destinations
    assert (disk.recovered, disk.journal.stats().live) == (0, 0)
    disk.crash()
    assert disk.journal.stats().live == 0


@pytest.mark.parametrize("sealed", [False, True], ids=["replay", "snapshot"])
@pytest.mark.parametrize("deletes_topic", [False, True])
def test_crash_does_not_restore_messages_that_are_still_to_be_discarded(
    disk: DiskBroker, deletes_topic: bool, sealed: bool
) -> None:
    queue = disk.queue()
    topic = disk.broker.destinations.topic("t")
    subscription = disk.broker.subscribe(topic, "s", durable=True)
    disk.send(queue, "a", "b")
    disk.send(topic, "c")
    disk.sync()
    disk.broker.scans.schedule(lambda: None)  # the following records wait for this one
    disk.broker.remove(queue)
    if deletes_topic:
        disk.broker.remove(topic)
    else:
        disk.broker.unsubscribe(subscription)
    assert disk.journal.stats().live == 3
    if sealed:
        disk.journal.seal()
    disk.journal.sync()
    disk.crash()
    assert QUEUE not in disk.broker.destinations
    assert not disk.broker.durable_subscriptions
    assert (disk.recovered, disk.journal.stats().live) == (0, 0)


def test_message_of_subscription_deleted_before_it_was_durable_is_released(
    disk: DiskBroker,
) -> None:
    topic = disk.broker.destinations.topic("t")
    kept_subscription, deleted_subscription = (
        disk.broker.subscribe(topic, name, durable=True) for name in ("kept", "gone")
    )
    disk.send(topic, "a")
    disk.broker.unsubscribe(deleted_subscription)
    disk.crash_when_durable()
    topic = disk.broker.destinations[TOPIC]
    assert list(topic.subscriptions) == ["kept"]
    assert topic.subscriptions["kept"].number == kept_subscription.number
    disk.read(topic.subscriptions["kept"]).acknowledge()
    disk.sync()
    assert disk.journal.stats().live == 0


@pytest.mark.parametrize("sealed", [False, True], ids=["replay", "snapshot"])
def test_durable_subscription_numbers_are_not_reused(disk: DiskBroker, sealed: bool) -> None:
    topic = disk.broker.destinations.topic("t")
    old_number = disk.broker.subscribe(topic, "old", durable=True).number
    disk.broker.unsubscribe(topic.subscriptions["old"])
    if sealed:
        disk.seal()
    disk.sync()
    disk.crash()
    assert (
        disk.broker.subscribe(disk.broker.destinations.topic("t"), "new", durable=True).number
        > old_number
    )


@pytest.mark.parametrize("sealed", [False, True], ids=["replay", "snapshot"])
def test_temporary_queue_and_its_messages_do_not_survive_crash(
    disk: DiskBroker, sealed: bool
) -> None:
    queue = disk.broker.destinations.declare(QUEUE, owner="connection")
    disk.send(queue, "reply")
    disk.sync()
    if sealed:
        disk.seal()
    disk.crash()
    assert QUEUE not in disk.broker.destinations
    assert (disk.recovered, disk.journal.stats().live) == (0, 0)
    disk.send(disk.broker.destinations.queue("q"), "to a new queue of that name")
    disk.sync()
    disk.crash()
    assert disk.read(disk.broker.destinations.queue("q").queue).got() == [
        "to a new queue of that name"
    ]


def test_empty_queue_deleted_after_restart_is_not_restored(disk: DiskBroker) -> None:
    disk.queue(max_messages=5)
    disk.sync()
    disk.crash()
    queue = disk.broker.destinations[QUEUE]
    assert queue.settings.max_messages == 5
    disk.broker.remove(queue)
    disk.sync()
    disk.crash()
    assert QUEUE not in disk.broker.destinations


def test_attempts_of_unacked_messages_are_in_snapshot(disk: DiskBroker) -> None:
    queue = disk.queue()
    reader = disk.read(queue.queue)
    disk.send(queue, "a")
    disk.sync()
    reader.release()
    disk.sync()
    assert reader.attempts == {"a": 2}
    disk.seal()
    disk.crash()
    assert disk.read(disk.broker.destinations.queue("q").queue).attempts == {"a": 3}


def test_failed_attempts_survive_second_restart_with_snapshot_between(disk: DiskBroker) -> None:
    queue = disk.queue()
    reader = disk.read(queue.queue)
    disk.send(queue, "a")
    disk.sync()
    reader.detach()
    disk.sync()
    disk.crash()
    disk.seal()
    disk.crash()
    assert disk.read(disk.broker.destinations.queue("q").queue).attempts == {"a": 2}


def test_message_delivered_before_crash_can_be_acked_by_sequence(disk: DiskBroker) -> None:
    queue = disk.queue()
    reader = disk.read(queue.queue)
    [sequence] = disk.send(queue, "a")
    disk.sync()
    reader.detach()
    disk.sync()
    disk.crash()
    assert disk.broker.acknowledge_any(disk.broker.destinations.queue("q").queue, sequence)
    assert disk.broker.destinations.queue("q").waiting == 0


def test_restart_drops_no_message_accepted_within_limit(disk: DiskBroker) -> None:
    queue = disk.queue(max_messages=1, overflow=Overflow.DROP_OLDEST)
    reader = disk.read(queue.queue, 1)
    disk.send(queue, "held")
    disk.sync()
    disk.send(queue, "waiting")
    disk.sync()
    assert reader.got() == ["held"]
    disk.crash()
    assert disk.read(disk.broker.destinations.queue("q").queue).got() == ["held", "waiting"]


def test_messages_acked_in_prepared_transaction_count_as_delivered(disk: DiskBroker) -> None:
    queue = disk.queue()
    reader = disk.read(queue.queue)
    [sequence] = disk.send(queue, "a")
    disk.sync()
    transactions = disk.broker.transactions
    transaction = transactions.begin()
    transactions.acknowledge(transaction, reader.consumer, sequence)
    transactions.prepare(transaction, b"xid")
    disk.sync()
    disk.crash()
    reader = disk.read(disk.broker.destinations.queue("q").queue)
    assert reader.got() == []
    transactions = disk.broker.transactions
    transactions.rollback(transactions.prepared[b"xid"])
    disk.sync()
    assert reader.attempts == {"a": 2}


@pytest.mark.parametrize("sealed", [False, True], ids=["replay", "snapshot"])
@pytest.mark.parametrize("committed", [False, True])
def test_held_message_acked_in_prepared_transaction_stays_in_it(
    disk: DiskBroker, committed: bool, sealed: bool
) -> None:
    topic = disk.broker.destinations.declare(
        TOPIC, DestinationSettings(retain_without_subscriptions=True)
    )
    [sequence] = disk.send(topic, "a")
    disk.sync()
    reader = disk.read(disk.broker.subscribe(topic, "s", durable=True))
    disk.sync()
    transactions = disk.broker.transactions
    transaction = transactions.begin()
    assert transactions.acknowledge(transaction, reader.consumer, sequence)
    transactions.prepare(transaction, b"xid")
    disk.sync()
    if sealed:
        disk.seal()
    disk.crash()
    reader = disk.read(disk.broker.destinations[TOPIC].subscriptions["s"])
    disk.sync()
    assert reader.got() == []
    transactions = disk.broker.transactions
    transaction = transactions.prepared[b"xid"]
    if committed:
        transactions.commit(transaction)
    else:
        transactions.rollback(transaction)
    disk.sync()
    assert reader.attempts == ({} if committed else {"a": 2})
    reader.acknowledge()
    disk.sync()
    assert disk.journal.stats().live == 0


def test_held_message_goes_to_durable_subscriptions_after_restart(disk: DiskBroker) -> None:
    topic = disk.broker.destinations.declare(
        TOPIC, DestinationSettings(retain_without_subscriptions=True)
    )
    for name in ("s", "t"):
        disk.broker.subscribe(topic, name, durable=True)
    disk.send(topic, "a")
    disk.sync()
    disk.crash()
    subscriptions = disk.broker.destinations[TOPIC].subscriptions
    readers = [disk.read(subscriptions[name]) for name in ("s", "t")]
    assert [reader.got() for reader in readers] == [["a"], ["a"]]
    readers[0].acknowledge()
    assert disk.journal.stats().live == 1
    readers[1].acknowledge()
    assert disk.journal.stats().live == 0


def test_commit_is_one_unit_even_if_it_displaces_messages(disk: DiskBroker) -> None:
    queue = disk.queue(max_messages=1, overflow=Overflow.DROP_OLDEST)
    disk.send(queue, "displaced")
    disk.sync()
    start = disk.journal.durable + 1
    transactions = disk.broker.transactions
    transaction = transactions.begin()
    for body, durability in (
        ("a", Durability.LAZY),
        ("b", Durability.NONE),
        ("c", Durability.SYNC),
    ):
        message = Message(QUEUE, body.encode(), durability=durability)
        transactions.publish(transaction, queue, message)
    transactions.commit(transaction)
    disk.sync()
    records = list(read_from(disk.journal, start))
    assert [bool(r.flags & UNIT_END) for r in records if r.type == RecordType.MESSAGE] == [
        False,
        True,
    ]
    [last] = [index for index, record in enumerate(records) if record.flags & UNIT_END][:1]
    assert [record.type for record in records[: last + 1]] == [RecordType.MESSAGE] * 2
    assert disk.read(queue.queue).got() == ["c"]


def test_unsupported_stored_selector_fails_start(disk: DiskBroker) -> None:
    selector = TypeSelector("red")
    selector.text = "JMSType is red"
    disk.broker.subscribe(disk.broker.destinations.topic("t"), "s", durable=True, selector=selector)
    disk.sync()
    disk.journal.close()
    disk.journal = FileJournal.open(disk.directory)
    broker = Broker(disk.journal, disk.clock)
    with pytest.raises(ConfigurationError, match="durable subscription s of topic t"):
        recover(broker, disk.journal.recovery)


@pytest.mark.parametrize("sealed", [False, True], ids=["replay", "snapshot"])
def test_acked_messages_of_one_subscription_are_not_restored_to_it(
    disk: DiskBroker, sealed: bool
) -> None:
    topic = disk.broker.destinations.topic("t")
    done_subscription, slow_subscription = (
        disk.broker.subscribe(topic, name, durable=True) for name in ("done", "slow")
    )
    reader = disk.read(done_subscription)
    disk.send(topic, "a")
    disk.sync()
    assert slow_subscription.waiting == 1
    reader.acknowledge()
    disk.sync()
    if sealed:
        disk.seal()
    disk.crash()
    subscriptions = disk.broker.destinations[TOPIC].subscriptions
    assert disk.read(subscriptions["done"]).got() == []
    assert disk.read(subscriptions["slow"]).got() == ["a"]


@pytest.mark.parametrize("sealed", [False, True], ids=["replay", "snapshot"])
def test_position_ttl_and_attempts_of_requeued_message_survive(
    disk: DiskBroker, sealed: bool
) -> None:
    queue = disk.queue()
    reader = disk.read(queue.queue, 1)
    sequence, _ = disk.send(queue, "a", "b")
    disk.sync()
    disk.broker.suspend(reader.consumer)
    disk.broker.requeue(queue.queue, sequence, disk.clock.wall + 1000)
    disk.sync()
    if sealed:
        disk.seal()
    disk.crash()
    [_, requeued] = disk.broker.destinations.queue("q").queue.browse()
    assert (requeued.sequence, requeued.attempts) == (sequence, 1)
    assert requeued.expiration == disk.clock.wall + 1000
    disk.clock.advance(1200)
    disk.broker.tick()
    assert disk.read(disk.broker.destinations.queue("q").queue).got() == ["b"]


# --- deliveries interrupted by a crash ---------------------------------------------------------


def record_deliveries(disk: DiskBroker) -> None:
    """Wait for the flush interval, after which all deliveries are recorded."""
    disk.sync()
    disk.clock.advance(disk.journal.options.flush_interval)
    disk.broker.tick()
    disk.sync()


def test_requeued_message_acked_in_prepared_transaction_keeps_its_place(
    disk: DiskBroker,
) -> None:
    queue = disk.queue()
    disk.send(queue, "a", "b")
    disk.sync()
    reader = disk.read(queue.queue)
    disk.sync()
    for sequence in reader.unacked_by_body().values():
        assert disk.broker.requeue(queue.queue, sequence, disk.clock.wall + 1000)
        disk.sync()
    transactions = disk.broker.transactions
    transaction = transactions.begin()
    assert transactions.acknowledge(transaction, reader.consumer, reader.unacked_by_body()["a"])
    transactions.prepare(transaction, b"xid")
    disk.sync()
    disk.crash()
    disk.seal()
    disk.crash()
    disk.broker.transactions.rollback(disk.broker.transactions.prepared[b"xid"])
    requeued = list(disk.broker.destinations.queue("q").queue.browse())
    assert [d.expiration for d in requeued] == [disk.clock.wall + 1000] * 2
    assert [disk.broker.read(d).body for d in requeued] == [b"a", b"b"]
    assert requeued[0].order > requeued[0].sequence


@pytest.mark.parametrize("sealed", [False, True], ids=["replay", "snapshot"])
def test_unacked_messages_are_redelivered_after_crash(disk: DiskBroker, sealed: bool) -> None:
    topic = disk.broker.destinations.topic("t")
    queue = disk.queue()
    for count in range(3):
        source = disk.broker.subscribe(disk.broker.destinations.topic("t"), "s", durable=True)
        readers = [disk.read(disk.broker.destinations.queue("q").queue, 1), disk.read(source, 1)]
        if not count:
            disk.send(queue, "seen", "not seen")
            disk.send(topic, "seen", "not seen")
        record_deliveries(disk)
        assert [reader.attempts for reader in readers] == [{"seen": count + 1}] * 2
        if sealed:
            disk.seal()
        disk.crash()
    readers = [
        disk.read(disk.broker.destinations.queue("q").queue),
        disk.read(disk.broker.destinations[TOPIC].subscriptions["s"]),
    ]
    assert [reader.attempts for reader in readers] == [{"seen": 4, "not seen": 1}] * 2


@pytest.mark.parametrize("recorded", [False, True], ids=["buffered", "recorded"])
def test_messages_returned_unprocessed_are_not_redelivered_after_restart(
    disk: DiskBroker, recorded: bool
) -> None:
    disk.send(disk.queue(), "a", "b")
    for _ in range(3):
        reader = disk.read(disk.broker.destinations.queue("q").queue)
        disk.sync()
        if recorded:
            record_deliveries(disk)
        assert reader.attempts == {"a": 1, "b": 1}
        disk.broker.retire(reader.consumer)
        record_deliveries(disk)
        disk.crash()


def test_messages_acked_before_crash_are_not_restored(disk: DiskBroker) -> None:
    queue = disk.queue()
    reader = disk.read(queue.queue)
    disk.send(queue, "a", "b")
    disk.sync()
    reader.acknowledge("a")
    disk.sync()
    disk.crash()
    assert disk.read(disk.broker.destinations.queue("q").queue).attempts == {"b": 2}


def test_crash_alone_creates_no_dead_letter(disk: DiskBroker) -> None:
    """The interrupted delivery counts as an attempt, but is always followed by another one."""
    queue = disk.queue(max_attempts=1, dead_letter=True)
    disk.send(queue, "a")
    for count in range(3):
        reader = disk.read(disk.broker.destinations.queue("q").queue)
        record_deliveries(disk)
        assert reader.attempts == {"a": count + 1}
        disk.crash()
    reader = disk.read(disk.broker.destinations.queue("q").queue)
    reader.release()
    disk.sync()
    assert disk.broker.destinations.queue("q").waiting == 0
    assert disk.read(disk.broker.destinations.queue("q.dlq").queue).got() == ["a"]


def test_delivery_inside_prepared_transaction_is_counted_once(disk: DiskBroker) -> None:
    queue = disk.queue()
    reader = disk.read(queue.queue)
    [sequence] = disk.send(queue, "a")
    record_deliveries(disk)
    transactions = disk.broker.transactions
    transaction = transactions.begin()
    transactions.acknowledge(transaction, reader.consumer, sequence)
    transactions.prepare(transaction, b"xid")
    disk.seal()
    for _ in range(2):
        disk.crash()
    transactions = disk.broker.transactions
    [delivery] = transactions.prepared[b"xid"].acks
    assert delivery.attempts == 1


def test_journal_without_delivery_records_restores_no_attempts(tmp_path: Path) -> None:
    class WithoutDeliveryRecords(DiskBroker):
        options = JournalOptions(record_deliveries=False, depth_interval=0)

    disk = WithoutDeliveryRecords(tmp_path)
    disk.send(disk.queue(), "a")
    disk.read(disk.broker.destinations.queue("q").queue)
    record_deliveries(disk)
    disk.seal()
    disk.crash()
    assert disk.read(disk.broker.destinations.queue("q").queue).attempts == {"a": 1}
    types = {record.type for record in read_from(disk.journal, 0)}
    assert not types & {RecordType.DELIVERED, RecordType.DEPTH}
    disk.journal.close()


# --- settings and creation time of automatic destinations --------------------------------------


def test_automatic_queue_keeps_its_own_settings(disk: DiskBroker) -> None:
    own_settings = DestinationSettings(max_messages=2, overflow=Overflow.DROP_OLDEST)
    for seal in (False, True):
        queue = disk.broker.destinations.resolve(QUEUE, own_settings)
        assert (queue.settings, queue.automatic) == (own_settings, True)
        created = queue.created
        disk.clock.advance(1000)
        disk.send(queue, "1")
        disk.send(disk.broker.destinations.resolve(Address(Kind.QUEUE, "default")), "1")
        disk.sync()
        if seal:
            disk.seal()
        disk.crash()
        for _ in range(2):
            queue = disk.broker.destinations[QUEUE]
            assert (queue.settings, queue.automatic, queue.created) == (own_settings, True, created)
            disk.crash()
        default_queue = disk.broker.destinations[Address(Kind.QUEUE, "default")]
        assert default_queue.settings == disk.broker.settings.default_destination
        # its settings are deleted with it
        disk.broker.remove(disk.broker.destinations[QUEUE])
        disk.sync()
        disk.crash()
        assert QUEUE not in disk.broker.destinations


def test_declared_queue_keeps_its_creation_time(disk: DiskBroker) -> None:
    created = disk.queue().created
    disk.clock.advance(5000)
    disk.queue(max_messages=5)
    disk.sync()
    disk.crash()
    assert disk.broker.destinations[QUEUE].created == created
    disk.seal()
    disk.crash()
    assert disk.broker.destinations[QUEUE].created == created


def test_automatic_queue_is_as_old_as_its_oldest_message(disk: DiskBroker) -> None:
    disk.clock.advance(5000)
    first = disk.clock.wall
    for _ in range(2):
        message = Message(QUEUE, b"", timestamp=disk.clock.wall)
        disk.broker.publish(disk.broker.destinations.queue("q"), message)
        disk.clock.advance(5000)
    disk.sync()
    disk.crash()
    assert disk.broker.destinations[QUEUE].created == first


def test_settings_of_queue_with_name_that_is_not_utf8(disk: DiskBroker) -> None:
    address = Address(Kind.QUEUE, "\udcff\udcfe")
    settings = DestinationSettings(max_messages=3)
    disk.broker.destinations.declare(address, settings)
    disk.sync()
    disk.crash()
    assert disk.broker.destinations[address].settings == settings
    disk.seal()
    disk.crash()
    assert disk.broker.destinations[address].settings == settings


@pytest.mark.parametrize("payload", [b"", b"\x00", b"\x97\xa2\xff\xfe", b"\x93\x01\x02\x03" * 9])
@pytest.mark.parametrize(
    "decode",
    [decode_state, decode_settings, decode_subscription, decode_attempts, decode_prepared],
)
def test_invalid_entries_are_damage(decode: Callable[[bytes], object], payload: bytes) -> None:
    with pytest.raises(JournalDamaged, match="cannot be read"):
        decode(payload)


def test_truncated_state_is_damage() -> None:
    with pytest.raises(JournalDamaged, match="within a number"):
        decode_state(encode(EngineState([], [], [(1, bytes(9))], [], [], [])))


# --- prepared transactions and durable subscriptions after a restart ---------------------------

SENDER_FIELDS = (
    "destination",
    "body",
    "kind",
    "origin",
    "durability",
    "timestamp",
    "expiration",
    "priority",
    "deliver_at",
    "message_id",
    "correlation_id",
    "reply_to",
    "type",
    "properties",
    "native",
)
"""Message fields that a sender sets."""
NOT_UTF8 = "\udcff\udcfe"
"""A name that is not UTF-8."""


@pytest.mark.parametrize("sealed", [False, True], ids=["replay", "snapshot"])
def test_prepared_message_is_same_after_restart(disk: DiskBroker, sealed: bool) -> None:
    sent = Message(
        Address(Kind.QUEUE, NOT_UTF8),
        b"body",
        BodyKind.MAP,
        Origin.JMQ,
        Durability.SYNC,
        timestamp=disk.clock.wall,
        expiration=disk.clock.wall + 100_000,
        priority=7,
        deliver_at=0,
        message_id="ID:" + NOT_UTF8,
        correlation_id="\ud800",
        reply_to=Address(Kind.TOPIC, NOT_UTF8),
        type="type" + NOT_UTF8,
        properties={
            "big": 1 << 80,
            NOT_UTF8: NOT_UTF8,
            "f": 1.5,
            "b": b"\x00",
            "n": None,
            "t": True,
        },
        native=b"\x00\xff",
        sender=Token("client"),
    )
    transactions = disk.broker.transactions
    transaction = transactions.begin()
    transactions.publish(transaction, disk.broker.destinations.resolve(sent.destination), sent)
    transactions.prepare(transaction, b"xid")
    disk.sync()
    if sealed:
        disk.seal()
    disk.crash()
    transactions = disk.broker.transactions
    prepared = transactions.prepared[b"xid"]
    [(destination, message)] = prepared.sends
    assert destination is disk.broker.destinations[sent.destination]
    for field in SENDER_FIELDS:
        assert getattr(message, field) == getattr(sent, field), field
    assert message.sender == "client"
    transactions.commit(prepared)
    disk.sync()
    disk.crash()
    [delivery] = disk.broker.destinations[sent.destination].queue.browse()
    message = disk.broker.fetch(delivery.sequence)
    assert (message.message_id, message.properties) == (sent.message_id, sent.properties)


class Token:
    """Sender compared by no-local: equal to the text of a client id."""

    def __init__(self, client: str) -> None:
        self.client = client

    def __str__(self) -> str:
        return self.client

    def __eq__(self, other: object) -> bool:
        return other == self.client

    __hash__ = None


def test_prepared_message_respects_no_local_after_restart(disk: DiskBroker) -> None:
    topic = disk.broker.destinations.topic("t")
    for name, exclude in (("mine", "client"), ("other's", "another")):
        disk.broker.subscribe(topic, name, durable=True, exclude=exclude)
    transactions = disk.broker.transactions
    transaction = transactions.begin()
    message = Message(TOPIC, b"a", sender=Token("client"))
    transactions.publish(transaction, topic, message)
    transactions.prepare(transaction, b"xid")
    disk.sync()
    disk.crash()
    transactions = disk.broker.transactions
    transactions.commit(transactions.prepared[b"xid"])
    disk.sync()
    subscriptions = disk.broker.destinations[TOPIC].subscriptions
    assert [subscriptions[name].waiting for name in ("mine", "other's")] == [0, 1]


@pytest.mark.parametrize("sealed", [False, True], ids=["replay", "snapshot"])
def test_durable_subscription_whose_names_are_not_utf8(disk: DiskBroker, sealed: bool) -> None:
    address = Address(Kind.TOPIC, NOT_UTF8)
    selector = TypeSelector(NOT_UTF8)
    disk.broker.subscribe(
        disk.broker.destinations.resolve(address),
        NOT_UTF8,
        durable=True,
        selector=selector,
        exclude="\ud800",
    )
    deleted_subscription = disk.broker.subscribe(
        disk.broker.destinations.resolve(address), "gone" + NOT_UTF8, durable=True
    )
    disk.broker.unsubscribe(deleted_subscription)
    disk.sync()
    if sealed:
        disk.seal()
    disk.crash()
    [subscription] = disk.broker.destinations[address].subscriptions.values()
    assert subscription.selector is not None
    assert (subscription.name, subscription.selector.text) == (NOT_UTF8, selector.text)
    assert subscription.exclude == "\ud800"
    disk.broker.remove(disk.broker.destinations[address])
    disk.sync()
    disk.crash()
    assert address not in disk.broker.destinations


@pytest.mark.parametrize("text", [Ext(1, b"\xff"), Ext(9, b"a")])
def test_invalid_text_is_damage(text: Ext) -> None:
    with pytest.raises(JournalDamaged, match="text that cannot be read"):
        as_text(text)


def test_error_inside_unit_ends_journal_and_unit_leaves_nothing(disk: DiskBroker) -> None:
    queue = disk.queue()
    disk.sync()
    transactions = disk.broker.transactions
    transaction = transactions.begin()
    for priority in (4, 300):  # the second one cannot be encoded
        message = Message(QUEUE, b"sent", durability=Durability.SYNC, priority=priority)
        transactions.publish(transaction, queue, message)
    with pytest.raises(struct.error):
        transactions.commit(transaction)
    with pytest.raises(JournalFailed, match="incomplete: error"):
        disk.send(queue, "of another client")
    disk.crash()
    assert list(disk.broker.destinations.queue("q").queue.browse()) == []
