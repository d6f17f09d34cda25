"""Sync times: each fdatasync is measured once, and nothing else."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from sluicemq.journal import FileJournal
from tests.journal.support import put, reopen

SLOW_SECONDS = 0.02


def test_each_sync_counts_and_write_without_one_does_not(tmp_path: Path) -> None:
    journal = reopen(tmp_path)
    before = journal.syncs.read().count
    put(journal)
    journal.sync()
    assert journal.syncs.read().count == before + 1
    sequence = put(journal)
    journal.commit(sync=False)
    while journal.written < sequence:
        journal._writer.wait()
    assert journal.syncs.read().count == before + 1
    journal.close()


def test_measured_time_is_that_of_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = reopen(tmp_path)
    before = journal.syncs.read()
    fdatasync = os.fdatasync

    def slow(fd: int) -> None:
        time.sleep(SLOW_SECONDS)
        fdatasync(fd)

    monkeypatch.setattr(os, "fdatasync", slow)
    put(journal)
    journal.sync()
    monkeypatch.undo()
    measured = journal.syncs.read().since(before)
    assert measured.count == 1
    assert measured.sum >= SLOW_SECONDS
    assert measured.longest >= SLOW_SECONDS
    journal.close()


def test_counts_continue_over_end_of_segment(tmp_path: Path) -> None:
    """The histogram continues with the next file."""
    journal = reopen(tmp_path)
    before = journal.syncs.read().count
    for _ in range(3):
        put(journal)
        journal.seal()
        journal.sync()
    assert journal.syncs.read().count - before >= 3
    journal.close()


def test_start_resets_counts(tmp_path: Path) -> None:
    journal = FileJournal.open(tmp_path)
    for _ in range(5):
        put(journal)
        journal.sync()
    assert journal.syncs.read().count >= 5
    journal.close()
    journal = FileJournal.open(tmp_path)
    assert journal.syncs.read().count < 5
    journal.close()
