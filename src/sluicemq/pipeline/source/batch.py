"""spark.read: the journal between two sequence numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from sluicemq.model.errors import RecordNotFound
from sluicemq.pipeline.source.connect import connect
from sluicemq.pipeline.source.journal import SourceJournal
from sluicemq.pipeline.source.offsets import resolve
from sluicemq.pipeline.source.options import EARLIEST, LATEST, SourceOptions
from sluicemq.pipeline.source.plan import segment_ranges, share
from sluicemq.pipeline.source.reading import Reading, SegmentRange, gone, log
from sluicemq.pipeline.source.selection import Selection


class Share(InputPartition):
    """One task: ranges of the journal with that identity.

    Spark pickles a reader before it plans, so the results of the plan are sent with the tasks.
    """

    def __init__(self, segment_ranges: list[SegmentRange], identity: str) -> None:
        super().__init__(None)
        self.segment_ranges = segment_ranges
        self.identity = identity


class BatchReader(DataSourceReader):
    """One batch read. `schema` has the requested columns, as Spark expects them in Arrow.

    The reader accepts no filters from Spark (`pushFilters`): Spark keeps the plan of a filtered
    read with the DataFrame or view, and later actions without the filter would see only the
    filtered rows. Options exclude records instead.
    """

    def __init__(self, options: SourceOptions, schema: pa.Schema) -> None:
        self._options = options
        selection = Selection.of(options)
        if options.starting_timestamp is not None:
            selection = replace(selection, since=options.starting_timestamp)
        if options.ending_timestamp is not None:
            selection = replace(selection, until=options.ending_timestamp)
        self._reading = Reading(connect(options), schema, selection, options.fail_on_data_loss)

    def partitions(self) -> list[InputPartition]:
        """Plan the tasks. Raises JournalError, ConfigurationError."""
        options = self._options
        journal = SourceJournal(self._reading.place, "")
        state = journal.state
        journal.identity = state.identity
        low = resolve(journal, options.starting_offsets or EARLIEST)
        if options.starting_offsets == 0:
            low = 0
        high = resolve(
            journal, LATEST if options.ending_offsets is None else options.ending_offsets
        )
        if low < state.earliest and isinstance(options.starting_offsets, int) and low:
            message = gone(low, state.earliest, "their segments have been removed")
            if options.fail_on_data_loss:
                raise RecordNotFound(message)
            log.warning("Not read: %s", message)
        selection = self._reading.selection.between(low, high)
        columns = frozenset(self._reading.schema.names)
        weighed = segment_ranges(journal, selection, columns, options.fail_on_data_loss)
        tasks = share(weighed, options.min_partitions)
        return [Share(task, state.identity) for task in tasks or [[]]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the batches of one task."""
        assert isinstance(partition, Share)
        return self._reading.read(partition.segment_ranges, partition.identity)
