"""Columns of a batch of rows, built from selected and fetched records.

The code is vectorised; only records with rarely set fields and requeues are looped over.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from sluicemq.journal.format import HEADER_BYTES
from sluicemq.model.errors import JournalError
from sluicemq.model.message import BodyKind, Durability, Origin
from sluicemq.pipeline.schema import HEADERS, LOG_APPEND_TIME, TIME, Event
from sluicemq.pipeline.source.headers import Headers, array_of, decode_fields
from sluicemq.pipeline.source.heads import Column, Heads, Names
from sluicemq.pipeline.source.journal import SourceJournal
from sluicemq.pipeline.source.journal_storage import Integers
from sluicemq.pipeline.source.options import PARTITION
from sluicemq.pipeline.source.selection import (
    BODIED,
    EVENT_CODES,
    LIST_HEAD,
    LISTS,
    flags,
    meta_sizes,
)

Mask = np.ndarray[Any, np.dtype[np.bool_]]
Failed = Callable[[int, str], None]
"""Called with the row of a record and a description of its damage. May raise."""

MOST_BINARY: Final = (1 << 31) - 1
LATEST_MS: Final = 253_402_300_799_999
"""End of the year 9999. Later times, which some clients use for "never", are reduced to it."""

_PUBLISHED = EVENT_CODES[Event.PUBLISHED]
_RELOCATED = EVENT_CODES[Event.RELOCATED]
_DELIVERED = EVENT_CODES[Event.DELIVERED]
_REDELIVERED = EVENT_CODES[Event.REDELIVERED]
_REQUEUED = EVENT_CODES[Event.REQUEUED]
_DEPTH = EVENT_CODES[Event.DEPTH]

_BODIED: Final = flags(BODIED)
_LISTS: Final = flags(LISTS)
_CONCERNED: Final = flags((*LISTS, _REQUEUED))

_OF_LISTS: Final = frozenset(
    ("message_sequence", "published", "protocol", "subscription", "attempts")
)
_OF_REQUEUED: Final = frozenset(("subscription", "attempts"))
_OF_DEPTH: Final = frozenset(("ready", "unacked", "consumers"))
_HEADERS: Final = frozenset((*HEADERS.names, "key", "headers"))
_BODIES: Final = frozenset(("body", "value"))


def _words(words: dict[int, str]) -> tuple[pa.Array, Column]:
    """Return an array of the texts after a null, and a table from code to index in it."""
    places = np.zeros(256, np.int8)
    for place, code in enumerate(words, 1):
        places[code] = place
    return pa.array([None, *words.values()], pa.string()), places


_EVENTS: Final = _words({code: str(event) for event, code in EVENT_CODES.items()})
_ORIGINS: Final = _words({int(origin): origin.name.lower() for origin in Origin})
_BODY_KINDS: Final = _words({int(kind): kind.name.lower() for kind in BodyKind})
_DURABILITIES: Final = _words({int(level): level.name.lower() for level in Durability})


def touched(columns: frozenset[str], codes: Column, heads: Heads) -> Mask:
    """Return the mask of records whose bytes are needed for these columns."""
    needed = np.zeros(256, np.bool_)
    bodies = not columns.isdisjoint(_BODIES)
    needed[list(BODIED)] = bodies
    if columns & _OF_LISTS:
        needed[list(LISTS)] = True
    needed[_REQUEUED] = bool(columns & _OF_REQUEUED)
    needed[_DEPTH] = bool(columns & _OF_DEPTH)
    mask = needed[codes] if needed.any() else np.zeros(heads.count, np.bool_)
    if not bodies and columns & _HEADERS:
        mask |= _BODIED[codes] & (heads["body"] > HEADER_BYTES)
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
    if extent > MOST_BINARY:
        raise JournalError(
            f"a message of {extent} bytes is larger than the 2 GiB that a Spark column can "
            "hold: leave out the body by the option columns, or the message by startingOffsets"
        )
    places = pa.py_buffer((offsets - base).astype(np.int32))
    elements = pa.Array.from_buffers(
        pa.binary(), 2 * count - 1, [None, places, data.slice(base, extent)]
    )
    return elements.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32)))


class DeadLetterMetas(NamedTuple):
    """Rarely set fields of the dead letters that belong to dead-lettered messages.

    rows   records of a batch that have a dead letter
    metas  encoded fields of each
    """

    rows: Integers
    metas: pa.Array


NO_DEAD_LETTERS: Final = DeadLetterMetas(np.zeros(0, np.int64), pa.array([], pa.binary()))


class BatchRecords:
    """Records that become the rows of one batch.

    codes         event code of each record
    counts        rows of each record
    data          bytes of the `touched` records; record n starts at `places[n]`, -1 = not touched
    dead_letters  see DeadLetterMetas
    failed        called for each record with invalid content
    """

    def __init__(
        self,
        heads: Heads,
        codes: Column,
        counts: Integers,
        data: pa.Buffer,
        places: Integers,
        dead_letters: DeadLetterMetas,
        names: Names,
        journal: SourceJournal,
        failed: Failed,
    ) -> None:
        self._heads = heads
        self._codes = codes
        self._counts = counts
        self._data = data
        self._places = places
        self._dead_letters = dead_letters
        self._names = names
        self._journal = journal
        self._failed = failed
        self._code = int(codes[0]) if len(codes) and bool((codes == codes[0]).all()) else 0
        """Event code of all records; 0 = they differ."""
        if self._code:
            self._plain = not _LISTS[self._code]
        else:
            self._plain = bool((counts == 1).all()) and not _LISTS[codes].any()
        self.rows = heads.count if self._plain else int(counts.sum())

    def record_batch(self, schema: pa.Schema) -> pa.RecordBatch:
        """Return the columns of schema.EVENTS or schema.KAFKA that `schema` names, in its order."""
        arrays = [getattr(self, f"_column_{name}")() for name in schema.names]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    # --- from records to rows ---------------------------------------------------------

    def _spread(self, column: Column) -> Column:
        """Repeat each record's value for each of its rows."""
        return column if self._plain else np.repeat(column, self._counts)

    @cached_property
    def _row_codes(self) -> Column:
        return self._spread(self._codes)

    @cached_property
    def _items(self) -> Integers:
        if self._plain:
            return np.zeros(self.rows, np.int64)
        starts = np.cumsum(self._counts) - self._counts
        return np.arange(self.rows) - np.repeat(starts, self._counts)

    @cached_property
    def _bodied(self) -> Mask:
        """Rows with a body."""
        if self._code:
            return np.full(self.rows, _BODIED[self._code])
        return _BODIED[self._row_codes]

    def _masked(self, type: pa.DataType, values: Column, valid: Mask | None = None) -> pa.Array:
        """Return a column of fixed width, null where `valid` is False."""
        bitmap = None
        if valid is not None and not valid.all():
            bitmap = pa.py_buffer(np.packbits(valid, bitorder="little"))
        width = np.dtype(type.to_pandas_dtype()).itemsize if type != TIME else 8
        native = np.ascontiguousarray(values, f"<i{width}")
        return pa.Array.from_buffers(type, len(values), [bitmap, pa.py_buffer(native)])

    def _worded(
        self, words: tuple[pa.Array, Column], codes: Column, valid: Mask | None = None
    ) -> pa.Array:
        texts, table = words
        places = table[codes]
        if valid is not None:
            places = np.where(valid, places, 0)
        if len(places) and places[0] == places[-1] and (places == places[0]).all():
            return pa.repeat(texts[int(places[0])], len(places))
        return texts.take(pa.array(places))

    # --- columns of every event ---------------------------------------------------------

    def _column_sequence(self) -> pa.Array:
        return self._masked(pa.int64(), self._spread(self._heads["sequence"]))

    def _column_record_index(self) -> pa.Array:
        return self._masked(pa.int32(), self._items)

    def _column_time(self) -> pa.Array:
        return self._masked(TIME, self._spread(self._heads["time"]))

    def _column_event(self) -> pa.Array:
        return self._worded(_EVENTS, self._row_codes)

    @cached_property
    def _destinations(self) -> Column:
        return self._spread(self._heads["destination"])

    def _column_destination(self) -> pa.Array:
        return self._names.texts(self._destinations)

    def _column_destination_kind(self) -> pa.Array:
        return self._names.kinds(self._destinations)

    # --- message of an event ------------------------------------------------------------

    @cached_property
    def _words64(self) -> Integers:
        return np.frombuffer(self._data, "<i8", self._data.size >> 3)

    @cached_property
    def _words32(self) -> Column:
        return np.frombuffer(self._data, "<u4", self._data.size >> 2)

    @cached_property
    def _lists(self) -> Integers:
        """Byte position of the numbers of each row's list; -1 = the row has no list.

        Also checks that the length of each list equals its count field."""
        heads = self._heads
        starts = np.full(heads.count, -1, np.int64)
        rows = np.flatnonzero(_LISTS[self._codes])
        if len(rows):
            bodies = self._places[rows] + heads["body"][rows]
            listed_counts = self._words32[(bodies >> 2) + 1]
            sizes = heads["size"][rows].astype(np.int64) - heads["body"][rows] - LIST_HEAD
            width = np.where(self._codes[rows] == _REDELIVERED, 12, 8)
            wrong = (
                (listed_counts != self._counts[rows])
                | (sizes != listed_counts * width)
                | (bodies & 7 != 0)
            )
            for row in rows[wrong].tolist():
                self._failed(row, "the length of a list does not match its count")
            starts[rows[~wrong]] = bodies[~wrong] + LIST_HEAD
        return self._spread(starts)

    @cached_property
    def _message(self) -> tuple[Integers, Mask]:
        """Sequence number of each row's message, and a mask of the rows that have one."""
        codes = self._row_codes
        heads = self._heads
        numbers = np.where(
            codes == _PUBLISHED, self._spread(heads["sequence"]), self._spread(heads["reference"])
        )
        known = codes != _DEPTH
        if not self._plain:
            listed = np.flatnonzero(_LISTS[codes])
            starts = self._lists[listed]
            known[listed] = starts >= 0
            places = np.where(starts >= 0, (starts >> 3) + self._items[listed], 0)
            numbers[listed] = self._words64[places]
        return numbers, known

    def _column_message_sequence(self) -> pa.Array:
        return self._masked(pa.int64(), *self._message)

    @cached_property
    def _origins(self) -> tuple[Integers, Column, Mask]:
        """Publishing time and origin of each row's message, and a mask of the known ones."""
        times = self._spread(self._heads["time"]).copy()
        origins = self._spread(self._heads["origin"]).copy()
        known = self._bodied.copy()
        numbers, numbered = self._message
        rows = np.flatnonzero(_CONCERNED[self._row_codes] & numbered)
        if len(rows):
            times[rows], origins[rows], known[rows] = self._journal.origins(numbers[rows])
        return times, origins, known

    def _column_published(self) -> pa.Array:
        times, _, known = self._origins
        return self._masked(TIME, times, known)

    def _column_protocol(self) -> pa.Array:
        _, origins, known = self._origins
        return self._worded(_ORIGINS, origins, known)

    @cached_property
    def _requeues(self) -> tuple[Integers, Integers, Integers]:
        """Rows of requeued messages, with the subscription and attempts of each."""
        rows = np.flatnonzero(self._codes == _REQUEUED)
        slices = self._slices(rows, self._heads["body"][rows], self._heads["size"][rows])
        joined = slices.buffers()[2]
        try:
            decoded = _requeues.decode(array_of(len(rows), memoryview(joined) if joined else b""))
        except msgspec.MsgspecError as error:
            for row in rows.tolist():
                self._failed(row, f"a requeue record cannot be decoded: {error}")
            return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64)
        first_rows = (np.cumsum(self._counts) - self._counts)[rows]
        return (
            first_rows,
            np.array([requeue.subscription for requeue in decoded], np.int64),
            np.array([requeue.attempts for requeue in decoded], np.int64),
        )

    def _column_subscription(self) -> pa.Array:
        numbers = np.zeros(self.rows, np.int64)
        known = np.zeros(self.rows, np.bool_)
        if not self._plain:
            listed = np.flatnonzero(self._lists >= 0)
            numbers[listed] = self._words32[(self._lists[listed] - LIST_HEAD) >> 2]
            known[listed] = True
        if (self._codes == _REQUEUED).any():
            rows, subscriptions, _ = self._requeues
            numbers[rows] = subscriptions
            known[rows] = True
        return self._masked(pa.int64(), numbers, known)

    def _column_attempts(self) -> pa.Array:
        codes = self._row_codes
        attempts = np.ones(self.rows, np.int64)
        known = codes == _DELIVERED
        again = np.flatnonzero(codes == _REDELIVERED)
        if len(again):
            # the attempts follow the numbers, one for each
            starts = self._lists[again] + 8 * self._spread(self._counts)[again]
            good = self._lists[again] >= 0
            again, starts = again[good], starts[good]
            attempts[again] = self._words32[(starts >> 2) + self._items[again]]
            known[again] = True
        if (self._codes == _REQUEUED).any():
            rows, _, counted = self._requeues
            attempts[rows] = counted
            known[rows] = True
        return self._masked(pa.int32(), attempts, known)

    # --- events with a body ------------------------------------------------------------

    def _column_priority(self) -> pa.Array:
        return self._masked(pa.int32(), self._spread(self._heads["priority"]), self._bodied)

    def _column_durability(self) -> pa.Array:
        return self._worded(_DURABILITIES, self._spread(self._heads["durability"]), self._bodied)

    def _moment(self, milliseconds: Integers, known: Mask) -> pa.Array:
        return self._masked(TIME, np.clip(milliseconds, 0, LATEST_MS) * 1000, known)

    def _column_expiration(self) -> pa.Array:
        moments = self._spread(self._heads["expiration"])
        return self._moment(moments, self._bodied & (moments > 0))

    @cached_property
    def _sizes(self) -> Integers:
        return self._heads["size"].astype(np.int64) - self._heads["body"]

    def _column_size(self) -> pa.Array:
        return self._masked(pa.int64(), self._spread(self._sizes), self._bodied)

    def _column_body_kind(self) -> pa.Array:
        return self._worded(_BODY_KINDS, self._spread(self._heads["kind"]), self._bodied)

    def _slices(self, rows: Integers, starts: Column, stops: Column) -> pa.Array:
        """Return the bytes between two positions in each of these records."""
        places = self._places[rows]
        return slices(self._data, places + starts, places + stops)

    def _column_body(self) -> pa.Array:
        heads = self._heads
        nothing = (heads["kind"] == BodyKind.NONE) & (self._sizes == 0)
        rows = np.flatnonzero(_BODIED[self._codes] & ~nothing)
        bodies = self._slices(rows, heads["body"][rows], heads["size"][rows])
        return bodies if len(rows) == self.rows else self._placed(bodies, rows)

    def _placed(self, array: pa.Array, rows: Integers) -> pa.Array:
        """Return a column with the values of these records in their rows; null elsewhere."""
        places = np.full(self._heads.count, -1, np.int64)
        places[rows] = np.arange(len(rows))
        places = self._spread(places)
        if not len(array):
            return pa.nulls(self.rows, array.type)
        return array.take(pa.array(places, mask=places < 0))

    # --- depths ---------------------------------------------------------

    def _depth(self, words: Callable[[Integers], Column]) -> pa.Array:
        values = np.zeros(self.rows, np.int64)
        rows = np.flatnonzero(self._row_codes == _DEPTH)
        if len(rows):
            bodies = self._spread(self._places + self._heads["body"])[rows]
            values[rows] = words(bodies)
        return self._masked(pa.int64(), values, self._row_codes == _DEPTH)

    def _column_ready(self) -> pa.Array:
        return self._depth(lambda bodies: self._words64[bodies >> 3])

    def _column_unacked(self) -> pa.Array:
        return self._depth(lambda bodies: self._words64[(bodies >> 3) + 1])

    def _column_consumers(self) -> pa.Array:
        return self._depth(lambda bodies: self._words32[(bodies >> 2) + 4])

    # --- rarely set fields ---------------------------------------------------------

    @cached_property
    def _header_rows(self) -> Integers:
        """Records with rarely set fields."""
        return np.flatnonzero(_BODIED[self._codes] & (meta_sizes(self._heads) > 0))

    @cached_property
    def _headers(self) -> Headers:
        """Fields of the records that have them, followed by those of the dead letters."""
        rows = self._header_rows
        starts = np.full(len(rows), HEADER_BYTES)
        metas = self._slices(rows, starts, self._heads["body"][rows])

        rows = np.concatenate((rows, self._dead_letters.rows))
        if len(self._dead_letters.rows):
            metas = pa.concat_arrays([metas, self._dead_letters.metas])

        def failed(row: int, error: Exception) -> None:
            self._failed(int(rows[row]), f"the rarely set fields cannot be decoded: {error}")

        return Headers(decode_fields(metas, failed) if len(rows) else ())

    def _of_headers(self, array: pa.Array) -> pa.Array:
        own = len(self._header_rows)
        if own == self.rows:
            return array
        return self._placed(array.slice(0, own), self._header_rows)

    def _column_message_id(self) -> pa.Array:
        return self._of_headers(self._headers.text("message_id"))

    def _column_correlation_id(self) -> pa.Array:
        return self._of_headers(self._headers.text("correlation_id"))

    def _column_reply_to(self) -> pa.Array:
        return self._of_headers(self._headers.reply_to())

    def _column_type(self) -> pa.Array:
        return self._of_headers(self._headers.text("type"))

    def _column_deliver_at(self) -> pa.Array:
        moments = self._headers.deliver_at()
        return self._of_headers(self._moment(moments, moments > 0))

    def _column_client_timestamp(self) -> pa.Array:
        moments = self._headers.client_timestamp()
        return self._of_headers(self._moment(moments, moments > 0))

    @cached_property
    def _properties(self) -> tuple[pa.Array, pa.Array]:
        texts, types = self._headers.properties()
        rows = np.concatenate((self._header_rows, self._dead_letters.rows))
        return self._placed(texts, rows), self._placed(types, rows)

    def _column_properties(self) -> pa.Array:
        return self._properties[0]

    def _column_property_types(self) -> pa.Array:
        return self._properties[1]

    # --- Kafka's columns ---------------------------------------------------------

    def _column_key(self) -> pa.Array:
        return self._column_correlation_id().cast(pa.binary())

    def _column_value(self) -> pa.Array:
        return self._column_body()

    def _column_topic(self) -> pa.Array:
        return self._names.addressed(self._destinations)

    def _column_partition(self) -> pa.Array:
        return self._masked(pa.int32(), np.full(self.rows, PARTITION))

    def _column_offset(self) -> pa.Array:
        return self._column_sequence()

    def _column_timestamp(self) -> pa.Array:
        return self._column_time()

    def _column_timestampType(self) -> pa.Array:  # noqa: N802
        return self._masked(pa.int32(), np.full(self.rows, LOG_APPEND_TIME))

    def _column_headers(self) -> pa.Array:
        return self._of_headers(self._headers.kafka())


class _Requeue(msgspec.Struct, array_like=True):
    """The broker's record of a message that went to the tail of its queue."""

    subscription: int
    expiration: int
    attempts: int = 0


_requeues: Final = msgspec.msgpack.Decoder(list[_Requeue])
