"""Filter of a read: by event, destination and sequence number.

The filter needs only index columns, and for whole segments only the summary of the index.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import numpy as np

from sluicemq.journal.format import ENTRY, HEADER_BYTES, Cause, RecordType
from sluicemq.journal.segment import Summary
from sluicemq.model.destination import Address
from sluicemq.pipeline.schema import Event
from sluicemq.pipeline.source.options import Destinations
from sluicemq.pipeline.source.records import Column, Names, RecordColumns, full_name

EVENT_CODES: Final = {event: code for code, event in enumerate(Event, 1)}
"""Code of each event, one byte; 0 marks records that are no event."""

_CAUSES: Final = {cause: Event(cause.label) for cause in Cause}
_TYPES: Final = {
    RecordType.MESSAGE: Event.PUBLISHED,
    RecordType.RELOCATED: Event.RELOCATED,
    RecordType.DELIVERED: Event.DELIVERED,
    RecordType.REDELIVERED: Event.REDELIVERED,
    RecordType.REQUEUED: Event.REQUEUED,
    RecordType.DEPTH: Event.DEPTH,
}
_TYPE_OF: Final = {event: type for type, event in _TYPES.items()}
"""Type of the records of an event; others are COMPLETED."""

END: Final = (1 << 63) - 1
"""Upper bound of all sequence numbers."""

LIST_CODES: Final = tuple(
    EVENT_CODES[event] for event in (*_CAUSES.values(), Event.DELIVERED, Event.REDELIVERED)
)
"""Events that one record lists for many messages."""
BODY_CODES: Final = (EVENT_CODES[Event.PUBLISHED], EVENT_CODES[Event.RELOCATED])
"""Events with a body."""

DEAD_LETTERED: Final = EVENT_CODES[Event.DEAD_LETTERED]


def flags(codes: Iterable[int]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return a table of 256 flags that is True for these codes."""
    table = np.zeros(256, np.bool_)
    table[list(codes)] = True
    return table


def _code_table() -> Column:
    table = np.zeros(1 << 16, np.uint8)
    for type, event in _TYPES.items():
        table[type << 8 : (type + 1) << 8] = EVENT_CODES[event]
    for cause, event in _CAUSES.items():
        table[RecordType.COMPLETED << 8 | cause] = EVENT_CODES[event]
    return table


_CODES: Final = _code_table()
IS_LIST: Final = flags(LIST_CODES)
REDELIVERED: Final = EVENT_CODES[Event.REDELIVERED]
LIST_HEAD: Final = 8
"""Bytes before the numbers of a list record."""


def event_codes(records: RecordColumns) -> Column:
    types = records["type"]
    if records.count and types[0] == RecordType.MESSAGE and bool((types == types[0]).all()):
        # usual for segments without deliveries, and ten times as fast
        return np.full(records.count, EVENT_CODES[Event.PUBLISHED], np.uint8)
    codes: Column = _CODES[records["type"].astype(np.uint16) << 8 | records["kind"]]
    entries = records["flags"] & ENTRY != 0
    if entries.any():
        codes[entries] = 0  # the moved record is not a message
    return codes


def row_counts(records: RecordColumns, codes: Column) -> Column:
    counts = np.ones(records.count, np.int64)
    lists = np.flatnonzero(IS_LIST[codes])
    if len(lists):
        width = np.where(codes[lists] == REDELIVERED, 12, 8)
        content = records["size"][lists].astype(np.int64) - records["body"][lists] - LIST_HEAD
        counts[lists] = np.maximum(content, 0) // width
    return counts


@dataclass(frozen=True)
class Selection:
    """Filter for records.

    events      event types
    low, high   sequence numbers, `high` exclusive
    lows, highs   the same as `low` and `high`, in addition, for single destinations
    """

    events: frozenset[Event]
    destinations: Destinations = ()
    low: int = 0
    high: int = END
    lows: Mapping[str, int] = field(default_factory=dict)
    highs: Mapping[str, int] = field(default_factory=dict)

    def within(
        self, low: int, high: int, lows: Mapping[str, int], highs: Mapping[str, int]
    ) -> Selection:
        """Return the selection of the same records within these bounds."""
        return replace(self, low=low, high=high, lows=lows, highs=highs)

    @cached_property
    def _selected_codes(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        return flags(EVENT_CODES[event] for event in self.events)

    @property
    def by_destination(self) -> bool:
        """True if the selection depends on the destination."""
        return bool(self.destinations or self.lows or self.highs)

    def allows(self, addresses: Iterable[Address]) -> list[bool]:
        """Return for each destination True if the selection includes it."""
        names = [full_name(address) for address in addresses]
        selected = self.destinations
        if isinstance(selected, frozenset):
            return [name in selected for name in names]
        return [
            not selected or any(pattern.fullmatch(name) for pattern in selected) for name in names
        ]

    def may_be_in(self, summary: Summary) -> bool:
        """Return False if the index summary shows that a segment has no selected record."""
        if (
            not summary.records
            or summary.last_sequence < self.low
            or summary.first_sequence >= self.high
        ):
            return False
        return any(
            _TYPE_OF.get(event, RecordType.COMPLETED) in summary.types for event in self.events
        )

    def rows(self, records: RecordColumns, names: Names) -> tuple[Column, Column]:
        """Return the indexes of the selected records, and the event code of each."""
        codes = event_codes(records)
        mask = self._selected_codes[codes]
        sequences = records["sequence"]
        if records.count and (sequences[0] < self.low or sequences[-1] >= self.high):
            mask &= (sequences >= self.low) & (sequences < self.high)
        if self.by_destination:
            mask &= names.allowed_mask(records["destination"], self.allows)
        if self.lows:
            mask &= sequences >= names.bounds(records["destination"], self.lows, 0)
        if self.highs:
            mask &= sequences < names.bounds(records["destination"], self.highs, END)
        rows = np.flatnonzero(mask)
        return rows, codes if len(rows) == records.count else codes[rows]


def meta_sizes(records: RecordColumns) -> Column:
    """Return the size in bytes of each record's rarely set fields."""
    return records["body"].astype(np.int64) - HEADER_BYTES
