"""The writers that Spark asks the data source for.

    BatchWriter    of df.write: written once for each write; with the option writeId once for each
                   writeId and batchId, however often it is run
    StreamWriter   of df.writeStream: written once for each batch of the query, which is known by
                   the id in its checkpoint

They are made on the driver, checked against the rows' schema, and sent to the tasks.
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
from sluicemq.pipeline.sink.columns import places
from sluicemq.pipeline.sink.conversion import Converter
from sluicemq.pipeline.sink.delivery import Batch, Delivery, Written
from sluicemq.pipeline.sink.feed import Feed
from sluicemq.pipeline.sink.options import SinkOptions, read

_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"
_APPEND: Final = "messages are added to what waits in a queue: write with mode append"

_log: Final = logging.getLogger(__name__)


class _Writer:
    """What both have in common."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = options
        self._places = places(schema, options.destination)

    def _deliver(
        self, writer: str, batch: int, partition: int, batches: Iterator[pa.RecordBatch]
    ) -> Written:
        feed = Feed()
        converter = Converter(self._places, self._options)
        with Delivery(self._options, converter, Batch(writer, batch, partition)) as delivery:
            for rows in batches:
                delivery.add(rows)
            feed.expect_whole()
            return delivery.finish()

    def _tell(
        self, messages: Sequence[WriterCommitMessage | None], what: str, usual: int
    ) -> Written:
        """Log what became of all partitions on the driver, and return it."""
        total = Written()
        for message in messages:
            if isinstance(message, Written):
                total.add(message)
        bad = total.dropped + total.dead_lettered
        _log.log(
            logging.WARNING if bad else usual,
            "%s to %s: %d rows, %d messages written, %d had been there",
            what,
            self._options.target,
            total.rows,
            total.written,
            total.already,
        )
        if bad:
            _log.warning(
                "%s: %d bad rows were dropped, %d went to %s: %s",
                what,
                total.dropped,
                total.dead_lettered,
                self._options.dead_letters,
                "; ".join(f"{count} x {reason}" for reason, count in total.reasons.most_common()),
            )
        return total


class BatchWriter(_Writer, DataSourceArrowWriter):
    """Raises ConfigurationError for options and columns that cannot be."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise ConfigurationError(_APPEND)
        super().__init__(read(options), schema)
        self._write_id = self._options.write_id or uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """One partition, in a task."""
        context = TaskContext.get()
        assert context is not None
        partition = context.partitionId()
        return self._deliver(self._write_id, self._options.batch, partition, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All partitions are there."""
        total = self._tell(messages, "a write", logging.INFO)
        if total.latest > self._options.batch:
            _log.warning(
                "batch %d of the writeId %s was not written, and its rows were not compared with "
                "those of the first time: the latest batch is %d. Other rows need a new batchId",
                self._options.batch,
                self._write_id,
                total.latest,
            )

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Some partition could not be written; the others are there."""
        _log.warning(
            "a write to %s failed. What of it was written stays written; with the same writeId "
            "(this was %s) the write can be run again and adds what is missing",
            self._options.target,
            self._write_id,
        )


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Raises ConfigurationError for options and columns that cannot be."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise ConfigurationError(_APPEND.replace("mode", "output mode"))
        super().__init__(read(options), schema)
        if self._options.write_id:
            raise ConfigurationError(
                "writeId is for df.write: what a stream writes is known by the query's id, which "
                "its checkpoint keeps"
            )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """One partition of one batch, in a task."""
        context = TaskContext.get()
        assert context is not None
        query = context.getLocalProperty(_QUERY)
        batch = context.getLocalProperty(_BATCH)
        if query is None or batch is None:
            raise ConfigurationError(
                "Spark does not tell the task which batch of which query it writes"
            )
        written = self._deliver(query, int(batch), context.partitionId(), iterator)
        if written.latest > int(batch):
            # nobody but a checkpoint from a backup repeats anything else than the last batch
            raise RequestRefused(
                f"this is batch {batch} of query {query}, which has written up to batch "
                f"{written.latest}: its checkpoint is an older copy. With it nothing can be "
                "written, as what its batches hold may have been sent under other numbers; start "
                "with a new checkpoint, from the offset that the last batch has reached"
            )
        return written

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """All partitions of the batch are there."""
        self._tell(messages, f"batch {batchId}", logging.DEBUG)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Spark will write the batch again, which adds what is missing."""
        _log.warning("batch %d to %s was broken off", batchId, self._options.target)
