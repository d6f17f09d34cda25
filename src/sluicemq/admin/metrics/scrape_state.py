"""State that is kept between scrapes."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from sluicemq.admin.metrics.destinations import DestinationMetrics, ExportedDestinations
from sluicemq.admin.metrics.exposition import (
    COLLECTIONS,
    CPU,
    FILES,
    FILES_LIMIT,
    PAUSES,
    REQUEST_TIME,
    REQUESTS,
    RESIDENT,
    STARTED,
    THREADS,
    Exposition,
)
from sluicemq.broker import Broker
from sluicemq.model.histogram import Histogram

# --- Metrics of the process -----------------------------------------------------------------------
#
# Metrics of the process, from the operating system and from Python.

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE: Final = resource.getpagesize()


class Pauses:
    """Recorder of the pauses of the garbage collector. It costs two calls per collection, and only
    after the first scrape."""

    def __init__(self) -> None:
        self.seen = Histogram()
        self._began = 0.0
        self._counting = False

    def begin(self) -> None:
        """Start recording; a second call has no effect."""
        if not self._counting:
            self._counting = True
            gc.callbacks.append(self._mark)

    def _mark(self, phase: str, details: dict[str, Any]) -> None:
        if phase == "start":
            self._began = time.perf_counter()
        else:
            self.seen.record(time.perf_counter() - self._began)


class Usage(NamedTuple):
    """CPU time in seconds, start time in seconds since the epoch, resident bytes, threads."""

    cpu: float
    started: float
    resident: int
    threads: int


def usage() -> Usage:
    """Return the present usage; zeros on systems other than Linux."""
    try:
        line = Path("/proc/self/stat").read_text()
    except OSError:
        return Usage(0.0, 0.0, 0, 0)
    # the name of the program comes before and may contain anything
    fields = line.rpartition(")")[2].split()
    return Usage(
        cpu=(int(fields[11]) + int(fields[12])) / _TICKS,
        started=_booted() + int(fields[19]) / _TICKS,
        resident=int(fields[21]) * _PAGE,
        threads=int(fields[17]),
    )


@cache
def _booted() -> float:
    """Return the start time of the system. Read once, because clock adjustments would move it and
    look like a restart of the process."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def open_files() -> int:
    """Return the number of open file descriptors; 0 if unknown."""
    try:
        return len(os.listdir("/proc/self/fd")) - 1  # one of them reads the directory
    except OSError:
        return 0


def add_process(into: Exposition, pauses: Pauses) -> None:
    """Add all families of the process."""
    now = usage()
    if now.started:
        into.add_all(
            {
                CPU: now.cpu,
                RESIDENT: now.resident,
                STARTED: round(now.started, 2),
                THREADS: now.threads,
            }
        )
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    into.add_all({FILES: open_files(), FILES_LIMIT: limit})
    for generation, figures in enumerate(gc.get_stats()):
        into.add(COLLECTIONS, figures["collections"], str(generation))
    into.add_histogram(PAUSES, pauses.seen.read())


# --- Metrics of requests to the HTTP API ----------------------------------------------------------
#
# Metrics of requests to the HTTP API: their number, status and duration.


class RequestCounts:
    """Counts by route, so that clients cannot create label values."""

    __slots__ = ("_counts", "_times")

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str, int], int] = {}
        self._times: dict[tuple[str, str], tuple[int, float]] = {}

    def record(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request. `route` is the path of its endpoint; method and route are "" for unknown
        ones, because clients could invent any number of them."""
        key = method, route, status
        self._counts[key] = self._counts.get(key, 0) + 1
        count, total = self._times.get((method, route), (0, 0.0))
        self._times[method, route] = count + 1, total + seconds

    def add_to(self, into: Exposition) -> None:
        """Add both families."""
        for (method, route, status), count in self._counts.items():
            into.add(REQUESTS, count, method, route, str(status))
        for (method, route), (count, total) in self._times.items():
            into.add_summary(REQUEST_TIME, count, round(total, 6), method, route)


FRESH_SECONDS: Final = 0.5
"""Time for which a response is reused for other requests."""


class ScrapeState:
    """State shared by all HTTP listeners of a broker.

    open      True if scraping requires no login
    requests  counts of requests to the HTTP API
    spans     numbers of spans by result; None without tracing
    made      latest response, built at `made_at` (monotonic); `making` is locked during a build
    """

    def __init__(
        self,
        broker: Broker,
        limit: int = 1000,
        *,
        open: bool = False,
        spans: Mapping[str, int] | None = None,
    ) -> None:
        """Create the state; `limit` is the maximum number of exported destinations."""

        self.open = open
        self.exported = ExportedDestinations(broker, limit)
        self.destinations = DestinationMetrics(broker, self.exported)
        self.requests = RequestCounts()
        self.pauses = Pauses()
        self.spans = spans
        self.making = asyncio.Lock()
        self.made = Exposition()
        self.made_at = -FRESH_SECONDS
