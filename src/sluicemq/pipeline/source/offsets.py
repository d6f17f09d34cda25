"""Start and end of a read, and offsets in a stream's checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np

from sluicemq.model.errors import ConfigurationError, JournalError
from sluicemq.pipeline.source.heads import Heads, index_heads
from sluicemq.pipeline.source.journal import SourceJournal
from sluicemq.pipeline.source.options import EARLIEST, LATEST, Position
from sluicemq.pipeline.source.segment_scan import scan_segment
from sluicemq.pipeline.source.selection import event_codes

VERSION: Final = 1


class Offset(NamedTuple):
    """Position of a stream, stored in the checkpoint as a JSON object of these fields.

    journal    identity of the journal
    sequence   next record to read
    segment, offset  position of that record's bytes, so that no reader has to search for it;
               0 = not known
    cuts       sequence numbers that divided the preceding batch among tasks, so that a repeated
               batch is divided in the same way
    slot       slot that moves with the query
    """

    journal: str
    sequence: int
    segment: int = 0
    offset: int = 0
    cuts: tuple[int, ...] = ()
    slot: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the object that Spark writes to the checkpoint."""
        fields: dict[str, Any] = {
            "version": VERSION,
            "journal": self.journal,
            "sequence": self.sequence,
        }
        if self.segment:
            fields["segment"] = self.segment
            fields["offset"] = self.offset
        if self.cuts:
            fields["cuts"] = list(self.cuts)
        if self.slot:
            fields["slot"] = self.slot
        return fields


def read_offset(written: dict[str, Any], identity: str) -> Offset:
    """Decode an offset of this journal's checkpoint. Raises ConfigurationError."""
    version = written.get("version")
    if isinstance(version, int) and version > VERSION:
        raise ConfigurationError(
            f"the checkpoint was written by a newer release (offsets of version {version}, this "
            f"one reads up to {VERSION}): use that release, or another checkpoint"
        )
    journal, sequence = written.get("journal", ""), written.get("sequence")
    if not isinstance(journal, str) or not isinstance(sequence, int):
        raise ConfigurationError(
            f"the checkpoint's offset {written} is not from this source: is it the checkpoint of "
            "another query?"
        )
    if journal and identity and journal != identity:
        raise ConfigurationError(
            f"the checkpoint is of the journal {journal}, but this one is {identity}: another "
            "broker, or a data directory that was created again. Their sequence numbers are "
            "unrelated: use another checkpoint."
        )
    cuts = written.get("cuts") or ()
    return Offset(
        journal or identity,
        sequence,
        int(written.get("segment") or 0),
        int(written.get("offset") or 0),
        tuple(cuts),
    )


def resolve(journal: SourceJournal, position: Position) -> int:
    """Return the sequence number of a starting or ending offset."""
    if position == EARLIEST:
        return journal.state.earliest
    if position == LATEST:
        return journal.state.next
    assert isinstance(position, int)
    return position


def first_since(journal: SourceJournal, moment: int) -> int:
    """Return the sequence number of the first event in journal order at or after `moment`.

    `moment` is in µs. Return the end of the journal if there is no such event."""
    state = journal.state
    for place in range(len(state.firsts)):
        segment = journal.segment(place)
        index = segment.index
        parts: Iterator[Heads]
        if index is not None:
            if not index.count or index.summary["last_time"] < moment:
                continue
            parts = iter((index_heads(index),))
        else:
            parts = (stretch.heads for stretch in scan_segment(segment, 0, segment.end, None))
        for heads in parts:
            rows = np.flatnonzero((heads["time"] >= moment) & (event_codes(heads) > 0))
            if len(rows):
                return int(heads["sequence"][rows[0]])
    return state.next


def lost_before(journal: SourceJournal, start: Offset) -> int:
    """Return the first remaining sequence number if records from `start` on were removed.

    Return 0 if no record was removed. Raises JournalError."""
    state = journal.state
    if not state.firsts or start.sequence >= state.earliest:
        return 0
    # Not every number belongs to a record: an index takes one, a restart skips a million.
    # Nothing is lost if `start` is the end of the segment before.
    if start.segment and start.offset:
        try:
            header = journal.place.header(state.firsts[0])
        except JournalError:
            return state.earliest
        if (header.previous, header.previous_end) == (start.segment, start.offset):
            return 0
    elif start.sequence + 1 == state.earliest:
        return 0
    return state.earliest
