"""Sealed segments, read as documented and without the reader of the package."""

from __future__ import annotations

import json
import struct
import zlib
from array import array
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicemq.journal.format import encode_record
from sluicemq.journal.segment import MappedSegment, SegmentIndex, build_index, segment_path
from sluicemq.model.errors import JournalDamaged
from tests.journal.support import ORDERS, make_message, put, reopen, segments_of

LAYOUT = [
    ("sequence", "Q"), ("time", "q"), ("expiration", "q"), ("reference", "Q"), ("offset", "Q"),
    ("size", "I"), ("body", "I"), ("destination", "I"), ("references", "H"), ("type", "B"),
    ("flags", "B"), ("priority", "B"), ("origin", "B"), ("kind", "B"), ("durability", "B"),
]  # fmt: skip


def read_columns(data: bytes) -> tuple[dict[str, object], dict[str, array[int]]]:
    """Read summary and columns of a sealed segment without code of the package."""
    magic, index, records, crc, _ = struct.unpack("<8sQQII", data[-32:])
    assert magic == b"SLUICEND"
    assert zlib.crc32(data[:-32]) == crc
    position = index + 56
    (length,) = struct.unpack_from("<I", data, position)
    summary = json.loads(data[position + 4 : position + 4 + length])
    position += 4 + length + (-(4 + length) & 7)
    columns = {}
    for name, code in LAYOUT:
        assert position % 8 == 0
        column = array(code)
        size = column.itemsize * records
        column.frombytes(data[position : position + size])
        columns[name] = column
        position += size + (-size & 7)
    assert position + 32 == len(data)
    return summary, columns


def test_columns_match_records(tmp_path: Path) -> None:
    journal = reopen(tmp_path)
    first = put(journal, b"one")
    number = journal.destination_number(ORDERS)
    message = make_message(b"twotwo", priority=7, expiration=99, message_id="id", timestamp=12)
    second = journal.append_message(message, number, 3)
    journal.append_completed(5, number, 1, [first], 13)
    journal.seal()
    journal.sync()
    path = segments_of(tmp_path)[0]
    journal.close()

    data = path.read_bytes()
    summary, columns = read_columns(data)
    row = list(columns["sequence"]).index(second)
    assert columns["time"][row] == 12_000
    assert columns["expiration"][row] == 99
    assert columns["priority"][row] == 7
    assert columns["references"][row] == 3
    assert columns["destination"][row] == number
    start = columns["offset"][row]
    body = data[start + columns["body"][row] : start + columns["size"][row]]
    assert body == b"twotwo"
    assert summary["destinations"] == [[number, 1, "orders"]]
    assert summary["first_sequence"] == columns["sequence"][0]
    assert summary["last_sequence"] == columns["sequence"][-1]
    assert summary["records"] == len(columns["type"])
    assert summary["types"]["1"] == 2
    for row, offset in enumerate(columns["offset"]):
        size, _, sequence = struct.unpack_from("<IIQ", data, offset)
        assert (size, sequence) == (columns["size"][row], columns["sequence"][row])


def test_later_segment_contains_name_of_removed_destination(tmp_path: Path) -> None:
    journal = reopen(tmp_path)
    first = put(journal)
    number = journal.destination_number(ORDERS)
    journal.forget_destination(ORDERS)
    journal.seal()
    journal.sync()
    journal.append_completed(number, number, 7, [first], 13)
    second = put(journal)  # of a successor, so that the segment stays
    journal.seal()
    journal.sync()
    path = segment_path(tmp_path, journal._liveness.locate(second)[0].first)
    journal.close()
    summary, _ = read_columns(path.read_bytes())
    assert summary["destinations"] == [[number, 1, "orders"], [number + 1, 1, "orders"]]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=40), st.integers(0, 2000))
def test_rows_are_found_by_sequence_number(gaps: list[int], requested: int) -> None:
    sequences = []
    last = 0
    for gap in gaps:
        last += gap
        sequences.append(last)
    record_heads = b"".join(encode_record(1, s, 0, b"")[0] for s in sequences)
    index = SegmentIndex(memoryview(build_index(record_heads, 64, {})))
    expected = next((i for i, s in enumerate(sequences) if s >= requested), len(sequences))
    assert index.row(requested) == expected


@given(st.binary(max_size=200))
def test_a_payload_that_is_no_index_is_damage(payload: bytes) -> None:
    try:
        SegmentIndex(memoryview(payload))
    except JournalDamaged:
        return
    raise AssertionError("random bytes passed for an index")


@pytest.mark.parametrize(
    "summary",
    [
        b'{"records":0}',
        b'{"records":1e999,"destinations":[]}',
        b'{"records":0,"destinations":[[1,9,"of no kind"]]}',
        b'{"records":0,"destinations":7}',
        b"[" * 100_000,
    ],
)
def test_invalid_summary_is_damage(summary: bytes) -> None:
    payload = len(summary).to_bytes(4, "little") + summary
    with pytest.raises(JournalDamaged, match="summary"):
        SegmentIndex(memoryview(payload.ljust(len(payload) + 7 & -8, b"\0")))


def test_only_sealed_segments_are_recognised(tmp_path: Path) -> None:
    journal = reopen(tmp_path)
    put(journal)
    journal.seal()
    journal.sync()
    sealed_segment, growing_segment = (MappedSegment(path) for path in segments_of(tmp_path))
    assert sealed_segment.index is not None
    assert growing_segment.index is None
    sealed_segment.close()
    growing_segment.close()
    journal.close()
