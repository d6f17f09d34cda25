"""spark.read: the journal between two sequence numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from sluicemq.model.errors import RecordNotFound
from sluicemq.pipeline.source.http_storage import connect
from sluicemq.pipeline.source.journal import SourceJournal
from sluicemq.pipeline.source.offsets import end_of, start_of
from sluicemq.pipeline.source.options import EARLIEST, SourceOptions
from sluicemq.pipeline.source.plan import segment_ranges, share
from sluicemq.pipeline.source.reading import Reading, SegmentRange, gone, log
from sluicemq.pipeline.source.selection import Selection

_NONE: Final[Mapping[str, int]] = {}


class Share(InputPartition):
    """One task: ranges of the journal with that identity, and the bounds of single destinations.

    Spark pickles a reader before it plans, so the results of the plan are sent with the tasks.
    """

    def __init__(
        self,
        segment_ranges: list[SegmentRange],
        identity: str,
        lows: Mapping[str, int] = _NONE,
        highs: Mapping[str, int] = _NONE,
    ) -> None:
        super().__init__(None)
        self.segment_ranges = segment_ranges
        self.identity = identity
        self.lows = dict(lows)
        self.highs = dict(highs)

    def read(self, reading: Reading) -> Iterator[pa.RecordBatch]:
        """Yield the batches of the task."""
        selection = reading.selection.bounded(self.lows, self.highs)
        return replace(reading, selection=selection).read(self.segment_ranges, self.identity)


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
        start = start_of(journal, options, EARLIEST)
        end = end_of(journal, options)
        if 0 < start.explicit < state.earliest:
            message = gone(start.explicit, state.earliest, "their segments have been removed")
            if options.fail_on_data_loss:
                raise RecordNotFound(message)
            log.warning("Not read: %s", message)
        selection = self._reading.selection.between(start.sequence, end.sequence)
        selection = selection.bounded(start.by_destination, end.by_destination)
        columns = frozenset(self._reading.schema.names)
        weighed = segment_ranges(journal, selection, columns, options.fail_on_data_loss)
        tasks = share(weighed, options.min_partitions)
        return [
            Share(task, state.identity, start.by_destination, end.by_destination)
            for task in tasks or [[]]
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the batches of one task."""
        assert isinstance(partition, Share)
        return partition.read(self._reading)
