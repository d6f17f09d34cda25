"""Selection of the destinations that have time series of their own, and sums of the others.

Clients choose the names of destinations, and Prometheus keeps every name. Therefore at most `limit`
destinations are exported individually: first the declared ones, then the oldest. Temporary
destinations, which have a new name each time, never are. The others are summed, separately for
queues and topics:

    destination="orders"        an exported destination
    destination="~others"       those beyond the limit
    destination="~temporary"    temporary destinations

Prometheus takes a decreasing counter for a restart. A sum therefore keeps the counts of
destinations that were deleted or are now exported individually.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import add
from typing import Final

from sluicemq.admin.metrics.exposition import escape, text_of
from sluicemq.admin.metrics.families import DESTINATION_COUNTERS
from sluicemq.broker import Broker, Destination, DestinationStats

OTHERS: Final = "~others"
TEMPORARY: Final = "~temporary"
LONGEST_NAME: Final = 256
"""Maximum length in bytes of the name of an exported destination."""

NOTHING: Final = (0,) * len(DESTINATION_COUNTERS)

Counters = tuple[int, int, int, int, int, int, int, int, int, int]


def counters_of(statistics: DestinationStats) -> Counters:
    """Return the counters in the order of `families.DESTINATION_COUNTERS`."""
    return (
        statistics.published,
        statistics.delivered,
        statistics.redelivered,
        statistics.acknowledged,
        statistics.expired,
        statistics.dropped,
        statistics.rejected,
        statistics.dead_lettered,
        statistics.published_bytes,
        statistics.delivered_bytes,
    )


class Sum:
    """Sum of the counters of many destinations.

    labels  labels of the sum: a name for all, and the kind
    gone    counts of the destinations that the sum no longer includes
    """

    __slots__ = ("_before", "_reported", "gone", "labels")

    def __init__(self, name: str, topic: bool) -> None:
        self.labels = _labels(name, topic)
        self.gone: Sequence[float] = NOTHING
        self._before: Sequence[float] = NOTHING
        self._reported: Sequence[float] = NOTHING

    def keep(self, statistics: DestinationStats) -> None:
        """Keep the counts of a destination that is deleted."""
        self.gone = tuple(map(add, self.gone, counters_of(statistics)))

    def begin(self) -> None:
        """Begin a collection of the present destinations."""
        self._before = self.gone

    def leave(self, statistics: DestinationStats) -> None:
        """Keep the counts of a destination that is exported individually from now on."""
        self.keep(statistics)
        self._before = tuple(map(add, self._before, counters_of(statistics)))

    def total(self, present: Sequence[float]) -> Sequence[float]:
        """Return the sum; `present` has the counts of the present destinations.

        A destination deleted since `begin` may be missing in `present`; the sum does not decrease
        because of it.
        """
        self._reported = tuple(map(max, map(add, self._before, present), self._reported))
        return self._reported


class ExportedDestinations:
    """Exported destinations and sums, one object per broker.

    own   exported destinations with their formatted labels
    """

    def __init__(self, broker: Broker, limit: int) -> None:
        self.limit = limit
        self.own: dict[Destination, str] = {}
        self._taken: set[str] = set()
        self._sums = {
            (name, topic): Sum(name, topic)
            for name in (OTHERS, TEMPORARY)
            for topic in (False, True)
        }
        there = [d for d in broker.destinations.values() if not d.temporary]
        for destination in sorted(there, key=lambda destination: destination.automatic):
            self._show(destination)
        broker.destinations.creations.append(self._show)
        broker.destinations.removals.append(self._hide)

    @property
    def sums(self) -> list[Sum]:
        """All sums."""
        return list(self._sums.values())

    def sum_of(self, destination: Destination) -> Sum:
        """Return the sum that includes a destination without time series of its own."""
        return self._sums[TEMPORARY if destination.temporary else OTHERS, destination.topic]

    def labels(self, destination: Destination) -> str | None:
        """Return the labels of an exported destination, None for others. Exports the destination
        if the limit permits it now."""
        own = self.own.get(destination)
        if own is None and len(self.own) < self.limit and not destination.temporary:
            self._show(destination)
            own = self.own.get(destination)
            if own is not None:
                self.sum_of(destination).leave(destination.statistics)
        return own

    def _show(self, destination: Destination) -> None:
        if len(self.own) >= self.limit or destination.temporary:
            return
        name = text_of(destination.name)
        labels = _labels(name, destination.topic)
        # an escaped name may equal the name of another destination or of a sum
        if len(name) > LONGEST_NAME or name.startswith("~") or labels in self._taken:
            return
        self.own[destination] = labels
        self._taken.add(labels)

    def _hide(self, destination: Destination) -> None:
        labels = self.own.pop(destination, None)
        if labels is None:
            self.sum_of(destination).keep(destination.statistics)
        else:
            self._taken.discard(labels)


def _labels(name: str, topic: bool) -> str:
    return f'destination="{escape(name)}",kind="{"topic" if topic else "queue"}"'
