"""Columns of a batch of rows, built from selected and fetched records.

The code is vectorised; only records with rarely set fields and requeues are looped over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import cache, cached_property
from typing import Any, ClassVar, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from sluicemq.journal.format import HEADER_BYTES
from sluicemq.model.errors import JournalError
from sluicemq.model.message import BodyKind, Durability, Origin
from sluicemq.model.rows import MAX_TIME
from sluicemq.pipeline.schema import HEADERS, LOG_APPEND_TIME, TIME, Event
from sluicemq.pipeline.source import selection
from sluicemq.pipeline.source.headers import Headers, array_of, decode_fields
from sluicemq.pipeline.source.journal import SourceJournal
from sluicemq.pipeline.source.journal_storage import Integers
from sluicemq.pipeline.source.options import PARTITION
from sluicemq.pipeline.source.records import (
    Column,
    Names,
    RecordColumns,
    full_name,
    kind_of,
    name_of,
)

Mask = np.ndarray[Any, np.dtype[np.bool_]]
Failed = Callable[[int, str], None]
"""Called with the row of a record and a description of its damage. May raise."""

MAX_BINARY: Final = (1 << 31) - 1

_PUBLISHED = selection.EVENT_CODES[Event.PUBLISHED]
_DELIVERED = selection.EVENT_CODES[Event.DELIVERED]
_REQUEUED = selection.EVENT_CODES[Event.REQUEUED]
_DEPTH = selection.EVENT_CODES[Event.DEPTH]

_BODIED: Final = selection.flags(selection.BODY_CODES)
_REFERS_TO_MESSAGE: Final = selection.flags((*selection.LIST_CODES, _REQUEUED))

_HEADERS: Final = frozenset((*HEADERS.names, "key", "headers"))
_NEEDS: Final = {
    **dict.fromkeys(selection.BODY_CODES, frozenset(("body", "value"))),
    **dict.fromkeys(
        selection.LIST_CODES,
        frozenset(("message_sequence", "published", "protocol", "subscription", "attempts")),
    ),
    _REQUEUED: frozenset(("subscription", "attempts")),
    _DEPTH: frozenset(("ready", "unacked", "consumers")),
}
"""Columns that need the bytes of an event's record."""


@cache
def _names_of(codes: type[IntEnum]) -> pa.Array:
    """Return the name of each code, null for other numbers.

    Not a constant: Arrow arrays of Python objects import pandas, which processes that only plan do
    not need."""
    names = {int(code): code.name.lower() for code in codes}
    return pa.array([names.get(code) for code in range(256)], pa.string())


def needed_mask(columns: frozenset[str], codes: Column, records: RecordColumns) -> Mask:
    """Return the mask of records whose bytes are needed for these columns."""
    mask: Mask = selection.flags(code for code, names in _NEEDS.items() if columns & names)[codes]
    if columns & _HEADERS:
        mask |= _BODIED[codes] & (records["body"] > HEADER_BYTES)
    return mask


def slices(data: pa.Buffer, starts: Integers, stops: Integers) -> pa.Array:
    """Return the bytes between each start and stop, in ascending order. Raises JournalError.

    The slices and the gaps between them form one Arrow array without a copy; `take` then copies
    every second element."""
    count = len(starts)
    if not count:
        return pa.array([], pa.binary())
    offsets = np.empty(2 * count, np.int64)
    offsets[0::2] = starts
    offsets[1::2] = stops
    base = int(offsets[0])
    extent = int(offsets[-1]) - base
    if extent > MAX_BINARY:
        raise JournalError(
            f"a message of {extent} bytes is larger than the 2 GiB that a Spark column can "
            "hold: leave out the body by the option columns, or the message by startingOffsets"
        )
    positions = pa.py_buffer((offsets - base).astype(np.int32))
    elements = pa.Array.from_buffers(
        pa.binary(), 2 * count - 1, [None, positions, data.slice(base, extent)]
    )
    return elements.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32)))


class DeadLetterMetas(NamedTuple):
    """Rarely set fields of the dead letters that belong to dead-lettered messages.

    rows   records of a batch that have a dead letter
    metas  encoded fields of each
    """

    rows: Integers
    metas: pa.Array


NO_DEAD_LETTERS: Final = DeadLetterMetas(np.zeros(0, np.int64), pa.nulls(0, pa.binary()))


@dataclass(eq=False)
class BatchRecords:
    """Records that become the rows of one batch.

    codes           event code of each record
    counts          rows of each record
    data            bytes of the needed records
    record_starts   offset of each record in `data`, -1 = not needed
    dead_letters    see DeadLetterMetas
    report_invalid  called for each record with invalid content
    """

    records: RecordColumns
    codes: Column
    counts: Integers
    data: pa.Buffer
    record_starts: Integers
    dead_letters: DeadLetterMetas
    names: Names
    journal: SourceJournal
    report_invalid: Failed

    def record_batch(self, schema: pa.Schema) -> pa.RecordBatch:
        """Return the columns of schema.EVENTS or schema.KAFKA that `schema` names, in its order."""
        arrays = [self._COLUMNS[name](self) for name in schema.names]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    # --- from records to rows ---------------------------------------------------------

    @cached_property
    def _records_are_rows(self) -> bool:
        return bool((self.counts == 1).all()) and not selection.IS_LIST[self.codes].any()

    @cached_property
    def rows(self) -> int:
        return self.records.count if self._records_are_rows else int(self.counts.sum())

    def _repeat_per_row(self, column: Column) -> Column:
        """Repeat each record's value for each of its rows."""
        return column if self._records_are_rows else np.repeat(column, self.counts)

    def _field(self, name: str) -> Column:
        return self._repeat_per_row(self.records[name])

    @cached_property
    def _destinations(self) -> Column:
        return self._field("destination")

    @cached_property
    def _row_codes(self) -> Column:
        return self._repeat_per_row(self.codes)

    @cached_property
    def _items(self) -> Integers:
        if self._records_are_rows:
            return np.zeros(self.rows, np.int64)
        starts = np.cumsum(self.counts) - self.counts
        return np.arange(self.rows) - np.repeat(starts, self.counts)

    @cached_property
    def _has_body(self) -> Mask:
        return _BODIED[self._row_codes]

    def _nullable_array(
        self, type: pa.DataType, values: Column, valid: Mask | None = None
    ) -> pa.Array:
        """Return a column of fixed width, null where `valid` is False."""
        bitmap = None
        if valid is not None and not valid.all():
            bitmap = pa.py_buffer(np.packbits(valid, bitorder="little"))
        native = np.ascontiguousarray(values, f"<i{type.bit_width // 8}")
        return pa.Array.from_buffers(type, len(values), [bitmap, pa.py_buffer(native)])

    def _code_names(self, texts: pa.Array, codes: Column, valid: Mask | None = None) -> pa.Array:
        """Return the text of each code, null where `valid` is False."""
        indices = self._nullable_array(pa.uint8(), codes, valid)
        if len(codes) and not indices.null_count and (codes == codes[0]).all():
            return pa.repeat(texts[int(codes[0])], len(codes))
        return texts.take(indices)

    # --- message of an event ------------------------------------------------------------

    @cached_property
    def _words64(self) -> Integers:
        return np.frombuffer(self.data, "<i8", self.data.size >> 3)

    @cached_property
    def _words32(self) -> Column:
        return np.frombuffer(self.data, "<u4", self.data.size >> 2)

    @cached_property
    def _lists(self) -> Integers:
        """Byte position of the numbers of each row's list; -1 = the row has no list.

        Also checks that the length of each list equals its count field."""
        records = self.records
        starts = np.full(records.count, -1, np.int64)
        rows = np.flatnonzero(selection.IS_LIST[self.codes])
        bodies = self.record_starts[rows] + records["body"][rows]
        listed_counts = self._words32[(bodies >> 2) + 1]
        sizes = records["size"][rows].astype(np.int64) - records["body"][rows] - selection.LIST_HEAD
        width = np.where(self.codes[rows] == selection.REDELIVERED, 12, 8)
        mismatch = (
            (listed_counts != self.counts[rows])
            | (sizes != listed_counts * width)
            | (bodies & 7 != 0)
        )
        for row in rows[mismatch].tolist():
            self.report_invalid(row, "the length of a list does not match its count")
        starts[rows[~mismatch]] = bodies[~mismatch] + selection.LIST_HEAD
        return self._repeat_per_row(starts)

    @cached_property
    def _message(self) -> tuple[Integers, Mask]:
        """Sequence number of each row's message, and a mask of the rows that have one."""
        codes = self._row_codes
        numbers = np.where(codes == _PUBLISHED, self._field("sequence"), self._field("reference"))
        has_message = codes != _DEPTH
        if not self._records_are_rows:
            list_rows = np.flatnonzero(selection.IS_LIST[codes])
            starts = self._lists[list_rows]
            has_message[list_rows] = starts >= 0
            positions = np.where(starts >= 0, (starts >> 3) + self._items[list_rows], 0)
            numbers[list_rows] = self._words64[positions]
        return numbers, has_message

    @cached_property
    def _origins(self) -> tuple[Integers, Column, Mask]:
        """Publishing time and origin of each row's message, and a mask of the known ones."""
        times = self._field("time").copy()
        origins = self._field("origin").copy()
        is_known = self._has_body.copy()
        numbers, numbered = self._message
        rows = np.flatnonzero(_REFERS_TO_MESSAGE[self._row_codes] & numbered)
        if len(rows):
            times[rows], origins[rows], is_known[rows] = self.journal.origins(numbers[rows])
        return times, origins, is_known

    @cached_property
    def _requeues(self) -> tuple[Integers, Integers, Integers]:
        """Rows of requeued messages, with the subscription and attempts of each."""
        rows = np.flatnonzero(self.codes == _REQUEUED)
        slices = self._slices(rows, self.records["body"][rows], self.records["size"][rows])
        data = slices.buffers()[2]
        try:
            requeues = _requeues.decode(array_of(len(rows), memoryview(data) if data else b""))
        except msgspec.MsgspecError as error:
            for row in rows.tolist():
                self.report_invalid(row, f"a requeue record cannot be decoded: {error}")
            rows, requeues = rows[:0], []
        first_rows = (np.cumsum(self.counts) - self.counts)[rows]
        return (
            first_rows,
            np.array([requeue.subscription for requeue in requeues], np.int64),
            np.array([requeue.attempts for requeue in requeues], np.int64),
        )

    def _subscription(self) -> pa.Array:
        numbers = np.zeros(self.rows, np.int64)
        valid = np.zeros(self.rows, np.bool_)
        list_rows = np.flatnonzero(self._lists >= 0)
        numbers[list_rows] = self._words32[(self._lists[list_rows] - selection.LIST_HEAD) >> 2]
        valid[list_rows] = True
        rows, subscriptions, _ = self._requeues
        numbers[rows] = subscriptions
        valid[rows] = True
        return self._nullable_array(pa.int64(), numbers, valid)

    def _attempts(self) -> pa.Array:
        codes = self._row_codes
        attempts = np.ones(self.rows, np.int64)
        valid = codes == _DELIVERED
        redelivered = np.flatnonzero((codes == selection.REDELIVERED) & (self._lists >= 0))
        # the attempts follow the numbers, one for each
        starts = self._lists[redelivered] + 8 * self._repeat_per_row(self.counts)[redelivered]
        attempts[redelivered] = self._words32[(starts >> 2) + self._items[redelivered]]
        valid[redelivered] = True
        rows, _, requeue_attempts = self._requeues
        attempts[rows] = requeue_attempts
        valid[rows] = True
        return self._nullable_array(pa.int32(), attempts, valid)

    # --- events with a body ------------------------------------------------------------

    def _time_array(self, milliseconds: Integers, known: Mask | bool = True) -> pa.Array:
        """Return times in ms since 1970 as a column; null for 0 and where `known` is False."""
        # some clients use later times for "never"
        capped = np.clip(milliseconds, 0, MAX_TIME)
        return self._nullable_array(TIME, capped * 1000, known & (milliseconds > 0))

    @cached_property
    def _sizes(self) -> Integers:
        return self.records["size"].astype(np.int64) - self.records["body"]

    def _slices(self, rows: Integers, starts: Column, stops: Column) -> pa.Array:
        """Return the bytes between two positions in each of these records."""
        positions = self.record_starts[rows]
        return slices(self.data, positions + starts, positions + stops)

    def _body(self) -> pa.Array:
        records = self.records
        is_empty = (records["kind"] == BodyKind.NONE) & (self._sizes == 0)
        rows = np.flatnonzero(_BODIED[self.codes] & ~is_empty)
        bodies = self._slices(rows, records["body"][rows], records["size"][rows])
        return bodies if len(rows) == self.rows else self._align_to_rows(bodies, rows)

    def _align_to_rows(self, array: pa.Array, rows: Integers) -> pa.Array:
        """Return a column with the values of these records in their rows; null elsewhere."""
        indices = np.full(self.records.count, -1, np.int64)
        indices[rows] = np.arange(len(rows))
        indices = self._repeat_per_row(indices)
        if not len(array):
            return pa.nulls(self.rows, array.type)
        return array.take(pa.array(indices, mask=indices < 0))

    # --- depths ---------------------------------------------------------

    def _depth(self, words: Callable[[Integers], Column]) -> pa.Array:
        values = np.zeros(self.rows, np.int64)
        rows = np.flatnonzero(self._row_codes == _DEPTH)
        values[rows] = words(self._repeat_per_row(self.record_starts + self.records["body"])[rows])
        return self._nullable_array(pa.int64(), values, self._row_codes == _DEPTH)

    # --- rarely set fields ---------------------------------------------------------

    @cached_property
    def _header_rows(self) -> Integers:
        """Records with rarely set fields."""
        return np.flatnonzero(_BODIED[self.codes] & (selection.meta_sizes(self.records) > 0))

    @cached_property
    def _headers(self) -> Headers:
        """Fields of the records that have them, followed by those of the dead letters."""
        rows = self._header_rows
        metas = self._slices(rows, np.full(len(rows), HEADER_BYTES), self.records["body"][rows])

        rows = np.concatenate((rows, self.dead_letters.rows))
        if len(self.dead_letters.rows):
            metas = pa.concat_arrays([metas, self.dead_letters.metas])

        def failed(row: int, error: Exception) -> None:
            self.report_invalid(int(rows[row]), f"the rarely set fields cannot be decoded: {error}")

        return Headers(decode_fields(metas, failed) if len(rows) else ())

    def _header_column(self, array: pa.Array) -> pa.Array:
        count = len(self._header_rows)
        if count == self.rows:
            return array
        return self._align_to_rows(array.slice(0, count), self._header_rows)

    @cached_property
    def _properties(self) -> tuple[pa.Array, pa.Array]:
        texts, types = self._headers.properties()
        rows = np.concatenate((self._header_rows, self.dead_letters.rows))
        return self._align_to_rows(texts, rows), self._align_to_rows(types, rows)

    # --- columns ---------------------------------------------------------

    _COLUMNS: ClassVar[dict[str, Callable[[BatchRecords], pa.Array]]] = {
        "sequence": lambda self: self._nullable_array(pa.int64(), self._field("sequence")),
        "record_index": lambda self: self._nullable_array(pa.int32(), self._items),
        "time": lambda self: self._nullable_array(TIME, self._field("time")),
        "event": lambda self: self._code_names(
            pa.array([None, *selection.EVENT_CODES]), self._row_codes
        ),
        "destination": lambda self: self.names.texts(self._destinations, name_of),
        "destination_kind": lambda self: self.names.texts(self._destinations, kind_of),
        "message_sequence": lambda self: self._nullable_array(pa.int64(), *self._message),
        "published": lambda self: self._nullable_array(TIME, self._origins[0], self._origins[2]),
        "protocol": lambda self: self._code_names(_names_of(Origin), *self._origins[1:]),
        "subscription": _subscription,
        "attempts": _attempts,
        "priority": lambda self: self._nullable_array(
            pa.int32(), self._field("priority"), self._has_body
        ),
        "durability": lambda self: self._code_names(
            _names_of(Durability), self._field("durability"), self._has_body
        ),
        "expiration": lambda self: self._time_array(self._field("expiration"), self._has_body),
        "size": lambda self: self._nullable_array(
            pa.int64(), self._repeat_per_row(self._sizes), self._has_body
        ),
        "body_kind": lambda self: self._code_names(
            _names_of(BodyKind), self._field("kind"), self._has_body
        ),
        "body": _body,
        "ready": lambda self: self._depth(lambda bodies: self._words64[bodies >> 3]),
        "unacked": lambda self: self._depth(lambda bodies: self._words64[(bodies >> 3) + 1]),
        "consumers": lambda self: self._depth(lambda bodies: self._words32[(bodies >> 2) + 4]),
        # rarely set fields
        "message_id": lambda self: self._header_column(self._headers.text("message_id")),
        "correlation_id": lambda self: self._header_column(self._headers.text("correlation_id")),
        "reply_to": lambda self: self._header_column(self._headers.reply_to()),
        "type": lambda self: self._header_column(self._headers.text("type")),
        "deliver_at": lambda self: self._header_column(
            self._time_array(self._headers.moments("deliver_at"))
        ),
        "client_timestamp": lambda self: self._header_column(
            self._time_array(self._headers.moments("client_timestamp"))
        ),
        "properties": lambda self: self._properties[0],
        "property_types": lambda self: self._properties[1],
        # Kafka's columns
        "key": lambda self: self._COLUMNS["correlation_id"](self).cast(pa.binary()),
        "value": _body,
        "topic": lambda self: self.names.texts(self._destinations, full_name),
        "partition": lambda self: self._nullable_array(pa.int32(), np.full(self.rows, PARTITION)),
        "offset": lambda self: self._COLUMNS["sequence"](self),
        "timestamp": lambda self: self._COLUMNS["time"](self),
        "timestampType": lambda self: self._nullable_array(
            pa.int32(), np.full(self.rows, LOG_APPEND_TIME)
        ),
        "headers": lambda self: self._header_column(self._headers.kafka()),
    }
    """Construction of each column of schema.EVENTS and schema.KAFKA."""


class _Requeue(msgspec.Struct, array_like=True):
    """The broker's record of a message that went to the tail of its queue."""

    subscription: int
    expiration: int
    attempts: int = 0


_requeues: Final = msgspec.msgpack.Decoder(list[_Requeue])
