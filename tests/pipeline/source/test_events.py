"""Every kind of record is read as by the naive reader."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicemq.journal import FileJournal, JournalOptions
from sluicemq.journal.format import Cause, RecordType
from sluicemq.model.destination import Address, Kind
from sluicemq.model.message import BodyKind, Durability, Origin
from tests.pipeline.source import support
from tests.pipeline.source.support import ORDERS, SMALL, T0, message, naive_rows, put, read

ADDRESSES = [
    ORDERS,
    Address(Kind.TOPIC, "orders"),
    Address(Kind.QUEUE, "caf\udce9 \u20ac"),
    Address(Kind.QUEUE, ""),
]


@contextmanager
def journal_in(directory: Path, options: JournalOptions = SMALL) -> Iterator[FileJournal]:
    """Open a journal, and close it as a stopping broker does."""
    journal = FileJournal.open(directory, options)
    try:
        journal.recovery.close()
        yield journal
    finally:
        journal.close()


texts = st.text(max_size=5) | st.just("\udcff!") | st.just("")
values = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 70), 1 << 70)
    | st.floats()
    | texts
    | st.binary(max_size=4)
)
messages = st.builds(
    message,
    st.binary(max_size=300),
    st.sampled_from(ADDRESSES),
    kind=st.sampled_from(BodyKind),
    origin=st.sampled_from(Origin),
    durability=st.sampled_from([Durability.NONE, Durability.LAZY, Durability.SYNC]),
    priority=st.integers(0, 9),
    timestamp=st.integers(T0 - 1000, T0 + 1000),
    arrival=st.sampled_from([0, T0]),
    expiration=st.sampled_from([0, 1, T0, (1 << 63) - 1]),
    deliver_at=st.sampled_from([0, 0, T0, (1 << 63) - 1]),
    message_id=texts,
    correlation_id=texts,
    type=texts,
    reply_to=st.none() | st.sampled_from(ADDRESSES),
    properties=st.none() | st.dictionaries(texts, values, max_size=3),
    native=st.just(b"") | st.binary(max_size=3),
)
steps = st.one_of(
    st.tuples(st.just("published"), messages),
    st.tuples(st.just("published"), messages),
    st.tuples(st.just("complete"), st.sampled_from(Cause)),
    st.tuples(st.sampled_from(["deliver", "redeliver"]), st.integers(0, 5)),
    st.tuples(st.just("requeue"), st.integers(0, 9)),
    st.tuples(st.just("depth"), st.integers(0, 1 << 40)),
    st.tuples(st.sampled_from(["seal", "number", "forget", "restart", "compact"]), st.none()),
)


def take_step(journal: FileJournal, step: str, argument: object, known: list[int]) -> None:
    recent = known[-3:]
    match step, argument:
        case "published", new_message:
            known.append(put(journal, new_message))  # type: ignore[arg-type]
        case "complete", Cause() as cause:
            support.complete(journal, recent, cause)
        case "deliver", int(count):
            support.deliver(journal, known[-count:] if count else [])
        case "redeliver", int(count):
            numbers = known[-count:] if count else []
            support.redeliver(journal, numbers, list(range(2, 2 + len(numbers))))
        case "requeue", int(attempts):
            support.requeue(journal, known[-1] if known else 1, attempts)
        case "depth", int(waiting):
            support.depth(journal, waiting)
        case "seal", _:
            journal.seal()
        case "number", _:
            journal.next_sequence()
        case "forget", _:
            journal.forget_destination(ADDRESSES[2])


@settings(max_examples=60, deadline=None)
@given(st.lists(steps, max_size=40), st.integers(0, 40))
def test_like_the_reader_of_single_records(taken: list[tuple[str, object]], place: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        journal = FileJournal.open(directory, SMALL)
        try:
            journal.recovery.close()
            sequences: list[int] = []
            for step, argument in taken:
                if step == "restart":
                    journal.close()
                    journal = FileJournal.open(directory, SMALL)
                    journal.recovery.close()
                elif step == "compact":
                    journal.compact()
                else:
                    take_step(journal, step, argument, sequences)
            journal.sync()
            expected = naive_rows(directory)
            assert read(directory) == expected
            # a part of it, and without what would need bodies
            sequence = sequences[place % len(sequences)] if sequences else 5
            selected = read(
                directory, startingoffsets=str(sequence), columns="sequence,record_index,event"
            )
            assert [row["sequence"] for row in selected] == [
                row["sequence"] for row in expected if row["sequence"] >= sequence
            ]
        finally:
            journal.close()


def test_empty_journal_has_no_rows(tmp_path: Path) -> None:
    with journal_in(tmp_path):
        assert read(tmp_path) == []


def test_directory_without_journal_is_error(tmp_path: Path) -> None:
    assert read(tmp_path) == []


def test_reads_one_record(tmp_path: Path) -> None:
    with journal_in(tmp_path) as journal:
        sequence = put(journal, message(b"only"))
        journal.sync()
        (row,) = read(tmp_path)
        assert (row["sequence"], row["body"], row["destination"]) == (sequence, b"only", "orders")


def test_data_directory_stands_for_journal_in_it(tmp_path: Path) -> None:
    with journal_in(tmp_path / "journal") as journal:
        put(journal)
        journal.sync()
        assert len(read(tmp_path)) == len(read(tmp_path / "journal")) == 1


def test_two_journals_read_by_one_process_are_not_mixed_up(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        with journal_in(tmp_path / name) as journal:
            put(journal, message(address=Address(Kind.QUEUE, name)))
            journal.sync()
            (row,) = read(tmp_path / name)
            assert row["destination"] == name


def test_nothing_is_read_beyond_durable_end(tmp_path: Path) -> None:
    with journal_in(tmp_path) as journal:
        put(journal)
        journal.sync()
        put(journal)
        journal.commit(sync=False)  # written, but a crash of the machine could take it back
        assert len(read(tmp_path)) == 1


def test_reads_large_body(tmp_path: Path) -> None:
    body = bytes(range(256)) * (70 << 12)
    with journal_in(tmp_path, JournalOptions()) as journal:
        put(journal)
        put(journal, message(body))
        put(journal)
        journal.sync()
        for _ in range(2):  # while it is written, and sealed
            assert [row["body"] == body for row in read(tmp_path)] == [False, True, False]
            journal.seal()
            journal.sync()


def test_many_destinations_take_little_memory(tmp_path: Path) -> None:
    # fewer here; what would make a difference is a search that is repeated per row
    count = 30_000
    with journal_in(tmp_path, JournalOptions()) as journal:
        for number in range(count):
            put(journal, message(b"", Address(Kind.QUEUE, f"d{number}")))
        journal.seal()
        journal.sync()
        rows = read(tmp_path, columns="destination")
        assert [row["destination"] for row in rows] == [f"d{number}" for number in range(count)]
        assert len(read(tmp_path, destinations="d1234*", columns="destination")) == 11


def test_relocated_records_are_read_once(tmp_path: Path) -> None:
    with journal_in(tmp_path, JournalOptions()) as journal:
        journal.set_snapshot_source(lambda: b"")
        kept_sequence = put(journal, message(b"kept", timestamp=T0 + 5, origin=Origin.JMQ))
        # a prepared transaction is moved, too, and is no message
        journal.append_entry(RecordType.TRANSACTION_PREPARED, b"transaction", T0, references=1)
        acknowledged = [put(journal) for _ in range(50)]
        support.complete(journal, acknowledged)
        journal.seal()
        journal.sync()
        journal.compact()
        support.deliver(journal, [kept_sequence, acknowledged[0]])
        journal.sync()
        moved_row, kept_row, gone_row = read(tmp_path)
        assert (moved_row["event"], moved_row["message_sequence"], moved_row["body"]) == (
            "relocated",
            kept_sequence,
            b"kept",
        )
        assert (kept_row["message_sequence"], kept_row["protocol"]) == (kept_sequence, "jmq")
        assert kept_row["published"] == moved_row["time"] == support.moment((T0 + 5) * 1000)
        assert (gone_row["message_sequence"], gone_row["protocol"], gone_row["published"]) == (
            acknowledged[0],
            None,
            None,
        )


@pytest.mark.parametrize("sealed", [False, True])
def test_long_lists_make_several_batches(tmp_path: Path, sealed: bool) -> None:
    with journal_in(tmp_path, JournalOptions()) as journal:
        first = put(journal)
        numbers = list(range(first, first + 20_000))
        support.redeliver(journal, numbers, [number % 9 for number in numbers])
        if sealed:
            journal.seal()
        journal.sync()
        rows = read(tmp_path, events="redelivered")
        assert [row["message_sequence"] for row in rows] == numbers
        assert [row["attempts"] for row in rows] == [number % 9 for number in numbers]
        assert [row["record_index"] for row in rows] == list(range(20_000))
