"""How destinations stand, told to the journal: who, how often, and what the last word is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sluicemq.broker.depth_sampler import LARGEST_SHARE, SHARE, DepthSampler
from sluicemq.journal.format import RecordType, decode_gauge
from sluicemq.journal.memory import MemoryJournal
from sluicemq.model.destination import Address, Kind
from sluicemq.model.message import Durability
from tests.broker.support import Rig

Told = list[tuple[str, tuple[int, int, int]]]


class DepthSamplerRig(Rig):
    def __init__(self, interval: int = 5000) -> None:
        self.disk = MemoryJournal(history=True, gauge_interval=interval)
        self.last = 0
        self.names: dict[int, str] = {}
        super().__init__(journal=self.disk)

    def told(self) -> Told:
        """Gauges since the last call."""
        for number, address in self.disk.addresses.items():
            self.names[number] = address.name
        records = list(self.disk.read_from(self.last + 1))
        self.last = max([self.last, *(record.sequence for record in records)])
        return [
            (self.names[record.destination], decode_gauge(record.body))
            for record in records
            if record.type == RecordType.GAUGE
        ]

    def turns(self, milliseconds: int) -> Iterator[int]:
        """How many are told of in each turn, while so much time passes."""
        for _ in range(0, milliseconds, 10):
            self.clock.advance(10)
            self.broker.tick()
            yield len(self.broker.core.event_recorder.kept)
            self.broker.flush()
            self.wait(0)


def test_a_destination_is_told_of_when_it_has_changed_and_once_an_interval() -> None:
    rig = DepthSamplerRig()
    queue = rig.queue()
    rig.queue("idle")
    rig.send(queue, "a", "b", "c")
    rig.wait(4999)
    assert rig.told() == []
    reader = rig.read(queue, 1, refill=False)
    rig.wait(1)
    rig.wait(0)
    assert rig.told() == [("q", (2, 1, 1))]
    rig.wait(5000)
    assert rig.told() == []
    reader.settle("a")
    rig.broker.grant(reader.consumer.window, 2)
    rig.wait(4000)
    assert rig.told() == []
    reader.settle("b", "c")
    reader.detach()
    rig.wait(1000)
    rig.wait(0)
    assert rig.told() == [("q", (0, 0, 0))], "the last gauge of a queue that is idle now"
    rig.wait(50_000)
    assert rig.told() == []


def test_destinations_the_journal_does_not_know_for_good_are_not_told_of() -> None:
    rig = DepthSamplerRig()
    rig.send(rig.broker.queue("memory"), "a", durability=Durability.NONE)
    rig.send(rig.broker.declare(Address(Kind.QUEUE, "reply"), owner="connection"), "a")
    rig.wait(5000)
    rig.wait(0)
    assert rig.told() == []


def test_a_topic_is_told_of_by_its_longest_subscription() -> None:
    rig = DepthSamplerRig()
    topic = rig.topic()
    for name in ("s", "t"):
        rig.broker.subscribe(topic, name, durable=True)
    rig.send(topic, "a", "b")
    rig.read(topic.subscriptions["s"], 1, refill=False)
    rig.wait(5000)
    rig.wait(0)
    assert rig.told() == [("t", (2, 1, 1))]


def test_a_queue_that_goes_stands_at_nothing() -> None:
    rig = DepthSamplerRig()
    queue = rig.queue()
    rig.send(queue, "a")
    rig.wait(5000)
    rig.wait(0)
    assert rig.told() == [("q", (1, 0, 0))]
    rig.broker.remove(queue)
    rig.broker.flush()
    assert rig.told() == [("q", (0, 0, 0))]
    types = [r.type for r in rig.disk.read_from(0)]
    assert types.index(RecordType.DESTINATION_GONE) > max(
        place for place, type in enumerate(types) if type == RecordType.GAUGE
    ), "told of when its number had a meaning still"


def test_a_broker_that_stops_tells_of_all_that_has_changed() -> None:
    rig = DepthSamplerRig()
    rig.send(rig.queue("a"), "1")
    rig.broker.stopping = True
    rig.broker.depth_sampler.finish()
    rig.broker.flush()
    assert rig.told() == [("a", (1, 0, 0))]


def test_very_many_destinations_are_told_of_a_share_at_a_time() -> None:
    rig = DepthSamplerRig()
    for number in range(3000):
        queue = rig.broker.queue(f"q{number}")
        rig.broker.publish(queue, rig.message(queue, "a"))
    rig.broker.flush()
    assert sum(rig.turns(4990)) == 0
    shares = list(rig.turns(10_000))
    assert sum(shares) == 3000
    assert max(shares) <= SHARE


class Looked:
    """Stands for any number of destinations."""

    number = unacked = consumers = 0
    temporary = removed = False
    looks = 0

    @property
    def waiting(self) -> int:
        self.looks += 1
        return 0


def test_a_round_of_very_many_destinations_takes_as_long_as_it_takes() -> None:
    rig = DepthSamplerRig(0)
    rig.disk.gauge_interval = 5000
    looked: Any = Looked()
    destinations = {Address(Kind.QUEUE, str(number)): looked for number in range(100_000)}
    DepthSampler(rig.broker.core, destinations)
    rig.clock.advance(5000)
    for turn in range(1, 201):
        rig.broker.tick()
        assert looked.looks == turn * LARGEST_SHARE
        rig.clock.advance(50)


def test_without_an_interval_there_are_none() -> None:
    rig = DepthSamplerRig(0)
    queue = rig.queue()
    rig.send(queue, "a")
    rig.wait(100_000)
    rig.broker.depth_sampler.finish()
    rig.broker.remove(queue)
    rig.wait(0)
    assert rig.told() == []
