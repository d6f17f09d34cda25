"""Spark data source "sluicemq": reads the journal, writes to queues and topics.

Reader and writer are imported on use, because Spark imports this module in every process that
looks up a data source of any name.
"""

from __future__ import annotations

from pyspark.sql import datasource
from pyspark.sql.types import StructType


class SluiceSource(datasource.DataSource):
    """Data source; see source/options.py and sink/options.py for its options."""

    @classmethod
    def name(cls) -> str:
        """Return the name in `format("sluicemq")`."""
        return "sluicemq"

    def schema(self) -> StructType:
        """Return the columns of a read, or those of the sink if there are options of a write.

        Spark calls this also for views and tables that are only written to by INSERT. Raises
        ConfigurationError.
        """
        from sluicemq.pipeline.options import warn_of_secrets
        from sluicemq.pipeline.sink import options as sink
        from sluicemq.pipeline.source.options import parse_options, requested_columns

        options_by_name = {name.lower(): value for name, value in self.options.items()}
        warn_of_secrets(options_by_name)
        if not sink.WRITE_ONLY.isdisjoint(options_by_name) and "url" in options_by_name:
            sink.parse_options(options_by_name)
            return sink.DEFAULT_SCHEMA
        return requested_columns(parse_options(options_by_name))

    def reader(self, schema: StructType) -> datasource.DataSourceReader:
        """Return the reader of `spark.read`; `schema` may differ from the option columns."""
        from sluicemq.pipeline.source.options import arrow_columns, check_batch, parse_options
        from sluicemq.pipeline.source.readers import BatchReader

        options = parse_options(self.options)
        check_batch(options, self.options)
        return BatchReader(options, arrow_columns(schema, options.shape))

    def streamReader(self, schema: StructType) -> datasource.DataSourceStreamReader:  # noqa: N802
        """Return the reader of `spark.readStream`; `schema` as for `reader`."""
        from sluicemq.pipeline.source.options import arrow_columns, check_stream, parse_options
        from sluicemq.pipeline.source.readers import StreamReader

        options = parse_options(self.options)
        check_stream(options)
        return StreamReader(options, arrow_columns(schema, options.shape))

    def writer(self, schema: StructType, overwrite: bool) -> datasource.DataSourceWriter:
        """Return the writer of `frame.write`."""
        from sluicemq.pipeline.sink.writer import BatchWriter

        return BatchWriter(self.options, schema, overwrite)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> datasource.DataSourceStreamWriter:
        """Return the writer of `frame.writeStream`."""
        from sluicemq.pipeline.sink.writer import StreamWriter

        return StreamWriter(self.options, schema, overwrite)
