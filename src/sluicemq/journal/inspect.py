"""Read-only inspection of a journal: `check` and `dump`. Both also work while a broker is
running, on its durable records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager, suppress
from itertools import zip_longest
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from sluicemq.journal.files import read_durable
from sluicemq.journal.format import (
    HEADER_BYTES,
    TYPE_AT,
    Record,
    RecordType,
    decode_message,
)
from sluicemq.journal.reader import read_records
from sluicemq.journal.recovery import Recovery
from sluicemq.journal.segment import (
    COLUMNS,
    SEGMENT_HEADER_BYTES,
    DamagedFile,
    MappedSegment,
    SegmentIndex,
    build_index,
    find_tail,
    list_segments,
    open_segment,
    read_identity,
    segment_path,
)
from sluicemq.journal.slots import Slots
from sluicemq.journal.snapshot import list_snapshots, newest_snapshot
from sluicemq.model.destination import Address
from sluicemq.model.errors import JournalDamaged, JournalError
from sluicemq.model.message import Message

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

    live          records with unreleased references
    unsealed      bytes after the durable end, or of an index: being written, or left by a crash
    preallocated  bytes after these, for further records
    """

    problems: list[Problem] = []
    segments: int = 0
    records: int = 0
    bytes: int = 0
    live: int = 0
    unsealed: int = 0
    preallocated: int = 0
    types: dict[str, int] = {}


def check(directory: Path) -> InspectionReport:
    """Verify the journal: every CRC, the order of sequence numbers, that units are whole, that
    indexes, the snapshot and the live records match the records, and the slots.

    The report has the first problem of each segment, and does not count damaged segments. Raises
    JournalError if there is no journal or a newer release wrote it; damage is reported, not raised.
    """
    report = InspectionReport()
    if not directory.is_dir():
        raise JournalError(f"{directory} is not a directory")
    identity: bytes | None = None
    with _collect_damage(directory, report):
        identity = read_identity(directory)
    if identity is None and not report.problems:
        raise JournalError(f"there is no journal in {directory}")
    durable = read_durable(directory)
    first_sequences = list_segments(directory)
    for first, following in zip_longest(first_sequences, first_sequences[1:]):
        path = segment_path(directory, first)
        durable_offset = durable.offset if durable is not None and durable.segment == first else 0
        with _collect_damage(directory, report), suppress(FileNotFoundError):
            _check_header(path, durable_offset)
            if durable is None or first <= durable.segment:
                with closing(open_segment(directory, first, following, identity)) as view:
                    end = durable_offset or view.end
                    _check_segment(view, end, durable is not None, report)
    if identity is not None and not report.problems:
        with _collect_damage(directory, report):
            _check_liveness(directory, identity, report)
    with _collect_damage(directory, report):
        Slots(directory).list()
    return report


@contextmanager
def _collect_damage(directory: Path, report: InspectionReport) -> Iterator[None]:
    """Report damage instead of raising it."""
    try:
        yield
    except DamagedFile as error:
        report.problems.append(Problem(str(error.path), error.offset, error.problem))
    except JournalDamaged as error:
        report.problems.append(Problem(str(directory), 0, str(error)))


def _check_header(path: Path, durable_offset: int) -> None:
    """Raise DamagedFile for a segment without a whole header, which is lost data even after the
    durable end: a segment gets its name only once its header and first group are on disk."""
    size = path.stat().st_size
    if size < SEGMENT_HEADER_BYTES:
        if durable_offset:
            loss = f", but {durable_offset} bytes were on disk. Confirmed data is lost"
        else:
            loss = "; how much of it had been confirmed is not known"
        raise DamagedFile(
            path, 0, f"the segment has been emptied: {size} bytes are left of it{loss}"
        )


def _check_segment(
    view: MappedSegment,
    stated: int,
    is_published: bool,
    report: InspectionReport,
) -> None:
    """Add a segment to the report. Raises DamagedFile.

    stated        end of its records as published or according to the next segment, or 0. Recovery
                  decides whether it may still lack an index
    is_published  whether a durable end is published, so that the last segment is known
    """
    path = view.path
    end = view.index_offset or stated or view.size
    if view.index is None:
        written = len(bytes(view.view[end:]).rstrip(b"\0"))
        report.unsealed += written
        report.preallocated += max(0, view.size - end - written)
        if view.size < end:
            text = f"the segment ends here, but {end} bytes of it were on disk"
            raise DamagedFile(path, view.size, text)
        if is_published and not stated:
            raise DamagedFile(path, end, "the segment is not the last and has no intact end")
    tail = find_tail(view, None, end)
    if tail.end < end and (is_published or stated or view.index is not None):
        raise DamagedFile(path, tail.end, "the unit that begins here is not intact")
    if not tail.heads:
        text = "the segment has no record; how much of it had been confirmed is not known"
        raise DamagedFile(path, tail.end, text)
    report.segments += 1
    report.records += len(tail.heads) // HEADER_BYTES
    report.bytes += view.size
    for type, count in Counter(tail.heads[TYPE_AT::HEADER_BYTES]).items():
        name = RecordType(type).name
        report.types[name] = report.types.get(name, 0) + count
    if view.index is not None:
        _compare_index(view, view.index, tail.heads)
        view.verify()


def _compare_index(view: MappedSegment, index: SegmentIndex, heads: bytes) -> None:
    expected = SegmentIndex(memoryview(build_index(heads, SEGMENT_HEADER_BYTES, {})))
    for name, _, _, _ in COLUMNS:
        if index.columns[name] != expected.columns[name]:
            text = f"the index has a column {name!r} that is not the records'"
            raise DamagedFile(view.path, view.index_offset, text)


def _check_liveness(directory: Path, identity: bytes, report: InspectionReport) -> None:
    """Report what recovery finds. Raises JournalDamaged."""
    recovery = _recover_read_only(directory, identity)
    report.live = recovery.report["live"]
    if recovery.report["confirmed"] == "lost":
        text = "the journal ends before the newest snapshot. Confirmed data is lost"
        report.problems.append(Problem(str(directory), 0, text))
    for part in recovery.parts:
        segment = part.segment
        sequences = set(part.segment_index.sequences.tolist())
        for index, references in enumerate(segment.live):
            if references and segment.base + index not in sequences:
                text = f"number {segment.base + index} is live, but there is no such record"
                report.problems.append(Problem(str(part.view.path), 0, text))
                break
    recovery.close()


def _recover_read_only(directory: Path, identity: bytes) -> Recovery:
    """Return the recovery without changing a file. Raises JournalDamaged."""
    for _ in range(ATTEMPTS):
        snapshots = list_snapshots(directory)
        try:
            return Recovery(directory, identity, verify=False)
        except FileNotFoundError as error:
            failure = JournalDamaged(str(error))
        except JournalDamaged as error:
            failure = error
            if list_snapshots(directory) == snapshots:
                break
    raise failure


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
    names = newest_snapshot(directory).destinations()
    last_view: MappedSegment | None = None
    for view, offset, record in read_records(directory, sequence=sequence):
        if view is not last_view:
            last_view = view
            if view.index is not None:
                names.update(view.index.summary.addresses())
        if record.type in (RecordType.DESTINATION_CREATED, RecordType.DESTINATION_DELETED):
            names[record.destination] = record.address
        destination = names.get(record.destination)
        if types and record.type not in types:
            continue
        if address is not None and destination != address:
            continue
        if reference and not _refers_to(record, reference):
            continue
        yield Entry(view.path, offset, record, destination)


def _refers_to(record: Record, sequence: int) -> bool:
    if sequence in (record.sequence, record.reference):
        return True
    return record.lists_messages and sequence in record.sequences
