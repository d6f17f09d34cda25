"""Records can be read back in any order."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicemq.journal import FileJournal, JournalOptions
from sluicemq.journal.reader import READ_AHEAD_BYTES
from sluicemq.model.errors import JournalDamaged
from tests.journal.support import put, reopen, segments_of, take

COUNT = 600
SEGMENT_BYTES = READ_AHEAD_BYTES + READ_AHEAD_BYTES // 4


def body_of(number: int) -> bytes:
    return bytes([number % 251]) * (number * 37 % 3000)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FileJournal, list[int]]]:
    """Messages of many sizes, among other records, in sealed segments and an open one."""
    options = JournalOptions(segment_bytes=SEGMENT_BYTES)
    journal = reopen(tmp_path_factory.mktemp("journal"), options)
    sequences = []
    for number in range(COUNT):
        sequences.append(put(journal, body_of(number), 2))
        if number % 3 == 0:
            take(journal, sequences[-1])
        if number % 50 == 0:
            journal.sync()
    journal.sync()
    assert journal.stats().segments > 2
    yield journal, sequences
    journal.close()


@given(
    data=st.lists(
        st.tuples(
            st.integers(0, COUNT - 1), st.integers(1, 60), st.sampled_from([1, 1, 2, 5, 40, -1])
        ),
        min_size=1,
        max_size=6,
    )
)
def test_any_order(
    written: tuple[FileJournal, list[int]], data: list[tuple[int, int, int]]
) -> None:
    journal, sequences = written
    for start, count, step in data:
        for number in range(start, start + count * step, step):
            if 0 <= number < COUNT:
                assert journal.fetch(sequences[number]).body == body_of(number)


def test_in_order_over_all_segments(written: tuple[FileJournal, list[int]]) -> None:
    journal, sequences = written
    assert [journal.fetch(sequence).body for sequence in sequences] == [
        body_of(number) for number in range(COUNT)
    ]


def test_records_appended_meanwhile_are_found(tmp_path: Path) -> None:
    journal = reopen(tmp_path, JournalOptions())
    sequences = []
    for number in range(100):
        sequences.append(put(journal, body_of(number)))
        journal.sync()
        for index in range(max(0, number - 2), number + 1):
            assert journal.fetch(sequences[index]).body == body_of(index)
    journal.close()


def test_damaged_record_is_reported_when_it_is_requested(tmp_path: Path) -> None:
    options = JournalOptions(segment_bytes=20_000)
    journal = reopen(tmp_path, options)
    sequences = [put(journal, bytes([number]) * 900) for number in range(40)]
    journal.sync()
    path = segments_of(tmp_path)[0]
    data = bytearray(path.read_bytes())
    data[data.index(bytes([5]) * 900) + 450] ^= 1
    path.write_bytes(data)
    for number in (3, 4, 5, 6, 7):
        if number == 5:
            with pytest.raises(JournalDamaged, match=r"record .* is not intact"):
                journal.fetch(sequences[number])
        else:
            assert journal.fetch(sequences[number]).body == bytes([number]) * 900
    journal.close()


def test_segments_are_read_with_few_descriptors(tmp_path: Path) -> None:
    journal = reopen(tmp_path)
    sequences = []
    for number in range(12):
        sequences.append(put(journal, body_of(number)))
        journal.seal()
        journal.sync()
    limit, maximum = resource.getrlimit(resource.RLIMIT_NOFILE)
    newest = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (newest + 10, maximum))
    used: list[int] = []
    try:
        with suppress(OSError):
            while True:
                used.append(os.dup(0))
        for _ in range(6):
            os.close(used.pop())
        bodies = [journal.fetch(sequence).body for sequence in sequences]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, maximum))
        for descriptor in used:
            os.close(descriptor)
    assert bodies == [body_of(number) for number in range(12)]
    journal.close()
