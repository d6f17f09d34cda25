"""Spark's batch and stream writers of the data source.

    BatchWriter    df.write: each write is stored once; with the option writeId, once for each
                   writeId and batchId, even if it is repeated
    StreamWriter   df.writeStream: each batch of the query is stored once, identified by the query's
                   id in its checkpoint

Spark creates them on the driver with the rows' schema and sends them to the tasks.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from sluicemq.model.errors import ConfigurationError, RequestRefused
from sluicemq.pipeline.sink.conversion import Converter
from sluicemq.pipeline.sink.delivery import (
    PartitionWriter,
    SinkCommitMessage,
    check_sockets_open,
    open_sockets,
)
from sluicemq.pipeline.sink.options import column_indexes, parse_options

_log: Final = logging.getLogger(__name__)


class _Writer:
    """Base of both writers."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise ConfigurationError(
                "messages are appended to queues: write with mode append, a stream with output "
                "mode append"
            )
        self._options = parse_options(options)
        self._column_indexes = column_indexes(schema, self._options.destination.name)

    def _deliver(
        self, writer: str, batch: int, partition: int, batches: Iterator[pa.RecordBatch]
    ) -> SinkCommitMessage:
        sockets = open_sockets()
        converter = Converter(self._column_indexes, self._options)
        with PartitionWriter(self._options, converter, writer, batch, partition) as delivery:
            for rows in batches:
                delivery.add(rows)
            check_sockets_open(sockets)
            return delivery.finish()

    def _log_result(
        self, messages: Sequence[WriterCommitMessage | None], event: str, level: int
    ) -> SinkCommitMessage:
        """Log the result of all partitions on the driver, and return it."""
        total = SinkCommitMessage()
        for message in messages:
            if isinstance(message, SinkCommitMessage):
                total.add(message)
        bad_rows = total.dropped + total.dead_lettered
        _log.log(
            logging.WARNING if bad_rows else level,
            "%s to %s: %d rows, %d messages written, %d already stored",
            event,
            self._options.target,
            total.rows,
            total.written,
            total.already,
        )
        if bad_rows:
            _log.warning(
                "%s: %d bad rows were dropped, %d went to %s: %s",
                event,
                total.dropped,
                total.dead_lettered,
                self._options.dead_letters,
                "; ".join(f"{count} x {reason}" for reason, count in total.reasons.most_common()),
            )
        return total


class BatchWriter(_Writer, DataSourceArrowWriter):
    """Writer of df.write. Raises ConfigurationError for invalid options and columns."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite)
        self._write_id = self._options.write_id or uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkCommitMessage:
        """Write one partition in a task."""
        context = TaskContext.get()
        assert context is not None
        return self._deliver(self._write_id, self._options.batch, context.partitionId(), iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log the result once all partitions are stored."""
        total = self._log_result(messages, "a write", logging.INFO)
        if total.latest > self._options.batch:
            _log.warning(
                "batch %d of the writeId %s was not written, and its rows were not compared with "
                "the stored ones: the latest batch is %d. Other rows need a new batchId",
                self._options.batch,
                self._write_id,
                total.latest,
            )

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log a failed write; partitions that were stored remain."""
        _log.warning(
            "a write to %s failed. Stored messages remain; repeat the write with the same writeId "
            "(this was %s) to add the missing ones",
            self._options.target,
            self._write_id,
        )


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Writer of df.writeStream. Raises ConfigurationError for invalid options and columns."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite)
        if self._options.write_id:
            raise ConfigurationError(
                "writeId is for df.write: a stream's batches are identified by the query's id in "
                "its checkpoint"
            )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkCommitMessage:
        """Write one partition of one batch in a task."""
        context = TaskContext.get()
        assert context is not None
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        if query is None or batch is None:
            raise ConfigurationError(
                "Spark did not inform the task which batch of which query it writes"
            )
        result = self._deliver(query, int(batch), context.partitionId(), iterator)
        if result.latest > int(batch):
            # only a checkpoint restored from a backup repeats a batch other than the last one
            raise RequestRefused(
                f"this is batch {batch} of query {query}, which has written up to batch "
                f"{result.latest}: its checkpoint is an older copy. The rows of its batches may "
                "have been sent under other numbers, so nothing is written: start with a new "
                "checkpoint, from the offset that the last batch has reached"
            )
        return result

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Log the result once all partitions of the batch are stored."""
        self._log_result(messages, f"batch {batchId}", logging.DEBUG)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Log a failed batch; Spark repeats it, which adds the missing messages."""
        _log.warning("batch %d to %s was aborted", batchId, self._options.target)
