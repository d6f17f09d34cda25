"""The number of records that a query has not read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicemq.journal import FileJournal
from sluicemq.pipeline.source.journal_storage import JOURNAL_DIRECTORY, DirectoryStorage
from sluicemq.pipeline.source.lag import LagCounter
from sluicemq.pipeline.source.offsets import Offset
from tests.journal.support import put, reopen

STEPS = st.lists(st.sampled_from(["record", "seal", "restart"]), max_size=12)


@given(steps=STEPS, often=st.integers(1, 3))
def test_restarts_add_nothing_to_the_lag(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str], often: int
) -> None:
    directory = tmp_path_factory.mktemp("data")
    (directory / JOURNAL_DIRECTORY).mkdir()
    journal = reopen(directory / JOURNAL_DIRECTORY)
    put(journal, b"first")
    for step in steps:
        if step == "record":
            for _ in range(often):
                put(journal)
        elif step == "seal":
            journal.seal()
        else:
            journal.close()
            journal = reopen(directory / JOURNAL_DIRECTORY)
            put(journal, b"after the restart")
    journal.sync()
    check(journal, DirectoryStorage(directory))
    journal.close()


def check(journal: FileJournal, storage: DirectoryStorage) -> None:
    found = [record.sequence for record in journal.read_from(0)]
    state = storage.state()
    durable = state.durable
    assert durable is not None
    end = Offset(state.identity, state.next, durable.segment, durable.offset).as_json()
    counter = LagCounter(storage)
    for sequence in (0, *found, state.next):
        start = Offset(state.identity, sequence).as_json()
        expected = sum(1 for each in found if each >= sequence)
        lag = counter.between(start, end)
        if sequence in (0, *state.firsts, state.next) or sequence > durable.segment:
            assert lag == expected, sequence
        else:  # a part of a sealed segment
            following = min(first for first in state.firsts if first > sequence)
            whole = max(first for first in state.firsts if first <= sequence)
            records = sum(1 for each in found if whole <= each < following)
            assert expected <= lag <= expected + records
