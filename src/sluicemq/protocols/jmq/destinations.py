"""Destinations as JMQ clients name and monitor them.

| name                          | permitted operations                                             |
|-------------------------------|------------------------------------------------------------------|
| temporary_destination://...   | deleted with the connection that created it; all may send to it, |
|                               | only that connection consumes, browses, verifies and destroys it |
| mq.sys.dmq                    | the dead message queue: consumed and browsed, never sent to      |
| mq.sys.wildcards              | the topic that keeps durable subscriptions of wildcards          |
| mq.metrics.*, mq.log.broker.* | topics of the broker: consumed, never sent to                    |
| another name with mq.         | nothing: it is reserved                                          |
| with an element * ** or >     | a wildcard: only of topics                                       |
| any other                     | created by use, if the broker permits that                       |

Sending to a temporary destination requires no permission: a client that knows its name got it for a
reply.

A name consists of elements joined by `.`. In a wildcard `*` matches one element and `**` one or
more. `>` after the last element, without a dot, matches further elements: zero or more after a
name, one or more after `*` and `**`. A single `>` matches every name. Open MQ (4.2 and later)
refuses a dot before `>`; this broker accepts it as `**`, so that a permission for `a.*` covers all
names that `a.>` matches.

Metrics topics `mq.metrics.…` for JMS monitors (JMQ, section 9.3).

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

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from sluicemq.broker import Broker, Destination
from sluicemq.model.destination import (
    Address,
    CreatedBy,
    DestinationSettings,
    Kind,
    Overflow,
    Provenance,
)
from sluicemq.model.errors import BrokerError, DestinationNotFound, LimitExceeded
from sluicemq.model.message import BodyKind, Durability, Message, Property
from sluicemq.protocols.java import Long, Value, dumps_map
from sluicemq.protocols.jmq.fields import DEAD_MESSAGES, format_name, read_name
from sluicemq.protocols.jmq.packets import DestType, RejectedRequest, Status
from sluicemq.protocols.jmq.wire import Packet, number, text
from sluicemq.protocols.transport import Process

# --- wildcards -----------------------------------------------------------------------------------

_WILDCARD_CHARACTERS: Final = re.compile(r"[*>]")


def is_wildcard(address: Address) -> bool:
    """Return whether the name is one of topics that contains wildcards. `Pattern` may still reject
    it. In the name of a queue, which clients escape, `*` and `>` have no meaning."""
    return address.kind is Kind.TOPIC and _WILDCARD_CHARACTERS.search(address.name) is not None


def permission_name(address: Address) -> str:
    """Return the name, or the pattern for a wildcard, for which a client requires permission."""
    return address.name.replace(">", "*") if is_wildcard(address) else address.name


class Pattern:
    """Parsed wildcard. Raises ValueError if a wildcard is not a whole element: `a.b*`."""

    __slots__ = ("_any", "_end", "_many", "_masks", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        elements: list[str] = []
        """Elements of the pattern; `*` matches one element, `>` zero or more."""
        open_ended = text.endswith(">")
        for element in text.removesuffix(">").removesuffix("." if open_ended else "").split("."):
            if element == "**":
                elements += ("*", ">")
            elif element == "*" or (element and not _WILDCARD_CHARACTERS.search(element)):
                elements.append(element)
            elif text != ">":
                raise ValueError(
                    f"{text[:80]!r} is not a valid wildcard: {element!r} is not a valid element"
                )
        if text.endswith(("*>", ".>")):
            elements += ("*", ">")
        elif open_ended:
            elements.append(">")
        # States of `matches`, in the bits of a number: bit n stands for the first n elements.
        self._end = 1 << len(elements)
        self._any = sum(1 << index for index, part in enumerate(elements) if part == "*")
        self._many = sum(1 << index for index, part in enumerate(elements) if part == ">")
        self._masks = {"": 0}
        """States in which an element matches; others match in the states `_any`."""
        for index, part in enumerate(elements):
            self._masks[part] = self._masks.get(part, self._any) | 1 << index

    def matches(self, name: str) -> bool:
        """Return whether the pattern matches a topic name. The name must not be a wildcard."""
        many_mask = self._many
        states = 1 | (1 & many_mask) << 1
        for element in name.split("."):
            states = (states & self._masks.get(element, self._any)) << 1 | states & many_mask
            if not states:
                return False
            states |= (states & many_mask) << 1  # `>` may match nothing
        return states & self._end != 0


DEFAULTS: Final = DestinationSettings(dead_letter=True, dead_letter_queue=DEAD_MESSAGES.name)
"""Settings of destinations that are created by use."""
DEAD_MESSAGES_SETTINGS: Final = DestinationSettings(
    max_messages=1000, max_bytes=10_000_000, overflow=Overflow.DROP_OLDEST
)
MAX_NAME: Final = 1024
"""Maximum length of a name in bytes."""

_RESERVED: Final = "mq."
_METRICS: Final = "mq.metrics."
_FOR_MONITORS: Final = (_METRICS, "mq.log.broker.")


# --- names ---------------------------------------------------------------------------------------


def is_reserved(address: Address) -> bool:
    """Return whether the name is reserved: no client may send to it."""
    return address.name.startswith(_RESERVED)


def check_name(address: Address, wire_name: str) -> None:
    """Raise RejectedRequest unless it can be a destination's name, a wildcard included.

    `wire_name` is the name as the client writes it.
    """
    size = len(address.name.encode("utf-8", "surrogatepass"))
    if not 0 < size <= MAX_NAME or not wire_name.isprintable():
        raise RejectedRequest(
            Status.BAD_REQUEST,
            f"the name of a destination must have 1 to {MAX_NAME} bytes, all printable",
        )
    if address.kind is Kind.QUEUE and _WILDCARD_CHARACTERS.search(wire_name):
        raise RejectedRequest(
            Status.UNSUPPORTED_TYPE, f"{wire_name}: the name of a queue cannot contain wildcards"
        )
    if is_wildcard(address):
        try:
            Pattern(address.name)
        except ValueError as error:
            raise RejectedRequest(Status.BAD_REQUEST, str(error)) from None


def address_of(packet: Packet, default: int | None = None) -> Address:
    """Return the address named by a request; JMQDestType defaults to `default`.

    Raises RejectedRequest if the name is invalid.
    """
    bits = number(packet, "JMQDestType", default)
    if bool(bits & DestType.QUEUE) == bool(bits & DestType.TOPIC):
        raise RejectedRequest(Status.BAD_REQUEST, f"JMQDestType {bits} is neither queue nor topic")
    kind = Kind.QUEUE if bits & DestType.QUEUE else Kind.TOPIC
    wire_name = text(packet, "JMQDestination")
    address = Address(kind, read_name(wire_name))
    check_name(address, wire_name)
    return address


# --- finding and creating ------------------------------------------------------------------------


def find_or_create(broker: Broker, address: Address, creator: str | None) -> Destination:
    """Return a destination, creating it if needed.

    A new one counts against the quota of `creator` (Identity.creator).

    Raises RejectedRequest, DestinationNotFound, LimitExceeded.
    """
    destinations = broker.destinations
    if is_reserved(address) and destinations.find(address) is None:
        if address.kind is Kind.QUEUE or not address.name.startswith(_FOR_MONITORS):
            raise RejectedRequest(
                Status.ERROR, f"{address.name}: names with {_RESERVED} are reserved"
            )
        with suppress(DestinationNotFound):
            return destinations.resolve(address, DEFAULTS)
        # the broker creates it, regardless of what applications may create
        return destinations.create(address, DEFAULTS)
    return destinations.resolve(address, DEFAULTS, creator, CreatedBy.JMQ)


def create_dead_messages(broker: Broker) -> None:
    """Create the dead message queue, which drops old messages for new ones, if it is missing.

    While there are too many destinations, the first dead letter creates it.
    """
    broker.destinations.drop_dead_letters(DEAD_MESSAGES)
    existing = broker.destinations.find(DEAD_MESSAGES)
    if existing is None or existing.automatic:
        with suppress(LimitExceeded):
            broker.destinations.declare(
                DEAD_MESSAGES, DEAD_MESSAGES_SETTINGS, provenance=Provenance()
            )


def accepts_replies(destination: Destination | None) -> bool:
    """Return whether it is a temporary destination, to which every client may send."""
    return destination is not None and destination.temporary


# --- metrics -------------------------------------------------------------------------------------


def gauges(destination: Destination) -> dict[str, int]:
    """Return the current values of a destination's gauges."""
    consumers = destination.consumers
    active_limit = destination.settings.active_consumers
    active = min(consumers, active_limit) if active_limit and not destination.topic else consumers
    return {
        "numConsumers": consumers,
        "numActiveConsumers": active,
        "numBackupConsumers": consumers - active,
        "numMsgs": destination.waiting + destination.unacked,
        "totalMsgBytes": destination.bytes,
    }


def metrics_of(destination: Destination) -> dict[str, int]:
    """Return the current values of a destination's counters and gauges."""
    statistics = destination.statistics
    return {
        "numMsgsIn": statistics.published,
        "numMsgsOut": statistics.delivered,
        "msgBytesIn": statistics.published_bytes,
        "msgBytesOut": statistics.delivered_bytes,
        "numAckedMsgs": statistics.acknowledged,
        "numExpiredMsgs": statistics.expired,
        "numDiscardedMsgs": statistics.dropped + statistics.dead_lettered,
        "numRejectedMsgs": statistics.rejected,
        **gauges(destination),
    }


_METRICS_PRIORITY: Final = 5

_QUEUE: Final = "destination.queue."
_TOPIC: Final = "destination.topic."

Values = Mapping[str, Value]


_UNMEASURED: Final = dict.fromkeys(
    (
        "numRolledbackMsgs",
        "numPurgedMsgs",
        "peakMsgBytes",
        "diskReserved",
        "diskUsed",
        "diskUtilizationRatio",
    ),
    0,
)
_TOTALS: Final = (
    *("numMsgsIn", "numMsgsOut", "msgBytesIn", "msgBytesOut"),
    *("numMsgs", "totalMsgBytes", "numDestinations", "numConnections"),
    *("numPktsIn", "numPktsOut", "pktBytesIn", "pktBytesOut"),  # not measured
)


@dataclass(slots=True, eq=False)
class MetricsTopic:
    """Metrics topic with subscribers, and peaks and sums of its destination's gauges.

    due  steady time of the next message
    """

    due: int
    peaks: Counter[str] = field(default_factory=Counter)
    sums: Counter[str] = field(default_factory=Counter)
    samples: int = 0

    def sample(self, destination: Destination) -> None:
        """Take a sample. Called at regular intervals."""
        self.samples += 1
        for name, value in gauges(destination).items():
            self.peaks[name] = max(self.peaks[name], value)
            self.sums[name] += value

    def values(self) -> dict[str, int]:
        """Return the peaks and means for monitors, after at least one sample."""
        values: dict[str, int] = {}
        for name, peak in self.peaks.items():
            title = name[0].upper() + name[1:]
            values[f"peak{title}"] = peak
            values[f"avg{title}"] = self.sums[name] // self.samples
        return values


def to_longs(values: Mapping[str, int]) -> Values:
    """Return values as Longs, as monitors expect them."""
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
        self._metrics_topics: dict[str, MetricsTopic] = {}
        """Topics with subscribers, by name."""

    def publish(self) -> None:
        """Publish messages that are due. Called in an event loop iteration, about once a second."""
        if not self._interval:
            return
        now = self._broker.clock.steady
        topics = [
            destination
            for destination in self._broker.destinations.values()
            if destination.topic and destination.name.startswith(_METRICS) and destination.consumers
        ]
        self._metrics_topics = {
            topic.name: self._metrics_topics.get(topic.name) or MetricsTopic(now)
            for topic in topics
        }
        for topic in topics:
            name = topic.name.removeprefix(_METRICS)
            metrics_topic = self._metrics_topics[topic.name]
            subject = self._subject(name)
            if subject is not None:
                metrics_topic.sample(subject)
            if now < metrics_topic.due:
                continue
            values = self._values(name, subject, metrics_topic)
            if values is not None:
                metrics_topic.due = now + self._interval
                self._send(topic, values)

    def _subject(self, name: str) -> Destination | None:
        """Return the destination of a metrics topic, or None."""
        for prefix, kind in ((_QUEUE, Kind.QUEUE), (_TOPIC, Kind.TOPIC)):
            if name.startswith(prefix):
                return self._broker.destinations.find(Address(kind, name.removeprefix(prefix)))
        return None

    def _values(
        self, name: str, subject: Destination | None, metrics_topic: MetricsTopic
    ) -> Values | None:
        if name == "broker":
            return self._broker_values()
        if name == "jvm":
            limit = self._broker.settings.memory_limit
            return {
                "maxMemory": Long(limit),
                "totalMemory": Long(self._process.memory()),
                "freeMemory": Long(max(0, limit - self._broker.memory)),
            }
        if name == "destination_list":
            return self._destination_values()
        if subject is None:
            return None
        return to_longs(_UNMEASURED | metrics_of(subject) | metrics_topic.values())

    def _destinations(self) -> Iterator[Destination]:
        for destination in self._broker.destinations.values():
            if not destination.name.startswith(_METRICS):
                yield destination

    def _broker_values(self) -> Values:
        totals: Counter[str] = Counter()
        for destination in self._destinations():
            totals.update(metrics_of(destination), numDestinations=1)
        totals["numConnections"] = self._process.clients()
        return to_longs({name: totals[name] for name in _TOTALS})

    def _destination_values(self) -> Values:
        values: dict[str, Value] = {}
        for destination in self._destinations():
            kind, prefix = ("topic", _TOPIC) if destination.topic else ("queue", _QUEUE)
            name = format_name(destination.name)
            values[f"{_METRICS}{prefix}{name}"] = {
                "name": name,
                "type": kind,
                "isTemporary": destination.temporary,
            }
        return values

    def _send(self, topic: Destination, values: Values) -> None:
        host, port = self._address()
        now = self._broker.clock.wall
        properties: dict[str, Property] = {
            "type": format_name(topic.name),
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
            priority=_METRICS_PRIORITY,
            properties=properties,
        )
        with suppress(BrokerError):  # the topic may be full, or the broker stopping
            self._broker.publish(topic, message)
