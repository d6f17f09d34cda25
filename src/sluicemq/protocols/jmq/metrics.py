"""Metrics topics `mq.metrics.…` for JMS monitors (JMQ, section 9.3).

    mq.metrics.broker                      the broker as a whole
    mq.metrics.jvm                         memory
    mq.metrics.destination_list            all destinations
    mq.metrics.destination.queue.NAME      one queue
    mq.metrics.destination.topic.NAME      one topic

They are ordinary topics. While a topic has subscribers, a MapMessage is published to it at once and
then in each interval; without subscribers nothing is computed. Monitors read every name of Open MQ,
so values that this broker does not measure are 0: packets, disk, rollbacks, purges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from typing import Final, Protocol

from sluicemq.broker import Broker, Destination
from sluicemq.model.destination import Address, Kind
from sluicemq.model.errors import BrokerError
from sluicemq.model.message import BodyKind, Durability, Message, Property
from sluicemq.protocols.java import Long, Value, dumps_map
from sluicemq.protocols.jmq.destinations import counters, gauges

PREFIX: Final = "mq.metrics."
PRIORITY: Final = 5

_QUEUE: Final = "destination.queue."
_TOPIC: Final = "destination.topic."

Values = Mapping[str, Value]


class Process(Protocol):
    """Values of the process that the engine does not know."""

    def memory(self) -> int:
        """Return the resident memory of the process in bytes."""

    def clients(self) -> int:
        """Return the number of connections of all protocols."""


class Watched:
    """Peaks and means of a destination's values while its metrics topic has subscribers."""

    __slots__ = ("_peaks", "_samples", "_sums")

    def __init__(self) -> None:
        self._peaks: dict[str, int] = {}
        self._sums: dict[str, int] = {}
        self._samples = 0

    def sample(self, destination: Destination) -> None:
        """Take a sample. Called at regular intervals."""
        self._samples += 1
        for name, value in gauges(destination):
            self._peaks[name] = max(self._peaks.get(name, 0), value)
            self._sums[name] = self._sums.get(name, 0) + value

    def values(self) -> Iterator[tuple[str, int]]:
        """Yield the names and values for monitors, after at least one sample."""
        for name, peak in self._peaks.items():
            title = name[0].upper() + name[1:]
            yield f"peak{title}", peak
            yield f"avg{title}", self._sums[name] // self._samples


_UNMEASURED: Final = (
    "numRolledbackMsgs",
    "numPurgedMsgs",
    "peakMsgBytes",
    "diskReserved",
    "diskUsed",
    "diskUtilizationRatio",
)
_PACKETS: Final = ("numPktsIn", "numPktsOut", "pktBytesIn", "pktBytesOut")
_TOTALS: Final = (
    *("numMsgsIn", "numMsgsOut", "msgBytesIn", "msgBytesOut"),
    *("numMsgs", "totalMsgBytes"),
)


def _longs(values: Mapping[str, int]) -> Values:
    return {name: Long(value) for name, value in values.items()}


class Metrics:
    """Publisher of the metrics topics.

    `address` is the address of the broker for JMS clients: host and port. `interval` is in ms; 0 =
    no messages.
    """

    def __init__(
        self,
        broker: Broker,
        process: Process,
        address: Callable[[], tuple[str, int]],
        interval: int,
    ) -> None:
        self._broker = broker
        self._process = process
        self._address = address
        self._interval = interval
        self._due: dict[str, int] = {}
        """Topics with subscribers, and the steady time of their next message."""
        self._watched: dict[str, Watched] = {}

    def publish(self) -> None:
        """Publish messages that are due. Called in an event loop iteration, about once a second."""
        if not self._interval:
            return
        now = self._broker.clock.steady
        topics = [
            destination
            for destination in self._broker.destinations.values()
            if destination.topic and destination.name.startswith(PREFIX) and destination.consumers
        ]
        names = {topic.name for topic in topics}
        for gone in self._due.keys() - names:
            del self._due[gone]
            self._watched.pop(gone, None)
        for topic in topics:
            name = topic.name.removeprefix(PREFIX)
            subject = self._subject(name)
            if subject is not None:
                self._watched.setdefault(topic.name, Watched()).sample(subject)
            if now < self._due.setdefault(topic.name, now):
                continue
            values = self._values(name, topic.name, subject)
            if values is not None:
                self._due[topic.name] = now + self._interval
                self._send(topic, values)

    def _subject(self, name: str) -> Destination | None:
        """Return the destination of a metrics topic, or None."""
        for prefix, kind in ((_QUEUE, Kind.QUEUE), (_TOPIC, Kind.TOPIC)):
            if name.startswith(prefix):
                return self._broker.destinations.find(Address(kind, name.removeprefix(prefix)))
        return None

    def _values(self, name: str, topic: str, subject: Destination | None) -> Values | None:
        if name == "broker":
            return self._of_broker()
        if name == "jvm":
            return self._of_memory()
        if name == "destination_list":
            return self._of_destinations()
        return None if subject is None else self._of_one(subject, self._watched[topic])

    def _destinations(self) -> Iterator[Destination]:
        for destination in self._broker.destinations.values():
            if not destination.name.startswith(PREFIX):
                yield destination

    def _of_broker(self) -> Values:
        totals = dict.fromkeys((*_TOTALS, *_PACKETS), 0)
        count = 0
        for destination in self._destinations():
            count += 1
            for name, value in chain(counters(destination), gauges(destination)):
                if name in totals:
                    totals[name] += value
        totals["numConnections"] = self._process.clients()
        totals["numDestinations"] = count
        return _longs(totals)

    def _of_memory(self) -> Values:
        """Return the memory values: the limit for messages, and the memory of the process."""
        limit = self._broker.settings.memory_limit
        return _longs(
            {
                "maxMemory": limit,
                "totalMemory": self._process.memory(),
                "freeMemory": max(0, limit - self._broker.memory),
            }
        )

    def _of_destinations(self) -> Values:
        listed: dict[str, Value] = {}
        for destination in self._destinations():
            kind, prefix = ("topic", _TOPIC) if destination.topic else ("queue", _QUEUE)
            listed[f"{PREFIX}{prefix}{destination.name}"] = {
                "name": destination.name,
                "type": kind,
                "isTemporary": destination.temporary,
            }
        return listed

    def _of_one(self, destination: Destination, watched: Watched) -> Values:
        found = chain(counters(destination), gauges(destination), watched.values())
        return _longs({**dict.fromkeys(_UNMEASURED, 0), **dict(found)})

    def _send(self, topic: Destination, values: Values) -> None:
        host, port = self._address()
        now = self._broker.clock.wall
        properties: dict[str, Property] = {
            "type": topic.name,
            "timestamp": Long(now),
            "brokerAddress": f"{host}:{port}",
            "brokerHost": host,
            "brokerPort": port,
        }
        message = Message(
            topic.address,
            dumps_map(values, hashtable=True),
            BodyKind.MAP,
            durability=Durability.NONE,
            timestamp=now,
            priority=PRIORITY,
            properties=properties,
        )
        with suppress(BrokerError):  # the topic may be full, or the broker stopping
            self._broker.publish(topic, message)
