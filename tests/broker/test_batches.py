"""Exactly-once batches: repetitions, conflicts and refusals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from sluicemq.broker import BatchPart, Broker, EngineSettings, ManualClock
from sluicemq.broker.batches import RETENTION_MS
from sluicemq.broker.codec import EngineState, WriterState, decode_batch, decode_state, encode
from sluicemq.broker.recovery import recover, snapshot
from sluicemq.journal import FileJournal
from sluicemq.journal.format import UNIT_END, RecordType
from sluicemq.model.destination import Address, Kind, Overflow
from sluicemq.model.errors import (
    BatchConflict,
    BatchRefused,
    BrokerStopping,
    DestinationNotFound,
    JournalDamaged,
    LimitExceeded,
    MessageTooLarge,
)
from sluicemq.model.message import Durability, Message
from sluicemq.model.rows import DIGEST_MASK
from tests.support.broker import BrokerFixture, bodies
from tests.support.journal import RecordingJournal, read_from

QUEUE = Address(Kind.QUEUE, "q")
FIRST_PART = BatchPart("query", 0, 0, 0, True, 11, 1)
Rows = list[tuple[Address, Message]]


def rows(
    *texts: str, to: Address = QUEUE, durability: Durability = Durability.SYNC, body: bytes = b""
) -> Rows:
    return [(to, Message(to, body or text.encode(), durability=durability)) for text in texts]


class RestartableBroker:
    """A broker on disk that can be restarted on its directory."""

    def __init__(self, directory: Path, settings: EngineSettings | None = None) -> None:
        self.directory = directory
        self.settings = settings
        self.clock = ManualClock()
        self.start()

    def start(self) -> None:
        self.journal = FileJournal.open(self.directory)
        self.broker = Broker(self.journal, self.clock, self.settings)
        broker = self.broker
        self.journal.set_snapshot_source(lambda: snapshot(broker))
        recover(broker, self.journal.recovery)

    def write(self, part: BatchPart, *texts: str) -> bool:
        """Write a part; return False if it already existed."""
        result = self.broker.batches.write(part, rows(*texts))
        self.sync()
        return not result.is_repeat

    def sync(self) -> None:
        for _ in range(2):
            self.broker.flush()
            self.journal.sync()

    def restart(self, *, sealed: bool = False) -> None:
        if sealed:
            self.journal.seal()
            self.sync()
        self.journal.close()
        self.start()

    def waiting(self) -> list[str]:
        deliveries = self.broker.destinations.queue("q").queue.browse()
        return [self.broker.core.read(delivery).body.decode() for delivery in deliveries]


@pytest.fixture
def restartable(tmp_path: Path) -> Iterator[RestartableBroker]:
    restartable = RestartableBroker(tmp_path)
    yield restartable
    restartable.journal.close()


def test_part_is_one_unit_and_visible_when_durable() -> None:
    fixture = BrokerFixture(journal=RecordingJournal())
    queue = fixture.broker.destinations.queue("q")
    counts: list[int] = []
    messages = rows("a") + rows("b", durability=Durability.LAZY)
    messages += rows("c", durability=Durability.NONE) + rows("d", to=Address(Kind.QUEUE, "new"))
    result = fixture.broker.batches.write(replace(FIRST_PART, rows=4), messages)
    assert not result.is_repeat
    assert fixture.journal.durable < result.sequence
    fixture.broker.when_durable(result.sequence, lambda: counts.append(queue.waiting))
    assert counts == []
    repeated = fixture.broker.batches.write(replace(FIRST_PART, rows=4), messages)
    assert (repeated.is_repeat, repeated.sequence) == (True, result.sequence)
    fixture.broker.flush()
    assert counts == [3]
    assert sorted(bodies(queue)) == ["a", "b", "c"]
    records = list(read_from(fixture.journal, 0))
    unit = [r for r in records if r.type in (RecordType.MESSAGE, RecordType.BATCH_PART)]
    assert [r.type for r in unit] == [RecordType.MESSAGE] * 3 + [RecordType.BATCH_PART]
    assert [bool(r.flags & UNIT_END) for r in unit] == [False] * 3 + [True]
    assert [r.sequence for r in unit] == [unit[0].sequence + n for n in (0, 1, 3, 4)]
    assert decode_batch(unit[-1].body) == replace(FIRST_PART, rows=4)
    assert fixture.broker.destinations.find(QUEUE).statistics.published == 3  # type: ignore[union-attr]


@pytest.mark.parametrize("sealed", [False, True], ids=["replay", "snapshot"])
def test_written_parts_are_known_after_restart(
    restartable: RestartableBroker, sealed: bool
) -> None:
    assert restartable.write(FIRST_PART, "a")
    parts = [BatchPart("query", 1, 5, part, part == 2, 20 + part, 1) for part in range(3)]
    assert restartable.write(parts[0], "b")
    restartable.restart(sealed=sealed)
    assert restartable.waiting() == ["a", "b"]
    assert not restartable.write(FIRST_PART, "older than the latest batch")
    assert not restartable.write(parts[0], "b")
    with pytest.raises(BatchConflict, match="order"):
        restartable.write(replace(parts[0], digest=99), "x")
    assert restartable.write(parts[1], "c")
    assert restartable.write(parts[2], "d")
    restartable.restart(sealed=sealed)
    assert not restartable.write(parts[2], "d")
    for changes in ({"rows": 2, "digest": 63}, {"rows": 3, "digest": 64}):
        with pytest.raises(BatchConflict, match="not the 3 rows"):
            restartable.write(replace(parts[2], part=0, **changes), "d")
    assert not restartable.write(replace(parts[2], part=0, rows=3, digest=63), "b", "c", "d")
    assert restartable.waiting() == ["a", "b", "c", "d"]


def test_parts_in_and_after_snapshot_are_both_restored(restartable: RestartableBroker) -> None:
    assert restartable.write(BatchPart("query", 3, 0, 0, False, 1, 1), "a")
    restartable.journal.seal()
    restartable.sync()
    assert restartable.write(BatchPart("query", 3, 0, 1, True, 2, 1), "b")
    assert restartable.write(BatchPart("query", 3, 1, 0, True, 2, 1), "c")
    restartable.restart()
    assert restartable.write(BatchPart("query", 3, 2, 0, True, 2, 1), "d")
    assert not restartable.write(BatchPart("query", 3, 0, 0, True, 3, 2), "a", "b")
    with pytest.raises(BatchConflict, match="not the 1 rows"):
        restartable.write(BatchPart("query", 3, 1, 0, True, 2, 2), "c", "x")


def test_complete_partition_may_come_in_another_order_but_not_with_other_rows() -> None:
    broker = BrokerFixture().broker
    # digests add up modulo 2^64: to 8, here and below
    digests = (DIGEST_MASK - 5, 7, 7)
    parts = [BatchPart("w", 0, 0, part, part == 2, digests[part], 10) for part in range(3)]
    for part in parts:
        assert not broker.batches.write(part, []).is_repeat
    recut_parts = [replace(parts[n], digest=(1, 3, 4)[n], rows=12 - 2 * n) for n in range(3)]
    assert all(broker.batches.write(part, rows("x")).is_repeat for part in recut_parts)
    recut_parts[2] = replace(recut_parts[2], rows=9)
    assert broker.batches.write(recut_parts[0], rows("x")).is_repeat
    assert broker.batches.write(recut_parts[1], rows("x")).is_repeat
    for _ in range(2):  # the first response was lost
        with pytest.raises(BatchConflict, match="not the 30 rows"):
            broker.batches.write(recut_parts[2], rows("x"))
    assert broker.batches.write(parts[0], rows("x")).is_repeat
    with pytest.raises(BatchConflict, match="not the 30 rows"):
        broker.batches.write(replace(parts[1], final=True), rows("x"))
    assert broker.destinations.queue("q").waiting == 0


def test_equal_number_of_other_rows_is_conflict() -> None:
    broker = BrokerFixture().broker
    assert not broker.batches.write(FIRST_PART, rows("a")).is_repeat
    with pytest.raises(BatchConflict, match="Write other rows as another batch"):
        broker.batches.write(replace(FIRST_PART, digest=12), rows("b"))
    assert broker.batches.write(FIRST_PART, rows("a")).is_repeat


def test_last_part_of_repetition_alone_is_accepted() -> None:
    """The broker was restarted in the middle of the repetition."""
    broker = BrokerFixture().broker
    for part in range(2):
        broker.batches.write(BatchPart("w", 0, 0, part, part == 1, part, 10), [])
    assert broker.batches.write(BatchPart("w", 0, 0, 1, True, 8, 4), rows("x")).is_repeat


def test_large_part_numbers_cost_neither_time_nor_memory() -> None:
    broker = BrokerFixture().broker
    broker.batches.write(FIRST_PART, rows("a"))
    for number in ((1 << 31) - 1, (1 << 32) - 1):
        assert broker.batches.write(replace(FIRST_PART, part=number), rows("a")).is_repeat
    [writer] = broker.batches.writers.values()
    assert writer.repeated == {}


def test_parts_out_of_order_are_conflicts() -> None:
    broker = BrokerFixture().broker
    with pytest.raises(BatchConflict, match="only 0 parts"):
        broker.batches.write(BatchPart("w", 0, 0, 1, True, 0, 1), rows("x"))
    broker.batches.write(BatchPart("w", 0, 0, 0, False, 0, 1), rows("a"))
    with pytest.raises(BatchConflict, match="order"):
        broker.batches.write(BatchPart("w", 0, 0, 0, True, 0, 1), rows("a"))
    with pytest.raises(BatchConflict, match="only 1 parts"):
        broker.batches.write(BatchPart("w", 0, 0, 2, False, 0, 1), rows("x"))
    with pytest.raises(BatchConflict, match="only 0 parts"):
        broker.batches.write(BatchPart("w", 1, 0, 1, False, 0, 1), rows("x"))
    assert broker.batches.write(BatchPart("w", 0, 0, 0, False, 0, 1), rows("a")).is_repeat


# --- refusals ------------------------------------------------------------------------------------


def test_every_refusal_is_reported_and_nothing_is_published() -> None:
    fixture = BrokerFixture(EngineSettings(auto_create_topics=False, memory_limit=0))
    fixture.queue("full", max_messages=1)
    fixture.queue("small", max_message_bytes=3)
    full_queue, small_queue = Address(Kind.QUEUE, "full"), Address(Kind.QUEUE, "small")
    fixture.send(fixture.broker.destinations.queue("full"), "there")
    messages = rows("fine") + rows("x", to=full_queue) + rows("long", to=small_queue)
    messages += rows("x", to=Address(Kind.TOPIC, "t")) + rows("x", durability=Durability.NONE)
    fixture.broker.core.memory += 1
    refusals = fixture.broker.batches.check(messages)
    assert [(refusal.row, refusal.is_temporary, type(refusal.error)) for refusal in refusals] == [
        (1, True, LimitExceeded),
        (2, False, MessageTooLarge),
        (3, False, DestinationNotFound),
        (4, True, LimitExceeded),
    ]
    before = fixture.journal.next_sequence()
    with pytest.raises(BatchRefused, match="4 of 5 messages are refused; the first, at 1") as error:
        fixture.broker.batches.write(FIRST_PART, messages)
    assert [refusal.row for refusal in error.value.refused] == [1, 2, 3, 4]
    assert fixture.journal.next_sequence() == before + 1
    assert not fixture.broker.batches.write(FIRST_PART, messages[:1]).is_repeat


def test_part_larger_than_limit_is_accepted_below_limit() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(max_messages=2)
    fixture.broker.batches.write(FIRST_PART, rows("a", "b", "c", "d"))
    fixture.broker.flush()
    assert queue.waiting == 4
    refusals = fixture.broker.batches.check(rows("e"))
    assert [refusal.is_temporary for refusal in refusals] == [True]


def test_overflowing_messages_become_dead_letters_in_same_unit() -> None:
    fixture = BrokerFixture(journal=RecordingJournal())
    queue = fixture.queue(max_messages=1, overflow=Overflow.DEAD_LETTER, dead_letter=True)
    fixture.send(queue, "there")
    assert fixture.broker.batches.check(rows("over")) == []
    assert queue.statistics.dead_lettered == 0
    start = fixture.journal.durable + 1
    fixture.broker.batches.write(FIRST_PART, rows("over"))
    fixture.broker.flush()
    assert [message.body for message in fixture.dead_letters()] == [b"over"]
    assert queue.statistics.dead_lettered == 1
    # records of the dead-letter queue, which precede the unit
    created_types = (RecordType.DESTINATION_CREATED, RecordType.DESTINATION_SETTINGS)
    unit = [r for r in read_from(fixture.journal, start) if r.type not in created_types]
    assert [r.type for r in unit] == [RecordType.MESSAGE, RecordType.BATCH_PART]


def test_stopping_broker_refuses_batches_but_answers_repetitions() -> None:
    fixture = BrokerFixture()
    fixture.broker.batches.write(FIRST_PART, rows("a"))
    fixture.broker.stop()
    assert fixture.broker.batches.write(FIRST_PART, rows("a")).is_repeat
    with pytest.raises(BrokerStopping):
        fixture.broker.batches.write(replace(FIRST_PART, batch=1), rows("a"))
    with pytest.raises(BrokerStopping):
        fixture.broker.batches.check(rows("a"))


# --- memory --------------------------------------------------------------------------------------


def test_oldest_writers_are_dropped_first() -> None:
    fixture = BrokerFixture(EngineSettings(max_batch_writers=2))
    for name in "abac":
        batch = 1 if name == "a" and fixture.broker.batches.writers else 0
        fixture.broker.batches.write(replace(FIRST_PART, writer=name, batch=batch), [])
    assert list(fixture.broker.batches.writers) == ["a", "c"]
    assert not fixture.broker.batches.write(replace(FIRST_PART, writer="b"), []).is_repeat


def test_oldest_writer_of_owner_with_most_writers_is_dropped_first() -> None:
    fixture = BrokerFixture(EngineSettings(max_batch_writers=4))
    for name, owner in (("a", "anna"), ("b", "bert"), ("c", "bert"), ("d", "bert"), ("e", "bert")):
        fixture.broker.batches.write(replace(FIRST_PART, writer=name, owner=owner), [])
    assert list(fixture.broker.batches.writers) == ["a", "c", "d", "e"]
    fixture.broker.batches.write(replace(FIRST_PART, writer="f", owner="anna"), [])
    assert list(fixture.broker.batches.writers) == ["a", "d", "e", "f"]


@pytest.mark.parametrize("sealed", [False, True])
def test_writer_has_its_owner_after_restart(tmp_path: Path, sealed: bool) -> None:
    restartable = RestartableBroker(tmp_path)
    restartable.write(replace(FIRST_PART, owner="anna"), "a")
    assert restartable.broker.batches.owner_of("another") == ""
    restartable.restart(sealed=sealed)
    assert restartable.broker.batches.owner_of(FIRST_PART.writer) == "anna"
    restartable.journal.close()


def test_writers_are_dropped_after_their_retention_time() -> None:
    fixture = BrokerFixture()
    fixture.broker.batches.write(replace(FIRST_PART, writer="old", partition=1), [])
    fixture.clock.advance(RETENTION_MS - 1)
    fixture.broker.batches.write(replace(FIRST_PART, writer="old"), [])  # its last part counts
    fixture.clock.advance(RETENTION_MS - 1)
    fixture.broker.batches.write(replace(FIRST_PART, writer="new"), [])
    assert list(fixture.broker.batches.writers) == ["old", "new"]
    fixture.clock.advance(1)
    fixture.broker.batches.write(replace(FIRST_PART, writer="newest"), [])
    assert list(fixture.broker.batches.writers) == ["new", "newest"]


def test_lowered_limit_applies_after_next_part(tmp_path: Path) -> None:
    restartable = RestartableBroker(tmp_path)
    for name in "abcd":
        restartable.write(replace(FIRST_PART, writer=name), name)
    restartable.settings = EngineSettings(max_batch_writers=2)
    restartable.restart(sealed=True)
    restartable.write(replace(FIRST_PART, writer="e"), "e")
    assert list(restartable.broker.batches.writers) == ["d", "e"]
    restartable.journal.close()


def test_many_partitions_take_little_space() -> None:
    fixture = BrokerFixture()
    for partition in (5, 3, 999_999, 0):
        fixture.broker.batches.write(replace(FIRST_PART, partition=partition, rows=partition), [])
    [state] = fixture.broker.batches.state()
    assert (len(state.done), len(state.rows), len(state.digests)) == (16, 32, 32)
    for partition in (5, 3, 999_999, 0):
        assert fixture.broker.batches.find(replace(FIRST_PART, partition=partition, rows=partition))
    assert fixture.broker.batches.find(replace(FIRST_PART, partition=4)) is None


@pytest.mark.parametrize(
    "writer",
    [
        WriterState("w", 0, 0, b"123", b"123456", b"123456", []),
        WriterState("w", 0, 0, bytes(8), bytes(8), bytes(16), []),
        WriterState("w", 0, 0, bytes(8), bytes(16), bytes(8), []),
    ],
)
def test_truncated_writer_state_is_damage(writer: WriterState) -> None:
    with pytest.raises(JournalDamaged, match="within a number"):
        decode_state(encode(EngineState([], [], [], [], [], [], writers=[writer])))


def test_invalid_batch_record_is_damage() -> None:
    with pytest.raises(JournalDamaged, match="BatchPart"):
        decode_batch(encode(replace(FIRST_PART, writer="w"))[:-1])
