"""Lag of the running queries of a Spark session, as Prometheus metrics (docs/pipeline/source.md).

Spark's own metrics (`spark.sql.streaming.metricsEnabled`) lack the lag: they have no values that a
Python data source reports.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from pyspark.sql.streaming import listener

from sluicemq.pipeline.source.lag import LagReport, lag_of

_METRICS: Final = {
    "records": "Records that the query has not read.",
    "bytes": "Size of the records that the query has not read.",
    "seconds": "Time since the first record was written that the query has not read.",
}
"""Fields of Lag and their help texts."""


class LagListener(listener.StreamingQueryListener, Collector):
    """Keeps the lag of each query from its latest progress; drops it when the query ends.

    Spark calls the methods in a thread of its own.
    """

    def __init__(self) -> None:
        self._lags: dict[str, list[tuple[str, LagReport]]] = {}

    def lags(self) -> list[tuple[str, LagReport]]:
        """Return the lags of all running queries, one for each journal that a query reads.

        Each is with the name of the query, or its id if it has none.
        """
        return [lag for lags in list(self._lags.values()) for lag in lags]

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the metrics, for a scrape by Prometheus."""
        lags = self.lags()
        for field, help_text in _METRICS.items():
            family = GaugeMetricFamily(
                f"sluicemq_source_lag_{field}", help_text, labels=("query", "journal")
            )
            for query, report in lags:
                family.add_metric((query, report.journal), getattr(report.lag, field))
            yield family

    def onQueryStarted(self, event: listener.QueryStartedEvent) -> None:  # noqa: N802
        """Do nothing: a query has no lag before its first progress."""

    def onQueryProgress(self, event: listener.QueryProgressEvent) -> None:  # noqa: N802
        progress = event.progress
        query = progress.name or str(progress.id)
        reports = filter(None, (lag_of(source.latestOffset) for source in progress.sources))
        # sources of one journal have the same labels, so that only one of them can be exported
        ordered = sorted(reports, key=lambda report: report.lag.bytes)
        furthest_behind = {report.journal: report for report in ordered}
        self._lags[str(progress.runId)] = [(query, lag) for lag in furthest_behind.values()]

    def onQueryTerminated(self, event: listener.QueryTerminatedEvent) -> None:  # noqa: N802
        self._lags.pop(str(event.runId), None)
