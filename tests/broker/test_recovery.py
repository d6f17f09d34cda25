"""State after a restart: all journaled changes and nothing else."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from sluicemq.journal import FileJournal, JournalOptions
from sluicemq.journal.interface import Journal
from sluicemq.model.message import Durability
from tests.broker.machines import (
    BatchMachine,
    Machine,
    QueueMachine,
    TopicMachine,
    TransactionMachine,
    durabilities,
    indexes,
)
from tests.journal.support import skipped_syncs

OPTIONS = JournalOptions(segment_bytes=4096)
"""Small segments, so that snapshots are taken and segments removed now and then."""


@pytest.fixture(scope="module", autouse=True)
def syncs() -> Iterator[None]:
    """Skip the syncs, of which the tests request more than ten thousand."""
    with skipped_syncs():
        yield


class Restarting(Machine):
    """State machine on disk, with restarts."""

    def journal(self) -> Journal:
        self.root = Path(tempfile.mkdtemp(prefix="restore-"))
        self.directory = self.root / "0"
        self.file_journal = FileJournal.open(self.directory, OPTIONS)
        return self.file_journal

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            self.file_journal.close()
            shutil.rmtree(self.root)

    @rule(crash=st.booleans(), detach=st.booleans(), snapshot=st.booleans(), later=st.booleans())
    def restart(self, crash: bool, detach: bool, snapshot: bool, later: bool) -> None:
        if detach:
            for pair in list(self.comparison.consumers):
                self.comparison.detach(pair)
        self.comparison.flush()
        if later:
            self.comparison.advance(self.file_journal.options.flush_interval)
            self.comparison.flush()
        if snapshot:
            self.file_journal.seal()
            self.file_journal.sync()
        if crash:
            copy = self.root / str(int(self.directory.name) + 1)
            shutil.copytree(self.directory, copy)
            self.file_journal.close()
            self.directory = copy
        else:
            self.file_journal.close()
        self.file_journal = FileJournal.open(self.directory, OPTIONS)
        self.comparison.restart(self.file_journal)


class QueuesRestarting(Restarting, QueueMachine):
    pass


class TopicsRestarting(Restarting, TopicMachine):
    pass


class TransactionsRestarting(Restarting, TransactionMachine):
    @rule(
        message_indexes=st.lists(indexes, min_size=2, max_size=4),
        durability=durabilities,
        flushes=st.integers(0, 12),
        crash=st.booleans(),
        snapshot=st.booleans(),
    )
    def restart_during_commit(
        self,
        message_indexes: list[int],
        durability: Durability,
        flushes: int,
        crash: bool,
        snapshot: bool,
    ) -> None:
        pair = self.comparison.begin()
        unacked = self.pick_unacked(message_indexes[0])
        if unacked is not None:
            self.comparison.acknowledge_in(pair, *unacked)
        for index in message_indexes:
            model_message = self.comparison.model_message(3, 4, durability)
            self.comparison.publish_in(pair, self.destination(index), model_message)
        self.comparison.commit_in_slices(pair)
        for _ in range(flushes):
            self.comparison.flush()
        self.restart(crash=crash, detach=False, snapshot=snapshot, later=False)


class BatchesRestarting(Restarting, BatchMachine):
    pass


PROFILE = settings(
    max_examples=80,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)

TestQueues = QueuesRestarting.TestCase
TestQueues.settings = PROFILE

TestTopics = TopicsRestarting.TestCase
TestTopics.settings = PROFILE

TestTransactions = TransactionsRestarting.TestCase
TestTransactions.settings = PROFILE

TestBatches = BatchesRestarting.TestCase
TestBatches.settings = PROFILE
