"""Lag of the running queries of a Spark session, as Prometheus metrics.

    listener = LagListener()
    spark.streams.addListener(listener)
    prometheus_client.REGISTRY.register(listener)
    prometheus_client.start_http_server(9464, "127.0.0.1")

Spark's own metrics (`spark.sql.streaming.metricsEnabled`) lack the lag: they have no values that a
Python data source reports.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from threading import Lock
from typing import Any, Final, NamedTuple

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from sluicemq.pipeline.source.lag import Lag

_METRICS: Final = {
    "records": "Records that the query has not read.",
    "bytes": "Size of the records that the query has not read.",
    "seconds": "Time since the first record was written that the query has not read.",
}
"""Fields of Lag and their help texts."""


class QueryLag(NamedTuple):
    """Lag of one source of a query. `query` is its name, or its id if it has none."""

    query: str
    journal: str
    lag: Lag


def lag_of(latest: object) -> tuple[str, Lag] | None:
    """Return the journal and the lag in `latestOffset` of a source's progress.

    Return None if the source is of another kind, or its lag is unknown.
    """
    report = latest
    if isinstance(latest, str):
        try:
            report = json.loads(latest)
        except ValueError:
            return None
    if not isinstance(report, Mapping) or not isinstance(report.get("lag"), Mapping):
        return None
    lag: Mapping[str, Any] = report["lag"]
    return str(report.get("journal", "")), Lag(
        int(lag.get("records", 0)), int(lag.get("bytes", 0)), float(lag.get("seconds", 0))
    )


class LagListener(StreamingQueryListener, Collector):
    """Keeps the lag of each query from its latest progress; drops it when the query ends.

    Spark calls the methods in a thread of its own.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._lags: dict[str, list[QueryLag]] = {}

    def lags(self) -> list[QueryLag]:
        """Return the lags of all sources of all running queries."""
        with self._lock:
            return [lag for lags in self._lags.values() for lag in lags]

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the metrics, when Prometheus asks for them."""
        lags = self.lags()
        for field, help_text in _METRICS.items():
            family = GaugeMetricFamily(
                f"sluicemq_source_lag_{field}", help_text, labels=("query", "journal")
            )
            for query, journal, lag in lags:
                family.add_metric((query, journal), getattr(lag, field))
            yield family

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Do nothing: a query has no lag before its first progress."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Keep the lag."""
        progress = event.progress
        query = progress.name or str(progress.id)
        found = [lag_of(source.latestOffset) for source in progress.sources]
        lags = [QueryLag(query, *item) for item in found if item is not None]
        with self._lock:
            self._lags[str(progress.runId)] = lags

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """Do nothing: Spark reports no offsets of an idle query, whose last progress is valid."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Drop the lag."""
        with self._lock:
            self._lags.pop(str(event.runId), None)
