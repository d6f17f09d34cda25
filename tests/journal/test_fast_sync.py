"""Small groups on a disk with fast syncs are written on the calling thread."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from sluicemq.journal import FileJournal, JournalOptions
from sluicemq.journal.inspect import check
from sluicemq.journal.log import FAST_SYNC, SMALL_GROUP
from sluicemq.journal.space import ignore
from sluicemq.model.errors import JournalError, JournalFailed
from tests.journal.support import TINY, live_of, put, reopen, replace_os, take

MEASURED_SYNCS = 40
"""Groups after which the journal knows the disk."""


class FakeDisk:
    """Replacement of `os` in the writer with a set duration, or an error, of fdatasync."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 0.0
        self.error = 0
        self.refused = 0
        self.threads: list[int] = []
        self._clock = 0.0
        replace_os(monkeypatch, self)
        monkeypatch.setattr("sluicemq.journal.log.time.perf_counter", lambda: self._clock)

    def __getattr__(self, name: str) -> object:
        return getattr(os, name)

    def fdatasync(self, fd: int) -> None:
        self.threads.append(threading.get_ident())
        self._clock += self.seconds
        if self.error:
            raise OSError(self.error, os.strerror(self.error))

    def posix_fallocate(self, fd: int, offset: int, size: int) -> None:
        self.refused += 1
        raise OSError(errno.EOPNOTSUPP, "not supported")

    def writes_inline(self, journal: FileJournal, records: int = 1) -> bool:
        """Return whether the next group is written on this thread."""
        for _ in range(records):
            put(journal)
        journal.commit()
        journal.sync()
        return self.threads[-1] == threading.get_ident()


def open_measured(
    tmp_path: Path,
    disk: FakeDisk,
    options: JournalOptions | None = None,
    on_failure: Callable[[JournalError], None] = ignore,
) -> FileJournal:
    """Return a journal that has measured the disk."""
    journal = FileJournal.open(tmp_path, options, on_failure=on_failure)
    assert not disk.writes_inline(journal)  # nothing is known yet
    for _ in range(MEASURED_SYNCS):
        disk.writes_inline(journal)
    return journal


def test_only_small_groups_on_fast_disk_are_written_inline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FakeDisk(monkeypatch)
    journal = open_measured(tmp_path, disk)
    assert disk.writes_inline(journal)
    assert disk.writes_inline(journal, SMALL_GROUP)
    assert not disk.writes_inline(journal, SMALL_GROUP + 1)
    disk.seconds = 10.0
    assert disk.writes_inline(journal)
    disk.seconds = 0.0
    assert disk.writes_inline(journal)  # one that takes long is an exception
    disk.seconds = 10.0
    for _ in range(MEASURED_SYNCS):
        disk.writes_inline(journal)
    assert not disk.writes_inline(journal)
    disk.seconds = FAST_SYNC * 2
    for _ in range(2 * MEASURED_SYNCS):
        assert not disk.writes_inline(journal)
    disk.seconds = 0.0
    for _ in range(2 * MEASURED_SYNCS):
        disk.writes_inline(journal)
    assert disk.writes_inline(journal)
    journal.close()


def test_durable_records_are_reported_within_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = open_measured(tmp_path, FakeDisk(monkeypatch))
    reports: list[int] = []
    journal.observe(on_durable=reports.append)
    sequence = put(journal)
    journal.commit()
    assert reports == [sequence]
    assert journal.durable == sequence
    journal.close()


def test_records_appended_when_full_segment_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker may drop a message when a new one becomes visible."""
    journal = open_measured(tmp_path, FakeDisk(monkeypatch), TINY)
    ready: list[int] = []

    def end(durable: int) -> None:
        if ready:
            take(journal, ready.pop())

    journal.observe(on_durable=end)
    for _ in range(MEASURED_SYNCS):
        ready.append(put(journal))
        journal.commit()
        journal.sync()
    assert len(journal.segments) > 2
    journal.close()
    assert not check(tmp_path).problems
    reopen(tmp_path).close()


def test_failure_of_inline_write_ends_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FakeDisk(monkeypatch)
    failures: list[JournalError] = []
    journal = open_measured(tmp_path, disk, on_failure=failures.append)
    kept_sequences = set(live_of(journal)) | {put(journal, b"kept")}
    journal.commit()
    assert journal.durable == max(kept_sequences)
    disk.error = errno.EIO
    put(journal, b"lost")
    journal.commit()
    assert len(failures) == 1
    assert journal.durable == max(kept_sequences)
    disk.error = 0
    with pytest.raises(JournalFailed, match="Input/output error"):
        put(journal)
    journal.seal()
    with pytest.raises(JournalFailed):
        journal.sync()
    assert journal.durable == max(kept_sequences)
    journal.close()
    monkeypatch.undo()
    journal = reopen(tmp_path)
    assert kept_sequences <= set(live_of(journal))
    journal.close()


def test_works_on_file_system_without_preallocation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FakeDisk(monkeypatch)
    journal = open_measured(tmp_path, disk)
    assert disk.refused == 1  # and not requested again for this segment
    journal.close()
