"""The lock and the lease of the process that writes a broker's events."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from pyspark.sql import SparkSession

from sluicemq.journal import FileJournal, Slots
from sluicemq.model.errors import ClientError, ConfigurationError, ConnectionLost, JournalError
from sluicemq.pipeline.jobs import run
from sluicemq.pipeline.jobs.lake import Lake
from sluicemq.pipeline.jobs.run import PipelineJob, Supervisor, writer_lease
from sluicemq.pipeline.source.journal_storage import DirectoryStorage
from tests.pipeline.source.support import SMALL, message, put
from tests.support.polling import wait_until

S3 = Lake("s3a://bucket/lake")


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[FileJournal]:
    journal = FileJournal.open(tmp_path / "journal", SMALL)
    put(journal, message(b"1"))
    journal.sync()
    yield journal
    journal.close()


@pytest.fixture
def storage(journal: FileJournal, tmp_path: Path) -> DirectoryStorage:
    return DirectoryStorage(tmp_path)


def use(storage: DirectoryStorage, lake: Lake = S3) -> None:
    with writer_lease(lake, storage, threading.Event()):
        pass


def test_second_writer_is_refused_with_name_of_first(
    journal: FileJournal, storage: DirectoryStorage
) -> None:
    with writer_lease(S3, storage, threading.Event()):
        ((name, slot),) = journal.slots.list().items()
        assert name.startswith("writer-")
        text = f"main to the lake s3a://bucket/lake, and .*{name} is held by process .* until 20"
        with pytest.raises(JournalError, match=text) as raised:
            use(storage)
        assert slot.holder in str(raised.value)
        use(storage, Lake("s3a://bucket/another"))
    use(storage)


def test_lake_in_directory_has_one_writer_per_broker(tmp_path: Path) -> None:
    """A second one could remove the checkpoint of the first, and add its last batch again."""
    lake = Lake(tmp_path / "lake", broker="b")
    job = PipelineJob(source={"path": str(tmp_path)}, lake=Lake(tmp_path / "lake", broker="b"))
    second = Supervisor(cast(SparkSession, None), job)
    text = "another process writes the events of the broker b to the lake .*lake"
    with lake.write_lock():
        with pytest.raises(ConfigurationError, match=text):
            second.run(None)
        with Lake(tmp_path / "lake", broker="c").write_lock():
            pass
        with Lake(tmp_path / "other", broker="b").write_lock():
            pass
    with lake.write_lock():
        pass


def test_lease_of_killed_writer_ends(
    journal: FileJournal, storage: DirectoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    with writer_lease(S3, storage, threading.Event()):
        (name,) = journal.slots.list()
    storage.claim_slot(name, "killed", run.LEASE_MS)
    with pytest.raises(JournalError, match="killed"):
        use(storage)
    lease_end = time.time_ns() // 1_000_000 + run.LEASE_MS
    monkeypatch.setattr("sluicemq.journal.slots.now_ms", lambda: lease_end)
    use(storage)


@pytest.mark.parametrize("location", ["s3a://bucket/lake", "gs://bucket/lake", "hdfs://host/lake"])
def test_lake_outside_directories_has_one_pipeline_per_broker(
    tmp_path: Path, storage: DirectoryStorage, location: str
) -> None:
    """Two pipelines could remove each other's checkpoints, and add a batch again."""
    job = PipelineJob(source={"path": str(tmp_path)}, lake=Lake(location))
    with (
        writer_lease(Lake(location), storage, threading.Event()),
        pytest.raises(JournalError, match="another process writes the events of the broker"),
    ):
        Supervisor(cast(SparkSession, None), job).run(None)


def test_lease_is_renewed_and_its_loss_stops_writer(
    tmp_path: Path,
    journal: FileJournal,
    storage: DirectoryStorage,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run, "LEASE_MS", 3000)
    slots = Slots(tmp_path / "journal")

    def lose() -> None:
        stop = threading.Event()
        with writer_lease(S3, storage, stop):
            ((name, first),) = slots.list().items()
            wait_until(lambda: slots.get(name).until > first.until + 300)
            assert not stop.is_set()
            slots.delete(name)
            slots.claim(name, "another", 0, 60_000)
            assert stop.wait(10)

    with pytest.raises(JournalError, match="is held by another until"):
        lose()
    assert [slot.holder for slot in slots.list().values()] == ["another"]


@pytest.mark.parametrize("error", [ClientError("no answer"), OSError(errno.ENOSPC, "disk full")])
def test_lease_that_cannot_be_renewed_stops_writer_before_it_ends(
    storage: DirectoryStorage, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(run, "LEASE_MS", 300)

    def unreachable(*_: object) -> None:
        raise error

    def lose() -> None:
        stop = threading.Event()
        with writer_lease(S3, storage, stop):
            monkeypatch.setattr(storage, "claim_slot", unreachable)
            assert stop.wait(10)

    with pytest.raises(type(error), match=r"no answer|disk full"):
        lose()


def test_lease_whose_renewal_takes_too_long_stops_writer_before_it_ends(
    storage: DirectoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request to a broker that does not answer is repeated for a minute.

    The writer ends without waiting for it."""
    monkeypatch.setattr(run, "LEASE_MS", 300)
    answered = threading.Event()

    def wait(*_: object) -> None:
        answered.wait(10)

    def lose() -> None:
        stop = threading.Event()
        with writer_lease(S3, storage, stop):
            monkeypatch.setattr(storage, "claim_slot", wait)
            assert stop.wait(2)

    with pytest.raises(ConnectionLost, match=r"was not extended for 0\.2 s"):
        lose()
    (pending,) = (thread for thread in threading.enumerate() if thread.name == "lease")
    answered.set()
    pending.join()
