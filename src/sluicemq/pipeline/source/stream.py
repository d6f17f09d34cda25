"""spark.readStream: a growing journal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from sluicemq.model.errors import RecordNotFound
from sluicemq.pipeline.source.batch import Share
from sluicemq.pipeline.source.batch_limits import BatchLimits, admit
from sluicemq.pipeline.source.connect import connect
from sluicemq.pipeline.source.journal import SourceJournal
from sluicemq.pipeline.source.journal_storage import JournalState
from sluicemq.pipeline.source.offsets import (
    Offset,
    first_since,
    lost_before,
    read_offset,
    resolve,
)
from sluicemq.pipeline.source.options import LATEST, SourceOptions
from sluicemq.pipeline.source.plan import LEAST_TASK_BYTES, between, segment_ranges, share
from sluicemq.pipeline.source.reading import Reading, gone, log
from sluicemq.pipeline.source.selection import Selection
from sluicemq.pipeline.source.slots import move_slot, slot_is_lost


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader of one query. Spark pickles it for the tasks and keeps one on the driver."""

    def __init__(self, options: SourceOptions, schema: pa.Schema) -> None:
        self._options = options
        self._place = connect(options)
        self._schema = schema
        self._selection = Selection.of(options)
        self._target: Offset | None = None
        self._held = False
        self._acknowledged = -1
        """Sequence number up to which the slot was moved; -1 = not yet."""

    # --- offsets ---------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the position at which a query without a checkpoint starts."""
        journal = SourceJournal(self._place, "")
        state = journal.state
        journal.identity = state.identity
        options = self._options
        if options.starting_timestamp is not None and options.starting_offsets is None:
            sequence = first_since(journal, options.starting_timestamp)
        else:
            position = LATEST if options.starting_offsets is None else options.starting_offsets
            sequence = resolve(journal, position)
        if sequence == state.next:
            return _end(state).as_json()
        return Offset(state.identity, sequence).as_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limits from the options; the trigger may override them."""
        if self._options.max_offsets_per_trigger:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.max_bytes_per_trigger:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next micro-batch; `start` if there are no new records.

        Spark calls this after it has committed everything before `start`, so this moves the slot
        to `start`. The reader's `commit` is called one batch late, and not at all for the last
        batch of a query with the trigger availableNow.

        Raises RecordNotFound if records behind `start` were removed, ConfigurationError if `start`
        is an offset of another journal.
        """
        durable = self._place.durable()
        begin = read_offset(start, "")
        self._hold(begin)
        self._acknowledge(start)
        if durable is None or durable.sequence < begin.sequence:
            return start
        journal = SourceJournal(self._place, "")
        begin = self._checked(journal, start)
        end = _end(journal.state)
        if self._target is not None and self._target.sequence < end.sequence:
            end = self._target
        if end.sequence <= begin.sequence:
            return start
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        volume = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        if rows is not None and self._options.max_bytes_per_trigger:
            volume = self._options.max_bytes_per_trigger
        if rows is not None or volume is not None:
            strict = self._options.fail_on_data_loss
            limits = BatchLimits(rows, volume)
            end = admit(journal, self._selection, begin, end, limits, strict)
        cuts = self._cuts(journal, begin, end)
        return end._replace(cuts=cuts, slot=self._options.slot).as_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of the query at the journal's present end."""
        self._target = _end(self._place.state())

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the journal's end for the query's progress; the lag is the difference."""
        return _end(self._place.state()).as_json()

    def _checked(self, journal: SourceJournal, start: dict[str, Any]) -> Offset:
        """Return the offset `start`, or the first remaining one if records were removed."""
        state = journal.state
        offset = read_offset(start, state.identity)
        journal.identity = state.identity
        left = lost_before(journal, offset)
        if not left:
            return offset
        message = gone(offset.sequence, left, "their segments have been removed")
        if self._options.fail_on_data_loss:
            raise RecordNotFound(message)
        log.warning("Not read: %s", message)
        return Offset(offset.journal, left)

    def _hold(self, start: Offset) -> None:
        """Create the slot when the query starts."""
        options = self._options
        if self._held or not options.slot:
            return
        position = max(0, start.sequence - 1)
        slot = self._place.hold(options.slot, position, options.slot_limit_bytes)
        if slot.lost:
            slot_is_lost(options, slot.describe_loss(options.slot))
        self._held = True

    def _acknowledge(self, start: dict[str, Any]) -> None:
        """Move the slot to `start`, unless it is there already.

        Raises ConfigurationError if `start` is an offset of another journal, JournalError if the
        slot is lost.
        """
        if not self._options.slot or read_offset(start, "").sequence <= self._acknowledged:
            return
        sequence = read_offset(start, self._place.state().identity).sequence
        if move_slot(self._options, self._place, sequence):
            self._acknowledged = sequence

    # --- tasks ---------------------------------------------------------

    def _cuts(self, journal: SourceJournal, start: Offset, end: Offset) -> tuple[int, ...]:
        """Return the sequence numbers that divide a micro-batch among tasks."""
        least = self._options.min_partitions
        near = start.segment == end.segment and end.offset - start.offset < LEAST_TASK_BYTES
        if near and start.segment and least <= 1:
            return ()
        selection = self._selection.between(start.sequence, end.sequence)
        columns = frozenset(self._schema.names)
        tasks = share(segment_ranges(journal, selection, columns, strict=False), least)
        return tuple(task[0].low for task in tasks[1:])

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a micro-batch; they are the same on every call."""
        journal = SourceJournal(self._place, "")
        self._hold(read_offset(start, ""))
        begin = self._checked(journal, start)
        stop = read_offset(end, journal.identity)
        first = read_offset(start, journal.identity).sequence
        bounds = [first, *(cut for cut in stop.cuts if first < cut < stop.sequence), stop.sequence]
        tasks = [
            between(journal, max(low, begin.sequence), high, begin)
            for low, high in pairwise(bounds)
        ]
        return [Share(task, journal.identity) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the batches of one task."""
        assert isinstance(partition, Share)
        strict = self._options.fail_on_data_loss
        reading = Reading(self._place, self._schema, self._selection, strict)
        return reading.read(partition.segment_ranges, partition.identity)


def _end(state: JournalState) -> Offset:
    durable = state.durable
    if durable is None:
        return Offset(state.identity, 0)
    return Offset(state.identity, state.next, durable.segment, durable.offset)
