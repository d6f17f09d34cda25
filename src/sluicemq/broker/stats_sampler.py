"""Sampler of statistics: a round over all destinations once a second, in shares.

The shares keep the iterations short, whatever the number of destinations. A round updates the
rates, computes the totals, and deletes automatic destinations that have been idle for their time.
Displayed totals are those of the last completed round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from sluicemq.broker.stats import DestinationStats, kept

if TYPE_CHECKING:
    from sluicemq.broker.destinations import Destinations
    from sluicemq.broker.state import Destination
    from sluicemq.broker.stats import Traffic

SHARE: Final = 100
"""Destinations examined together. Each takes about 3 µs."""

DestinationCallback = Callable[["Destination", int, int], None]
"""Callback with a destination, its number of waiting messages and its number of unacked ones."""


class BrokerTotals:
    """Totals of all destinations.

    temporary   destinations owned by a connection
    consumers   attached consumers
    waiting     waiting messages
    bytes       bytes of message bodies, unacked ones included
    unacked     unacked deliveries
    statistics  counters since the broker started, deleted destinations included; rates of existing
                destinations
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
        """Add a destination to the totals."""
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
    """Sampler of all destinations. `totals` are those of the last completed round."""

    __slots__ = (
        "_destinations",
        "_gone",
        "_late",
        "_left",
        "_reap",
        "_traffic",
        "_under_way",
        "totals",
    )

    def __init__(
        self,
        destinations: Destinations,
        traffic: dict[str, Traffic],
        reap: Callable[[Destination], None],
    ) -> None:
        """Create a sampler; `reap` deletes an automatic destination that has been idle."""
        self._destinations = destinations
        self._traffic = traffic
        self._reap = reap
        self._left: dict[Destination, None] = {}
        """Destinations that this round has still to examine."""
        self._gone = DestinationStats()
        """Statistics of deleted destinations."""
        self._late = DestinationStats()
        """Statistics of destinations deleted after this round had counted them."""
        self._under_way = False
        self.totals = BrokerTotals()
        destinations.removals.append(self._removed)

    def round(
        self, seconds: float, on_destination: DestinationCallback | None = None
    ) -> Iterator[None]:
        """Run one round, `seconds` (> 0) after the previous one, and yield after each share.

        A caller that returned to the event loop begins a broker iteration before it continues.
        """
        keep = kept(seconds)
        for traffic in self._traffic.values():
            traffic.sample(seconds, keep)
        totals = BrokerTotals()
        self._left = left = dict.fromkeys(self._destinations.values())
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
                self._reap(destination)
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
        statistics.publish_rate = statistics.deliver_rate = 0.0
        counted = self._under_way and destination not in self._left
        self._left.pop(destination, None)
        (self._late if counted else self._gone).add(statistics)
