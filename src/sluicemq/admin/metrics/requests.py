"""Metrics of requests to the HTTP API: their number, status and duration."""

from __future__ import annotations

from sluicemq.admin.metrics.exposition import Exposition
from sluicemq.admin.metrics.families import REQUEST_TIME, REQUESTS


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
