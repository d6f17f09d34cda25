"""Prometheus metrics of a running pipeline: lag of its queries, and messages of typed tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, start_http_server
from pyspark.sql import SparkSession

from sluicemq.model.errors import ConfigurationError
from sluicemq.pipeline.source.lag_listener import LagListener
from sluicemq.pipeline.typed.definition import Definition
from sluicemq.pipeline.typed.rows import Outcome, TableCounts


class PipelineMetrics:
    """Metrics of one process that runs a pipeline; counters start at 0 with the process.

    All tables and expectations of the definition are present from the start, so that the first
    failure is an increase.
    """

    def __init__(self, definition: Definition) -> None:
        self.registry = CollectorRegistry()
        self.listener = LagListener()
        self.registry.register(self.listener)
        self._messages = Counter(
            "sluicemq_typed_messages",
            "Messages of the destinations of a typed table, by outcome.",
            ("table", "outcome"),
            registry=self.registry,
        )
        self._failures = Counter(
            "sluicemq_typed_expectation_failures",
            "Messages that failed an expectation of a typed table.",
            ("table", "expectation"),
            registry=self.registry,
        )
        self._unparsed = Counter(
            "sluicemq_typed_messages_unparsed",
            "Quarantined messages that are not of the table's format, types or key.",
            ("table",),
            registry=self.registry,
        )
        self._unknown_fields = Counter(
            "sluicemq_typed_unknown_fields",
            "JSON fields for which a typed table has no column.",
            ("table",),
            registry=self.registry,
        )
        for table in definition.tables:
            self.add(
                {table.name: TableCounts(failed={item.name: 0 for item in table.expectations})}
            )

    def add(self, counts: Mapping[str, TableCounts]) -> None:
        for table, count in counts.items():
            for outcome in Outcome:
                self._messages.labels(table, outcome).inc(getattr(count, outcome))
            for expectation, failures in count.failed.items():
                self._failures.labels(table, expectation).inc(failures)
            self._unparsed.labels(table).inc(count.unparsed)
            self._unknown_fields.labels(table).inc(count.unknown_fields)


@contextmanager
def serve_metrics(
    spark: SparkSession, definition: Definition, address: tuple[str, int]
) -> Iterator[PipelineMetrics]:
    """Serve the metrics of a session's queries over HTTP within this context.

    address   host and port to listen on

    Raises ConfigurationError if the address cannot be listened on.
    """
    metrics = PipelineMetrics(definition)
    host, port = address
    try:
        server, thread = start_http_server(port, host, metrics.registry)
    except OSError as error:
        raise ConfigurationError(f"--metrics-port: {host}:{port}: {error.strerror}") from None
    spark.streams.addListener(metrics.listener)
    try:
        yield metrics
    finally:
        spark.streams.removeListener(metrics.listener)
        server.shutdown()
        server.server_close()
        thread.join()
