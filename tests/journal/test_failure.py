"""Disk failures: the journal stops at once, reports it once, and confirms nothing more."""

from __future__ import annotations

import errno
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sluicemq.journal import FileJournal
from sluicemq.model.errors import JournalError, JournalFailed
from tests.journal.support import TINY, live_of, put, reopen, replace_os, segments_of, take
from tests.support.journal import read_from


class FailingDisk:
    """Replacement of `os` in the writer whose named call fails after a number of calls."""

    def __init__(self, call: str, after: int, short: int = 0, error: int = errno.EIO) -> None:
        self._error = error
        self._call = call
        self._left = after
        self._short = short
        self.failures = 0

    def __getattr__(self, name: str) -> object:
        function = getattr(os, name)
        return self._failing(function) if name == self._call else function

    def _failing(self, real: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            if self._left > 0:
                self._left -= 1
                return real(*arguments)
            self.failures += 1
            if self._short and self.failures == 1:
                fd, data, offset = arguments
                return os.pwrite(fd, bytes(data)[: self._short], offset)
            raise OSError(self._error, os.strerror(self._error))

        return call


@pytest.mark.parametrize("call", ["pwrite", "fdatasync"])
@pytest.mark.parametrize("short", [0, 20])
def test_failed_write_ends_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, short: int
) -> None:
    failures: list[JournalError] = []
    journal = FileJournal.open(tmp_path, TINY, on_failure=failures.append)
    first = put(journal, b"kept")
    journal.sync()
    durable = journal.durable
    reports: list[int] = []
    journal.observe(on_durable=reports.append)

    disk = FailingDisk(call, 0, short if call == "pwrite" else 0)
    replace_os(monkeypatch, disk)
    put(journal, b"lost" * 100)
    with pytest.raises(JournalFailed, match="Input/output error"):
        journal.sync()
    with pytest.raises(JournalFailed, match="Input/output error"):
        put(journal)
    with pytest.raises(JournalFailed, match="Input/output error"):
        take(journal, first)
    journal.commit()
    assert disk.failures == (2 if short and call == "pwrite" else 1)  # never tried again
    assert len(failures) == 1
    assert str(tmp_path) in str(failures[0])
    assert (journal.durable, reports) == (durable, [])
    assert journal.fetch(first).body == b"kept"
    journal.close()

    monkeypatch.undo()
    journal = reopen(tmp_path)
    live = live_of(journal)
    assert live.pop(first) == b"kept"
    assert list(live.values()) in ([], [b"lost" * 100])  # written, though never acknowledged
    journal.close()


@pytest.mark.parametrize("call", ["fsync", "rename", "ftruncate", "open"])
def test_failure_while_sealing_ends_journal_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    failures: list[JournalError] = []
    journal = FileJournal.open(tmp_path, TINY, on_failure=failures.append)
    sequence = put(journal, b"kept")
    journal.sync()
    replace_os(monkeypatch, FailingDisk(call, 0))
    journal.seal()
    with pytest.raises(JournalFailed):
        journal.sync()
    assert len(failures) == 1
    journal.close()
    monkeypatch.undo()
    journal = reopen(tmp_path)
    assert live_of(journal) == {sequence: b"kept"}
    journal.close()


def test_journal_waits_while_process_has_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As while more clients connect than the process has descriptors."""

    class BusyProcess:
        refusals = 0

        def __getattr__(self, name: str) -> object:
            return getattr(os, name)

        def open(self, *arguments: Any) -> int:
            if threading.current_thread() is not threading.main_thread() and self.refusals < 3:
                self.refusals += 1
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return os.open(*arguments)

    journal = reopen(tmp_path)
    process = BusyProcess()
    replace_os(monkeypatch, process)
    journal.seal()
    sequence = put(journal)
    journal.sync()
    assert process.refusals == 3
    assert journal.fetch(sequence).body == b"hello"
    journal.close()


def test_failure_for_lack_of_descriptors_names_their_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = reopen(tmp_path)
    put(journal)
    journal.sync()
    monkeypatch.setattr("sluicemq.journal.files.DESCRIPTOR_SECONDS", 0)
    replace_os(monkeypatch, FailingDisk("open", 0, error=errno.EMFILE))
    journal.seal()
    put(journal)
    with pytest.raises(JournalFailed, match=r"Too many open files.* Raise the limit"):
        journal.sync()
    journal.close()


def test_full_disk_at_start_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reopen(tmp_path).close()
    replace_os(monkeypatch, FailingDisk("pwrite", 1, error=errno.ENOSPC))
    with pytest.raises(JournalError, match=re.escape(str(tmp_path)) + ".*No space left"):
        reopen(tmp_path)
    monkeypatch.undo()
    reopen(tmp_path).close()


def test_short_writes_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class SlowDisk:
        def __getattr__(self, name: str) -> object:
            return getattr(os, name)

        def pwrite(self, fd: int, data: bytes, offset: int) -> int:
            return os.pwrite(fd, bytes(data)[:11], offset)

    replace_os(monkeypatch, SlowDisk())
    journal = reopen(tmp_path)
    sequence = put(journal, b"x" * 1000)
    journal.seal()
    journal.close()
    monkeypatch.undo()
    journal = reopen(tmp_path)
    assert live_of(journal) == {sequence: b"x" * 1000}
    journal.close()


def test_records_appended_during_write_go_into_next_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = reopen(tmp_path)
    put(journal, b"first destination")
    journal.sync()
    entered = threading.Event()
    proceed = threading.Event()
    groups: list[int] = []
    journal.observe(on_durable=groups.append)

    class HeldDisk:
        def __getattr__(self, name: str) -> object:
            return getattr(os, name)

        def fdatasync(self, fd: int) -> None:
            entered.set()
            assert proceed.wait(60)
            os.fdatasync(fd)

    replace_os(monkeypatch, HeldDisk())
    first = put(journal, b"one")
    journal.commit()
    assert entered.wait(60)
    second = put(journal, b"two")
    journal.commit()
    third = put(journal, b"three")
    assert journal.durable < first
    assert journal.fetch(first).body == b"one"  # being written
    assert journal.fetch(third).body == b"three"  # not handed over
    proceed.set()
    journal.sync()
    assert groups == [first, third]
    assert first < second < third
    records = {r.sequence: r.flags for r in read_from(journal, first)}
    assert [records[s] & 2 for s in (first, second, third)] == [2, 2, 0]  # GROUP_START
    journal.close()


def test_completions_are_notified_from_writer_thread(tmp_path: Path) -> None:
    calls: list[Callable[[], None]] = []
    threads: set[int] = set()
    semaphore = threading.Semaphore(0)

    def notify(call: Callable[[], None]) -> None:
        threads.add(threading.get_ident())
        calls.append(call)
        semaphore.release()

    journal = FileJournal.open(tmp_path, TINY, notify)
    while semaphore.acquire(blocking=False):
        calls.clear()
    sequence = put(journal)
    journal.commit()
    while journal.durable < sequence:  # the start, too, may still have something to announce
        assert semaphore.acquire(timeout=60)
        assert journal.durable < sequence  # nothing happens on the owner's thread by itself
        calls[-1]()
    assert journal.durable == sequence
    assert threading.get_ident() not in threads
    journal.close()


def test_closed_event_loop_is_ignored(tmp_path: Path) -> None:
    def notify(call: Callable[[], None]) -> None:
        raise RuntimeError("Event loop is closed")

    journal = FileJournal.open(tmp_path, TINY, notify)
    sequence = put(journal)
    journal.close()
    journal = reopen(tmp_path)
    assert list(live_of(journal)) == [sequence]
    journal.close()
    assert len(segments_of(tmp_path)) == 2
