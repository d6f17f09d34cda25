"""Copying of segments into another data directory, with a header of that directory.

A header is 64 bytes, but the trailer of a sealed segment has the CRC of the whole file. The
copy gets another trailer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from zlib import crc32

from sluicemq.journal.index import TRAILER_BYTES, decode_trailer, encode_trailer
from sluicemq.journal.segment import (
    SEGMENT_HEADER_BYTES,
    SegmentHeader,
    decode_segment_header,
    encode_segment_header,
)
from sluicemq.journal.writer import write_at

Change = Callable[[SegmentHeader], SegmentHeader]


def recast(
    source: Path,
    target: Path,
    change: Change,
    content: Iterable[bytes],
    sealed: bool,
) -> None:
    """Write `source` to the new file `target`, synced, with its header changed.

    `content` is the content of `source`. `sealed`: the segment has a trailer. An unsealed segment
    may end with a message that looks like one. Raises JournalDamaged, OSError.
    """
    fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
    try:
        _recast(fd, source, change, content, sealed)
        os.fsync(fd)
    finally:
        os.close(fd)


def _recast(fd: int, source: Path, change: Change, content: Iterable[bytes], sealed: bool) -> None:
    kept = b""
    """Last bytes so far, which may be the trailer."""
    place = 0
    crc = 0
    for data in content:
        if place == 0 and not kept:
            header = decode_segment_header(data, source)
            data = encode_segment_header(change(header)) + data[SEGMENT_HEADER_BYTES:]
        data = kept + data
        data, kept = data[:-TRAILER_BYTES], data[-TRAILER_BYTES:]
        crc = crc32(data, crc)
        place = write_at(fd, data, place)
    trailer = decode_trailer(kept) if sealed else None
    if trailer is not None:
        offset, records, _ = trailer
        kept = encode_trailer(offset, records, crc)
    write_at(fd, kept, place)
