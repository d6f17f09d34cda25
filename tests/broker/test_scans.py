"""Scans share one time budget in order, and every scan stops at the deadline."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicemq.broker import Broker, Delivery, Destination, EngineSettings, ManualClock, scan
from sluicemq.broker.redelivery import REQUEUED_TOGETHER
from sluicemq.broker.scheduler import Scans
from sluicemq.broker.subscription import DISCARDED_TOGETHER
from sluicemq.journal.interface import MemoryJournal
from sluicemq.model.destination import Address, DestinationSettings, Kind
from sluicemq.model.errors import JournalDamaged
from sluicemq.model.message import Message
from tests.support.broker import BrokerFixture, Reader, TypeSelector, Window, purge
from tests.support.scan_time import ScanTime


def test_scans_alternate_and_share_one_deadline() -> None:
    scan_time = ScanTime(1)
    flush_requests: list[None] = []
    scans = Scans(scan_time.start, lambda: flush_requests.append(None))
    calls: list[str] = []

    def repeating(name: str) -> Callable[[], None]:
        def step() -> None:
            calls.append(name)
            scans.schedule(step)

        return step

    for name in "abc":
        scans.schedule(repeating(name))
    for _ in range(5):
        scans.run()
        scans.end_iteration()
    assert calls == list("abcab")
    assert len(scan_time.checks) == 5
    assert flush_requests


def test_scans_advance_although_other_work_uses_up_each_deadline() -> None:
    scans = Scans(ScanTime(1).start, lambda: None)
    calls: list[str] = []
    for name in "ab":
        scans.schedule(partial(calls.append, name))
    for _ in range(4):
        while not scans.is_time_up():
            pass
        scans.run()
        scans.end_iteration()
    assert calls == ["a", "b"]


def test_new_scan_does_not_overtake_waiting_ones() -> None:
    scans = Scans(ScanTime().start, lambda: None)
    calls: list[str] = []
    scans.begin(lambda: calls.append("first"))
    assert calls == ["first"]
    scans.schedule(lambda: calls.append("waiting"))
    scans.begin(lambda: calls.append("new"))
    assert calls == ["first"]
    scans.run()
    assert calls == ["first", "waiting", "new"]


def test_scan_outside_flush_has_deadline_of_its_iteration() -> None:
    scans = Scans(ScanTime().start, lambda: None)
    calls: list[str] = []
    scans.schedule(lambda: calls.append("coroutine"), outside=True)
    scans.schedule(lambda: calls.append("other"))
    scans.run()
    assert calls == ["coroutine"]
    scans.run()
    assert calls == ["coroutine", "other"]


def test_query_outside_flush_ends_with_flush() -> None:
    flush_requests: list[None] = []
    scans = Scans(ScanTime(1).start, lambda: flush_requests.append(None))
    assert not scans.is_time_up()
    assert scans.is_time_up()
    assert len(flush_requests) == 1
    scans.end_iteration()
    assert not scans.is_time_up()


class ScanFixture:
    """A broker whose scans may check their deadline `limit` times in an iteration."""

    def __init__(self, limit: int) -> None:
        self.clock = ManualClock()
        self.scan_time = ScanTime()
        self.broker = Broker(MemoryJournal(), self.clock, start_deadline=self.scan_time.start)
        self.queue: Destination = self.broker.destinations.declare(Address(Kind.QUEUE, "q"))
        for number in range(300):
            message = Message(self.queue.address, b"%d" % number, type="blue")
            self.broker.publish(self.queue, message)
        self.broker.flush()
        self.scan_time.limit = limit
        self.scan_time.checks.clear()


@pytest.mark.parametrize("limit", [1, 7, 50])
def test_new_selector_evaluates_no_message_after_deadline(limit: int) -> None:
    fixture = ScanFixture(limit)
    broker = fixture.broker
    selector = TypeSelector("red")
    reader = Reader(broker)
    reader.consumer = broker.attach(
        fixture.queue.queue, reader, Window(10, True), selector=selector
    )
    evaluated = selector.calls
    assert evaluated <= limit
    iterations = 0
    while fixture.queue.queue.rescan is not None:
        fixture.clock.advance(1)
        broker.tick()
        broker.flush()
        assert selector.calls - evaluated <= limit
        evaluated = selector.calls
        iterations += 1
    assert evaluated == 300
    assert iterations >= 300 // limit - 1


def test_many_new_selectors_share_time() -> None:
    fixture = ScanFixture(20)
    broker = fixture.broker
    queues = [broker.destinations.declare(Address(Kind.QUEUE, f"q{n}")) for n in range(20)]
    selectors = []
    for queue in queues:
        for number in range(30):
            broker.publish(queue, Message(queue.address, b"%d" % number))
        broker.flush()
        selector = TypeSelector("red")
        selectors.append(selector)
        reader = Reader(broker)
        reader.consumer = broker.attach(queue.queue, reader, Window(10, True), selector=selector)
        broker.flush()
    before = sum(selector.calls for selector in selectors)
    while any(queue.queue.rescan for queue in queues):
        fixture.clock.advance(1)
        broker.tick()
        broker.flush()
        after = sum(selector.calls for selector in selectors)
        assert after - before <= 20
        before = after
    assert [selector.calls for selector in selectors] == [30] * 20


class SelectAll(TypeSelector):
    """A selector that matches every message."""

    def __call__(self, message: Message) -> bool:
        super().__call__(message)
        return True


@pytest.mark.parametrize("limit", [1, 7, 50])
def test_held_messages_are_transferred_in_slices(limit: int) -> None:
    scan_time = ScanTime()
    broker = Broker(MemoryJournal(), ManualClock(), start_deadline=scan_time.start)
    topic = broker.destinations.declare(
        Address(Kind.TOPIC, "t"), DestinationSettings(retain_without_subscriptions=True)
    )
    for number in range(100):
        broker.publish(topic, Message(topic.address, b"%d" % number))
    broker.flush()
    scan_time.limit = limit
    selector = SelectAll("x")
    subscription = broker.subscribe(topic, "s", selector=selector)
    reader = Reader(broker)
    reader.consumer = broker.attach(subscription, reader, Window(1000, True))
    assert selector.calls <= limit
    before = selector.calls
    while topic.queue.waiting:
        broker.flush()
        assert before <= selector.calls <= before + limit
        before = selector.calls
    assert [int(body) for body in reader.got()] == list(range(100))


@pytest.mark.parametrize("limit", [1, 2])
def test_messages_of_deleted_queue_are_dropped_in_slices(limit: int) -> None:
    scan_time = ScanTime()
    clock = ManualClock()
    broker = Broker(MemoryJournal(), clock, start_deadline=scan_time.start)
    settings = DestinationSettings(dead_letter=True)
    queue = broker.destinations.declare(Address(Kind.QUEUE, "q"), settings)
    for number in range(1000):
        message = Message(queue.address, b"%d" % number)
        message.priority = number % 3
        if number % 5 == 0:
            message.expiration = clock.wall + 1
        elif number % 5 == 1:
            message.deliver_at = clock.wall + 2
        broker.publish(queue, message)
    broker.flush()
    scan_time.limit = limit
    broker.remove(queue)
    successor = broker.destinations.queue("q")
    waiting = 1000
    while queue.queue.waiting:
        clock.advance(1000)
        broker.tick()
        broker.flush()
        # none if the timers have used up the time
        assert waiting - DISCARDED_TOGETHER * limit <= queue.queue.waiting <= waiting
        waiting = queue.queue.waiting
    assert broker.destinations.find(Address(Kind.QUEUE, "q.dlq")) is None
    assert (successor.waiting, broker.journal.stats().live, broker.memory) == (0, 0, 0)


@pytest.mark.parametrize("retry_delay", [0, 1000])
def test_redelivery_of_deleted_queue_that_is_still_to_be_dropped_is_not_found(
    retry_delay: int,
) -> None:
    fixture = BrokerFixture()
    fixture.broker = broker = Broker(fixture.journal, fixture.clock, start_deadline=lambda: is_up)
    queue = fixture.queue(retry_delay=retry_delay)
    [sequence] = fixture.send(queue, "a")
    reader = fixture.read(queue)
    broker.release(reader.consumer, [sequence], timed_out=True)
    broker.remove(queue, force=True)
    assert queue.queue.waiting == 1
    assert not broker.acknowledge_any(queue.queue, sequence)
    broker.flush()
    broker.flush()
    assert (queue.queue.waiting, queue.statistics.acknowledged) == (0, 0)


def test_message_of_deleted_queue_that_is_still_to_be_dropped_is_not_dead_lettered() -> None:
    fixture = BrokerFixture()
    fixture.broker = broker = Broker(fixture.journal, fixture.clock, start_deadline=lambda: is_up)
    dead_letters = fixture.queue("q.dlq", max_messages=1)
    queue = fixture.queue(dead_letter=True, max_attempts=1)
    fixture.send(queue, "a", "b")
    fixture.read(queue).release()
    assert (dead_letters.waiting, queue.waiting) == (1, 1)  # the queue of dead letters is full
    purge(broker, dead_letters)
    broker.remove(queue, force=True)
    fixture.clock.advance(broker.settings.dead_letter_retry)
    broker.tick()
    broker.flush()
    broker.flush()
    assert (dead_letters.waiting, queue.waiting) == (0, 0)


def test_consumer_is_not_idle_while_messages_are_requeued() -> None:
    fixture = BrokerFixture()
    fixture.broker = broker = Broker(fixture.journal, fixture.clock, start_deadline=lambda: is_up)
    queue = fixture.queue()
    count = REQUEUED_TOGETHER + 1
    reader = fixture.read(queue, count)
    bodies = [str(number) for number in range(count)]
    fixture.send(queue, *bodies)
    other_reader = fixture.read(queue, count + 1)
    assert queue.queue.has_idle_consumer
    broker.detach(reader.consumer)
    assert not queue.queue.has_idle_consumer
    while queue.queue.requeuing:
        broker.flush()
    assert other_reader.got() == bodies
    assert queue.queue.has_idle_consumer


def is_up() -> bool:
    """The deadline of scans that never have time."""
    return True


@pytest.mark.parametrize("in_transaction", [False, True])
def test_many_unacked_messages_are_requeued_in_slices(in_transaction: bool) -> None:
    scan_time = ScanTime(2)
    broker = Broker(MemoryJournal(), ManualClock(), start_deadline=scan_time.start)
    queue = broker.destinations.queue("q")
    for number in range(1000):
        broker.publish(queue, Message(queue.address, b"%d" % number))
    broker.flush()
    reader = Reader(broker)
    reader.consumer = broker.attach(queue.queue, reader, Window(1000, False))
    broker.flush()
    assert queue.unacked == 1000
    if in_transaction:
        transaction = broker.transactions.begin()
        for sequence in list(reader.consumer.unacked):
            broker.transactions.acknowledge(transaction, reader.consumer, sequence)
        broker.transactions.rollback(transaction)
    else:
        broker.detach(reader.consumer)
    assert queue.waiting <= 2 * REQUEUED_TOGETHER
    other_reader = Reader(broker)
    other_reader.consumer = broker.attach(queue.queue, other_reader, Window(1, True))
    broker.publish(queue, Message(queue.address, b"late"))
    while (unacked := queue.unacked) > 1:
        assert other_reader.got() == []  # later messages do not precede those to be requeued
        broker.flush()
        assert unacked - queue.unacked <= 2 * REQUEUED_TOGETHER
    bodies = other_reader.got()
    while queue.queue.waiting:
        other_reader.acknowledge()
        bodies += other_reader.got()
    assert bodies == [*map(str, range(1000)), "late"]
    assert not queue.queue.retired


def test_message_that_cannot_be_requeued_does_not_stop_dispatch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fixture = BrokerFixture(EngineSettings(memory_budget=0))
    broker = fixture.broker
    queue = fixture.queue()
    reader = fixture.read(queue, 1000)
    other_reader = fixture.read(queue, selector=TypeSelector("late"))
    fixture.send(queue, *map(str, range(300)))
    broker.page_out(reader.consumer.unacked.values())

    def fetch(sequence: int) -> Message:
        raise JournalDamaged(f"record {sequence} is damaged")

    with monkeypatch.context() as context:
        context.setattr(fixture.journal, "fetch", fetch)
        with pytest.raises(JournalDamaged):
            broker.detach(reader.consumer)
    fixture.send(queue, "late", type="late")
    assert other_reader.got() == ["late"]


class CountedIterations(dict[int, Delivery]):
    """Unacked deliveries that count the iterations over them, each of which also passes over the
    entries that have been removed."""

    count = 0

    def __iter__(self) -> Iterator[int]:
        self.count += 1
        return super().__iter__()


def test_time_to_requeue_is_proportional_to_number_of_messages() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    reader = fixture.read(queue, 1000)
    fixture.send(queue, *map(str, range(1000)))
    reader.consumer.unacked = unacked = CountedIterations(reader.consumer.unacked)
    fixture.broker.detach(reader.consumer)
    assert queue.waiting == 1000
    assert unacked.count == 2  # the second one finds that none is left


@pytest.mark.parametrize("is_stopping", [False, True])
def test_unacked_messages_are_requeued_at_once_when_broker_stops(is_stopping: bool) -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    reader = fixture.read(queue, 1000)
    fixture.send(queue, *map(str, range(300)))
    fixture.broker.scans.schedule(lambda: None)
    if is_stopping:
        fixture.broker.stop()
    fixture.broker.detach(reader.consumer)
    fixture.broker.stop()
    assert (queue.waiting, queue.unacked) == (300, 0)


@pytest.mark.parametrize("limit", [8, 11])
@pytest.mark.parametrize("delayed", [False, True])
def test_purge_includes_unacked_messages_that_are_requeued_meanwhile(
    limit: int, delayed: bool
) -> None:
    # expires after the slices of their priority, or after the first slice of unacked messages
    fixture = ScanFixture(limit)
    broker = fixture.broker
    broker.destinations.declare(fixture.queue.address, DestinationSettings(retry_delay=60_000))
    reader = Reader(broker)
    reader.consumer = broker.attach(fixture.queue.queue, reader, Window(300, False))
    broker.flush()
    counts: list[int] = []
    broker.operations.purge(fixture.queue, True, counts.append)
    broker.release(reader.consumer, list(reader.consumer.unacked), timed_out=delayed)
    while not counts:
        broker.flush()
    assert counts == [300]
    assert (fixture.queue.waiting, fixture.queue.unacked) == (0, 0)


@pytest.mark.parametrize("ready", [0, 1])
def test_browse_includes_unacked_messages_that_are_requeued_meanwhile(ready: int) -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    sequences = fixture.send(queue, "a", "b", "c", priority=5)
    reader = fixture.read(queue, 3, refill=False)
    fixture.broker.flush()
    sequences += fixture.send(queue, *"d" * ready, priority=0)
    items = scan(queue.queue)
    assert [next(items) for _ in range(8)] == [None] * 8  # the first has passed their priority
    reader.release()
    assert [item[0] for item in items if item is not None] == sequences


@pytest.mark.parametrize("limit", [1, 7, 50])
def test_browse_evaluates_nothing_after_deadline(limit: int) -> None:
    """The tests of the protocols cover how they continue a browse."""
    fixture = ScanFixture(limit)
    broker = fixture.broker
    items = scan(fixture.queue.queue)
    sequences: list[int] = []

    def step() -> None:
        for item in items:
            if item is not None:
                sequences.append(item[0])
            if broker.core.scans.is_time_up():
                broker.core.scans.schedule(step)
                return

    broker.core.scans.begin(step)
    before = len(sequences)
    assert before <= limit
    while len(sequences) < 300:
        broker.flush()
        assert len(sequences) <= before + limit
        before = len(sequences)


def test_scan_continues_despite_concurrent_changes() -> None:
    broker_fixture = BrokerFixture()
    queue = broker_fixture.queue()
    numbers = broker_fixture.send(queue, *map(str, range(200)))
    reader = broker_fixture.read(queue, 10, refill=False)
    broker_fixture.broker.flush()
    scan_items = scan(queue.queue)
    items = [next(scan_items) for _ in range(20)]
    broker_fixture.send(queue, "new", priority=0)
    broker_fixture.send(queue, "newer")
    reader.release()
    broker_fixture.broker.grant(reader.consumer.window, 150)
    broker_fixture.broker.flush()
    reader.acknowledge()
    items += scan_items
    sequences = [item[0] for item in items if item is not None]
    assert sequences == sorted(set(sequences))
    assert set(sequences) <= set(numbers)
    assert sequences[:20] == numbers[:20]
    assert set(numbers[160:]) <= set(sequences)


@given(st.data())
def test_a_scan_without_changes_equals_a_browse(data: st.DataObject) -> None:
    broker_fixture = BrokerFixture(EngineSettings(chunk_deliveries=3))
    queue = broker_fixture.queue()
    for number in range(data.draw(st.integers(0, 30))):
        fields = data.draw(
            st.sampled_from(
                [
                    {},
                    {"priority": 9},
                    {"deliver_at": broker_fixture.clock.wall + 5000},
                    {"expiration": 1},
                ]
            )
        )
        if "expiration" in fields:
            fields = {"expiration": broker_fixture.clock.wall + 50}
        broker_fixture.send(queue, str(number), **fields)
    reader = broker_fixture.read(queue, data.draw(st.integers(0, 5)), refill=False)
    broker_fixture.broker.flush()
    broker_fixture.clock.advance(data.draw(st.sampled_from([0, 100])))
    del reader
    items = [item for item in scan(queue.queue) if item is not None]
    now = broker_fixture.clock.steady
    assert items == [
        (delivery.sequence, None if delivery.journaled else delivery)
        for delivery in queue.queue.browse()
        if not delivery.scheduled and not 0 < delivery.expires <= now
    ]
