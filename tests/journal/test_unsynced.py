"""Groups that are written and not synced: their state after a crash of process or machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sluicemq.journal import FileJournal, JournalOptions
from sluicemq.journal.files import read_durable
from sluicemq.journal.log import MAX_UNSYNCED, MAX_WAITING
from sluicemq.model.errors import JournalDamaged
from tests.journal.support import TINY, crash, live_of, put, reopen, replace_os, segments_of, take


class CountingDisk:
    """Replacement of `os` in the writer that counts syncs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.syncs = 0
        replace_os(monkeypatch, self)

    def __getattr__(self, name: str) -> object:
        return getattr(os, name)

    def fdatasync(self, fd: int) -> None:
        self.syncs += 1
        os.fdatasync(fd)


def commit(journal: FileJournal, sync: bool) -> None:
    """Commit and wait until the group is complete."""
    journal.commit(sync)
    while journal._writer.outstanding:
        journal._writer.wait()


def test_unawaited_groups_are_written_at_once_and_synced_with_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = CountingDisk(monkeypatch)
    journal = reopen(tmp_path)
    reports: list[tuple[str, int]] = []
    journal.observe(
        on_written=lambda sequence: reports.append(("written", sequence)),
        on_durable=lambda sequence: reports.append(("durable", sequence)),
    )
    before = journal.durable
    published = read_durable(tmp_path)
    syncs = disk.syncs
    first = put(journal, b"one")
    commit(journal, False)
    assert (journal.written, journal.durable, disk.syncs) == (first, before, syncs)
    assert reports == [("written", first)]
    assert read_durable(tmp_path) == published  # other processes may not read it yet
    assert journal.fetch(first).body == b"one"
    commit(journal, False)
    assert disk.syncs == syncs
    commit(journal, True)
    assert (journal.durable, disk.syncs) == (first, syncs + 1)
    assert reports == [("written", first), ("durable", first), ("written", first)]
    end = read_durable(tmp_path)
    assert end is not None
    assert (end.sequence, end.offset) == (first, segments_of(tmp_path)[0].stat().st_size)
    commit(journal, True)
    assert disk.syncs == syncs + 1  # there was nothing to sync
    journal.close()


def test_numbers_without_records_do_not_count_as_durable_before_records(
    tmp_path: Path,
) -> None:
    journal = reopen(tmp_path)
    first = put(journal)
    commit(journal, False)
    number = journal.next_sequence()
    commit(journal, False)
    assert (journal.written, journal.durable) == (number, first - 2)
    commit(journal, True)
    commit(journal, True)
    assert journal.durable == number
    journal.close()


def test_written_groups_survive_killed_process(tmp_path: Path) -> None:
    journal = reopen(tmp_path)
    unacked, acked = put(journal, b"kept"), put(journal, b"gone")
    journal.sync()
    take(journal, acked)
    commit(journal, False)
    crash(journal)
    journal = reopen(tmp_path)
    assert live_of(journal) == {unacked: b"kept"}
    journal.close()


def _write_after_power_failure(directory: Path, *later: bool) -> Path:
    """Write a journal as after a power failure.

    Behind the last sync is a group whose pages are lost. The pages of `later` groups, with a sync
    or without, are on disk.
    """
    journal = reopen(directory, JournalOptions(preallocate_bytes=0))
    put(journal, b"kept" * 10)
    journal.sync()
    path = segments_of(directory)[0]
    start = path.stat().st_size
    put(journal, b"lost" * 10)
    commit(journal, False)
    end = path.stat().st_size
    for sync in later:
        put(journal, b"late" * 10)
        commit(journal, sync)
    crash(journal)
    with path.open("r+b") as file:
        file.seek(start)
        file.write(bytes(end - start))
    return path


def test_pages_lost_between_two_syncs_are_torn_tail(tmp_path: Path) -> None:
    _write_after_power_failure(tmp_path, False, False)
    journal = reopen(tmp_path)
    assert list(live_of(journal).values()) == [b"kept" * 10]
    assert journal.recovery.report["torn_bytes"] > 0
    journal.close()


@pytest.mark.parametrize("published", [True, False])
def test_pages_lost_before_sync_are_damage(tmp_path: Path, published: bool) -> None:
    # without the published end the record behind the sync reveals the damage
    path = _write_after_power_failure(tmp_path, True, False)
    if not published:
        (tmp_path / "durable").unlink()
    with pytest.raises(JournalDamaged, match=path.name):
        reopen(tmp_path)


def test_segment_ends_with_sync(tmp_path: Path) -> None:
    journal = reopen(tmp_path)
    sequence = put(journal, b"x" * 100)
    commit(journal, False)
    assert journal.durable < sequence
    while len(segments_of(tmp_path)) == 1:
        sequence = put(journal, b"x" * 100)
        commit(journal, False)
    first, second = segments_of(tmp_path)
    assert journal.durable >= int(second.stem) - 2  # the index has a number too
    assert first.stat().st_size > TINY.segment_bytes
    journal.close()


def test_unsynced_data_is_bounded(tmp_path: Path) -> None:
    journal = reopen(tmp_path, JournalOptions())
    for _ in range(3):
        sequence = put(journal, bytes(MAX_UNSYNCED // 3))
        commit(journal, False)
        assert journal.durable < sequence
    sequence = put(journal)
    commit(journal, False)
    assert journal.durable == sequence
    journal.close()


def test_seal_syncs_first(tmp_path: Path) -> None:
    journal = reopen(tmp_path)
    sequence = put(journal)
    commit(journal, False)
    journal.seal()
    while journal._writer.outstanding:
        journal._writer.wait()
    assert journal.durable >= sequence
    journal.close()
    journal = reopen(tmp_path)
    assert list(live_of(journal)) == [sequence]
    journal.close()


def test_journal_is_behind_while_too_many_bytes_wait_for_write(tmp_path: Path) -> None:
    journal = reopen(tmp_path, JournalOptions())
    put(journal, b"being written")
    journal.commit(False)
    for _ in range(MAX_WAITING >> 20):
        assert not journal.is_behind
        put(journal, bytes(1 << 20))
        journal.commit(False)
    assert journal.is_behind
    journal.sync()
    assert not journal.is_behind
    journal.close()
