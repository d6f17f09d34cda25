"""The rounds in which all destinations are looked at: once a second, a share at a time, so that no
turn of the loop is held up by their number.

A round brings the rates up to date, adds everything up, and removes what was created by use and has
been idle for its time. Whoever shows totals shows those of the last round that has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from sluicemq.broker.stats import DestinationStats, kept

if TYPE_CHECKING:
    from sluicemq.broker.destination import Destination
    from sluicemq.broker.engine import Broker

SHARE: Final = 100
"""Destinations looked at together. Each costs about 3 µs."""

DestinationCallback = Callable[["Destination", int, int], None]
"""Is told how many messages wait at a destination, and how many are in flight."""


class BrokerTotals:
    """All destinations together.

    temporary   destinations that belong to a connection
    consumers   attached
    waiting     messages, and
    bytes       of their bodies, those in flight included
    unacked     deliveries in flight
    statistics  counters since the broker started, of destinations that have gone too; rates of
                those that there are
    """

    __slots__ = (
        "bytes",
        "consumers",
        "destinations",
        "queues",
        "statistics",
        "temporary",
        "topics",
        "unacked",
        "waiting",
    )

    def __init__(self) -> None:
        self.destinations = 0
        self.queues = 0
        self.topics = 0
        self.temporary = 0
        self.consumers = 0
        self.waiting = 0
        self.bytes = 0
        self.unacked = 0
        self.statistics = DestinationStats()

    def take(self, destination: Destination, waiting: int, unacked: int) -> None:
        """Add a destination."""
        self.destinations += 1
        if destination.topic:
            self.topics += 1
        else:
            self.queues += 1
        if destination.owner is not None:
            self.temporary += 1
        self.consumers += destination.consumers
        self.waiting += waiting
        self.unacked += unacked
        if waiting or unacked:
            self.bytes += destination.bytes
        self.statistics.add(destination.statistics)


class StatsSampler:
    """See the module. `totals` are those of the last round."""

    __slots__ = ("_broker", "_gone", "_late", "_left", "_under_way", "totals")

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._left: dict[Destination, None] = {}
        """Those that this round has still to look at."""
        self._gone = DestinationStats()
        """Of destinations that are no more."""
        self._late = DestinationStats()
        """Of those that this round has counted before they went."""
        self._under_way = False
        self.totals = BrokerTotals()
        broker.removals.append(self._removed)

    def round(
        self, seconds: float, on_destination: DestinationCallback | None = None
    ) -> Iterator[None]:
        """One round, `seconds` (> 0) after the one before; others have their turn at each yield.

        Whoever gave the loop back has to begin a turn of the broker before it goes on.
        """
        broker = self._broker
        keep = kept(seconds)
        for traffic in broker.traffic.values():
            traffic.sample(seconds, keep)
        totals = BrokerTotals()
        self._left = left = dict.fromkeys(broker.destinations.values())
        self._under_way = True
        share = 0
        while left:
            destination, _ = left.popitem()
            destination.statistics.sample(seconds, keep)
            waiting, unacked = destination.waiting, destination.unacked
            totals.take(destination, waiting, unacked)
            if on_destination is not None:
                on_destination(destination, waiting, unacked)
            if destination.automatic:
                broker.reap(destination)
            share += 1
            if share >= SHARE:
                share = 0
                yield
        self._under_way = False
        totals.statistics.add(self._gone)
        self._gone.add(self._late)
        self._late = DestinationStats()
        self.totals = totals

    def _removed(self, destination: Destination) -> None:
        statistics = destination.statistics
        statistics.rate_in = statistics.rate_out = 0.0
        counted = self._under_way and destination not in self._left
        self._left.pop(destination, None)
        (self._late if counted else self._gone).add(statistics)
