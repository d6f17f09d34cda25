"""Downgrade to format version 1 and upgrade again: the tests write files of both versions and
compare them byte by byte, as a release that knows only the older version reads them."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import msgspec
import pytest

from sluicemq.journal import FileJournal, RecordType, versions
from sluicemq.journal.format import DEPTH, encode_completed
from sluicemq.journal.inspect import check
from sluicemq.journal.versions import downgrade, upgrade
from sluicemq.model.errors import JournalError, JournalLocked
from tests.journal.support import T0, TINY, crash, live_of, put, reopen, segments_of, take
from tests.journal.test_versions import age

OLD_TYPES = range(1, 18)


def adopt(journal: FileJournal) -> None:
    journal.snapshot_source = lambda: b"state of now"


def go_back(directory: Path) -> versions.Changed:
    return downgrade(directory, 1, adopt, lambda state: b"older " + state, TINY)


def fill(directory: Path) -> dict[int, bytes]:
    """Messages, deliveries, gauges, and units that end with a batch. Return the live messages."""
    journal = reopen(directory)
    live = {}
    for turn in range(20):
        body = b"%d" % turn * 20
        number = put(journal, body)
        journal.append_entry(RecordType.DELIVERED, encode_completed(1, [number]), T0, destination=1)
        journal.append_entry(RecordType.DEPTH, DEPTH.pack(turn, 0, 0, 0), T0, destination=1)
        if turn % 3:
            live[number] = body
        else:
            take(journal, number)
        first = journal.append_message(*unit(journal, b"first"), last=False)
        second = journal.append_message(*unit(journal, b"second"), last=False)
        journal.append_entry(RecordType.BATCH_PART, b"whatever it is", T0)
        live |= {first: b"first", second: b"second"}
        journal.sync()
        if turn == 10:
            journal.seal()
            for _ in range(30):  # a segment in which nothing is left
                journal.append_entry(RecordType.DEPTH, DEPTH.pack(1, 0, 0, 0), T0)
            journal.seal()
            journal.sync()
    journal.close()
    return live


def unit(journal: FileJournal, body: bytes) -> tuple[object, int]:
    from tests.journal.support import ORDERS, make_message

    return make_message(body), journal.destination(ORDERS)


def records(data: bytes) -> Iterator[tuple[int, int]]:
    """Type and flags of each record, as version 1 was described: it knows seventeen types."""
    offset = 64
    sequence = 0
    while offset < len(data) - 32:
        size, crc, number = struct.unpack_from("<IIQ", data, offset)
        kind, flags = data[offset + 44], data[offset + 45]
        assert kind in OLD_TYPES
        assert crc32(data[offset + 8 : offset + size]) == crc
        assert number > sequence
        sequence = number
        offset += size + 7 & -8
        yield kind, flags
    assert offset == len(data) - 32


def test_every_byte_is_of_the_older_version(tmp_path: Path) -> None:
    fill(tmp_path)
    changed = go_back(tmp_path)
    assert changed.dropped == {"delivered": 20, "depth": 50, "batch_part": 20}
    assert changed.segments == len(segments_of(tmp_path))
    for path in segments_of(tmp_path):
        data = path.read_bytes()
        magic, version, _, first, _, _, _, end, crc = struct.unpack_from("<8sIIQQq16sII", data)
        assert (magic, version, end) == (b"SLUICEMQ", 1, 0)
        assert crc == crc32(data[:60])
        assert path.name == f"{first:020d}.segment"
        magic, _, count, whole, own = struct.unpack("<8sQQII", data[-32:])
        assert (magic, whole, own) == (b"SLUICEND", crc32(data[:-32]), crc32(data[-32:-4]))
        found = list(records(data))
        assert found[-1][0] == RecordType.INDEX
        assert len(found) == count + 1
        assert all(flags & 1 for kind, flags in found[-2:])
    (snapshot,) = tmp_path.glob("*.snapshot")
    data = snapshot.read_bytes()
    magic, version, crc, length = struct.unpack_from("<8sIIQ", data)
    assert (magic, version, length) == (b"SLUICESN", 1, len(data) - 24)
    assert crc == crc32(data[24:])
    assert msgspec.msgpack.decode(data[24:])[2] == b"older state of now"


def test_units_stay_units(tmp_path: Path) -> None:
    """The record that ended one was left out: the one before it does now, and no other."""
    fill(tmp_path)
    go_back(tmp_path)
    kinds = [item for path in segments_of(tmp_path) for item in records(path.read_bytes())]
    messages = [flags & 1 for kind, flags in kinds if kind == RecordType.MESSAGE]
    assert messages == [1, 0, 1] * 20


def test_live_records_survive_downgrade_and_upgrade(tmp_path: Path) -> None:
    live = fill(tmp_path)
    go_back(tmp_path)
    assert not check(tmp_path).problems
    assert upgrade(tmp_path).segments == len(segments_of(tmp_path))
    assert upgrade(tmp_path).segments == 0
    assert set(versions.versions(tmp_path)) == {2}
    assert not check(tmp_path).problems
    journal = reopen(tmp_path)
    assert live_of(journal) == live
    journal.close()


def test_an_older_release_refuses_the_newer_version_and_reads_the_older(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = fill(tmp_path)
    place = tmp_path.with_name(tmp_path.name + "-copy")
    shutil.copytree(tmp_path, place)
    go_back(tmp_path)
    for module in ("format", "segment", "snapshot"):
        monkeypatch.setattr(f"sluicemq.journal.{module}.FORMAT_VERSION", 1)
    monkeypatch.setattr("sluicemq.journal.format._LAST_TYPE", 17)
    with pytest.raises(JournalError, match="this release reads up to 1"):
        reopen(place)
    journal = reopen(tmp_path)
    assert live_of(journal) == live
    crash(journal)


@pytest.mark.parametrize("fails_after", range(1, 10))
def test_a_crash_during_a_downgrade_leaves_a_readable_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_after: int
) -> None:
    live = fill(tmp_path)
    done = 0

    def counted(write: object) -> object:
        def call(*arguments: object, **named: object) -> None:
            nonlocal done
            done += 1
            if done == fails_after:
                raise KeyboardInterrupt
            write(*arguments, **named)  # type: ignore[operator]

        return call

    with monkeypatch.context() as patch:
        for name in ("replace_header", "put_in_place", "write_whole"):
            patch.setattr(versions, name, counted(getattr(versions, name)))
        with pytest.raises(KeyboardInterrupt):
            go_back(tmp_path)
    assert not check(tmp_path).problems
    go_back(tmp_path)
    assert set(versions.versions(tmp_path)) == {1}
    journal = reopen(tmp_path)
    assert live_of(journal) == live
    journal.close()


def test_a_journal_of_both_versions_is_made_one_of_the_newest(tmp_path: Path) -> None:
    live = fill(tmp_path)
    go_back(tmp_path)
    journal = reopen(tmp_path)
    live[put(journal, b"new")] = b"new"
    journal.sync()
    journal.close()
    assert set(versions.versions(tmp_path)) == {1, 2}
    assert upgrade(tmp_path).segments
    assert set(versions.versions(tmp_path)) == {2}
    journal = reopen(tmp_path)
    assert live_of(journal) == live
    journal.close()


def test_files_that_never_were_newer_are_upgraded(tmp_path: Path) -> None:
    """The files were written by the older release and not by `downgrade`."""
    journal = reopen(tmp_path)
    numbers = [put(journal, b"x" * 300) for _ in range(20)]
    journal.close()
    for path in tmp_path.glob("*.snapshot"):
        path.unlink()
    age(tmp_path)
    upgrade(tmp_path)
    assert set(versions.versions(tmp_path)) == {2}
    assert not check(tmp_path).problems
    journal = reopen(tmp_path)
    assert list(live_of(journal)) == numbers
    journal.close()


def test_downgrade_refuses_a_running_broker_and_unknown_versions(tmp_path: Path) -> None:
    journal = reopen(tmp_path)
    with pytest.raises(JournalLocked):
        go_back(tmp_path)
    with pytest.raises(JournalLocked):
        upgrade(tmp_path)
    journal.close()
    for version in (0, 2, 3):
        with pytest.raises(JournalError, match="can go back to 1"):
            downgrade(tmp_path, version, adopt, bytes, TINY)
