"""Metrics of destinations and subscriptions, and which of them are exported separately."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluicemq.admin.collectors import MAX_NAME_BYTES, Ages
from sluicemq.broker import Broker, EngineSettings, ManualClock
from sluicemq.journal import FileJournal
from sluicemq.model.destination import Address, DestinationSettings, Kind
from sluicemq.model.message import Message
from tests.admin.metrics.reading import DestinationMetricsFixture, Scrape
from tests.support.broker import BrokerFixture, purge

PUBLISHED = "sluicemq_destination_messages_published_total"
READY = "sluicemq_destination_messages_ready"


def metric_of(scrape: Scrape, name: str, destination: str, kind: str = "queue") -> float | None:
    return scrape.value(f"sluicemq_destination_{name}", destination=destination, kind=kind)


def test_message_events_are_counted() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue("q", max_messages=3, dead_letter=True, max_attempts=1)
    metrics = DestinationMetricsFixture(fixture)
    reader = fixture.read(queue, credit=3)
    fixture.send(queue, "one", "two", "three")
    reader.acknowledge("one")
    reader.release("two")
    fixture.send(queue, "four", deliver_at=fixture.clock.wall + 1000)
    fixture.clock.advance(500)
    scrape = metrics.scrape()
    assert metric_of(scrape, "messages_published_total", "q") == 4
    assert metric_of(scrape, "messages_delivered_total", "q") == 3
    assert metric_of(scrape, "messages_acknowledged_total", "q") == 1
    assert metric_of(scrape, "messages_dead_lettered_total", "q") == 1
    assert metric_of(scrape, "published_bytes_total", "q") == len("onetwothreefour")
    assert metric_of(scrape, "delivered_bytes_total", "q") == len("onetwothree")
    assert metric_of(scrape, "messages_unacked", "q") == 1
    assert metric_of(scrape, "messages_ready", "q") == 1
    assert metric_of(scrape, "messages_scheduled", "q") == 1
    assert metric_of(scrape, "messages_bytes", "q") == len("threefour")
    assert metric_of(scrape, "consumers", "q") == 1
    assert metric_of(scrape, "messages_limit", "q") == 3
    assert metric_of(scrape, "messages_ready", "q.dlq") == 1
    assert metric_of(scrape, "oldest_message_age_seconds", "q.dlq") == 0.5
    assert metric_of(scrape, "paused", "q") == 0
    fixture.broker.destinations.set_paused(queue, True)
    assert metric_of(metrics.scrape(), "paused", "q") == 1


def test_messages_not_yet_on_disk_are_ready() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue("q")
    fixture.broker.publish(queue, fixture.message(queue, "four"))
    assert queue.staged == 1
    scrape = DestinationMetricsFixture(fixture).scrape()
    assert metric_of(scrape, "messages_ready", "q") == 1
    assert metric_of(scrape, "messages_bytes", "q") == 4


def test_topic_exports_its_largest_backlog_and_durable_subscriptions() -> None:
    fixture = BrokerFixture()
    topic = fixture.topic("t")
    fixture.broker.subscribe(topic, "archive", durable=True)
    fixture.broker.subscribe(topic, "someone")
    subscription = fixture.broker.subscribe(topic, "workers", shared=True)
    reader = fixture.read(subscription, credit=1)
    fixture.send(topic, "a", "b")
    fixture.clock.advance(2000)
    metrics = DestinationMetricsFixture(fixture)
    scrape = metrics.scrape()
    assert metric_of(scrape, "messages_ready", "t", "topic") == 2
    assert metric_of(scrape, "messages_unacked", "t", "topic") == 1
    assert metric_of(scrape, "subscriptions", "t", "topic") == 3
    assert metric_of(scrape, "consumers", "t", "topic") == 1
    assert metric_of(scrape, "oldest_message_age_seconds", "t", "topic") == 2
    name = "sluicemq_subscription_messages_ready"
    assert scrape.names(name, "subscription") == {"archive", "workers"}
    assert scrape.value(name, destination="t", subscription="archive") == 2
    assert scrape.value(name, destination="t", subscription="workers") == 1
    reader.acknowledge()


def test_number_of_subscriptions_is_bounded() -> None:
    fixture = BrokerFixture()
    topic = fixture.topic("t")
    for number in range(5):
        fixture.broker.subscribe(topic, f"s{number}", durable=True)
    scrape = DestinationMetricsFixture(fixture, limit=3).scrape()
    assert len(scrape.names("sluicemq_subscription_messages_ready", "subscription")) == 3


def test_beyond_the_limit_destinations_are_summed() -> None:
    fixture = BrokerFixture()
    for number in range(5):
        fixture.send(fixture.broker.destinations.queue(f"q{number}"), "a", "bb")
    metrics = DestinationMetricsFixture(fixture, limit=2)
    scrape = metrics.scrape()
    assert scrape.names(PUBLISHED) == {"q0", "q1", "~others"}
    assert metric_of(scrape, "messages_published_total", "~others") == 6
    assert metric_of(scrape, "messages_ready", "~others") == 6
    assert metric_of(scrape, "messages_bytes", "~others") == 9
    assert metric_of(scrape, "messages_limit", "~others") is None
    fixture.clock.advance(3000)
    fixture.send(fixture.broker.destinations.queue("q4"), "c")
    assert metric_of(metrics.scrape(), "oldest_message_age_seconds", "~others") == 3


def test_with_a_limit_of_zero_all_destinations_are_summed() -> None:
    fixture = BrokerFixture()
    fixture.send(fixture.queue("q"), "a")
    assert DestinationMetricsFixture(fixture, limit=0).scrape().names(PUBLISHED) == {"~others"}


def test_declared_destinations_precede_automatic_ones() -> None:
    fixture = BrokerFixture()
    fixture.broker.destinations.queue("automatic")
    fixture.queue("declared")
    assert DestinationMetricsFixture(fixture, limit=1).scrape().names(READY) == {"declared"}


def test_temporary_destinations_are_always_summed() -> None:
    fixture = BrokerFixture()
    metrics = DestinationMetricsFixture(fixture)
    owner = object()
    for number in range(3):
        reply = fixture.broker.destinations.declare(
            Address(Kind.QUEUE, f"reply-{number}"), owner=owner
        )
        fixture.send(reply, "a")
    scrape = metrics.scrape()
    assert scrape.names(PUBLISHED) == {"~temporary"}
    assert metric_of(scrape, "messages_published_total", "~temporary") == 3
    assert scrape.value("sluicemq_destinations", kind="queue", temporary="true") == 3
    fixture.broker.delete_temporary(owner)
    fixture.broker.flush()
    scrape = metrics.scrape()
    assert metric_of(scrape, "messages_published_total", "~temporary") == 3
    assert metric_of(scrape, "messages_ready", "~temporary") == 0


def test_sums_never_decrease() -> None:
    fixture = BrokerFixture()
    for number in range(4):
        fixture.send(fixture.broker.destinations.queue(f"q{number}"), *["a"] * (number + 1))
    metrics = DestinationMetricsFixture(fixture, limit=1)
    assert metric_of(metrics.scrape(), "messages_published_total", "~others") == 9
    # one of the summed destinations is deleted
    fixture.broker.remove(fixture.broker.destinations.queue("q3"))
    scrape = metrics.scrape()
    assert metric_of(scrape, "messages_published_total", "~others") == 9
    assert metric_of(scrape, "messages_ready", "~others") == 5
    # another one takes the place of the first
    fixture.broker.remove(fixture.broker.destinations.queue("q0"))
    scrape = metrics.scrape()
    assert scrape.names(PUBLISHED) == {"q1", "~others"}
    assert metric_of(scrape, "messages_published_total", "q1") == 2
    assert metric_of(scrape, "messages_published_total", "~others") == 9
    assert metric_of(scrape, "messages_ready", "~others") == 3
    fixture.send(fixture.broker.destinations.queue("q2"), "more")
    assert metric_of(metrics.scrape(), "messages_published_total", "~others") == 10


def test_recreated_destination_starts_at_zero() -> None:
    fixture = BrokerFixture()
    metrics = DestinationMetricsFixture(fixture)
    fixture.send(fixture.broker.destinations.queue("q"), "a", "b")
    fixture.broker.remove(fixture.broker.destinations.queue("q"))
    assert PUBLISHED not in metrics.scrape().families
    fixture.send(fixture.broker.destinations.queue("q"), "c")
    assert metric_of(metrics.scrape(), "messages_published_total", "q") == 1


@pytest.mark.parametrize("name", ["~others", "~temporary", "~x", "n" * (MAX_NAME_BYTES + 1)])
def test_names_that_resemble_a_sum_or_are_too_long_are_summed(name: str) -> None:
    fixture = BrokerFixture()
    fixture.send(fixture.broker.destinations.queue(name), "a")
    fixture.send(fixture.broker.destinations.queue("plain"), "a")
    scrape = DestinationMetricsFixture(fixture).scrape()
    assert scrape.names(PUBLISHED) == {"plain", "~others"}
    assert metric_of(scrape, "messages_published_total", "~others") == 1


def test_similar_names_are_distinct() -> None:
    fixture = BrokerFixture()
    fixture.send(fixture.broker.destinations.queue("a\udcff"), "a")
    fixture.send(fixture.broker.destinations.queue("a\\udcff"), "a", "b")
    fixture.send(fixture.broker.destinations.topic("a\\udcff"), "a")
    scrape = DestinationMetricsFixture(fixture).scrape()
    assert metric_of(scrape, "messages_published_total", "a\\udcff") == 1
    assert metric_of(scrape, "messages_published_total", "~others") == 2
    assert metric_of(scrape, "messages_published_total", "a\\udcff", "topic") == 1


@pytest.mark.parametrize("when", [1, 2, 3])
def test_destination_deleted_during_a_scrape_is_counted_once(
    monkeypatch: pytest.MonkeyPatch, when: int
) -> None:
    """Deleted before or after it is read, it counts once, and the sum does not decrease."""
    fixture = BrokerFixture()
    for number in range(3):
        fixture.send(fixture.broker.destinations.queue(f"q{number}"), *["a"] * (number + 1))
    metrics = DestinationMetricsFixture(fixture, limit=1)
    assert metric_of(metrics.scrape(), "messages_published_total", "~others") == 5
    last = fixture.broker.destinations.queue("q1")
    rest_count = 0

    async def rest(slices: object) -> None:
        nonlocal rest_count
        rest_count += 1
        if rest_count == when:
            fixture.broker.remove(last)

    monkeypatch.setattr("sluicemq.admin.time_slices.TimeSlices.due", True)
    monkeypatch.setattr("sluicemq.admin.time_slices.TimeSlices.wait_if_due", rest)
    for _ in range(3):
        assert metric_of(metrics.scrape(), "messages_published_total", "~others") == 5
    assert last.removed
    fixture.send(fixture.broker.destinations.queue("q2"), "more")
    assert metric_of(metrics.scrape(), "messages_published_total", "~others") == 6


def test_thousands_of_destinations_are_read_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without remaining scan time, each destination is a separate slice."""
    fixture = BrokerFixture()
    for number in range(50):
        fixture.broker.destinations.queue(f"q{number}")
    rest_count = 0

    async def rest(slices: object) -> None:
        nonlocal rest_count
        rest_count += 1

    monkeypatch.setattr("sluicemq.admin.time_slices.TimeSlices.due", True)
    monkeypatch.setattr("sluicemq.admin.time_slices.TimeSlices.wait_if_due", rest)
    assert len(DestinationMetricsFixture(fixture).scrape().names(READY)) == 50
    assert rest_count >= 50


def test_message_on_disk_is_read_once_for_its_age(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    journal = FileJournal.open(tmp_path / "journal")
    broker = Broker(journal, clock, EngineSettings(memory_budget=1))
    queue = broker.destinations.declare(Address(Kind.QUEUE, "q"), DestinationSettings())
    sent = clock.wall
    for _ in range(2):
        broker.publish(queue, Message(queue.address, b"x" * 100, timestamp=clock.wall))
        broker.flush()
        journal.sync()
        clock.advance(1000)
    head = queue.queue.all_ready.head()
    assert head is not None
    assert head.message is None
    reads = 0
    original_head = journal.fetch_head

    def counted(sequence: int) -> Message:
        nonlocal reads
        reads += 1
        return original_head(sequence)

    monkeypatch.setattr(FileJournal, "fetch_head", lambda self, sequence: counted(sequence))
    ages = Ages(broker.journal)
    for delay in (5000, 6000):
        ages.begin(sent + delay)
        assert ages.of(queue.queue) == delay / 1000
    assert reads == 1
    # another message is the oldest now
    purge(broker, queue)
    clock.advance(sent + 6500 - clock.wall)
    broker.publish(queue, Message(queue.address, b"y" * 100, timestamp=sent - 6500))
    broker.flush()
    journal.sync()
    ages.begin(sent + 7000)
    assert ages.of(queue.queue) == 0.5
    # without time to read the message, its age is not exported
    new_ages = Ages(broker.journal)
    new_ages.begin(sent + 7000)
    monkeypatch.setattr(new_ages, "_remaining_seconds", 0.0, raising=False)
    assert new_ages.of(queue.queue) == 0
    journal.close()
