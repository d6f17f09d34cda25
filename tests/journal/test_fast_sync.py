"""Small groups on a disk that usually syncs fast are written without a change of threads."""

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

USUAL = 40
"""Groups after which the journal knows the disk."""


class Disk:
    """Stands in for `os` in the writer, with the time that an fdatasync takes, or its error."""

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

    def inline(self, journal: FileJournal, records: int = 1) -> bool:
        """Return whether the next group is written on this thread."""
        for _ in range(records):
            put(journal)
        journal.commit()
        journal.sync()
        return self.threads[-1] == threading.get_ident()


def known(
    tmp_path: Path,
    disk: Disk,
    options: JournalOptions | None = None,
    on_failure: Callable[[JournalError], None] = ignore,
) -> FileJournal:
    """Return a journal that has measured the disk."""
    journal = FileJournal.open(tmp_path, options, on_failure=on_failure)
    assert not disk.inline(journal)  # nothing is known yet
    for _ in range(USUAL):
        disk.inline(journal)
    return journal


def test_only_small_groups_on_a_swift_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    journal = known(tmp_path, disk)
    assert disk.inline(journal)
    assert disk.inline(journal, SMALL_GROUP)
    assert not disk.inline(journal, SMALL_GROUP + 1)
    disk.seconds = 10.0
    assert disk.inline(journal)
    disk.seconds = 0.0
    assert disk.inline(journal)  # one that takes long is an exception
    disk.seconds = 10.0
    for _ in range(USUAL):
        disk.inline(journal)
    assert not disk.inline(journal)
    disk.seconds = FAST_SYNC * 2
    for _ in range(2 * USUAL):
        assert not disk.inline(journal)
    disk.seconds = 0.0
    for _ in range(2 * USUAL):
        disk.inline(journal)
    assert disk.inline(journal)
    journal.close()


def test_durable_records_are_reported_within_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = known(tmp_path, Disk(monkeypatch))
    reports: list[int] = []
    journal.observe(on_durable=reports.append)
    sequence = put(journal)
    journal.commit()
    assert reports == [sequence]
    assert journal.durable == sequence
    journal.close()


def test_records_appended_when_a_full_segment_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker may drop a message when a new one becomes visible."""
    journal = known(tmp_path, Disk(monkeypatch), TINY)
    ready: list[int] = []

    def end(durable: int) -> None:
        if ready:
            take(journal, ready.pop())

    journal.observe(on_durable=end)
    for _ in range(USUAL):
        ready.append(put(journal))
        journal.commit()
        journal.sync()
    assert len(journal.segments) > 2
    journal.close()
    assert not check(tmp_path).problems
    reopen(tmp_path).close()


def test_a_failure_of_an_inline_write_is_final(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    failures: list[JournalError] = []
    journal = known(tmp_path, disk, on_failure=failures.append)
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


def test_a_file_system_that_reserves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    journal = known(tmp_path, disk)
    assert disk.refused == 1  # and not requested again for this segment
    journal.close()
