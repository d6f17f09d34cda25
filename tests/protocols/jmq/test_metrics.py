"""Content and times of the messages of the topics mq.metrics.…"""

from __future__ import annotations

from typing import Any

import pytest

from sluicemq.broker import Broker, Delivery, ManualClock
from sluicemq.broker.state import Consumer, Window
from sluicemq.journal.interface import MemoryJournal
from sluicemq.model.destination import Address, DestinationSettings, Kind
from sluicemq.model.message import Durability, Message
from sluicemq.protocols.java import Long, loads_map
from sluicemq.protocols.jmq.destinations import Metrics
from sluicemq.protocols.jmq.fields import read_name
from sluicemq.protocols.jmq.mapping import encode_delivery
from sluicemq.protocols.jmq.packets import PacketType
from sluicemq.protocols.jmq.wire import Decoder, Packet
from tests.support.broker import purge

INTERVAL = 60_000


class Process:
    version = "1.2.3"

    def uptime(self) -> float:
        return 60.0

    def memory(self) -> int:
        return 123 << 20

    def clients(self) -> int:
        return 3


class Monitor:
    """A JMS subscriber of a topic that records the packets of its deliveries."""

    def __init__(self, fixture: MetricsFixture, topic: str, name: str = "m") -> None:
        self.fixture = fixture
        self.messages: list[Message] = []
        subscription = fixture.broker.subscribe(fixture.broker.destinations.topic(topic), name)
        self.consumer = fixture.broker.attach(subscription, self, Window(100, True))

    def deliver(self, consumer: Consumer, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            assert delivery.message is not None
            self.messages.append(delivery.message)
            self.fixture.broker.acknowledge(consumer, delivery.sequence)

    def detached(self, consumer: Consumer) -> None:
        raise AssertionError

    def packets(self) -> list[Packet]:
        """Return the packets that have arrived since the last call."""
        self.fixture.broker.flush()
        decoder = Decoder()
        packets = []
        for message in self.messages:
            chunks = encode_delivery(message, 7, 0, 1, self.fixture.broker.identity)
            packets += decoder.feed(b"".join(chunks))
        self.messages.clear()
        return packets

    def values(self) -> dict[str, Any]:
        """Return the content of the only message that has arrived."""
        (packet,) = self.packets()
        assert packet.type == PacketType.MAP_MESSAGE
        return loads_map(packet.body)


class Idle:
    """A consumer that receives no messages."""

    def deliver(self, consumer: Consumer, deliveries: list[Delivery]) -> None:
        raise AssertionError

    def detached(self, consumer: Consumer) -> None:
        raise AssertionError


class MetricsFixture:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.broker = Broker(MemoryJournal(), self.clock)
        self.metrics = Metrics(self.broker, Process(), lambda: ("h", 7676), INTERVAL)

    def seconds(self, count: int) -> None:
        """Advance the clock second by second, and call the timers as the server does."""
        for _ in range(count):
            self.clock.advance(1000)
            self.metrics.publish()
            self.broker.flush()

    def send(self, name: str, body: bytes, kind: Kind = Kind.QUEUE) -> None:
        destination = self.broker.destinations.resolve(Address(kind, name))
        message = Message(destination.address, body, durability=Durability.NONE)
        self.broker.publish(destination, message)
        self.broker.flush()


@pytest.fixture
def fixture() -> MetricsFixture:
    return MetricsFixture()


def test_first_message_is_sent_at_once_and_then_one_per_interval(fixture: MetricsFixture) -> None:
    monitor = Monitor(fixture, "mq.metrics.broker")
    fixture.seconds(1)
    assert len(monitor.packets()) == 1
    fixture.seconds(59)
    assert monitor.packets() == []
    fixture.seconds(1)
    assert len(monitor.packets()) == 1
    fixture.seconds(180)
    assert len(monitor.packets()) == 3


def test_nothing_is_sent_without_subscriptions(fixture: MetricsFixture) -> None:
    topic = fixture.broker.destinations.topic("mq.metrics.broker")
    fixture.seconds(5)
    assert topic.statistics.published == 0
    monitor = Monitor(fixture, "mq.metrics.broker")
    fixture.seconds(1)
    assert len(monitor.packets()) == 1
    fixture.broker.detach(monitor.consumer)
    fixture.seconds(5)
    assert topic.statistics.published == 1
    second = Monitor(fixture, "mq.metrics.broker", "another")
    fixture.seconds(1)
    assert len(second.packets()) == 1, "at once for who comes later, too"


def test_each_message_has_type_and_origin(fixture: MetricsFixture) -> None:
    monitor = Monitor(fixture, "mq.metrics.jvm")
    fixture.seconds(1)
    (packet,) = monitor.packets()
    assert packet.properties == {
        "type": "mq.metrics.jvm",
        "timestamp": fixture.clock.wall,
        "brokerAddress": "h:7676",
        "brokerHost": "h",
        "brokerPort": 7676,
    }
    assert packet.priority == 5
    assert packet.variable.destination == "mq.metrics.jvm"
    values = loads_map(packet.body)
    assert values["totalMemory"] == 123 << 20
    assert values["maxMemory"] == fixture.broker.settings.memory_limit
    assert 0 < int(str(values["freeMemory"])) <= int(str(values["maxMemory"]))
    assert all(type(value) is Long for value in values.values())
    assert b"java.util.Hashtable" in packet.body


def test_metrics_of_broker(fixture: MetricsFixture) -> None:
    fixture.send("a", b"12345")
    fixture.send("b", b"123")
    fixture.broker.destinations.topic("t")
    monitor = Monitor(fixture, "mq.metrics.broker")
    fixture.seconds(1)
    values = monitor.values()
    assert values == {
        "numConnections": 3,
        "numDestinations": 3,
        "numMsgsIn": 2,
        "numMsgsOut": 0,
        "numMsgs": 2,
        "msgBytesIn": 8,
        "msgBytesOut": 0,
        "totalMsgBytes": 8,
        "numPktsIn": 0,
        "numPktsOut": 0,
        "pktBytesIn": 0,
        "pktBytesOut": 0,
    }


def test_metrics_of_all_destinations(fixture: MetricsFixture) -> None:
    fixture.send("q", b"")
    fixture.broker.destinations.topic("t")
    fixture.broker.destinations.declare(Address(Kind.QUEUE, "tmp"), owner=fixture)
    monitor = Monitor(fixture, "mq.metrics.destination_list")
    fixture.seconds(1)
    assert monitor.values() == {
        "mq.metrics.destination.queue.q": {"name": "q", "type": "queue", "isTemporary": False},
        "mq.metrics.destination.topic.t": {"name": "t", "type": "topic", "isTemporary": False},
        "mq.metrics.destination.queue.tmp": {
            "name": "tmp",
            "type": "queue",
            "isTemporary": True,
        },
    }


def test_names_of_other_protocols_are_escaped_for_java_clients(
    fixture: MetricsFixture,
) -> None:
    fixture.send("orders-eu", b"1234")
    monitor = Monitor(fixture, "mq.metrics.destination_list")
    fixture.seconds(1)
    [(topic, values)] = monitor.values().items()
    assert topic == "mq.metrics.destination.queue.orders_HYPHEN_eu"
    assert values["name"] == "orders_HYPHEN_eu"
    monitor = Monitor(fixture, read_name(topic))
    fixture.seconds(1)
    [packet] = monitor.packets()
    assert packet.properties["type"] == topic
    assert loads_map(packet.body)["numMsgs"] == 1


def test_metrics_of_queue_have_peaks_and_averages(fixture: MetricsFixture) -> None:
    fixture.send("orders", b"1234")
    monitor = Monitor(fixture, "mq.metrics.destination.queue.orders")
    fixture.seconds(1)
    first = monitor.values()
    assert (first["numMsgs"], first["peakNumMsgs"], first["avgNumMsgs"]) == (1, 1, 1)
    for _ in range(9):
        fixture.send("orders", b"1234")
    fixture.seconds(30)
    purge(fixture.broker, fixture.broker.destinations.queue("orders"))
    fixture.seconds(30)
    values = monitor.values()
    assert (values["numMsgs"], values["peakNumMsgs"], values["avgNumMsgs"]) == (0, 10, 4)
    assert (values["totalMsgBytes"], values["peakTotalMsgBytes"]) == (0, 40)
    assert (values["numMsgsIn"], values["msgBytesIn"]) == (10, 40)
    assert values["numConsumers"] == values["peakNumConsumers"] == 0
    for name in ("diskReserved", "diskUsed", "diskUtilizationRatio", "peakMsgBytes"):
        assert values[name] == 0
    for name in ("numRolledbackMsgs", "numPurgedMsgs", "numAckedMsgs", "numExpiredMsgs"):
        assert name in values


def test_standby_consumers_are_counted_separately(fixture: MetricsFixture) -> None:
    settings = DestinationSettings(active_consumers=1)
    queue = fixture.broker.destinations.declare(Address(Kind.QUEUE, "orders"), settings)
    for _ in range(3):
        fixture.broker.attach(queue.queue, Idle(), Window(1, True))
    monitor = Monitor(fixture, "mq.metrics.destination.queue.orders")
    fixture.seconds(1)
    values = monitor.values()
    assert values["numConsumers"] == 3
    assert (values["numActiveConsumers"], values["numBackupConsumers"]) == (1, 2)
    assert values["peakNumActiveConsumers"] == values["avgNumActiveConsumers"] == 1


def test_metrics_of_destination_start_when_it_is_created(fixture: MetricsFixture) -> None:
    monitor = Monitor(fixture, "mq.metrics.destination.topic.later")
    fixture.seconds(5)
    assert monitor.packets() == []
    fixture.broker.destinations.topic("later")
    fixture.seconds(1)
    assert monitor.values()["numMsgs"] == 0


def test_other_topics_with_prefix_receive_no_metrics(fixture: MetricsFixture) -> None:
    monitor = Monitor(fixture, "mq.metrics.nonsense")
    fixture.seconds(100)
    assert monitor.packets() == []


def test_interval_of_0_sends_nothing(fixture: MetricsFixture) -> None:
    fixture.metrics = Metrics(fixture.broker, Process(), lambda: ("h", 1), 0)
    monitor = Monitor(fixture, "mq.metrics.broker")
    fixture.seconds(100)
    assert monitor.packets() == []


def test_stopping_broker_sends_no_metrics(fixture: MetricsFixture) -> None:
    monitor = Monitor(fixture, "mq.metrics.broker")
    fixture.broker.stop()
    fixture.seconds(1)
    assert monitor.packets() == []
