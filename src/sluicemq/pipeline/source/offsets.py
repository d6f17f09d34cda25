"""Start and end of a read, and offsets in a stream's checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from sluicemq.model.errors import ConfigurationError, JournalError
from sluicemq.pipeline.source.journal import SourceJournal
from sluicemq.pipeline.source.options import (
    EARLIEST,
    LATEST,
    Position,
    Positions,
    SourceOptions,
    Timestamp,
)
from sluicemq.pipeline.source.records import ignore_damage, segment_columns
from sluicemq.pipeline.source.selection import event_codes

VERSION: Final = 1
_NONE: Final[Mapping[str, int]] = {}


class Offset(msgspec.Struct, frozen=True, omit_defaults=True):
    """Position of a stream, stored in the checkpoint as a JSON object of these fields.

    journal    identity of the journal
    sequence   next record to read
    segment, offset  position of that record's bytes, so that no reader has to search for it;
               0 = not known
    cuts       sequence numbers that divided the preceding batch among tasks, so that a repeated
               batch is divided in the same way
    starts     destinations that start behind `sequence`, with the sequence numbers of their first
               records; removed when the stream has reached them
    """

    journal: str
    sequence: int
    segment: int = 0
    offset: int = 0
    cuts: tuple[int, ...] = ()
    starts: Mapping[str, int] = {}

    def as_json(self) -> dict[str, Any]:
        """Return the object that Spark writes to the checkpoint."""
        starts = {name: n for name, n in self.starts.items() if n > self.sequence}
        return {"version": VERSION, **msgspec.to_builtins(replace(self, starts=starts))}


def read_offset(written: dict[str, Any], identity: str) -> Offset:
    """Decode an offset of this journal's checkpoint. Raises ConfigurationError."""
    version = written.get("version")
    if isinstance(version, int) and version > VERSION:
        raise ConfigurationError(
            f"the checkpoint was written by a newer release (offsets of version {version}, this "
            f"one reads up to {VERSION}): use that release, or another checkpoint"
        )
    try:
        offset = msgspec.convert({"journal": "", **written}, Offset)
    except msgspec.ValidationError:
        raise ConfigurationError(
            f"the checkpoint's offset {written} is not from this source: is it the checkpoint of "
            "another query?"
        ) from None
    if offset.journal and identity and offset.journal != identity:
        raise ConfigurationError(
            f"the checkpoint is of the journal {offset.journal}, but this one is {identity}: "
            "another broker, or a data directory that was created again. Their sequence numbers "
            "are unrelated: use another checkpoint."
        )
    return replace(offset, journal=offset.journal or identity)


class Bound(NamedTuple):
    """Start or exclusive end of a read.

    sequence        bound of all records, which no bound of a destination is outside of
    by_destination  bounds of single destinations
    explicit        lowest bound that was given as a number, so that it is an error if its record
                    has been removed; 0 = none
    """

    sequence: int
    by_destination: Mapping[str, int] = _NONE
    explicit: int = 0


def resolve(
    journal: SourceJournal, options: SourceOptions, given: Positions | None, others: int
) -> Bound:
    """Return the start or end of a read, which includes those of all destinations.

    given   positions that the options define
    others  EARLIEST for a start, LATEST for an end: position of the destinations that have none
    """
    positions = others if given is None else given
    limits = {EARLIEST: journal.state.earliest, LATEST: journal.state.next}

    @cache
    def sequence(position: Position) -> int:
        if isinstance(position, Timestamp):
            return _first_since(journal, position.microseconds, options.fail_on_data_loss)
        return limits.get(position, position)

    if not isinstance(positions, Mapping):
        return Bound(sequence(positions), explicit=_lowest_number([positions]))
    by_destination = {name: sequence(position) for name, position in positions.items()}
    bounds = list(by_destination.values())
    if not isinstance(options.destinations, frozenset):
        bounds.append(limits[others])
    bound = min(bounds) if others == EARLIEST else max(bounds)
    return Bound(bound, by_destination, _lowest_number(positions.values()))


def _lowest_number(positions: Iterable[Position]) -> int:
    """Return the lowest sequence number above 0; 0 if there is none."""
    return min((n for n in positions if isinstance(n, int) and n > 0), default=0)


def _first_since(journal: SourceJournal, moment: int, strict: bool) -> int:
    """Return the sequence number of the first event in journal order at or after `moment`.

    `moment` is in µs. Return the end of the journal if there is no such event. Without `strict`,
    removed and damaged records are skipped."""
    state = journal.state
    for number in range(len(state.segments)):
        segment = journal.find(number, strict)
        if segment is None:
            continue
        index = segment.index
        if index is not None and (not index.count or index.summary.last_time < moment):
            continue
        for records in segment_columns(segment, 0, None if strict else ignore_damage):
            rows = np.flatnonzero((records["time"] >= moment) & (event_codes(records) > 0))
            if len(rows):
                return int(records["sequence"][rows[0]])
    return state.next


def first_after_loss(journal: SourceJournal, start: Offset) -> int:
    """Return the first remaining sequence number if records from `start` on were removed.

    Return 0 if no record was removed. Raises JournalError."""
    state = journal.state
    if not state.segments or start.sequence >= state.earliest:
        return 0
    # Not every number belongs to a record: an index takes one, a restart skips a million.
    # Nothing is lost if `start` is the end of the segment before.
    if start.segment and start.offset:
        try:
            header = journal.storage.header(state.segments[0])
        except JournalError:
            return state.earliest
        if (header.previous, header.previous_end) == (start.segment, start.offset):
            return 0
    elif start.sequence + 1 == state.earliest:
        return 0
    return state.earliest
