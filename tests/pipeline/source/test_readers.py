"""The broker's reader and the vectorised reader return the same records of the same segments."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from struct import calcsize
from zlib import crc32

import pyarrow as pa
import pytest

from sluicemq.journal import FileJournal
from sluicemq.journal.backup import create
from sluicemq.journal.format import (
    FIELDS,
    HEADER,
    HEADER_BYTES,
    REST,
    Record,
    RecordType,
    decode_record,
    record_size,
)
from sluicemq.journal.log import compact
from sluicemq.journal.segment import (
    SEGMENT_HEADER_BYTES,
    MappedSegment,
    list_segments,
    record_offsets,
    segment_path,
)
from sluicemq.journal.stored_backup import restore
from sluicemq.model.errors import JournalDamaged
from sluicemq.pipeline.source.journal_storage import MappedFile
from sluicemq.pipeline.source.records import RecordColumns, index_columns, scan_segment
from tests.pipeline.source.support import (
    SMALL,
    complete,
    deliver,
    depth,
    message,
    put,
    redeliver,
    requeue,
)
from tests.pipeline.source.test_events import journal_in

Found = list[tuple[int, Record]]
"""Offset and content of records."""


def fill(directory: Path) -> None:
    """Write records of all sizes modulo 8 to several sealed segments and one unsealed one."""
    with journal_in(directory) as journal:
        for number in range(60):
            sequence = put(
                journal,
                message(b"x" * number, correlation_id="c" * (number % 5), expiration=number),
            )
            deliver(journal, [sequence])
            if number % 3 == 0:
                redeliver(journal, [sequence], [2])
                requeue(journal, sequence, 2)
            if number % 4:
                complete(journal, [sequence])
            depth(journal, number)
            journal.sync()
    assert len(list_segments(directory)) > 3


def intact(directory: Path) -> Path:
    fill(directory)
    return directory


def rewritten(directory: Path) -> Path:
    """Return a journal with relocated records."""

    def adopt(journal: FileJournal) -> None:
        journal.set_snapshot_source(lambda: b"")

    fill(directory)
    compact(directory, SMALL, adopt)
    return directory


def restored(directory: Path) -> Path:
    """Return a journal with rewritten segment headers."""
    fill(directory / "journal")
    create(directory / "journal", directory / "backup")
    restore(directory / "backup", directory / "restored")
    return directory / "restored" / "journal"


def scalar(view: MappedSegment, end: int, start: int = SEGMENT_HEADER_BYTES) -> Found:
    return [
        (offset, decode_record(view.view, offset, size))
        for offset, size in record_offsets(view.view, end, start)
    ]


def scalar_skipping(view: MappedSegment, end: int) -> Found:
    """Return all intact records, also those after damage."""
    records: Found = []
    start = SEGMENT_HEADER_BYTES
    while start < end:
        records += scalar(view, end, start)
        if records and records[-1][0] >= start:
            offset = records[-1][0]
            start = offset + (record_size(view.view, offset) + 7 & -8)
        start += 8
        while start < end and not record_size(view.view[:end], start):
            start += 8
    return records


def records_of(columns: RecordColumns, data: memoryview, base: int) -> Found:
    """Return the records as the vectorised reader presents them: columns and bodies."""
    records = []
    for row in range(columns.count):
        offset, body, size = (int(columns[name][row]) for name in ("offset", "body", "size"))
        start = offset - base
        fields = {
            name: int(columns[name][row])
            for name, _, _ in FIELDS
            if name not in ("size", "crc", "body")
        }
        meta = bytes(data[start + HEADER_BYTES : start + body])
        content = bytes(data[start + body : start + size])
        records.append((offset, Record(**fields, meta=meta, body=content)))
    return records


class InParts(MappedFile):
    """Segment that is read in parts, as over HTTP."""

    def read_bytes(self, start: int, end: int, minimum: int) -> pa.Buffer:
        return super().read_bytes(start, min(end, start + minimum), minimum)


def vectorised(
    view: MappedSegment,
    end: int,
    report: Callable[[int, int], None] | None,
    kind: type[MappedFile] = MappedFile,
) -> tuple[Found, JournalDamaged | None]:
    records: Found = []
    try:
        for block in scan_segment(kind(view, end), 0, end, report):
            records += records_of(block.records, memoryview(block.data), block.base)
    except JournalDamaged as error:
        return records, error
    return records, None


def end_of(view: MappedSegment) -> int:
    return view.index_offset or view.size


def compare(path: Path, end: int | None = None) -> None:
    """Compare both readers, up to the first damaged record and after it."""
    view = MappedSegment(path)
    end = end_of(view) if end is None else end
    expected = scalar(view, end)
    records, error = vectorised(view, end, None)
    assert records == expected
    stop = SEGMENT_HEADER_BYTES
    if expected:
        offset = expected[-1][0]
        stop = offset + (record_size(view.view, offset) + 7 & -8)
    assert (error is None) == (stop == end)
    if error is not None:
        assert f"offset {stop}:" in str(error)
    for kind in (MappedFile, InParts):
        records, error = vectorised(view, end, lambda start, stop: None, kind)
        assert (records, error) == (scalar_skipping(view, end), None)


def copies(directory: Path) -> list[tuple[Path, bytearray, int]]:
    """Return path, content and end of the records of each segment."""
    segments = []
    for first in list_segments(directory):
        path = segment_path(directory, first)
        view = MappedSegment(path)
        segments.append((path, bytearray(view.view), end_of(view)))
        view.close()
    return segments


def test_fields_describe_header() -> None:
    position = 0
    for _, code, offset in FIELDS:
        assert offset == position
        position += calcsize("<" + code)
    assert position == HEADER_BYTES == HEADER.size == REST.size + 8


@pytest.mark.parametrize("make", [intact, rewritten, restored])
@pytest.mark.parametrize("limit", [8192, 3])
def test_both_readers_return_same_records(
    tmp_path: Path, make: Callable[[Path], Path], limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluicemq.pipeline.source.records.BLOCK_RECORDS", limit)
    directory = make(tmp_path)
    types = set()
    for first in list_segments(directory):
        path = segment_path(directory, first)
        compare(path)
        view = MappedSegment(path)
        expected = scalar(view, end_of(view))
        types |= {record.type for _, record in expected}
        if view.index is not None:
            assert records_of(index_columns(view.index), view.view, 0) == expected
    assert (RecordType.RELOCATED in types) == (make is rewritten)


def test_both_readers_stop_at_torn_tail(tmp_path: Path) -> None:
    fill(tmp_path)
    path, data, end = copies(tmp_path)[0]
    for size in range(SEGMENT_HEADER_BYTES + 8, end, 12):
        path.write_bytes(data[:size])
        compare(path, size)
        path.write_bytes(data[:size] + bytes(end - size))  # preallocated space
        compare(path, end)


@pytest.mark.parametrize("seed", range(150))
def test_both_readers_find_same_damage(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluicemq.pipeline.source.records.BLOCK_BYTES", (128, 200, 1024)[seed % 3])
    fill(tmp_path)
    chance = random.Random(seed)
    path, data, end = chance.choice(copies(tmp_path))
    for _ in range(chance.choice((1, 1, 3))):
        data[chance.randrange(SEGMENT_HEADER_BYTES, end)] ^= 1 << chance.randrange(8)
    path.write_bytes(data)
    compare(path, end)


@pytest.mark.parametrize("damage", ["padding", "type 0", "unknown type", "body", "body in header"])
def test_both_readers_reject_records_that_match_their_crc(tmp_path: Path, damage: str) -> None:
    fill(tmp_path)
    path, data, end = copies(tmp_path)[0]
    view = memoryview(bytes(data))
    offsets = [(start, size) for start, size in record_offsets(view, end) if size % 8]
    offset, size = offsets[3]
    if damage == "padding":
        data[offset + size] = 1
    elif damage == "type 0":
        data[offset + 44] = 0
    elif damage == "unknown type":
        data[offset + 44] = max(RecordType) + 1
    elif damage == "body":
        data[offset + 52 : offset + 56] = (size + 1).to_bytes(4, "little")
    else:
        data[offset + 52 : offset + 56] = (HEADER_BYTES - 8).to_bytes(4, "little")
    data[offset + 4 : offset + 8] = crc32(data[offset + 8 : offset + size]).to_bytes(4, "little")
    path.write_bytes(data)
    compare(path, end)
