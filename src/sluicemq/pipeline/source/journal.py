"""Journal state of one task or plan: open segments, destination names, message origins.

All caches are bounded. Process-wide caches hold only records, which never change.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from typing import Final

import numpy as np

from sluicemq.journal.format import ENTRY, RecordType, decode_address
from sluicemq.model.destination import Address
from sluicemq.model.errors import JournalDamaged, RecordNotFound
from sluicemq.pipeline.source.journal_storage import (
    Integers,
    JournalState,
    JournalStorage,
    RecentlyUsed,
    StoredSegment,
)
from sluicemq.pipeline.source.records import (
    Column,
    Names,
    RecordColumns,
    ignore_damage,
    index_columns,
    scan_segment,
)

OPEN_SEGMENTS: Final = 12
MAX_NAMES: Final = 1 << 18
MANY_NAMES: Final = 1000
MAX_TAILS: Final = 3
MAX_RELOCATED: Final = 8
"""Maximum number of segments whose moved messages are cached."""
MAX_WITHOUT_MOVES: Final = 1 << 16
"""Maximum number of segments that are remembered to contain no moved message."""

_CACHED_COLUMNS: Final = ("sequence", "time", "reference", "type", "origin")


class UnindexedTail:
    """Messages and destinations of a segment without an index, up to the offset `at`.

    messages  columns of the messages, including messages moved to this segment
    """

    def __init__(self) -> None:
        self.at = 0
        self.addresses: dict[int, Address] = {}
        self.messages = RecordColumns(dict.fromkeys(_CACHED_COLUMNS, np.zeros(0, np.uint8)))

    def extend(self, segment: StoredSegment, end: int) -> None:
        """Add the records up to `end`, without those that are damaged."""
        if self.at >= end:
            return
        parts = []
        for records, data, base in scan_segment(segment, self.at, end, ignore_damage):
            types = records["type"]
            rows = np.flatnonzero(
                (types == RecordType.DESTINATION_CREATED)
                | (types == RecordType.DESTINATION_DELETED)
            )
            for row in rows.tolist():
                start, body, size = (int(records[name][row]) for name in ("offset", "body", "size"))
                address = decode_address(bytes(data[start - base + body : start - base + size]))
                self.addresses[int(records["destination"][row])] = address
            parts.append(RecordColumns.concatenate((_messages(records),), _CACHED_COLUMNS))
        self.messages = RecordColumns.concatenate((self.messages, *parts), _CACHED_COLUMNS)
        self.at = end


def _messages(records: RecordColumns) -> RecordColumns:
    types = records["type"]
    is_relocated = (types == RecordType.RELOCATED) & (records["flags"] & ENTRY == 0)
    return records.take((types == RecordType.MESSAGE) | is_relocated)


_tails: RecentlyUsed[tuple[str, int], UnindexedTail] = RecentlyUsed(MAX_TAILS)
_names: RecentlyUsed[tuple[str, int], Address | None] = RecentlyUsed(MAX_NAMES)
_relocated: RecentlyUsed[tuple[str, int], RecordColumns] = RecentlyUsed(MAX_RELOCATED)
"""Records moved to sealed segments, sorted by `reference`."""
_segments_without_relocated: RecentlyUsed[tuple[str, int], None] = RecentlyUsed(MAX_WITHOUT_MOVES)
"""Sealed segments without a moved record."""


class SourceJournal:
    """Journal as seen by one task or plan."""

    def __init__(self, storage: JournalStorage, identity: str | None = None) -> None:
        """Open a journal; its state is read on first use, also for the `identity` if not given."""
        self.storage = storage
        if identity is not None:
            self.identity = identity
        self._open: RecentlyUsed[int, StoredSegment] = RecentlyUsed(OPEN_SEGMENTS)

    @cached_property
    def state(self) -> JournalState:
        return self.storage.state()

    @cached_property
    def identity(self) -> str:
        return self.state.identity

    def segment(self, index: int) -> StoredSegment:
        """Return the segment at that index of `state.segments`. Raises as JournalStorage.open."""
        first = self.state.segments[index]
        segment = self._open.find(first)
        if segment is None:
            end = self.storage.records_end(self.state, index)
            segment = self._open[first] = self.storage.open(first, end)
        return segment

    def find(self, index: int, strict: bool) -> StoredSegment | None:
        """Return a segment; None if it is removed or damaged, which `strict` raises."""
        try:
            return self.segment(index)
        except (RecordNotFound, JournalDamaged):
            if strict:
                raise
            return None

    def tail(self, segment: StoredSegment) -> UnindexedTail:
        """Return the messages and destinations of a segment without an index."""
        key = (self.identity, segment.first)
        tail = _tails.find(key)
        if tail is None:
            tail = _tails[key] = UnindexedTail()
        tail.extend(segment, segment.end)
        return tail

    # --- names ---------------------------------------------------------

    def names(self, segment: StoredSegment) -> Names:
        """Return the destination names in the segment's index; none if it has no index."""
        return Names({} if segment.index is None else segment.index.summary.addresses())

    def add_names(self, names: Names, segment: StoredSegment, numbers: Column) -> None:
        """Add to `names` the destinations of `numbers` that the journal still knows.

        A sealed segment names every destination it refers to. A segment without an index also
        refers to destinations declared earlier: the latest snapshot or a later segment has them.
        The process looks up each of them once.
        """
        if segment.index is not None:
            return
        missing = names.missing(numbers)
        if len(missing) > MANY_NAMES:
            # one call for all: repeated additions would take quadratic time
            names.add(self.tail(segment).addresses)
            missing = names.missing(numbers)
        keys = {number: (self.identity, number) for number in missing}
        addresses = {number: _names[key] for number, key in keys.items() if key in _names}
        missing -= addresses.keys()
        sources = self._sources(segment, missing)
        while missing and (source := next(sources, None)) is not None:
            addresses.update((number, source[number]) for number in missing & source.keys())
            missing -= addresses.keys()
        for number, key in keys.items():
            _names[key] = addresses.get(number)
        names.add({number: address for number, address in addresses.items() if address is not None})

    def _sources(self, segment: StoredSegment, missing: set[int]) -> Iterator[dict[int, Address]]:
        """Yield known destinations by number, first those that `segment` creates.

        `missing` are the numbers that are still to be found.
        """
        yield self.tail(segment).addresses
        yield self.storage.addresses(missing)
        for index in reversed(range(len(self.state.segments))):
            with suppress(RecordNotFound, JournalDamaged):
                candidate = self.segment(index)
                yield (
                    self.tail(candidate) if candidate.index is None else self.names(candidate)
                ).addresses

    # --- messages ---------------------------------------------------------

    def origins(self, messages: Integers) -> tuple[Integers, Column, Column]:
        """Return publishing time (µs) and model.Origin of messages, and which are known."""
        unique, back = np.unique(messages, return_inverse=True)
        segments = np.array(self.state.segments, np.int64)
        indexes = np.searchsorted(segments, unique, side="right") - 1
        times = np.zeros(len(unique), np.int64)
        origins = np.zeros(len(unique), np.uint8)
        is_known = np.zeros(len(unique), np.bool_)

        def match(table: RecordColumns | None, by_column: str, type: int, rows: Integers) -> None:
            if table is None or not table.count:
                return
            numbers = table[by_column]
            indices = np.searchsorted(numbers, unique[rows])
            indices[indices == table.count] = 0
            matching = (numbers[indices] == unique[rows]) & (table["type"][indices] == type)
            rows, indices = rows[matching], indices[matching]
            times[rows] = table["time"][indices]
            origins[rows] = table["origin"][indices]
            is_known[rows] = True

        for index in np.unique(indexes[indexes >= 0]).tolist():
            with suppress(RecordNotFound, JournalDamaged):
                table = self._table(self.segment(index))
                match(table, "sequence", RecordType.MESSAGE, np.flatnonzero(indexes == index))
        for index in reversed(range(len(segments))):
            # a moved message is in a later segment than the original
            rows = np.flatnonzero(~is_known & (indexes < index))
            if len(rows):
                with suppress(RecordNotFound, JournalDamaged):
                    match(self._relocated_messages(index), "reference", RecordType.RELOCATED, rows)
        return times[back], origins[back], is_known[back]

    def _table(self, segment: StoredSegment) -> RecordColumns:
        return (
            self.tail(segment).messages if segment.index is None else index_columns(segment.index)
        )

    def _relocated_messages(self, index: int) -> RecordColumns | None:
        """Return the messages moved to a segment, ordered by their original sequence numbers."""
        key = (self.identity, self.state.segments[index])
        table = _relocated.find(key)
        if table is not None or key in _segments_without_relocated:
            return table
        segment = self.segment(index)
        if segment.index is None or RecordType.RELOCATED in segment.index.summary.types:
            messages = self._table(segment)
            relocated = messages.take(messages["type"] == RecordType.RELOCATED)
            ordered = relocated.take(np.argsort(relocated["reference"], kind="stable"))
            table = RecordColumns.concatenate((ordered,), _CACHED_COLUMNS)
        if segment.index is not None and table is not None and table.count:
            _relocated[key] = table
        elif segment.index is not None:
            _segments_without_relocated[key] = None
        return table
