"""Collectors of the metrics of destinations, of the process and of requests to the HTTP API, with
the state that they keep between scrapes.

Metrics of destinations and subscriptions are collected and formatted in time slices: with thousands
of destinations they are most of a scrape. All values are collected first, so that those of one
destination belong to one moment; then they are formatted family by family, as the format requires.
"""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import add, attrgetter
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from sluicemq.admin.metrics import (
    COLLECTIONS,
    DEAD_LETTERS,
    DESTINATION_COUNTERS,
    DESTINATION_GAUGES,
    DESTINATIONS,
    PAUSES,
    PROCESS,
    REQUEST_TIME,
    REQUESTS,
    SUBSCRIPTION_GAUGES,
    Exposition,
    Family,
    escape,
    text_of,
)
from sluicemq.admin.time_slices import TimeSlices
from sluicemq.broker import Broker, Delivery, Destination, DestinationStats, Subscription
from sluicemq.journal.interface import Journal
from sluicemq.model.destination import Address
from sluicemq.model.errors import JournalDamaged, RecordNotFound
from sluicemq.model.histogram import Histogram

# --- Destinations with time series of their own ---------------------------------------------------
#
# Selection of the destinations that have time series of their own, and sums of the others.
#
# Clients choose the names of destinations, and Prometheus keeps every name. Therefore at most
# `limit` destinations are exported individually: first the declared ones, then the oldest.
# Temporary destinations, which have a new name each time, never are. The others are summed,
# separately for queues and topics:
#
#     destination="orders"        an exported destination
#     destination="~others"       those beyond the limit
#     destination="~temporary"    temporary destinations
#
# Prometheus takes a decreasing counter for a restart. A sum therefore keeps the counts of
# destinations that were deleted or are now exported individually.

OTHERS: Final = "~others"
TEMPORARY: Final = "~temporary"
MAX_NAME_BYTES: Final = 256
"""Maximum length in bytes of the name of an exported destination."""

LINES_PER_CHECK: Final = 200
"""Lines between two checks of the clock; they take about 100 µs."""

_FAMILIES: Final = (*DESTINATION_COUNTERS.values(), *DESTINATION_GAUGES.values())
_AGE: Final = _FAMILIES.index(DESTINATION_GAUGES["oldest"])
_NOT_SUMMED: Final = (DESTINATION_GAUGES["max_messages"], DESTINATION_GAUGES["max_bytes"])

Values = tuple[float, ...]
ZEROS: Final[Values] = (0,) * len(DESTINATION_COUNTERS)

counters_of: Final = attrgetter(*DESTINATION_COUNTERS)
"""Returns the counters of a destination in the order of DESTINATION_COUNTERS."""


@dataclass(slots=True, eq=False)
class Sum:
    """Sum of the metrics of many destinations.

    labels  labels of the sum: a name for all, and the kind
    past    counts of the destinations that the sum no longer includes
    """

    labels: str
    past: Values = ZEROS
    _before: Values = ZEROS
    _reported: Values = ZEROS
    _present: Values = ()
    _rows: list[Values] = field(default_factory=list)
    """Rows to be added in groups, because adding them one by one would dominate a scrape."""

    def add_past(self, statistics: DestinationStats) -> None:
        """Keep the counts of a destination that is deleted."""
        self.past = tuple(map(add, self.past, counters_of(statistics)))

    def begin(self) -> None:
        """Begin a collection of the present destinations."""
        self._before = self.past
        self._present = (0,) * len(_FAMILIES)
        self._rows.clear()  # an interrupted collection may have left some

    def exclude(self, statistics: DestinationStats) -> None:
        """Keep the counts of a destination that is exported individually from now on."""
        self.add_past(statistics)
        self._before = tuple(map(add, self._before, counters_of(statistics)))

    def add(self, row: Values) -> None:
        """Add the values of a present destination, in the order of the families."""
        self._rows.append(row)
        if len(self._rows) >= LINES_PER_CHECK:
            self._add_rows()

    def _add_rows(self) -> None:
        columns = list(zip(self._present, *self._rows, strict=True))
        sums = list(map(sum, columns))
        sums[_AGE] = max(columns[_AGE])
        self._present = tuple(sums)
        self._rows.clear()

    def values(self) -> Values:
        """Return the sums in the order of the families.

        A destination deleted since `begin` may be missing in the collection; the counters do not
        decrease because of it.
        """
        self._add_rows()
        self._reported = tuple(map(max, map(add, self._before, self._present), self._reported))
        return self._reported + self._present[len(self._reported) :]


DEAD_LETTERS_END: Final = ".dlq"
"""Suffix of default dead-letter queues (see Destination.dead_letter_address)."""
READING_SECONDS: Final = 0.05
"""Maximum time per round for reading messages that are not in memory."""

_KINDS: Final = ((False, False), (False, True), (True, False), (True, True))
_TOPIC: Final = ("queue", "topic")


@dataclass(slots=True, eq=False)
class Ages:
    """Ages of the next messages of subscriptions.

    The publish time is part of the message, which may have to be read from the journal: once, as
    long as it is the next one. A round reads for READING_SECONDS at most; for other subscriptions
    it reports the previous value.
    """

    _journal: Journal
    _wall: int = 0
    _remaining_seconds: float = 0.0
    _known: dict[Subscription, tuple[int, int]] = field(default_factory=dict)
    _last: dict[Subscription, tuple[int, int]] = field(default_factory=dict)

    def begin(self, wall: int) -> None:
        """Begin a round at wall time `wall` in ms. Discard values that the last round did not
        use."""
        self._wall = wall
        self._remaining_seconds = READING_SECONDS
        self._last, self._known = self._known, {}

    def of(self, subscription: Subscription) -> float:
        """Return the age in seconds; 0 without ready messages, or if the message is not read
        yet."""
        head = subscription.head()
        if head is None:
            return 0.0
        if head.message is not None:
            return max(0, self._wall - head.message.arrival) / 1000
        entry = self._last.get(subscription)
        if (entry is None or entry[0] != head.sequence) and self._remaining_seconds > 0:
            entry = head.sequence, self._read(head)
        if entry is None:
            return 0.0
        self._known[subscription] = entry
        return max(0, self._wall - entry[1]) / 1000 if entry[1] else 0.0

    def _read(self, delivery: Delivery) -> int:
        """Return the publish time in ms of wall time; 0 if the message cannot be read. The error
        is reported when the message is delivered."""
        before = perf_counter()
        try:
            return self._journal.fetch_head(delivery.sequence).arrival
        except (JournalDamaged, RecordNotFound):
            return 0
        finally:
            self._remaining_seconds -= perf_counter() - before


class DestinationMetrics:
    """Collector of the metrics of destinations and subscriptions, one per broker.

    limit     maximum number of exported destinations
    exported  exported destinations with their formatted labels
    sums      by name, and whether they are of topics
    """

    def __init__(self, broker: Broker, limit: int) -> None:
        self._broker = broker
        self._ages = Ages(broker.journal)
        self.limit = limit
        self.exported: dict[Destination, str] = {}
        self._taken: set[str] = set()
        self.sums = {
            (name, topic): Sum(_labels(name, topic))
            for name in (OTHERS, TEMPORARY)
            for topic in (False, True)
        }
        destinations = [
            destination for destination in broker.destinations.values() if not destination.temporary
        ]
        for destination in sorted(destinations, key=lambda destination: destination.automatic):
            self._export(destination)
        broker.destinations.creations.append(self._export)
        broker.destinations.removals.append(self._remove)

    def sum_of(self, destination: Destination) -> Sum:
        """Return the sum that includes a destination without time series of its own."""
        return self.sums[TEMPORARY if destination.temporary else OTHERS, destination.topic]

    def labels(self, destination: Destination) -> str | None:
        """Return the labels of an exported destination, None for others. Exports the destination
        if the limit permits it now."""
        labels = self.exported.get(destination)
        if labels is None:
            self._export(destination)
            labels = self.exported.get(destination)
            if labels is not None:
                self.sum_of(destination).exclude(destination.statistics)
        return labels

    def _export(self, destination: Destination) -> None:
        if len(self.exported) >= self.limit or destination.temporary:
            return
        name = text_of(destination.name)
        labels = _labels(name, destination.topic)
        # an escaped name may equal the name of another destination or of a sum
        if len(name) > MAX_NAME_BYTES or name.startswith("~") or labels in self._taken:
            return
        self.exported[destination] = labels
        self._taken.add(labels)

    def _remove(self, destination: Destination) -> None:
        labels = self.exported.pop(destination, None)
        if labels is None:
            self.sum_of(destination).add_past(destination.statistics)
        else:
            self._taken.discard(labels)

    async def collect(self, exposition: Exposition, wall: int) -> None:
        """Add all families of destinations and subscriptions, as of `wall` ms."""
        self._ages.begin(wall)
        rows: list[tuple[str, Values]] = []
        subscriptions: dict[str, Values] = {}
        for aggregate in self.sums.values():
            aggregate.begin()
        kinds = dict.fromkeys(_KINDS, 0)
        dead_letters = 0
        other_queues: set[Address] = set()
        """Dead-letter queues with other names; few, so that their sum takes no time slice."""
        slices = TimeSlices(self._broker)
        async for destination in slices.iterate(list(self._broker.destinations.values())):
            if destination.removed:
                continue
            kinds[destination.topic, destination.temporary] += 1
            dead_letter_queue = destination.settings.dead_letter_queue
            if dead_letter_queue and not dead_letter_queue.endswith(DEAD_LETTERS_END):
                other_queues.add(destination.dead_letter_address)
            if destination.name.endswith(DEAD_LETTERS_END) and not destination.topic:
                dead_letters += destination.waiting
            labels = self.labels(destination)
            row = counters_of(destination.statistics) + self._gauges(destination)
            if labels is None:
                self.sum_of(destination).add(row)
                continue
            rows.append((labels, row))
            if destination.topic:
                self._add_subscriptions(destination, subscriptions)
        queues = filter(None, map(self._broker.destinations.find, other_queues))
        exposition.add(DEAD_LETTERS, dead_letters + sum(queue.waiting for queue in queues))
        for (topic, temporary), count in kinds.items():
            exposition.add(DESTINATIONS, count, _TOPIC[topic], "true" if temporary else "false")
        await _write(exposition, _FAMILIES, rows, slices)
        for aggregate in self.sums.values():
            values = aggregate.values()
            if any(values):
                for family, value in zip(_FAMILIES, values, strict=True):
                    if family not in _NOT_SUMMED:
                        exposition.add_lines(
                            family, f"{family.sample}{{{aggregate.labels}}} {value}\n"
                        )
        await _write(exposition, SUBSCRIPTION_GAUGES, list(subscriptions.items()), slices)

    def _gauges(self, destination: Destination) -> Values:
        """Return the values of a destination in the order of DESTINATION_GAUGES."""
        queue = destination.queue
        settings = destination.settings
        scheduled = len(queue.scheduled)
        oldest = self._ages.of(queue) if queue.waiting else 0.0
        for subscription in destination.subscriptions.values():
            scheduled = max(scheduled, len(subscription.scheduled))
            oldest = max(oldest, self._ages.of(subscription))
        return (
            destination.waiting,
            destination.unacked,
            scheduled,
            destination.bytes,
            destination.consumers,
            len(destination.subscriptions),
            int(destination.paused),
            len(destination.parked),
            oldest,
            settings.max_messages,
            settings.max_bytes,
        )

    def _add_subscriptions(self, topic: Destination, rows: dict[str, Values]) -> None:
        """Add the durable and shared subscriptions, at most as many as destinations."""
        name = escape(text_of(topic.name))
        for subscription in topic.subscriptions.values():
            if not subscription.durable and not subscription.shared:
                continue
            subscription_name = text_of(subscription.name)
            if len(rows) >= self.limit or len(subscription_name) > MAX_NAME_BYTES:
                continue
            rows[f'destination="{name}",subscription="{escape(subscription_name)}"'] = (
                subscription.waiting,
                subscription.unacked,
                subscription.waiting_bytes + subscription.unacked_bytes,
                len(subscription.consumers),
                self._ages.of(subscription),
            )


def _labels(name: str, topic: bool) -> str:
    return f'destination="{escape(name)}",kind="{"topic" if topic else "queue"}"'


async def _write(
    exposition: Exposition,
    families: tuple[Family, ...],
    rows: list[tuple[str, Values]],
    slices: TimeSlices,
) -> None:
    """Add one line per row and family; values are in the order of the families."""
    for column, family in enumerate(families):
        name = family.sample
        for start in range(0, len(rows), LINES_PER_CHECK):
            lines = [
                f"{name}{{{labels}}} {values[column]}\n"
                for labels, values in rows[start : start + LINES_PER_CHECK]
            ]
            exposition.add_lines(family, "".join(lines))
            await slices.wait_if_due()


# --- Metrics of the process -----------------------------------------------------------------------
#
# Metrics of the process, from the operating system and from Python.

_STARTED: Final = round(time.time(), 2)
"""Start time of the process. Read once, because clock adjustments would move a computed one and
look like a restart."""


@dataclass(slots=True, eq=False)
class Pauses:
    """Recorder of the pauses of the garbage collector. It costs two calls per collection, and only
    after the first scrape."""

    durations: Histogram = field(default_factory=Histogram)
    _began: float = 0.0

    def begin(self) -> None:
        """Start recording; a second call has no effect."""
        if self._mark not in gc.callbacks:
            gc.callbacks.append(self._mark)

    def _mark(self, phase: str, details: dict[str, Any]) -> None:
        if phase == "start":
            self._began = time.perf_counter()
        else:
            self.durations.record(time.perf_counter() - self._began)


def resident_memory() -> int:
    """Return the resident memory of the process in bytes. Raises OSError on systems other than
    Linux."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def usage() -> dict[Family, float]:
    """Return the CPU time, the start time, the memory, the threads and the open files of the
    process; empty on systems other than Linux."""
    try:
        return {
            PROCESS["cpu"]: time.process_time(),
            PROCESS["resident"]: resident_memory(),
            PROCESS["started"]: _STARTED,
            PROCESS["threads"]: len(os.listdir("/proc/self/task")),
            PROCESS["files"]: len(os.listdir("/proc/self/fd")) - 1,  # without the one listed here
        }
    except OSError:
        return {}


def add_process(exposition: Exposition, pauses: Pauses) -> None:
    """Add all families of the process."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    exposition.add_all({**usage(), PROCESS["files_limit"]: limit})
    for generation, statistics in enumerate(gc.get_stats()):
        exposition.add(COLLECTIONS, statistics["collections"], str(generation))
    exposition.add_histogram(PAUSES, pauses.durations.read())


# --- Metrics of requests to the HTTP API ----------------------------------------------------------
#
# Metrics of requests to the HTTP API: their number, status and duration.


@dataclass(slots=True, eq=False)
class RequestCounts:
    """Counts by route, so that clients cannot create label values."""

    _counts: dict[tuple[str, str, int], int] = field(default_factory=dict)
    _times: dict[tuple[str, str], tuple[int, float]] = field(default_factory=dict)

    def record(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request. `route` is the path of its endpoint; method and route are "" for unknown
        ones, because clients could invent any number of them."""
        key = method, route, status
        self._counts[key] = self._counts.get(key, 0) + 1
        count, total = self._times.get((method, route), (0, 0.0))
        self._times[method, route] = count + 1, total + seconds

    def add_to(self, exposition: Exposition) -> None:
        """Add both families."""
        for (method, route, status), count in self._counts.items():
            exposition.add(REQUESTS, count, method, route, str(status))
        for (method, route), (count, total) in self._times.items():
            exposition.add_summary(REQUEST_TIME, count, round(total, 6), method, route)


FRESH_SECONDS: Final = 0.5
"""Time for which a response is reused for other requests."""


class ScrapeState:
    """State shared by all HTTP listeners of a broker.

    requests  counts of requests to the HTTP API
    spans     numbers of spans by result; None without tracing
    latest    latest response, built at `built_at` (monotonic), under the `build_lock`
    """

    def __init__(
        self, broker: Broker, limit: int = 1000, *, spans: Mapping[str, int] | None = None
    ) -> None:
        """Create the state; `limit` is the maximum number of exported destinations."""
        self.destinations = DestinationMetrics(broker, limit)
        self.requests = RequestCounts()
        self.pauses = Pauses()
        self.spans = spans
        self.build_lock = asyncio.Lock()
        self.latest = Exposition()
        self.built_at = -FRESH_SECONDS
