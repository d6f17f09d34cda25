"""Journals of older releases, and records that a newer release appends."""

from __future__ import annotations

from pathlib import Path
from struct import pack_into
from zlib import crc32

import pytest

from sluicemq.journal import FileJournal, RecordType
from sluicemq.journal.format import DEPTH, FORMAT_VERSION, encode_completed
from sluicemq.journal.index import TRAILER_BYTES, decode_trailer
from sluicemq.journal.inspect import check
from sluicemq.model.errors import JournalDamaged
from tests.journal.support import T0, TINY, crash, live_of, put, reopen, segments_of, take


def age(directory: Path) -> None:
    """Make every segment one of version 1, whose records are the same."""
    for path in segments_of(directory):
        data = bytearray(path.read_bytes())
        pack_into("<I", data, 8, 1)
        pack_into("<I", data, 60, crc32(data[:60]))
        end = len(data) - TRAILER_BYTES
        if decode_trailer(data[end:]) is not None:
            pack_into("<I", data, end + 24, crc32(data[:end]))
            pack_into("<I", data, end + 28, crc32(data[end : end + 28]))
        path.write_bytes(data)


def versions(directory: Path) -> list[int]:
    return [int.from_bytes(path.read_bytes()[8:12], "little") for path in segments_of(directory)]


@pytest.mark.parametrize("orderly", [True, False], ids=["sealed", "torn off"])
def test_a_version_1_journal_is_continued_in_version_2(tmp_path: Path, orderly: bool) -> None:
    journal = reopen(tmp_path)
    first = put(journal, b"settled")
    kept = [put(journal, b"kept" * 100) for _ in range(10)]
    take(journal, first)
    journal.sync()
    if orderly:
        journal.close()
    else:
        crash(journal)
    for path in tmp_path.glob("*.snapshot"):
        path.unlink()  # an older one has its own version
    age(tmp_path)
    old = len(versions(tmp_path))
    assert old > 1
    assert set(versions(tmp_path)) == {1}
    journal = reopen(tmp_path)
    assert list(live_of(journal)) == kept
    journal.append_entry(RecordType.DELIVERED, encode_completed(1, kept), T0, destination=1)
    journal.append_entry(RecordType.DEPTH, DEPTH.pack(10, 0, 0, 0), T0, destination=1)
    take(journal, *kept[:-1])
    journal.sync()
    journal.close()
    assert versions(tmp_path)[:old] == [1] * old
    assert set(versions(tmp_path)[old:]) == {FORMAT_VERSION}
    journal = reopen(tmp_path)
    assert list(live_of(journal)) == kept[-1:]
    events = {record.type for record in journal.recovery.events()}
    assert RecordType.DELIVERED in events
    assert RecordType.DEPTH not in events
    journal.close()
    assert not check(tmp_path).problems


@pytest.mark.parametrize("type", [RecordType.DELIVERED, RecordType.BATCH_PART])
def test_a_group_that_begins_with_a_new_type_marks_the_durable_end(
    tmp_path: Path, type: RecordType
) -> None:
    journal = reopen(tmp_path)
    put(journal, b"damaged soon")
    journal.sync()
    journal.append_entry(type, encode_completed(1, [1]), T0)
    journal.sync()
    crash(journal)
    [path] = segments_of(tmp_path)
    data = bytearray(path.read_bytes())
    data[data.index(b"damaged soon")] ^= 1
    path.write_bytes(data)
    (tmp_path / "durable").unlink()
    with pytest.raises(JournalDamaged, match="later ones are intact"):
        FileJournal.open(tmp_path, TINY)
