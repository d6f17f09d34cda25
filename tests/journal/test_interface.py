"""The journal interface, on disk and in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest

from sluicemq.journal import Cause, FileJournal, Journal, MemoryJournal, RecordType
from sluicemq.model.destination import Address, Kind
from sluicemq.model.errors import JournalError, JournalFailed, RecordNotFound
from tests.journal.support import ORDERS, T0, TINY, make_message
from tests.support.journal import RecordingJournal, read_from

Flush = Callable[[], None]


@pytest.fixture(params=["file", "memory"])
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Journal]:
    new_journal: Journal = (
        FileJournal.open(tmp_path, TINY) if request.param == "file" else RecordingJournal()
    )
    yield new_journal
    new_journal.close()


def flush(journal: Journal) -> None:
    if isinstance(journal, FileJournal):
        journal.sync()
    else:
        journal.commit()


def put(journal: Journal, body: bytes = b"x", references: int = 1) -> int:
    number = journal.destination_number(ORDERS)
    return journal.append_message(make_message(body), number, references)


def test_sequence_numbers_ascend_over_all_records(journal: Journal) -> None:
    numbers = [put(journal), journal.next_sequence(), put(journal)]
    numbers.append(journal.append_entry(RecordType.DESTINATION_SETTINGS, b"s", T0))
    numbers.append(journal.append_completed(1, 1, Cause.ACKNOWLEDGED, numbers[:1], T0))
    assert numbers == sorted(set(numbers))


def test_appended_message_has_sequence_and_can_be_fetched(journal: Journal) -> None:
    message = make_message(b"body", properties={"a": 1}, correlation_id="c", priority=9)
    sequence = journal.append_message(message, journal.destination_number(ORDERS))
    assert message.sequence == sequence
    for _ in range(2):  # once before it is durable, once after
        fetched = journal.fetch(sequence)
        assert (fetched.sequence, fetched.body, fetched.destination) == (sequence, b"body", ORDERS)
        assert (fetched.properties, fetched.correlation_id, fetched.priority) == ({"a": 1}, "c", 9)
        flush(journal)


def test_durable_moves_forward_and_is_reported_with_every_group(journal: Journal) -> None:
    reports: list[int] = []
    journal.observe(on_durable=reports.append)
    for _ in range(3):
        sequence = put(journal)
        assert journal.durable < sequence
        flush(journal)
        assert journal.durable >= sequence
        assert reports[-1] == journal.durable
    assert reports == sorted(set(reports))


def test_numbers_without_records_become_durable(journal: Journal) -> None:
    sequence = journal.next_sequence()
    flush(journal)
    assert journal.durable >= sequence


def test_unit_is_not_written_before_its_end(journal: Journal) -> None:
    number = journal.destination_number(ORDERS)
    flush(journal)
    first = journal.append_message(make_message(), number, last=False)
    flush(journal)
    assert journal.durable < first
    journal.destination_number(Address(Kind.QUEUE, "made within the unit"))
    flush(journal)
    assert journal.durable < first
    last = journal.append_message(make_message(), number)
    flush(journal)
    assert journal.durable >= last


def test_destination_numbers_are_stable_and_never_reused(journal: Journal) -> None:
    topic = Address(Kind.TOPIC, "orders")
    number = journal.destination_number(ORDERS)
    assert journal.destination_number(topic) != number
    assert journal.destination_number(ORDERS) == number
    assert journal.addresses[number] == ORDERS
    journal.forget_destination(ORDERS)
    assert number not in journal.addresses
    assert journal.destination_number(ORDERS) not in (number, journal.destination_number(topic))
    journal.forget_destination(Address(Kind.QUEUE, "never seen"))


def assert_gone_without_disk(journal: Journal, sequence: int) -> None:
    """Check that the journal in memory drops a message with its last reference."""
    if isinstance(journal, MemoryJournal):
        with pytest.raises(RecordNotFound):
            journal.fetch(sequence)


def test_retained_messages_outlive_their_completion(journal: Journal) -> None:
    sequence = put(journal)
    flush(journal)
    journal.retain(sequence, 2)
    journal.append_completed(1, 1, Cause.ACKNOWLEDGED, [sequence], T0)
    journal.release(sequence)
    assert journal.fetch(sequence).body == b"x"
    journal.release(sequence)
    journal.release(sequence)
    assert_gone_without_disk(journal, sequence)


def test_release_is_not_final_while_completion_is_pending(journal: Journal) -> None:
    sequence = put(journal)
    journal.retain(sequence)
    journal.release(sequence)
    assert journal.fetch(sequence).body == b"x"


def test_message_without_acks_may_still_be_retained(journal: Journal) -> None:
    sequence = put(journal, references=0)
    journal.observe(on_durable=lambda _: journal.retain(sequence))
    flush(journal)
    assert journal.fetch(sequence).body == b"x"
    journal.release(sequence)
    assert_gone_without_disk(journal, sequence)


def test_unknown_numbers_are_refused(journal: Journal) -> None:
    with pytest.raises(RecordNotFound):
        journal.fetch(10**12)
    with pytest.raises(RecordNotFound):
        journal.retain(10**12)
    with pytest.raises(RecordNotFound):
        journal.fetch(journal.next_sequence())
    journal.release(10**12)
    journal.append_completed(1, 1, Cause.ACKNOWLEDGED, [10**12], T0)


def test_prepared_entry_is_live_until_it_is_resolved(journal: Journal) -> None:
    prepared = journal.append_entry(RecordType.TRANSACTION_PREPARED, b"xid", T0, references=1)
    flush(journal)
    assert journal.fetch_entry(prepared).body == b"xid"
    with pytest.raises(RecordNotFound):
        journal.fetch(prepared)
    before = journal.stats().live
    journal.append_entry(RecordType.TRANSACTION_RESOLVED, b"", T0, reference=prepared)
    assert journal.stats().live == before - 1


def test_reading_returns_durable_records_in_order(journal: Journal) -> None:
    start = put(journal, b"a")
    put(journal, b"b", references=300)
    journal.append_completed(7, 1, Cause.EXPIRED, [start], T0)
    flush(journal)
    put(journal, b"not yet durable")
    records = [r for r in read_from(journal, start) if r.type != RecordType.SNAPSHOT]
    assert [r.type for r in records] == [
        RecordType.MESSAGE,
        RecordType.MESSAGE,
        RecordType.COMPLETED,
    ]
    assert [r.body for r in records[:2]] == [b"a", b"b"]
    assert records[1].references == 300
    assert (records[2].kind, records[2].subscription) == (Cause.EXPIRED, 7)
    assert records[2].sequences == [start]


def test_purge_may_take_several_records(journal: Journal) -> None:
    sequences = [put(journal, b"") for _ in range(66_000)]
    journal.append_completed(1, 1, Cause.PURGED, sequences, T0)
    assert journal.stats().live == 0
    flush(journal)
    purged = [
        s
        for r in read_from(journal, sequences[-1] + 1)
        if r.type == RecordType.COMPLETED
        for s in r.sequences
    ]
    assert purged == sequences


def test_too_many_references_are_refused_without_effect(journal: Journal) -> None:
    before = journal.stats().live
    with pytest.raises(JournalError, match="references"):
        put(journal, references=70_000)
    assert journal.stats().live == before


def test_closing_is_idempotent(journal: Journal) -> None:
    put(journal)
    journal.close()
    journal.close()
    with pytest.raises(JournalFailed):
        put(journal)


def test_group_holds_records_appended_before_its_request(tmp_path: Path) -> None:
    """Otherwise a message sent at the beginning of an iteration could be on disk without earlier
    acknowledgements, which are appended at the end of the iteration."""
    done: SimpleQueue[Callable[[], None]] = SimpleQueue()
    journal = FileJournal.open(tmp_path, notify=done.put)
    first = put(journal, b"first")
    journal.commit()
    put(journal, b"in a turn that ends while the group is written")
    journal.commit()
    early = put(journal, b"early in a turn")
    while journal.durable < first:
        done.get(timeout=10)()
    late_sequence = put(journal, b"late in the same turn")
    journal.commit()
    while journal.durable < late_sequence:
        assert journal.durable < early
        done.get(timeout=10)()
    journal.close()
