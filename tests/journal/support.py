"""Functions shared by the tests of the journal."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sluicemq.journal import FileJournal, JournalOptions, LiveRow, Recovery, files, writer
from sluicemq.journal.segment import list_segments, segment_path
from sluicemq.journal.space import DiskSpace, ignore
from sluicemq.model.destination import Address, Kind
from sluicemq.model.message import BodyKind, Durability, Message, Origin

ORDERS = Address(Kind.QUEUE, "orders")
TINY = JournalOptions(segment_bytes=2000, preallocate_bytes=0)
"""Options without preallocation: the size of a file is the size of its data."""
T0 = 1_700_000_000_000


def make_message(body: bytes = b"hello", *, address: Address = ORDERS, **fields: object) -> Message:
    message = Message(address, body, BodyKind.BYTES, Origin.PHPMQ, Durability.SYNC, T0, 0, 4)
    for name, value in fields.items():
        setattr(message, name, value)
    message.arrival = message.arrival or message.timestamp
    return message


def put(journal: FileJournal, body: bytes = b"hello", references: int = 1) -> int:
    """Append one message to the queue `orders`."""
    number = journal.destination_number(ORDERS)
    return journal.append_message(make_message(body), number, references)


def take(journal: FileJournal, *sequences: int) -> int:
    return journal.append_completed(1, journal.destination_number(ORDERS), 1, list(sequences), T0)


def reopen(directory: Path, options: JournalOptions = TINY) -> FileJournal:
    return FileJournal.open(directory, options)


def recover(directory: Path) -> Recovery:
    """Recover a journal as a start does, without opening it."""
    identity = bytes.fromhex((directory / "identity").read_text())
    space = DiskSpace(directory, 0, 0.0, 0, ignore, wait_for_space=False)
    return Recovery(directory, identity, verify=True, space=space)


def rows_of(journal: FileJournal) -> list[LiveRow]:
    return list(journal.recovery.live_rows())


def live_of(journal: FileJournal) -> dict[int, bytes]:
    """Return the body of every live message that recovery reports, by sequence number."""
    return {row.sequence: journal.fetch(row.sequence).body for row in rows_of(journal)}


def segments_of(directory: Path) -> list[Path]:
    return [segment_path(directory, first) for first in list_segments(directory)]


@contextmanager
def skipped_syncs() -> Iterator[None]:
    """Make syncs of files return at once: only a crash of the operating system needs them."""
    with pytest.MonkeyPatch.context() as patch:
        for call in ("fsync", "fdatasync"):
            patch.setattr(os, call, lambda fd: None)
        yield


def crash(journal: FileJournal) -> None:
    """Release the directory without further writes, as a killed process does."""
    journal._append_error = "killed"
    journal.close()


def replace_os(monkeypatch: pytest.MonkeyPatch, system: object) -> None:
    """Make all writes of a journal call `system` instead of the module `os`."""
    monkeypatch.setattr(files, "os", system)
    monkeypatch.setattr(writer, "os", system)
