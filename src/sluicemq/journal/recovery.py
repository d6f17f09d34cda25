"""Recovery of liveness and names from the newest snapshot and the records after it."""

from __future__ import annotations

import re
import time
from array import array
from collections.abc import Iterator
from contextlib import ExitStack
from heapq import merge
from itertools import compress, zip_longest
from operator import lt
from pathlib import Path
from typing import Any, Final, NamedTuple
from zlib import crc32

from sluicemq.journal.files import (
    DURABLE_NAME,
    DurableEnd,
    DurableFile,
    read_durable,
    sync_directory,
)
from sluicemq.journal.format import (
    DELAYED,
    ENTRY,
    HEADER_BYTES,
    TYPE_AT,
    Record,
    RecordType,
    decode_deliveries,
    decode_record,
    record_size,
    size_at,
)
from sluicemq.journal.liveness import MAX_INLINE_COUNT, OVERFLOWED, Liveness, LiveSegment
from sluicemq.journal.segment import (
    SEGMENT_HEADER_BYTES,
    DamagedFile,
    MappedSegment,
    SegmentIndex,
    Tail,
    build_index,
    find_full,
    find_tail,
    list_segments,
    open_segment,
    read_segment_header,
    segment_path,
)
from sluicemq.journal.snapshot import (
    MAX_SPAN,
    SegmentState,
    Snapshot,
    check_segments,
    missing_liveness,
    newest_snapshot,
    unpack_live,
)
from sluicemq.journal.space import DiskSpace
from sluicemq.journal.writer import SegmentFile
from sluicemq.model.destination import Address
from sluicemq.model.message import Durability

SEQUENCE_GAP: Final = 1 << 20
"""Sequence numbers skipped after a restart, for numbers that were assigned without a record."""

_PRIORITIES: Final = bytes(range(10))
_OVERFLOWED: Final = b"%c" % OVERFLOWED
_EVENTS: Final = re.compile(rb"[^\x01\x0c\x0e\x14]")
"""Pattern for a column of types: all types except MESSAGE, RELOCATED, INDEX and DEPTH."""
_REPLAYED: Final = re.compile(
    b"[%c%c%c%c%c]"
    % (
        RecordType.COMPLETED,
        RecordType.TRANSACTION_RESOLVED,
        RecordType.RELOCATED,
        RecordType.DESTINATION_CREATED,
        RecordType.DESTINATION_DELETED,
    )
)


_OTHER_CLOCKS: Final = bytes(
    (
        RecordType.MESSAGE,
        RecordType.DESTINATION_CREATED,
        RecordType.DESTINATION_DELETED,
        RecordType.RELOCATED,
        RecordType.SNAPSHOT,
        RecordType.INDEX,
        RecordType.STARTED,
        RecordType.STOPPED,
        RecordType.SEQUENCE_RESERVED,
    )
)
"""Types whose time is not that of the broker's clock: a client's, an earlier record's or the
journal's own."""


class LiveRow(NamedTuple):
    """Live message without its body.

    sequence     original sequence number, also after a move
    destination  number of the destination
    expiration   ms since the epoch, 0 = never
    time         time of publishing, ms since the epoch
    size         bytes of the body
    references   number of references not yet released
    delayed      True if it is not deliverable before a time
    transient    True if a restart drops it (Durability.TRANSIENT)
    """

    sequence: int
    destination: int
    priority: int
    expiration: int
    time: int
    size: int
    references: int
    delayed: bool
    transient: bool


class SegmentPart(NamedTuple):
    """One segment with its columns, read from its index or built from its records."""

    segment: LiveSegment
    view: MappedSegment
    segment_index: SegmentIndex


class Recovery:
    """State of a journal at a start. The caller may read `live_rows` and `events` until
    `close`.

    state      broker state in the snapshot, b"" if there is none
    position   sequence number of that state
    liveness   current liveness of every record
    addresses  current destinations by number
    finished   True after `close`
    report     summary for the operator: segments, records, live, seconds, and the end of the
               newest segment:
               torn_bytes  bytes cut off after its last whole unit
               lost_bytes  missing bytes that had been durable, as far as known
               emptied     name of the newest segment if it had no record at all, else ""
               confirmed   "complete": all records up to the published durable end exist;
                           "lost": data that had been durable is missing;
                           "unknown": no durable end is published for the segment cut off
    """

    def __init__(
        self,
        directory: Path,
        identity: bytes,
        *,
        verify: bool,
        space: DiskSpace | None = None,
    ) -> None:
        """Read the journal.

        With `space`, which provides it on a full file system, cut off a torn tail and seal every
        segment. Without it, change nothing and read nothing beyond the published end.

        Raises JournalDamaged, or JournalError for another format version.
        """
        started = time.monotonic()
        self.directory = directory
        self.identity = identity
        self.liveness = Liveness()
        self.addresses: dict[int, Address] = {}
        self.next_number = 1
        self.next_sequence = 1
        self.parts: list[SegmentPart] = []
        self.finished = False
        self.report: dict[str, Any] = {
            "torn_bytes": 0,
            "lost_bytes": 0,
            "emptied": "",
            "confirmed": "complete",
        }
        self._names: dict[int, Address] = {}
        self._unsealed: list[tuple[SegmentPart, Tail]] = []
        self._repairs = space is not None
        snapshot = newest_snapshot(directory)
        self.state = snapshot.state
        self.position = snapshot.state_position
        self._live_position = snapshot.position
        # all segments before the last one had been sealed when the snapshot was written
        self._sealed_before = snapshot.segments[-1].first if snapshot.segments else 0
        try:
            self._read(snapshot, verify)
            if space is not None:
                self._seal_all(space)
        except BaseException:
            self.close()
            raise
        self.report.update(
            segments=len(self.parts),
            records=sum(part.segment_index.count for part in self.parts),
            live=sum(segment.count_live() for segment in self.liveness.segments),
            seconds=round(time.monotonic() - started, 3),
        )

    # --- the files -----------------------------------------------------------------------------

    def _read(self, snapshot: Snapshot, verify: bool) -> None:
        durable = read_durable(self.directory)
        first_sequences = list_segments(self.directory)
        if durable and not self._repairs:
            first_sequences = [first for first in first_sequences if first <= durable.segment]
        self._check_chain(first_sequences, snapshot, durable)
        saved_states = {state.first: state for state in snapshot.segments}
        self._load_snapshot(snapshot)
        last = self._live_position
        previous: LiveSegment | None = None
        for first, following in zip_longest(first_sequences, first_sequences[1:]):
            part = self._open(first, following, durable, verify)
            if part is None:
                break
            self._check_previous(part.view, previous)
            previous = part.segment
            self._load(part, saved_states.get(first))
            last = max(last, previous.last)
        if (previous.last if previous else 0) < snapshot.position:
            # its SNAPSHOT record was durable before the snapshot was written
            self.report["confirmed"] = "lost"
        if durable and self.report["confirmed"] == "lost":
            last = max(last, durable.sequence)
        self._replay()
        self.next_sequence = last + SEQUENCE_GAP if first_sequences or last else 1

    def _check_chain(
        self, first_sequences: list[int], snapshot: Snapshot, durable: DurableEnd | None
    ) -> None:
        present = set(first_sequences)
        check_segments(snapshot, self.directory, present)
        if durable and durable.segment not in present and durable.segment > max(present, default=0):
            path = segment_path(self.directory, durable.segment)
            raise DamagedFile(path, 0, "the newest segment is missing")

    def _check_previous(self, view: MappedSegment, previous: LiveSegment | None) -> None:
        header = view.header
        if previous is None or header.previous != previous.first:
            if header.previous and header.first > self.position:
                raise DamagedFile(
                    view.path, 16, f"the segment before it, {header.previous:020d}, is missing"
                )
        elif header.previous_end not in (0, previous.end):
            raise DamagedFile(view.path, 56, f"{header.previous:020d} should be another segment")

    def _load_snapshot(self, snapshot: Snapshot) -> None:
        self.addresses.update(snapshot.destinations())
        self._names.update(self.addresses)
        self.next_number = snapshot.next_number
        pairs = array("Q")
        pairs.frombytes(snapshot.relocated)
        self.liveness.relocated.update(zip(pairs[::2], pairs[1::2], strict=True))

    def _open(
        self, first: int, following: int | None, durable: DurableEnd | None, verify: bool
    ) -> SegmentPart | None:
        """Map a segment. Discard the newest one and return None if it has no record."""
        path = segment_path(self.directory, first)
        durable_offset = durable.offset if durable and durable.segment == first else None
        if following is None and (size := path.stat().st_size) < SEGMENT_HEADER_BYTES:
            self._report_end(durable_offset, size, 0)
            self._discard(path)
            return None
        with ExitStack() as stack:
            view = open_segment(self.directory, first, following, self.identity)
            stack.callback(view.close)
            tail: Tail | None = None
            index = view.index
            end = view.index_offset
            if index is not None:
                if verify:
                    view.verify()
                self._names.update(index.summary.addresses())
            else:
                if following is None:
                    tail = self._find_tail(view, durable, durable_offset)
                    if self._repairs and not tail.heads:
                        self._discard(path)
                        return None
                else:
                    tail = self._find_full(view, following)
                end = tail.end
                self._names.update(_names_in(view, tail.heads))
                index = SegmentIndex(
                    memoryview(build_index(tail.heads, SEGMENT_HEADER_BYTES, self._names))
                )
            stack.pop_all()
        segment = LiveSegment(first)
        segment.end = end
        part = SegmentPart(segment, view, index)
        self.parts.append(part)
        if tail is not None:
            self._unsealed.append((part, tail))
        return part

    def _find_tail(
        self, view: MappedSegment, durable: DurableEnd | None, durable_offset: int | None
    ) -> Tail:
        """Return the whole units of the newest segment; `durable_offset` is its durable end."""
        if not self._repairs:
            return find_tail(view, durable, view.size if durable_offset is None else durable_offset)
        tail = find_tail(view, durable)
        self._report_end(durable_offset, tail.torn_bytes, tail.end)
        return tail

    def _report_end(self, durable_offset: int | None, torn: int, end: int) -> None:
        """Report how the newest segment ends: its whole units at `end`, `torn` bytes after it.

        `durable_offset` is the durable end of this segment, None if none is published for it. After
        a crash of the machine the published end may be an earlier one, but never a later one.
        """
        report = self.report
        report["torn_bytes"] = torn
        if durable_offset is not None:
            report["lost_bytes"] = max(0, durable_offset - end)
            if end < durable_offset:
                report["confirmed"] = "lost"
        elif torn or end <= SEGMENT_HEADER_BYTES:
            report["confirmed"] = "unknown"

    def _find_full(self, view: MappedSegment, following: int) -> Tail:
        """Return the records of a segment that a crash left unsealed before the next one."""
        read_segment_header(self.directory, following)  # its damage is reported first
        if view.header.first < self._sealed_before or not view.end:
            end = find_tail(view, None).end
            raise DamagedFile(view.path, end, "the segment is not the last and has no intact end")
        return find_full(view, view.end)

    def _discard(self, path: Path) -> None:
        """Report the newest segment, which has no record, and remove it unless only reading.

        A segment gets its name only after its first group is on disk, so the file system or
        another process has truncated it since then.
        """
        self.report["emptied"] = path.name
        if self._repairs:
            path.unlink()
            (self.directory / DURABLE_NAME).unlink(missing_ok=True)
            sync_directory(self.directory)

    def _seal_all(self, space: DiskSpace) -> None:
        """Add index and trailer to unsealed segments, after all segments have been read.

        Their records stay mapped; the truncated part of a mapping is never accessed.
        """
        for part, tail in self._unsealed:
            segment, view, _ = part
            crc = crc32(view.view[: tail.end])
            file = SegmentFile.reopen(self.directory, view.header, tail.end, crc, tail.heads, space)
            try:
                file.seal(segment.last + 1, self._names)
                if part is self.parts[-1]:
                    durable_file = DurableFile(self.directory, space)
                    durable_file.write(DurableEnd(segment.first, file.end, segment.last))
                    durable_file.close()
            finally:
                file.close()
            segment.size = file.end
        self._unsealed.clear()

    # --- liveness ------------------------------------------------------------------------------

    def _load(self, part: SegmentPart, saved_state: SegmentState | None) -> None:
        """Load liveness from the snapshot, and for newer records from their headers."""
        segment, view, index = part
        sequences = index.sequences
        count = index.count
        segment.sealed = True
        segment.records = count
        segment.size = view.size
        segment.last = int(sequences[count - 1]) if count else 0
        segment.base = int(sequences[0]) if count else segment.first
        if saved_state is not None:
            segment.base = saved_state.base
        _check_columns(segment, view, index)
        start = 0
        if saved_state is not None:
            segment.live = bytearray(unpack_live(saved_state, self.directory))
            segment.packed_live = saved_state.live
            segment.live_at_snapshot = segment.count_live()
            segment.changed = False
            segment.large_live.update(saved_state.large_counts)
            start = index.row(self._live_position + 1)
        elif count and segment.last <= self._live_position:
            # a removal undone by a crash: the snapshot has no live record in this segment
            segment.live = bytearray(segment.last - segment.base + 1)
            start = count
        self.liveness.add(segment)
        live = segment.live
        if start < count:
            segment.changed = True
            self._load_rows(segment, index, start)
        elif len(live) > max(0, segment.last - segment.base + 1):
            del live[max(0, segment.last - segment.base + 1) :]
            segment.changed = True
        overflowed = {segment.base + match.start() for match in re.finditer(_OVERFLOWED, live)}
        is_complete = not count or len(live) == segment.last - segment.base + 1
        if not is_complete or overflowed - segment.large_live.keys():
            raise missing_liveness(segment.first, self.directory)

    def _load_rows(self, segment: LiveSegment, index: SegmentIndex, start: int) -> None:
        live = segment.live
        count = index.count
        first = int(index.sequences[start])
        del live[first - segment.base :]
        live.extend(bytes(first - segment.base - len(live)))
        planes = bytes(index.columns["references"][start:].cast("B"))
        if segment.last - first == count - 1 - start and not planes[1::2].strip(b"\0"):
            low_bytes = planes[::2]
            if OVERFLOWED not in low_bytes:
                live.extend(low_bytes)
                return
        live.extend(bytes(segment.last - first + 1))
        references = index.columns["references"]
        for row in range(start, count):
            if references[row]:
                segment.set_live_references(int(index.sequences[row]), int(references[row]))

    def _replay(self) -> None:
        """Replay the records after the snapshot that change liveness or names."""
        liveness = self.liveness
        for record in self._records_after(self._live_position, _REPLAYED):
            if record.type == RecordType.COMPLETED:
                liveness.release_references(decode_deliveries(record.body)[1])
            elif record.type == RecordType.TRANSACTION_RESOLVED:
                liveness.release_references([record.reference])
            elif record.type == RecordType.RELOCATED:
                self._relocate(record)
            elif record.type == RecordType.DESTINATION_CREATED:
                self.addresses[record.destination] = record.address
                self.next_number = max(self.next_number, record.destination + 1)
            else:
                self.addresses.pop(record.destination, None)

    def _relocate(self, record: Record) -> None:
        liveness = self.liveness
        old_position = liveness.relocated.get(record.reference, record.reference)
        segment = liveness.find(old_position)
        if segment is not None:
            segment.set_live_references(old_position, 0)
        if record.references:
            liveness.relocated[record.reference] = record.sequence
        else:
            liveness.relocated.pop(record.reference, None)

    def _records_after(self, position: int, types: re.Pattern[bytes]) -> Iterator[Record]:
        """Iterate over the records of some types after a position, in order."""
        for segment, view, index in self.parts:
            if segment.last <= position:
                continue
            offsets = index.columns["offset"]
            column = bytes(index.columns["type"])
            for match in types.finditer(column, index.row(position + 1)):
                offset = int(offsets[match.start()])
                size = record_size(view.view, offset)
                if not size:
                    raise DamagedFile(view.path, offset, "the record is not intact")
                yield decode_record(view.view, offset, size)

    # --- queries of the broker -------------------------------------------------------------------

    def events(self) -> Iterator[Record]:
        """Iterate over the records after `position` in order, except messages and depths."""
        return self._records_after(self.position, _EVENTS)

    def last_time(self) -> int:
        """Return the broker's wall clock at its last record, in ms since the epoch; 0 if unknown.

        The result is the time of the last record in order, not the maximum.
        """
        for part in reversed(self.parts):
            types = bytes(part.segment_index.columns["type"]).rstrip(_OTHER_CLOCKS)
            if types:
                return int(part.segment_index.columns["time"][len(types) - 1]) // 1000
        return 0

    def live_rows(self) -> Iterator[LiveRow]:
        """Iterate over the live messages, ordered by original sequence number."""
        moved_rows = sorted(
            row
            for part in self.parts
            if RecordType.RELOCATED in bytes(part.segment_index.columns["type"])
            for row in self._live_rows(part, RecordType.RELOCATED)
        )
        other_rows = (
            row for part in self.parts for row in self._live_rows(part, RecordType.MESSAGE)
        )
        return merge(moved_rows, other_rows)

    def _live_rows(self, part: SegmentPart, type: RecordType) -> Iterator[LiveRow]:
        """Iterate over the live messages of one segment whose records are of that type."""
        segment, _, index = part
        live = segment.live
        if live.count(0) == len(live):
            return
        remaining = index.by_row(live, segment.base)
        columns = index.columns
        new_row = LiveRow._make
        for (
            kind,
            flags,
            sequence,
            reference,
            destination,
            priority,
            expiration,
            moment,
            size,
            body,
            durability,
            references,
        ) in compress(
            zip(
                columns["type"].tolist(),
                columns["flags"].tolist(),
                columns["sequence"].tolist(),
                columns["reference"].tolist(),
                columns["destination"].tolist(),
                columns["priority"].tolist(),
                columns["expiration"].tolist(),
                columns["time"].tolist(),
                columns["size"].tolist(),
                columns["body"].tolist(),
                columns["durability"].tolist(),
                remaining,
                strict=True,
            ),
            remaining,
        ):
            if kind != type or flags & ENTRY:
                continue
            if references > MAX_INLINE_COUNT:
                references = segment.large_live[sequence]
            yield new_row(
                (
                    reference or sequence,
                    destination,
                    priority,
                    expiration,
                    moment // 1000,
                    size - body,
                    references,
                    bool(flags & DELAYED),
                    durability == Durability.TRANSIENT,
                )
            )

    def close(self) -> None:
        """Close the files and release the data that only a start needs."""
        for part in self.parts:
            part.segment_index.close()
            part.view.close()
        self.parts.clear()
        self.state = b""
        self.finished = True


def _check_columns(segment: LiveSegment, view: MappedSegment, index: SegmentIndex) -> None:
    """Check sequence numbers and priorities, which are used as array indexes.

    Memory is allocated for each number from the base on. Raises JournalDamaged.
    """
    sequences = index.sequences
    if index.count and not (segment.base <= sequences[0] <= segment.last < segment.base + MAX_SPAN):
        raise DamagedFile(
            view.path, segment.end, "the gap between its sequence numbers is too large"
        )
    if not index.dense:
        numbers = sequences.tolist()
        if not all(map(lt, numbers, numbers[1:])):
            raise DamagedFile(view.path, segment.end, "its sequence numbers do not ascend")
    if bytes(index.columns["priority"]).translate(None, _PRIORITIES):
        raise DamagedFile(view.path, segment.end, "a record has a priority above 9")


def _names_in(view: MappedSegment, heads: bytes) -> dict[int, Address]:
    """Return the destinations in the records of an unsealed segment, by number."""
    names = {}
    offset = SEGMENT_HEADER_BYTES
    for start in range(0, len(heads), HEADER_BYTES):
        size = size_at(heads, start)
        if heads[start + TYPE_AT] in (
            RecordType.DESTINATION_CREATED,
            RecordType.DESTINATION_DELETED,
        ):
            record = decode_record(view.view, offset, size)
            names[record.destination] = record.address
        offset += size + 7 & -8
    return names
