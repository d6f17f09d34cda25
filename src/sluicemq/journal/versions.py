"""Upgrade and downgrade of the format version of a journal that no broker has open.

A broker reads the older versions and writes the newest, so an upgrade only changes the version in
all files. An older release rejects the newer version, because it cannot read its records.
Version 2 added records of deliveries, of the depth of destinations and of batches; a downgrade
omits them, and writes the engine's state in the older form.

Each file is replaced atomically, and this release can read any mixture of versions that a crash
leaves; repeat the command after a crash. Segments are therefore processed from the last to the
first, and no rewritten segment states the end of the previous one.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final
from zlib import crc32

import msgspec

from sluicemq.journal.directory import read_identity, take_lock
from sluicemq.journal.format import (
    FORMAT_VERSION,
    HEADER_BYTES,
    UNIT_END,
    RecordType,
    encode_record,
    record_size,
)
from sluicemq.journal.index import build_index, encode_trailer
from sluicemq.journal.log import FileJournal
from sluicemq.journal.options import JournalOptions
from sluicemq.journal.recovery import Recovery
from sluicemq.journal.rewrite import put_in_place, replace_header
from sluicemq.journal.segment import (
    SEGMENT_HEADER_BYTES,
    MappedSegment,
    SegmentHeader,
    encode_segment_header,
    list_segments,
    segment_path,
    segment_version,
    sequence_at,
)
from sluicemq.journal.snapshot import encode_snapshot, list_snapshots, read_snapshot
from sluicemq.journal.writer import DurableEnd, DurableFile, write_at, write_whole
from sluicemq.model.destination import Address, Kind
from sluicemq.model.errors import JournalError

OLDEST: Final = 1
LAST_TYPE: Final = {1: RecordType.SEQUENCE_RESERVED, 2: RecordType.CLOCK_STEP}
"""Highest record type of each format version."""


class Changed(msgspec.Struct, kw_only=True):
    """Result of a conversion. `segments` is the number of rewritten segments; `dropped` counts the
    records that the older version does not support, by the name of their type."""

    version: int
    segments: int = 0
    dropped: dict[str, int] = {}


def versions(directory: Path) -> dict[int, int]:
    """Return the number of segments by format version."""
    found: Counter[int] = Counter()
    for first in list_segments(directory):
        with segment_path(directory, first).open("rb") as file:
            found[segment_version(file.read(SEGMENT_HEADER_BYTES))] += 1
    return dict(sorted(found.items()))


def upgrade(directory: Path) -> Changed:
    """Convert every file to the newest version. Raises JournalLocked, JournalDamaged."""
    lock = take_lock(directory)
    try:
        _seal_all(directory)
        changed = Changed(version=FORMAT_VERSION)
        for first in list_segments(directory):
            path = segment_path(directory, first)
            if _version_of(path) < FORMAT_VERSION:
                replace_header(path)
                changed.segments += 1
        _replace_snapshots(directory, FORMAT_VERSION, lambda state: state)
        return changed
    finally:
        os.close(lock)


def downgrade(
    directory: Path,
    version: int,
    adopt: Callable[[FileJournal], None],
    older_state: Callable[[bytes], bytes],
    options: JournalOptions | None = None,
) -> Changed:
    """Convert every file to an older version, for a release that supports no newer one.

    `adopt` reads the recovery as a broker does and sets `snapshot_source`, so that the engine's
    state includes the effect of the dropped records; `older_state` converts that state to the
    older version. Raises JournalError for an invalid version, JournalLocked, JournalDamaged.
    """
    if not OLDEST <= version < FORMAT_VERSION:
        raise JournalError(
            f"this release writes version {FORMAT_VERSION} and can go back to {OLDEST}"
            + (f" … {FORMAT_VERSION - 1}" if FORMAT_VERSION > OLDEST + 1 else "")
            + f", not to {version}"
        )
    journal = FileJournal.open(directory, options)
    try:
        adopt(journal)
        journal.recovery.done()
        journal.seal()
        journal.sync()
    finally:
        journal.close()
    lock = take_lock(directory)
    try:
        _seal_all(directory)
        changed = Changed(version=version)
        dropped: Counter[int] = Counter()
        for first in reversed(list_segments(directory)):
            path = segment_path(directory, first)
            if _version_of(path) > version:
                _write_older(path, version, dropped)
                changed.segments += 1
        changed.dropped = {RecordType(kind).name.lower(): n for kind, n in sorted(dropped.items())}
        _replace_snapshots(directory, version, older_state)
        _publish_end(directory)
        return changed
    finally:
        os.close(lock)


def _version_of(path: Path) -> int:
    with path.open("rb") as file:
        return segment_version(file.read(SEGMENT_HEADER_BYTES))


def _seal_all(directory: Path) -> None:
    """Recover the journal and seal all segments. Raises JournalError if there is no journal."""
    identity = read_identity(directory)
    if identity is None:
        raise JournalError(f"there is no journal in {directory}")
    Recovery(directory, identity, verify=True, mend=True).done()


def _replace_snapshots(directory: Path, version: int, change: Callable[[bytes], bytes]) -> None:
    for place, (_, path) in enumerate(list_snapshots(directory)):
        if place:
            path.unlink()  # left by a crash
            continue
        snapshot = read_snapshot(path)
        snapshot.state = change(snapshot.state)
        status = path.stat()
        owner = (status.st_uid, status.st_gid) if os.geteuid() == 0 else None
        write_whole(path, encode_snapshot(snapshot, version), owner=owner)


def _publish_end(directory: Path) -> None:
    """Write the `durable` file of a journal with sealed segments only."""
    view = MappedSegment(segment_path(directory, list_segments(directory)[-1]))
    try:
        assert view.index is not None
        count = view.index.count
        last = int(view.index.sequences[count - 1]) if count else view.header.first
        end = DurableEnd(view.header.first, view.size, last)
    finally:
        view.close()
    published = DurableFile(directory)
    published.write(end)
    published.close()


def _write_older(path: Path, version: int, dropped: Counter[int]) -> None:
    """Rewrite a sealed segment without the records that the version does not support."""

    def apart(header: SegmentHeader) -> SegmentHeader:
        return header._replace(previous_end=0)

    view = MappedSegment(path)
    try:
        assert view.index is not None
        kinds = bytes(view.index.columns["type"])
        unknown = [kind for kind in kinds if kind > LAST_TYPE[version]]
        if unknown:
            header = encode_segment_header(apart(view.header), version)
            content = _without(view, LAST_TYPE[version], header)
    finally:
        view.close()
    if not unknown:
        replace_header(path, apart, version)
        return
    dropped.update(unknown)
    temporary = path.with_name(path.name + ".tmp")
    temporary.unlink(missing_ok=True)
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
    try:
        write_at(fd, content, 0)
        os.fsync(fd)
    finally:
        os.close(fd)
    put_in_place(temporary, path)


def _without(view: MappedSegment, last_type: int, header: bytes) -> bytes:
    """Return the segment with that header and only the records up to type `last_type`."""
    index = view.index
    assert index is not None
    content = bytearray(header)
    heads = bytearray()
    kept = -1
    """Offset of the last kept record of the unit; -1 = there is none yet."""
    for offset in index.columns["offset"].tolist():
        size = record_size(view.view, offset)
        last = view.view[offset + 45] & UNIT_END
        if view.view[offset + 44] <= last_type:
            kept = len(content)
            content += view.view[offset : offset + (size + 7 & -8)]
            heads += content[kept : kept + HEADER_BYTES]
        elif last and kept >= 0:
            _end_unit(content, kept)
            heads[-HEADER_BYTES:] = content[kept : kept + HEADER_BYTES]
        if last:
            kept = -1
    names = {
        number: Address(Kind(kind), name) for number, kind, name in index.summary["destinations"]
    }
    end = len(content)
    for part in encode_record(
        RecordType.INDEX,
        sequence_at(view.view, view.index_offset),
        int.from_bytes(view.view[view.index_offset + 16 : view.index_offset + 24], "little"),
        build_index(heads, SEGMENT_HEADER_BYTES, names),
    ):
        content += part
    return bytes(content) + encode_trailer(end, len(heads) // HEADER_BYTES, crc32(content))


def _end_unit(content: bytearray, start: int) -> None:
    """Mark the record at `start` as the last of its unit and update its CRC."""
    size = int.from_bytes(content[start : start + 4], "little")
    content[start + 45] |= UNIT_END
    crc = crc32(content[start + 8 : start + size])
    content[start + 4 : start + 8] = crc.to_bytes(4, "little")
