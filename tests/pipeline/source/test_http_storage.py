"""Rows read over HTTP equal those read from the directory."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from sluicemq.cli.local import LocalBroker
from sluicemq.clients.http import target
from sluicemq.journal import JournalOptions
from sluicemq.model.destination import Address, Kind
from sluicemq.model.errors import ConfigurationError, JournalError
from sluicemq.pipeline.source import http_storage
from sluicemq.pipeline.source.http_storage import HttpStorage
from sluicemq.pipeline.source.journal_storage import DirectoryStorage
from sluicemq.pipeline.source.lag import LagCounter
from sluicemq.pipeline.source.offsets import Offset
from tests.pipeline.source import support
from tests.pipeline.source.support import message, naive_rows, put, read, reader_of, table_of
from tests.pipeline.source.test_events import journal_in
from tests.pipeline.source.test_stream import batch, stream_of
from tests.protocols.sockets import unused_port

LISTEN = ("http://127.0.0.1:0",)
NAMELESS = Address(Kind.QUEUE, "caf\udce9")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    """A broker whose journal has sealed segments, some of several ranges, and an open one."""
    directory = tmp_path_factory.mktemp("remote")
    with journal_in(directory / "journal", JournalOptions(segment_bytes=1 << 20)) as journal:
        sequences = []
        for number in range(3000):
            address = NAMELESS if number % 100 == 7 else support.ORDERS
            body = bytes(1000 if number % 500 else 100_000)
            sequences.append(put(journal, message(body, address, message_id=f"m{number}")))
            if number % 100 == 99:
                support.deliver(journal, sequences[-100:])
                support.redeliver(journal, sequences[-3:], [2, 3, 4])
                support.requeue(journal, sequences[-1], 5)
                support.depth(journal, number)
                journal.sync()
    with LocalBroker(directory, LISTEN) as broker:
        yield broker


@pytest.fixture(scope="module")
def url(broker: LocalBroker) -> str:
    return f"http://127.0.0.1:{broker.port('http')}"


def until_now(broker: LocalBroker) -> dict[str, str]:
    """Return options that end the read now, because the broker continues to write depth events."""
    return {"endingoffsets": str(DirectoryStorage(broker.directory).state().next)}


def place_at(url: str) -> HttpStorage:
    return HttpStorage(target({"url": url}))


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"includeheaders": "false", "columns": "sequence,destination,message_sequence,attempts"},
        {"destinations": "caf*"},
        {"events": "redelivered,depth"},
        {"startingoffsets": "1700", "endingoffsets": "1900"},
        {"columns": "published,protocol", "events": "delivered"},
    ],
    ids=str,
)
def test_rows_equal_those_of_directory(
    broker: LocalBroker, url: str, given: dict[str, str]
) -> None:
    given = {**until_now(broker), **given}
    rows = read(url, **given)
    assert rows == read(broker.directory, **given)
    assert rows


def test_all_rows_equal_those_of_directory(broker: LocalBroker, url: str) -> None:
    now = until_now(broker)
    end = int(now["endingoffsets"])
    rows = naive_rows(broker.directory / "journal", lambda row: row["sequence"] < end)
    assert read(url, **now) == rows


def test_identity_equals_that_of_directory(broker: LocalBroker, url: str) -> None:
    assert place_at(url).state().identity == DirectoryStorage(broker.directory).state().identity


def test_only_selected_bytes_are_fetched(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched = []
    fetch = HttpStorage.read_range

    def counting(self: HttpStorage, first: int, start: int, stop: int) -> bytes:
        fetched.append(stop - start)
        return fetch(self, first, start, stop)

    monkeypatch.setattr(HttpStorage, "read_range", counting)
    all_rows = table_of(reader_of(url, events="published"))
    total = sum(fetched)
    assert max(fetched) <= http_storage.RANGE_BYTES
    fetched.clear()
    selected = table_of(reader_of(url, events="published", destinations="caf*"))
    assert 0 < selected.num_rows < all_rows.num_rows / 50
    assert sum(fetched) < total / 3  # nearly all that is left is of the one without an index


def test_credentials_are_not_printed(url: str) -> None:
    url_with_credentials = url.replace("//", "//ada:s3cret@")
    for reader in (
        reader_of(url, user="ada", password="s3cret"),
        reader_of(url, token="s3cret"),
        reader_of(url_with_credentials),
    ):
        assert "s3cret" not in repr(reader._options) + repr(reader._reading)


def test_slots_over_http(broker: LocalBroker, url: str) -> None:
    storage = place_at(url)
    assert storage.ensure_slot("remote", 5, 1 << 20).position == 5
    assert storage.ensure_slot("remote", 9, None).position == 5
    assert storage.advance_slot("remote", 12) == 12
    assert storage.advance_slot("remote", 3) == 12
    slot = DirectoryStorage(broker.directory).ensure_slot("remote", 0, None)
    assert (slot.position, slot.limit_bytes, slot.lost) == (12, 1 << 20, False)


def test_claimed_slot_has_one_holder(broker: LocalBroker, url: str) -> None:
    local, remote = DirectoryStorage(broker.directory), place_at(url)
    for _ in range(2):
        remote.claim_slot("writer", "first", 60_000)
    for storage in (local, remote):
        with pytest.raises(JournalError, match="the slot writer is held by first until"):
            storage.claim_slot("writer", "second", 60_000)
    remote.claim_slot("writer", "first", 0)
    local.claim_slot("writer", "second", 60_000)


@pytest.mark.parametrize("url", ["localhost:7680", "ftp://localhost", "http://localhost:99999"])
def test_invalid_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"url|port"):
        place_at(url)


def test_streams_over_http(broker: LocalBroker, url: str) -> None:
    stream = stream_of(url, maxoffsetspertrigger="700")
    stream.prepareForTriggerAvailableNow()
    start = stream.initialOffset()
    end = stream.reportLatestOffset()["sequence"]
    rows = []
    while (stop := stream.latestOffset(start, ReadMaxRows(700))) != start:
        rows.append(batch(stream, start, stop))
        start = stop
    journal = broker.directory / "journal"
    expected = naive_rows(journal, lambda row: row["sequence"] < start["sequence"])
    assert start["sequence"] >= end - 1
    assert [row for part in rows for row in part] == expected
    assert all(600 <= len(part) <= 700 for part in rows[:-1])


def test_lag_equals_that_of_directory(
    broker: LocalBroker, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched = []
    fetch = HttpStorage.read_range

    def counting(self: HttpStorage, first: int, start: int, stop: int) -> bytes:
        fetched.append(stop - start)
        return fetch(self, first, start, stop)

    monkeypatch.setattr(HttpStorage, "read_range", counting)
    monkeypatch.setattr(time, "time", lambda: 2_000_000_000.0)
    local = DirectoryStorage(broker.directory)
    state = local.state()
    storage = place_at(url)
    remote, local_counter, remote_state = LagCounter(storage), LagCounter(local), storage.state()
    for sequence in (state.segments[0], state.segments[1] - 5, state.segments[-1], state.next):
        fetched.clear()
        lag = remote.lag(Offset(state.identity, sequence), remote_state)
        assert lag == local_counter.lag(Offset(state.identity, sequence), state)
        assert (lag.bytes > 0) == (sequence < state.next)
        if sequence < state.segments[-1]:
            assert sum(fetched) < 10_000  # neither bodies nor, a second time, an index


def test_read_survives_broker_restart(tmp_path: Path) -> None:
    port = unused_port()
    with journal_in(tmp_path / "journal") as journal:
        put(journal)
    broker = LocalBroker(tmp_path, (f"http://127.0.0.1:{port}",))
    with broker:
        storage = place_at(f"http://127.0.0.1:{port}")
        before = storage.state()
        broker.kill()
        starter = threading.Thread(target=broker.start)
        starter.start()
        after = storage.state()  # the broker does not listen yet
        starter.join()
        assert after.identity == before.identity
        assert after.next > before.next
