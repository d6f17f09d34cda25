"""Where a read begins and ends, and how a stream's checkpoint says it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np

from sluicemq.model.errors import ConfigurationError, JournalError
from sluicemq.pipeline.source.heads import Heads, index_heads
from sluicemq.pipeline.source.journal import Journal
from sluicemq.pipeline.source.options import EARLIEST, LATEST, Position
from sluicemq.pipeline.source.segment_scan import scan_segment
from sluicemq.pipeline.source.selection import event_codes

VERSION: Final = 1


class Offset(NamedTuple):
    """A stream's position, as the checkpoint has it: a JSON object of these fields.

    journal    identity of the journal
    sequence   the next record to read
    segment, offset  where that record's bytes begin, if that was known: then nobody needs to look
               for it. 0 = not known
    cuts       sequence numbers at which the records up to here were divided among tasks, so that a
               batch which is read again is divided as it was
    slot       the slot that moves with the query
    """

    journal: str
    sequence: int
    segment: int = 0
    offset: int = 0
    cuts: tuple[int, ...] = ()
    slot: str = ""

    def as_json(self) -> dict[str, Any]:
        """What Spark writes into the checkpoint."""
        found: dict[str, Any] = {
            "version": VERSION,
            "journal": self.journal,
            "sequence": self.sequence,
        }
        if self.segment:
            found["segment"] = self.segment
            found["offset"] = self.offset
        if self.cuts:
            found["cuts"] = list(self.cuts)
        if self.slot:
            found["slot"] = self.slot
        return found


def read_offset(written: dict[str, Any], identity: str) -> Offset:
    """Of this journal's checkpoint. Raises ConfigurationError if it is none."""
    version = written.get("version")
    if isinstance(version, int) and version > VERSION:
        raise ConfigurationError(
            f"the checkpoint was written by a newer release (offsets of version {version}, this "
            f"one reads up to {VERSION}): use that release, or another checkpoint"
        )
    journal, sequence = written.get("journal", ""), written.get("sequence")
    if not isinstance(journal, str) or not isinstance(sequence, int):
        raise ConfigurationError(
            f"the checkpoint's offset {written} is none of this source: is it the checkpoint of "
            "another query?"
        )
    if journal and identity and journal != identity:
        raise ConfigurationError(
            f"the checkpoint is of the journal {journal}, but this one is {identity}: another "
            "broker, or a data directory that was made anew. Sequence numbers of the two have "
            "nothing to do with each other: use another checkpoint."
        )
    cuts = written.get("cuts") or ()
    return Offset(
        journal or identity,
        sequence,
        int(written.get("segment") or 0),
        int(written.get("offset") or 0),
        tuple(cuts),
    )


def resolve(journal: Journal, position: Position) -> int:
    """The sequence number that a starting or ending offset means."""
    if position == EARLIEST:
        return journal.state.earliest
    if position == LATEST:
        return journal.state.next
    assert isinstance(position, int)
    return position


def first_since(journal: Journal, moment: int) -> int:
    """Number of the first event, in the order of the journal, that is not from before `moment`
    (µs); the end of the journal if there is none."""
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


def lost_before(journal: Journal, start: Offset) -> int:
    """The first sequence number that is left, if records from `start` on have been removed; else
    0. Raises JournalError."""
    state = journal.state
    if not state.firsts or start.sequence >= state.earliest:
        return 0
    # Numbers between two segments belong to no record: an index has one, a restart leaves a
    # million. Nothing is lost if the start is known to be where the segment before ended.
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
