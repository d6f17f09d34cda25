"""Rewriting of segments with another header: of another data directory, or of another version.

A header is 64 bytes, but the trailer of a sealed segment has the CRC of the whole file. The
changed file is written under a temporary name and renamed at the end, so that a crash leaves one of
the two.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from zlib import crc32

from sluicemq.journal.format import FORMAT_VERSION
from sluicemq.journal.index import TRAILER_BYTES, decode_trailer, encode_trailer
from sluicemq.journal.manifest import read_chunks
from sluicemq.journal.segment import (
    SEGMENT_HEADER_BYTES,
    SegmentHeader,
    decode_segment_header,
    encode_segment_header,
    segment_version,
)
from sluicemq.journal.writer import sync_directory, write_at

Change = Callable[[SegmentHeader], SegmentHeader]


def unchanged(header: SegmentHeader) -> SegmentHeader:
    """Return the header unchanged, if only the version changes."""
    return header


def recast(
    source: Path,
    target: Path,
    change: Change = unchanged,
    version: int | None = None,
    content: Iterable[bytes] | None = None,
    sealed: bool = True,
) -> None:
    """Write `source` to the new file `target`, synced, with its header changed.

    `version` None = unchanged; `content` is the content of `source`, if the caller reads it anyway;
    `sealed`: the segment has a trailer. An unsealed segment may end with a message that looks like
    one. Raises JournalDamaged, OSError.
    """
    fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
    try:
        _recast(fd, source, change, version, content, sealed)
        os.fsync(fd)
    finally:
        os.close(fd)


def _recast(
    fd: int,
    source: Path,
    change: Change,
    version: int | None,
    content: Iterable[bytes] | None,
    sealed: bool,
) -> None:
    kept = b""
    """Last bytes so far, which may be the trailer."""
    place = 0
    crc = 0
    for data in read_chunks(source) if content is None else content:
        if place == 0 and not kept:
            header = decode_segment_header(data, source)
            data = (
                encode_segment_header(change(header), version or segment_version(data))
                + data[SEGMENT_HEADER_BYTES:]
            )
        data = kept + data
        data, kept = data[:-TRAILER_BYTES], data[-TRAILER_BYTES:]
        crc = crc32(data, crc)
        place = write_at(fd, data, place)
    trailer = decode_trailer(kept) if sealed else None
    if trailer is not None:
        offset, records, _ = trailer
        kept = encode_trailer(offset, records, crc)
    write_at(fd, kept, place)


def replace_header(path: Path, change: Change = unchanged, version: int = FORMAT_VERSION) -> None:
    """Rewrite a segment in place: after a crash it is the old one or the new one."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.unlink(missing_ok=True)
    recast(path, temporary, change, version)
    put_in_place(temporary, path)


def put_in_place(temporary: Path, path: Path) -> None:
    """Replace a segment by the synced file, which gets its owner."""
    status = path.stat()
    if os.geteuid() == 0:
        os.chown(temporary, status.st_uid, status.st_gid)
    os.rename(temporary, path)
    sync_directory(path.parent)
