"""Which destinations have figures of their own, and the sums of those that have none.

What is scraped each second and kept for a year must not grow with what clients make up. So at most
`limit` destinations have figures of their own: those that were declared first, then the earliest.
Temporary ones, which have a new name each time, never have. Their counters are summed, as are those
of all others, for queues and topics:

    destination="orders"        one that is shown
    destination="~others"       those for which there is no room
    destination="~temporary"

A counter never goes back, or Prometheus takes it for a restart: a sum keeps what was counted by
destinations that are gone, or have got figures of their own since.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import add
from typing import Final

from sluicemq.admin.metrics.exposition import escape, text_of
from sluicemq.admin.metrics.families import DESTINATION_COUNTERS
from sluicemq.broker import Broker, Destination
from sluicemq.broker.stats import DestinationStats

OTHERS: Final = "~others"
TEMPORARY: Final = "~temporary"
LONGEST_NAME: Final = 256
"""Bytes; what has a longer one is among the others."""

NOTHING: Final = (0,) * len(DESTINATION_COUNTERS)

Counters = tuple[int, int, int, int, int, int, int, int, int, int]


def counters_of(statistics: DestinationStats) -> Counters:
    """In the order of `families.DESTINATION_COUNTERS`."""
    return (
        statistics.published,
        statistics.delivered,
        statistics.redelivered,
        statistics.settled,
        statistics.expired,
        statistics.dropped,
        statistics.rejected,
        statistics.dead_lettered,
        statistics.bytes_in,
        statistics.bytes_out,
    )


class Sum:
    """The counters of many destinations together.

    labels  what stands for a name, and the kind
    gone    what those counted that are not among them any more
    """

    __slots__ = ("_before", "_told", "gone", "labels")

    def __init__(self, name: str, topic: bool) -> None:
        self.labels = _labels(name, topic)
        self.gone: Sequence[float] = NOTHING
        self._before: Sequence[float] = NOTHING
        self._told: Sequence[float] = NOTHING

    def keep(self, statistics: DestinationStats) -> None:
        """Go on counting what that one has counted so far."""
        self.gone = tuple(map(add, self.gone, counters_of(statistics)))

    def begin(self) -> None:
        """The destinations that are there are about to be read."""
        self._before = self.gone

    def leave(self, statistics: DestinationStats) -> None:
        """That one is told of by itself from now on, and is not read with the others any more."""
        self.keep(statistics)
        self._before = tuple(map(add, self._before, counters_of(statistics)))

    def total(self, present: Sequence[float]) -> Sequence[float]:
        """With what the destinations that are there have counted. Of one that went since `begin` it
        is not known whether it is among them: it may be missing this time, and the sum does not go
        back for it."""
        self._told = tuple(map(max, map(add, self._before, present), self._told))
        return self._told


class ExportedDestinations:
    """See the module. One for each broker.

    own   the destinations with figures of their own, and their labels as text
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
        broker.creations.append(self._show)
        broker.removals.append(self._hide)

    @property
    def sums(self) -> list[Sum]:
        """All there are."""
        return list(self._sums.values())

    def sum_of(self, destination: Destination) -> Sum:
        """The one that counts a destination without figures of its own."""
        return self._sums[TEMPORARY if destination.temporary else OTHERS, destination.topic]

    def labels(self, destination: Destination) -> str | None:
        """Of one with figures of its own: now, if there has come room for it. None of others."""
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
        # what is no UTF-8 may look like the name of another, and a name may look like a sum
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
