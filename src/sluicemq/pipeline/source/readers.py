"""Spark's readers of the data source."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any

import pyarrow as pa
from msgspec.structs import replace
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from sluicemq.journal.space import NO_SPACE
from sluicemq.model.errors import ClientError, JournalDamaged, JournalError, RecordNotFound
from sluicemq.pipeline.source import plan
from sluicemq.pipeline.source.http_storage import connect
from sluicemq.pipeline.source.journal import SourceJournal
from sluicemq.pipeline.source.journal_storage import JournalState
from sluicemq.pipeline.source.lag import LagCounter
from sluicemq.pipeline.source.offsets import (
    Offset,
    first_after_loss,
    read_offset,
    resolve,
)
from sluicemq.pipeline.source.options import EARLIEST, LATEST, SourceOptions
from sluicemq.pipeline.source.reading import Reading, TaskRanges, log
from sluicemq.pipeline.source.selection import Selection


class _Reader:
    """Base of both readers. `schema` has the requested columns, as Spark expects them in Arrow."""

    def __init__(self, options: SourceOptions, schema: pa.Schema) -> None:
        self._options = options
        self._storage = connect(options)
        self._reading = Reading(
            self._storage,
            schema,
            Selection(frozenset(options.events), options.destinations),
            options.fail_on_data_loss,
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the batches of one task."""
        return self._reading.read(partition)


class BatchReader(_Reader, DataSourceReader):
    """Reader of `spark.read`: the journal between two sequence numbers.

    The reader accepts no filters from Spark (`pushFilters`): Spark keeps the plan of a filtered
    read with the DataFrame or view, and later actions without the filter would see only the
    filtered rows. Options exclude records instead.
    """

    def partitions(self) -> list[InputPartition]:
        """Plan the tasks. Raises JournalError, ConfigurationError."""
        reading = self._reading
        journal = SourceJournal(self._storage)
        start = resolve(journal, self._options, self._options.start, EARLIEST)
        end = resolve(journal, self._options, self._options.end, LATEST)
        explicit = Offset(journal.identity, start.explicit)
        if start.explicit and (earliest := first_after_loss(journal, explicit)):
            reading.report_removed(start.explicit, earliest)
        bounds = start.by_destination, end.by_destination
        selection = reading.selection.within(start.sequence, end.sequence, *bounds)
        weighed = plan.segment_ranges(journal, selection, reading.columns, reading.strict)
        return [
            TaskRanges(task, journal.identity, *bounds)
            for task in plan.split_into_tasks(weighed, self._options.min_partitions) or [[]]
        ]


class StreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader of one query of `spark.readStream`.

    Spark pickles it for the tasks and keeps one on the driver."""

    def __init__(self, options: SourceOptions, schema: pa.Schema) -> None:
        super().__init__(options, schema)
        self._target: Offset | None = None
        self._slot_position: int | None = None
        """Last record that the slot does not retain; None = the query does not have it yet."""
        self._lag = LagCounter(self._storage)
        self._planned: Offset | None = None
        """End of the latest micro-batch."""
        self._counted_rows: tuple[int, Offset, int, int] | None = None
        """Start and end of the rows that wait for `min_offsets_per_trigger`, their number, and the
        bytes of their records."""
        self._last_trigger = -float("inf")
        """Time of the latest micro-batch, by the monotonic clock."""

    # --- offsets ---------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the position at which a query without a checkpoint starts."""
        journal = SourceJournal(self._storage)
        given = LATEST if self._options.start is None else self._options.start
        start = resolve(journal, self._options, given, EARLIEST)
        if start.sequence == journal.state.next:
            return replace(_end(journal.state), starts=start.by_destination).as_json()
        return Offset(journal.identity, start.sequence, starts=start.by_destination).as_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the first limit that the options set; the trigger may override it."""
        limits = {
            ReadMaxRows: self._options.max_offsets_per_trigger,
            ReadMaxBytes: self._options.max_bytes_per_trigger,
            ReadMinRows: self._options.min_offsets_per_trigger,
        }
        return next((kind(limit) for kind, limit in limits.items() if limit), ReadAllAvailable())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next micro-batch; `start` if there are no new records.

        Spark calls this after it has committed everything before `start`, so this moves the slot
        to `start`. The reader's `commit` is called one batch late, and not at all for the last
        batch of a query with the trigger availableNow.

        Raises RecordNotFound if records behind `start` were removed, ConfigurationError if `start`
        is an offset of another journal.
        """
        journal = SourceJournal(self._storage)
        begin = self._planned = read_offset(start, journal.identity)
        self._ensure_slot(begin)
        self._advance_slot(begin)
        begin = self._without_removed(journal, begin)
        end = _end(journal.state)
        if self._target is not None and self._target.sequence < end.sequence:
            end = self._target
        end = replace(end, starts=begin.starts)
        if end.sequence <= begin.sequence or self._must_wait(journal, begin, end, limit):
            return start
        rows = volume = plan.NO_LIMIT
        if isinstance(limit, ReadMaxBytes):
            volume = limit.max_bytes
        elif isinstance(limit, ReadMaxRows):
            rows = limit.max_rows
            volume = self._options.max_bytes_per_trigger or plan.NO_LIMIT
        if min(rows, volume) < plan.NO_LIMIT:
            end, _, _ = plan.limit_batch(journal, self._reading, begin, end, rows, volume)
        cuts = self._cuts(journal, begin, end)
        self._planned = replace(end, cuts=cuts)
        return self._planned.as_json()

    def _must_wait(
        self, journal: SourceJournal, begin: Offset, end: Offset, limit: ReadLimit
    ) -> bool:
        """Return True if the micro-batch waits for more rows (`min_offsets_per_trigger`).

        The triggers `availableNow` and `once` do not wait, nor does the first micro-batch of a
        query, as with Spark's Kafka source. One that has `max_bytes_per_trigger` does not, either.
        """
        min_rows = self._options.min_offsets_per_trigger
        max_bytes = self._options.max_bytes_per_trigger or plan.NO_LIMIT
        if not min_rows or self._target is not None or isinstance(limit, ReadAllAvailable):
            return False
        now = time.monotonic()
        if (now - self._last_trigger) * 1000 < self._options.max_trigger_delay_ms:
            # rows that have been counted already are not counted again
            counted_to, rows, volume = begin, 0, 0
            if self._counted_rows is not None and self._counted_rows[0] == begin.sequence:
                _, counted_to, rows, volume = self._counted_rows
            if counted_to.sequence < end.sequence:
                limits = min_rows - rows, max_bytes - volume
                _, more_rows, more_bytes = plan.limit_batch(
                    journal, self._reading, counted_to, end, *limits
                )
                rows, volume = rows + more_rows, volume + more_bytes
            self._counted_rows = (begin.sequence, end, rows, volume)
            if rows < min_rows and volume < max_bytes:
                return True
        self._last_trigger = now
        self._counted_rows = None
        return False

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of the query at the journal's present end."""
        self._target = _end(self._storage.state())

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the journal's end for the query's progress, with the lag.

        `lag` is what the query will not have read after its current micro-batch; it is absent while
        the records cannot be read.
        """
        state = self._storage.state()
        report = _end(state).as_json()
        if self._planned is not None:
            try:
                report["lag"] = asdict(self._lag.lag(self._planned, state))
            except (RecordNotFound, JournalDamaged) as error:
                log.warning("The lag is unknown: %s", error)
        return report

    def _without_removed(self, journal: SourceJournal, offset: Offset) -> Offset:
        """Return the offset, or the first remaining one if records were removed."""
        earliest = first_after_loss(journal, offset)
        if not earliest:
            return offset
        self._reading.report_removed(offset.sequence, earliest)
        return Offset(offset.journal, earliest, starts=offset.starts)

    # --- slots ---------------------------------------------------------

    def _ensure_slot(self, start: Offset) -> None:
        """Create the slot when the query starts."""
        options = self._options
        if self._slot_position is not None or not options.slot:
            return
        position = max(0, start.sequence - 1)
        slot = self._storage.ensure_slot(options.slot, position, options.slot_limit_bytes)
        if options.slot_limit_bytes not in (None, slot.limit_bytes):
            log.warning(
                "The slot %s exists with another limit, and slotLimitBytes is ignored: a slot gets "
                "its limit when it is created",
                options.slot,
            )
        if slot.lost:
            self._report_lost_slot(slot.describe_loss(options.slot))
        elif slot.position > position:
            self._report_slot_ahead(start, slot.position)
        self._slot_position = slot.position

    def _advance_slot(self, start: Offset) -> None:
        """Move the slot to `start`, unless it is there already.

        If the broker does not answer, or the disk of the journal is full, the next batch tries
        again. Raises JournalError if the slot is lost.
        """
        slot, position = self._options.slot, start.sequence - 1
        if self._slot_position is None or position <= self._slot_position:
            return
        reached = position
        try:
            reached = self._storage.advance_slot(slot, position)
        except JournalError as error:
            self._report_lost_slot(str(error))
        except (ClientError, OSError) as error:
            if isinstance(error, OSError) and error.errno not in NO_SPACE:
                raise
            log.warning("The slot %s was not moved: %s", slot, error)
            return
        if reached > position:
            self._report_slot_ahead(start, reached)
        self._slot_position = reached

    def _report_slot_ahead(self, start: Offset, reached: int) -> None:
        """Log a warning that the slot, at `reached`, does not retain what follows `start`."""
        log.warning(
            "The slot %s is ahead of this query: the broker may remove records %d to %d before "
            "they are read. Each source needs a slot of its own",
            self._options.slot,
            start.sequence,
            reached,
        )

    def _report_lost_slot(self, reason: str) -> None:
        """Raise JournalError, or log a warning if `fail_on_data_loss` is off."""
        self._reading.report(
            JournalError(
                f"the slot {self._options.slot} no longer retains segments: {reason}. Segments "
                "that this query has not read may have been removed. Delete the slot; the query "
                "creates a new one when it starts. If the query then reports removed records, "
                "follow that message."
            )
        )

    # --- tasks ---------------------------------------------------------

    def _cuts(self, journal: SourceJournal, start: Offset, end: Offset) -> tuple[int, ...]:
        """Return the sequence numbers that divide a micro-batch among tasks."""
        minimum = self._options.min_partitions
        is_small = start.segment == end.segment and end.offset - start.offset < plan.MIN_TASK_BYTES
        if is_small and start.segment and minimum <= 1:
            return ()
        selection = self._reading.selection.within(start.sequence, end.sequence, start.starts, {})
        weighed = plan.segment_ranges(journal, selection, self._reading.columns, strict=False)
        return tuple(task[0].low for task in plan.split_into_tasks(weighed, minimum)[1:])

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a micro-batch; they are the same on every call."""
        journal = SourceJournal(self._storage)
        begin = read_offset(start, journal.identity)
        self._ensure_slot(begin)
        first = begin.sequence
        begin = self._without_removed(journal, begin)
        stop = read_offset(end, journal.identity)
        bounds = [first, *(cut for cut in stop.cuts if first < cut < stop.sequence), stop.sequence]
        tasks = [
            plan.split_by_segment(journal, max(low, begin.sequence), high, begin)
            for low, high in pairwise(bounds)
        ]
        return [TaskRanges(task, journal.identity, begin.starts, {}) for task in tasks]


def _end(state: JournalState) -> Offset:
    return Offset(state.identity, state.next, state.durable.segment, state.durable.offset)
