"""format("sluicemq"): the journal as a source, queues as a sink.

What it takes to read or to write is imported when it is asked for: Spark imports this module in
every process that looks for a data source of any name.
"""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType


class SluiceSource(DataSource):
    """Options: source/options.py of what reads, sink/options.py of what writes."""

    @classmethod
    def name(cls) -> str:
        """As in `format("sluicemq")`."""
        return "sluicemq"

    def schema(self) -> StructType:
        """Return the columns that the options ask for: with options of a write those of the sink.

        Spark asks also for views and tables that are only written to, by INSERT. Raises
        ConfigurationError.
        """
        from sluicemq.pipeline.catalog import warn_of_secrets
        from sluicemq.pipeline.sink import options as sink
        from sluicemq.pipeline.sink.columns import DEFAULT_SCHEMA
        from sluicemq.pipeline.source.columns import asked_columns
        from sluicemq.pipeline.source.options import parse_options

        given = {name.lower(): value for name, value in self.options.items()}
        warn_of_secrets(given)
        if not sink.WRITE_ONLY.isdisjoint(given) and "url" in given:
            sink.read(given)
            return DEFAULT_SCHEMA
        return asked_columns(parse_options(given))

    def reader(self, schema: StructType) -> DataSourceReader:
        """For `spark.read`; `schema` may name fewer columns than the options, or others."""
        from sluicemq.pipeline.source.batch import BatchReader
        from sluicemq.pipeline.source.columns import arrow_columns
        from sluicemq.pipeline.source.options import parse_options

        return BatchReader(parse_options(self.options), arrow_columns(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """For `spark.readStream`; likewise."""
        from sluicemq.pipeline.source.columns import arrow_columns
        from sluicemq.pipeline.source.options import parse_options
        from sluicemq.pipeline.source.stream import StreamReader

        return StreamReader(parse_options(self.options), arrow_columns(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """For `frame.write`."""
        from sluicemq.pipeline.sink.writer import BatchWriter

        return BatchWriter(self.options, schema, overwrite)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        """For `frame.writeStream`."""
        from sluicemq.pipeline.sink.writer import StreamWriter

        return StreamWriter(self.options, schema, overwrite)
