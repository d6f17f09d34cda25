"""Depth records of destinations in the journal: their destinations, interval and last value."""

from __future__ import annotations

from itertools import pairwise

from sluicemq.broker import Broker, ManualClock
from sluicemq.journal.format import RecordType, decode_depth
from sluicemq.model.destination import Address, Kind
from sluicemq.model.message import Durability, Message
from tests.support.broker import BrokerFixture
from tests.support.journal import RecordingJournal, read_from
from tests.support.scan_time import ScanTime

Depths = list[tuple[str, tuple[int, int, int]]]


class DepthSamplerFixture(BrokerFixture):
    def __init__(self, interval: int = 5000) -> None:
        self.disk = RecordingJournal(depth_interval=interval)
        self.last_sequence = 0
        self.names: dict[int, str] = {}
        super().__init__(journal=self.disk)

    def new_depths(self) -> Depths:
        """Return the depth records since the last call."""
        for number, address in self.disk.addresses.items():
            self.names[number] = address.name
        records = list(read_from(self.disk, self.last_sequence + 1))
        self.last_sequence = max([self.last_sequence, *(record.sequence for record in records)])
        return [
            (self.names[record.destination], decode_depth(record.body))
            for record in records
            if record.type == RecordType.DEPTH
        ]


def test_changed_destination_is_reported_once_per_interval() -> None:
    fixture = DepthSamplerFixture()
    queue = fixture.queue()
    fixture.queue("idle")
    fixture.send(queue, "a", "b", "c")
    fixture.wait(4999)
    assert fixture.new_depths() == []
    reader = fixture.read(queue, 1, refill=False)
    fixture.wait(1)
    fixture.wait(0)
    assert fixture.new_depths() == [("q", (2, 1, 1))]
    fixture.wait(5000)
    assert fixture.new_depths() == []
    reader.acknowledge("a")
    fixture.broker.grant(reader.consumer.window, 2)
    fixture.wait(4000)
    assert fixture.new_depths() == []
    reader.acknowledge("b", "c")
    reader.detach()
    fixture.wait(1000)
    fixture.wait(0)
    assert fixture.new_depths() == [("q", (0, 0, 0))], "last depth of a queue that is idle now"
    fixture.wait(50_000)
    assert fixture.new_depths() == []


def test_destinations_that_are_not_journaled_are_not_reported() -> None:
    fixture = DepthSamplerFixture()
    fixture.send(fixture.broker.destinations.queue("memory"), "a", durability=Durability.NONE)
    fixture.send(
        fixture.broker.destinations.declare(Address(Kind.QUEUE, "reply"), owner="connection"), "a"
    )
    fixture.wait(5000)
    fixture.wait(0)
    assert fixture.new_depths() == []


def test_topic_reports_its_longest_subscription() -> None:
    fixture = DepthSamplerFixture()
    topic = fixture.topic()
    for name in ("s", "t"):
        fixture.broker.subscribe(topic, name, durable=True)
    fixture.send(topic, "a", "b")
    fixture.read(topic.subscriptions["s"], 1, refill=False)
    fixture.wait(5000)
    fixture.wait(0)
    assert fixture.new_depths() == [("t", (2, 1, 1))]


def test_deleted_queue_is_reported_as_empty() -> None:
    fixture = DepthSamplerFixture()
    queue = fixture.queue()
    fixture.send(queue, "a")
    fixture.wait(5000)
    fixture.wait(0)
    assert fixture.new_depths() == [("q", (1, 0, 0))]
    fixture.broker.remove(queue)
    fixture.broker.flush()
    assert fixture.new_depths() == [("q", (0, 0, 0))]
    types = [r.type for r in read_from(fixture.disk, 0)]
    assert types.index(RecordType.DESTINATION_DELETED) > max(
        index for index, type in enumerate(types) if type == RecordType.DEPTH
    ), "reported while its number was still valid"


def test_stopping_broker_reports_all_changed_destinations() -> None:
    fixture = DepthSamplerFixture()
    fixture.send(fixture.queue("a"), "1")
    fixture.broker.stop()
    fixture.broker.depth_sampler.finish()
    fixture.broker.flush()
    assert fixture.new_depths() == [("a", (1, 0, 0))]


def test_very_many_destinations_are_sampled_in_slices_of_the_time_for_scans() -> None:
    journal = RecordingJournal(depth_interval=5000)
    clock = ManualClock()
    broker = Broker(journal, clock, start_deadline=ScanTime(limit=20).start)
    for number in range(300):
        queue = broker.destinations.queue(f"q{number}")
        broker.publish(queue, Message(queue.address, b"a"))
    broker.flush()
    counts = [0]
    clock.advance(5000)
    while counts[-1] < 300:
        broker.tick()
        broker.flush()
        depths = [destination.recorded_depth for destination in broker.destinations.values()]
        counts.append(depths.count((1, 0, 0)))
    assert max(after - before for before, after in pairwise(counts)) == 20


def test_round_of_depths_begins_an_interval_after_the_last_one() -> None:
    fixture = DepthSamplerFixture()
    queue = fixture.queue()
    for number in range(1, 4):
        fixture.send(queue, "a")
        fixture.wait(5000)
        fixture.wait(0)
        assert fixture.new_depths() == [("q", (number, 0, 0))]


def test_without_interval_nothing_is_sampled() -> None:
    fixture = DepthSamplerFixture(0)
    queue = fixture.queue()
    fixture.send(queue, "a")
    fixture.wait(100_000)
    fixture.broker.depth_sampler.finish()
    fixture.broker.remove(queue)
    fixture.wait(0)
    assert fixture.new_depths() == []
