"""Read-only inspection of a journal: `check` and `dump`. Both work beside a running broker and see
the durable records.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import closing, suppress
from itertools import zip_longest
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from sluicemq.journal.files import DurableEnd, read_durable
from sluicemq.journal.format import (
    FLAGS_AT,
    HEADER_BYTES,
    TYPE_AT,
    UNIT_END,
    Record,
    RecordType,
    decode_message,
    sequence_at,
)
from sluicemq.journal.reader import read_records
from sluicemq.journal.recovery import Recovery
from sluicemq.journal.segment import (
    COLUMNS,
    SEGMENT_HEADER_BYTES,
    MappedSegment,
    SegmentIndex,
    build_index,
    list_segments,
    read_identity,
    record_offsets,
    records_end,
    segment_path,
)
from sluicemq.journal.slots import Slots
from sluicemq.journal.snapshot import list_snapshots, newest_snapshot
from sluicemq.model.destination import Address, Kind, decode_name
from sluicemq.model.errors import JournalDamaged, JournalError
from sluicemq.model.message import Message

PROBLEMS_PER_SEGMENT: Final = 20
ATTEMPTS: Final = 5
"""Maximum attempts; a snapshot that is taken meanwhile requires another one."""


class Problem(NamedTuple):
    """A problem in a file of the journal."""

    file: str
    offset: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}, offset {self.offset}: {self.text}"


class InspectionReport(msgspec.Struct, kw_only=True):
    """Result of `check`.

    live      records that wait for settlements
    unsealed  bytes behind the durable end, or of an index: being written, or left by a crash
    """

    problems: list[Problem] = []
    segments: int = 0
    records: int = 0
    bytes: int = 0
    live: int = 0
    unsealed: int = 0
    types: dict[str, int] = {}


def check(directory: Path) -> InspectionReport:
    """Verify the journal: every CRC, the order of sequence numbers, that units are whole, that
    indexes, the snapshot and the live records match the records, and the slots.

    Raises JournalError if there is no journal or a newer release wrote it; damage is reported,
    not raised.
    """
    report = InspectionReport()
    if not directory.is_dir():
        raise JournalError(f"{directory} is no directory")
    try:
        identity = read_identity(directory)
    except JournalDamaged as error:
        identity = None
        report.problems.append(Problem(str(directory), 0, str(error)))
    if identity is None and not report.problems:
        raise JournalError(f"there is no journal in {directory}")
    durable = read_durable(directory)
    firsts = list_segments(directory)
    for first, following in zip_longest(firsts, firsts[1:]):
        if _is_emptied(directory, first, durable, report):
            continue
        if durable is not None and first > durable.segment:
            continue
        end = records_end(directory, first, following)
        path = segment_path(directory, first)
        try:
            with suppress(FileNotFoundError), closing(MappedSegment(path)) as view:
                _check_segment(view, durable, end, identity, report)
        except JournalDamaged as error:
            report.problems.append(Problem(str(path), 0, str(error)))
    if identity is not None and not report.problems:
        _check_liveness(directory, identity, report)
    try:
        Slots(directory).list()
    except JournalDamaged as error:
        report.problems.append(Problem(str(directory), 0, str(error)))
    return report


def _is_emptied(
    directory: Path, first: int, durable: DurableEnd | None, report: InspectionReport
) -> bool:
    """Report a segment without a whole header as lost data, even behind the durable end: a
    segment gets its name only once its header and first group are on disk."""
    path = segment_path(directory, first)
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return False
    if size >= SEGMENT_HEADER_BYTES:
        return False
    text = f"the segment has been emptied: {size} bytes are left of it"
    if durable is not None and durable.segment == first:
        text += f", but {durable.offset} bytes were on disk. Confirmed data is lost"
    else:
        text += "; how much of it had been confirmed is not known"
    report.problems.append(Problem(str(path), 0, text))
    return True


def _check_segment(
    view: MappedSegment,
    durable: DurableEnd | None,
    full: int,
    identity: bytes | None,
    report: InspectionReport,
) -> None:
    """Report the problems of a segment. `full` is the end of its records according to the next
    segment, or 0. Recovery decides whether it may still lack an index."""
    problems: list[Problem] = []

    def problem(offset: int, text: str) -> None:
        problems.append(Problem(str(view.path), offset, text))

    if identity is not None and view.header.identity != identity:
        problem(40, "the segment belongs to another data directory")
    index = view.index
    end = view.index_offset
    if index is None:
        end = view.size
        published = durable is not None and durable.segment == view.header.first
        if published or full:
            end = durable.offset if durable is not None and published else full
            report.unsealed += max(0, view.size - end)
            if view.size < end:
                problem(view.size, f"the segment ends here, but {end} bytes of it were on disk")
        elif durable is not None:
            problem(view.size, "the segment is not the last and has no intact end")
    stop, heads = _check_records(view, end, problem)
    if stop < min(end, view.size) and (durable is not None or index is not None or full):
        problem(stop, "the record is not intact")
    if not heads and not problems:
        problem(stop, "the segment has no record; how much of it had been confirmed is not known")
    report.segments += 1
    report.records += len(heads)
    report.bytes += view.size
    for head in heads:
        name = RecordType(head[TYPE_AT]).name
        report.types[name] = report.types.get(name, 0) + 1
    if index is not None:
        if not problems:
            _compare_index(index, b"".join(heads), view, problem)
        try:
            view.verify()
        except JournalDamaged as error:
            if not problems:
                problem(0, str(error))
    report.problems += problems[:PROBLEMS_PER_SEGMENT]


def _check_records(
    view: MappedSegment, end: int, problem: Callable[[int, str], None]
) -> tuple[int, list[bytes]]:
    """Return the end of the intact records, and their headers."""
    heads: list[bytes] = []
    last = view.header.first - 1
    stop = SEGMENT_HEADER_BYTES
    unit = stop
    for offset, size in record_offsets(view.view, end):
        head = bytes(view.view[offset : offset + HEADER_BYTES])
        if head[TYPE_AT] == RecordType.INDEX:
            break
        sequence = sequence_at(view.view, offset)
        if sequence <= last:
            problem(offset, f"sequence number {sequence} follows {last}")
        last = sequence
        stop = offset + (size + 7 & -8)
        if head[FLAGS_AT] & UNIT_END:
            unit = stop
        heads.append(head)
    if unit != stop:
        problem(unit, "the unit that begins here has no end")
    return stop, heads


def _compare_index(
    index: SegmentIndex, heads: bytes, view: MappedSegment, problem: Callable[[int, str], None]
) -> None:
    expected = SegmentIndex(memoryview(build_index(heads, SEGMENT_HEADER_BYTES, {})))
    for name, _, _, _ in COLUMNS:
        if index.columns[name] != expected.columns[name]:
            problem(view.index_offset, f"the index has a column {name!r} that is not the records'")
    expected.close()


def _check_liveness(directory: Path, identity: bytes, report: InspectionReport) -> None:
    for attempt in range(ATTEMPTS):
        before = list_snapshots(directory)
        try:
            recovery = Recovery(directory, identity, verify=False)
        except (JournalDamaged, FileNotFoundError) as error:
            moved = isinstance(error, FileNotFoundError) or list_snapshots(directory) != before
            if moved and attempt + 1 < ATTEMPTS:
                continue
            report.problems.append(Problem(str(directory), 0, str(error)))
            return
        report.live = recovery.report["live"]
        if recovery.report["confirmed"] == "lost":
            text = "the journal ends before the newest snapshot. Confirmed data is lost"
            report.problems.append(Problem(str(directory), 0, text))
        for part in recovery.parts:
            segment = part.segment
            known = set(part.table.sequences.tolist())
            for index, left in enumerate(segment.live):
                if left and segment.base + index not in known:
                    text = f"number {segment.base + index} is live, but there is no such record"
                    report.problems.append(Problem(str(part.view.path), 0, text))
                    break
        recovery.done()
        return


class Entry(NamedTuple):
    """One record of `dump`.

    address  its destination, if it has a known one
    """

    file: Path
    offset: int
    record: Record
    address: Address | None

    @property
    def message(self) -> Message | None:
        """Message of the record, if it is one. Raises JournalDamaged."""
        if self.record.is_message and self.address is not None:
            return decode_message(self.record, self.address)
        return None


def dump(
    directory: Path,
    *,
    sequence: int = 0,
    types: Collection[int] = (),
    address: Address | None = None,
    reference: int = 0,
) -> Iterator[Entry]:
    """Iterate over the durable records in order, from a sequence number on.

    `types` and `address` restrict them; `reference` selects one record and those that refer to it.
    Raises JournalDamaged at the first record that is not intact.
    """
    names: dict[int, Address] = {}
    snapshot = newest_snapshot(directory)
    for number, kind, name in snapshot.addresses if snapshot else ():
        names[number] = Address(Kind(kind), decode_name(name))
    seen: MappedSegment | None = None
    for view, offset, record in read_records(directory, sequence=sequence):
        if view is not seen:
            seen = view
            for number, kind, text in view.index.summary["destinations"] if view.index else ():
                names[number] = Address(Kind(kind), text)
        if record.type in (RecordType.DESTINATION_CREATED, RecordType.DESTINATION_DELETED):
            names[record.destination] = record.address
        destination = names.get(record.destination)
        if types and record.type not in types:
            continue
        if address is not None and destination != address:
            continue
        if reference and not _concerns(record, reference):
            continue
        yield Entry(view.path, offset, record, destination)


def _concerns(record: Record, sequence: int) -> bool:
    if sequence in (record.sequence, record.reference):
        return True
    return record.lists_messages and sequence in record.sequences
