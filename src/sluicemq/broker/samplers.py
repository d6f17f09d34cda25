"""Samplers over all destinations: statistics for people, and depths in the journal.

Both examine the destinations in rounds, a share at a time, so that the iterations stay short
regardless of the number of destinations.

A round of statistics, once a second, updates the rates, computes the totals, and deletes automatic
destinations that have been idle for their time. Displayed totals are those of the last completed
round. A round of depths, which begins `depth_interval` after the previous one has ended, is a scan
(scheduler.py); each destination that has changed since its last record gets a new one, for the
pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from sluicemq.broker.destinations import Destinations
from sluicemq.broker.state import Core, Destination
from sluicemq.broker.stats import DestinationStats, Traffic, decay_factor

BATCH: Final = 100
"""Destinations examined together in a round of statistics. Each takes about 3 µs."""


@dataclass(slots=True)
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

    destinations: int = 0
    queues: int = 0
    topics: int = 0
    temporary: int = 0
    consumers: int = 0
    waiting: int = 0
    bytes: int = 0
    unacked: int = 0
    statistics: DestinationStats = field(default_factory=DestinationStats)

    def add_destination(self, destination: Destination, waiting: int, unacked: int) -> None:
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

    def __init__(
        self,
        destinations: Destinations,
        traffic: dict[str, Traffic],
        delete_if_idle: Callable[[Destination], None],
    ) -> None:
        """Create a sampler; `delete_if_idle` deletes an automatic destination if it is idle."""
        self._destinations = destinations
        self._traffic = traffic
        self._delete_if_idle = delete_if_idle
        self._remaining: dict[Destination, None] = {}
        """Destinations that this round has still to examine."""
        self._deleted_stats = DestinationStats()
        """Statistics of deleted destinations."""
        self.totals = self._next_totals = BrokerTotals()
        """`_next_totals`: totals of this round, as far as it has come."""
        destinations.removals.append(self._on_removal)

    def sample_all(
        self, seconds: float, on_destination: Callable[[Destination, int, int], None] | None = None
    ) -> Iterator[None]:
        """Run one round, `seconds` (> 0) after the previous one, and yield after each share.

        `on_destination` receives a destination and its numbers of waiting and unacked messages.
        A caller that returned to the event loop begins a broker iteration before it continues.
        """
        decay = decay_factor(seconds)
        for traffic in self._traffic.values():
            traffic.sample(seconds, decay)
        self._next_totals = totals = BrokerTotals()
        totals.statistics.add(self._deleted_stats)
        self._remaining = remaining = dict.fromkeys(self._destinations.values())
        share = 0
        while remaining:
            destination, _ = remaining.popitem()
            destination.statistics.sample(seconds, decay)
            waiting, unacked = destination.waiting, destination.unacked
            totals.add_destination(destination, waiting, unacked)
            if on_destination is not None:
                on_destination(destination, waiting, unacked)
            if destination.automatic:
                self._delete_if_idle(destination)
            share += 1
            if share >= BATCH:
                share = 0
                yield
        self.totals = totals

    def _on_removal(self, destination: Destination) -> None:
        statistics = destination.statistics
        statistics.publish_rate = statistics.deliver_rate = 0.0
        self._deleted_stats.add(statistics)
        if destination in self._remaining:
            del self._remaining[destination]
            self._next_totals.statistics.add(statistics)


class DepthSampler:
    """Periodic sampler of the depths of all destinations."""

    def __init__(self, core: Core, destinations: Destinations) -> None:
        self._core = core
        self._destinations = destinations
        self._interval = core.journal.options.depth_interval
        self._schedule_round()

    def _schedule_round(self) -> None:
        if self._interval > 0:
            core = self._core
            core.timers.add(
                core.clock.steady + self._interval, core.scans.begin_steps, self._round()
            )

    def _round(self) -> Iterator[None]:
        for destination in list(self._destinations.values()):
            self.sample(destination)
            yield
        self._schedule_round()

    def sample(self, destination: Destination) -> None:
        """Record the depth of a destination if it has changed and the destination is journaled."""
        self._record(destination, (destination.waiting, destination.unacked, destination.consumers))

    def sample_deleted(self, destination: Destination) -> None:
        """Record a depth of 0 for a destination that is about to be deleted."""
        self._record(destination, (0, 0, 0))

    def finish(self) -> None:
        """Record all changed depths before the broker stops."""
        for destination in self._destinations.values():
            self.sample(destination)

    def _record(self, destination: Destination, depth: tuple[int, int, int]) -> None:
        if self._interval <= 0 or self._core.event_recorder.suspended:
            return  # the first round after the suspension records every change since
        is_known = destination.number and not destination.temporary and not destination.removed
        if is_known and destination.recorded_depth != depth:
            destination.recorded_depth = depth
            self._core.event_recorder.record_depth(destination.number, *depth)
