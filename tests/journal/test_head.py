"""Messages read without their bodies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sluicemq.journal import FileJournal, JournalOptions, MemoryJournal
from sluicemq.journal.interface import Journal
from sluicemq.journal.reader import HEAD_BYTES
from sluicemq.model.errors import JournalDamaged, RecordNotFound
from tests.journal.support import ORDERS, crash, make_message, put, reopen, segments_of, take

LONG = bytes(range(256)) * 64


def send(journal: Journal, body: bytes, **fields: Any) -> int:
    return journal.append_message(
        make_message(body, **fields), journal.destination_number(ORDERS), references=1
    )


@pytest.fixture(params=["open", "sealed", "moved"])
def journal_and_numbers(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[FileJournal, dict[str, int]]]:
    """A short and a long message, and one with large metadata.

    They are in an open segment, in a sealed one, or moved forward from a sealed one.
    """
    journal = reopen(tmp_path, JournalOptions())
    journal.recovery.close()
    journal.set_snapshot_source(lambda: b"state")
    properties = {f"name {number}": "x" * 100 for number in range(100)}
    numbers = {
        "short": send(journal, b"short", correlation_id="c1"),
        "long": send(journal, LONG, correlation_id="c2", priority=7, expiration=10**13),
        "wordy": send(journal, LONG, correlation_id="c3", properties=properties),
        "other": put(journal, LONG),
    }
    journal.sync()
    if request.param != "open":
        journal.seal()
        journal.sync()
    if request.param == "moved":
        take(journal, numbers["other"])
        journal.compact()
        assert journal.stats().relocated == 3
    yield journal, numbers
    journal.close()


def test_head_omits_only_long_body(journal_and_numbers: tuple[FileJournal, dict[str, int]]) -> None:
    journal, numbers = journal_and_numbers
    for name, body in (("short", b"short"), ("long", b""), ("wordy", b"")):
        head, message = journal.fetch_head(numbers[name]), journal.fetch(numbers[name])
        assert head.body == body
        for field in ("sequence", "correlation_id", "properties", "priority", "expiration", "kind"):
            assert getattr(head, field) == getattr(message, field), field
        assert head.sequence == numbers[name]


def test_unwritten_messages_have_their_body(tmp_path: Path) -> None:
    journal = reopen(tmp_path, JournalOptions())
    number = put(journal, LONG)
    assert journal.fetch_head(number).body == LONG
    journal.close()


def test_memory_journal_omits_nothing() -> None:
    journal = MemoryJournal()
    assert journal.fetch_head(send(journal, LONG)).body == LONG


def test_removed_messages_are_not_found(
    journal_and_numbers: tuple[FileJournal, dict[str, int]],
) -> None:
    journal, _ = journal_and_numbers
    with pytest.raises(RecordNotFound):
        journal.fetch_head(10**6)


def test_damaged_head_is_reported_and_body_is_not_checked(tmp_path: Path) -> None:
    journal = reopen(tmp_path, JournalOptions())
    first, second = put(journal, LONG), put(journal, LONG)
    journal.sync()
    path = segments_of(tmp_path)[-1]
    data = path.read_bytes()
    position = data.index(LONG, data.index(LONG) + len(LONG))
    with path.open("r+b") as file:
        file.seek(position + HEAD_BYTES)
        file.write(b"damage")
        file.seek(data.index(LONG) - 56 + 8)
        file.write(bytes(8))
    assert journal.fetch_head(second).body == b""
    with pytest.raises(JournalDamaged):
        journal.fetch(second)
    with pytest.raises(JournalDamaged):
        journal.fetch_head(first)
    crash(journal)
