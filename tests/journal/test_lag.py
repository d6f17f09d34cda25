"""The number of records that a reader has not processed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicemq.journal import FileJournal
from sluicemq.journal.reader import records_after
from tests.journal.support import put, reopen
from tests.support.journal import read_from


def sequences(journal: FileJournal) -> list[int]:
    """Return the sequence numbers of all records on disk, apart from the indexes."""
    return [record.sequence for record in read_from(journal, 0)]


def check(journal: FileJournal) -> None:
    """Compare the lag at every relevant position with the number of later records."""
    existing = sequences(journal)
    segments = list(journal.segments)
    positions = {0, *existing, *(sequence - 1 for sequence in existing), existing[-1] + 1}
    for position in positions:
        expected = sum(1 for sequence in existing if sequence > position)
        assert records_after(journal.directory, segments, position) == expected


@given(steps=st.lists(st.sampled_from(["record", "gap", "seal", "restart"]), max_size=12))
def test_the_lag_counts_records(tmp_path_factory: pytest.TempPathFactory, steps: list[str]) -> None:
    directory = tmp_path_factory.mktemp("journal")
    journal = reopen(directory)
    put(journal, b"first")
    for step in steps:
        if step == "record":
            put(journal, b"x")
        elif step == "gap":
            journal.next_sequence()
        elif step == "seal":
            journal.seal()
        else:
            journal.close()
            journal = reopen(directory)
            put(journal, b"after the restart")
    journal.sync()
    check(journal)
    journal.close()
