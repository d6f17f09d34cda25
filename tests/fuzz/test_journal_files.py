"""A journal with damaged files, or with wrong content and correct checksums.

A start and the tools either work or raise JournalError: there is no other error, no hang, and no
memory use that grows with a number in a file.
"""

from __future__ import annotations

import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from types import FrameType
from zlib import crc32

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicemq.broker import Broker, ManualClock, Window
from sluicemq.broker.recovery import recover, snapshot
from sluicemq.journal import FileJournal, Slots
from sluicemq.journal.format import HEADER_BYTES
from sluicemq.journal.inspect import check, dump
from sluicemq.journal.segment import (
    SEGMENT_HEADER_BYTES,
    TRAILER_BYTES,
    MappedSegment,
    record_offsets,
)
from sluicemq.journal.snapshot import SNAPSHOT_HEAD, list_snapshots
from sluicemq.model.destination import Address, DestinationSettings, Kind
from sluicemq.model.errors import ConfigurationError, JournalDamaged, JournalError
from tests.fuzz.mutations import (
    change_digits,
    change_number,
    cut_out,
    flip_bits,
    insert_noise,
    mutate,
)
from tests.journal.support import TINY, crash, make_message, segments_of
from tests.support.broker import Reader

MEMORY: int = 1 << 30
"""Maximum memory of the process while it opens a journal of a few KB."""
SECONDS = 60

seeds = st.randoms(use_true_random=False)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A killed journal with one of everything: sealed segments and one that is not, a snapshot,
    slots, declared destinations, durable subscriptions, failed attempts, requeued messages."""
    directory = tmp_path_factory.mktemp("journal") / "written"
    journal = FileJournal.open(directory, TINY)
    broker = Broker(journal, ManualClock())
    journal.set_snapshot_source(lambda: snapshot(broker))
    recover(broker, journal.recovery)

    def sync() -> None:
        for _ in range(2):
            broker.flush()
            journal.sync()

    topic = broker.destinations.declare(Address(Kind.TOPIC, "t"), DestinationSettings())
    broker.destinations.declare(
        Address(Kind.QUEUE, "declared"), DestinationSettings(max_attempts=3)
    )
    broker.subscribe(topic, "durable", durable=True)
    queue = broker.destinations.queue("q\udcff")
    for part in range(3):
        for number in range(8):
            body = b"%d/%d" % (part, number)
            broker.publish(queue, make_message(body, address=queue.address, correlation_id="c"))
            broker.publish(topic, make_message(body, address=topic.address, properties={"n": 1}))
        sync()
        reader = Reader(broker)
        reader.consumer = broker.attach(queue.queue, reader, Window(6, True))
        sync()
        first, second, third, *_ = list(reader.consumer.unacked)
        broker.acknowledge(reader.consumer, first)
        broker.requeue(queue.queue, second, 0)
        broker.dead_letter(queue.queue, third, "test", force=True)
        broker.detach(reader.consumer)
        sync()
    journal.slots.create("reader", 3)
    sync()
    crash(journal)
    assert len(segments_of(directory)) > 2
    assert list_snapshots(directory)
    return directory


@contextmanager
def limited_resources() -> Iterator[None]:
    """Limit memory and time."""

    def give_up(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"not done within {SECONDS} s")

    limits = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(SECONDS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def read_all(directory: Path) -> list[str]:
    """Read a journal with all tools, last with those that change it, and return their errors."""
    problems = []

    def attempt(action: Callable[[], object]) -> None:
        try:
            action()
        except JournalError as error:
            problems.append(str(error))
        except ConfigurationError as error:
            if "has a selector" not in str(error):
                raise

    def inspect() -> None:
        problems.extend(map(str, check(directory).problems))

    def show() -> None:
        for entry in dump(directory):
            assert entry.message is None or entry.message.body is not None

    def start() -> None:
        journal = FileJournal.open(directory, TINY)
        try:
            broker = Broker(journal, ManualClock())
            recover(broker, journal.recovery)
            for destination in broker.destinations.values():
                for delivery in destination.queue.browse():
                    journal.fetch(delivery.sequence)
        finally:
            crash(journal)

    with limited_resources():
        attempt(inspect)
        attempt(show)
        attempt(lambda: Slots(directory).list())
        attempt(start)
    return problems


@contextmanager
def copy_of(written: Path) -> Iterator[Path]:
    with TemporaryDirectory() as name:
        directory = Path(name) / "journal"
        shutil.copytree(written, directory)
        yield directory


def test_intact_journal_has_no_errors(written: Path) -> None:
    with copy_of(written) as directory:
        assert read_all(directory) == []


@given(chance=seeds)
def test_files_that_are_damaged(written: Path, chance: Random) -> None:
    with copy_of(written) as directory:
        files = sorted(path for path in directory.rglob("*") if path.is_file())
        path = chance.choice(files)
        data = path.read_bytes()
        cuts = sorted({0, len(data), *(chance.randint(0, len(data)) for _ in range(8))})
        chunks = [data[start:end] for start, end in pairwise(cuts)]
        path.write_bytes(b"".join(mutate(chance, chunks)))
        read_all(directory)


def damage(chance: Random, data: bytes) -> bytes:
    """Return the data with one change."""
    mutation = chance.choice(
        (flip_bits, flip_bits, change_digits, change_number, cut_out, insert_noise)
    )
    return mutation(chance, [data])[0]


@given(chance=seeds)
def test_records_that_lie_with_a_right_checksum(written: Path, chance: Random) -> None:
    with copy_of(written) as directory:
        path = chance.choice(segments_of(directory))
        view = MappedSegment(path)
        places = list(record_offsets(view.view, view.size))
        is_sealed = view.index is not None
        view.close()
        data = bytearray(path.read_bytes())
        for _ in range(chance.randint(1, 3)):
            offset, size = chance.choice([*places, places[-1]])
            if chance.random() < 0.5:  # a field of the header
                position = offset + 8 + chance.randrange(HEADER_BYTES - 8)
                data[position] = chance.choice((0, 1, 2, 9, 127, 128, 255, chance.randrange(256)))
            else:
                body = damage(chance, bytes(data[offset + HEADER_BYTES : offset + size]))
                body = body[: size - HEADER_BYTES].ljust(size - HEADER_BYTES, b" ")
                data[offset + HEADER_BYTES : offset + size] = body
            data[offset + 4 : offset + 8] = _crc(data[offset + 8 : offset + size])
        if is_sealed:
            trailer = len(data) - TRAILER_BYTES
            if chance.random() < 0.2:
                position = trailer + 8 + chance.randrange(16)
                data[position] = chance.randrange(256)
            data[trailer + 24 : trailer + 28] = _crc(data[:trailer])
            data[trailer + 28 :] = _crc(data[trailer : trailer + 28])
        path.write_bytes(data)
        read_all(directory)


@given(chance=seeds)
def test_segment_headers_that_lie_with_a_right_checksum(written: Path, chance: Random) -> None:
    with copy_of(written) as directory:
        path = chance.choice(segments_of(directory))
        data = bytearray(path.read_bytes())
        data[chance.randrange(8, 60)] = chance.randrange(256)
        data[60:SEGMENT_HEADER_BYTES] = _crc(data[:60])
        path.write_bytes(data)
        read_all(directory)


@given(chance=seeds)
def test_snapshots_that_lie_with_a_right_checksum(written: Path, chance: Random) -> None:
    with copy_of(written) as directory:
        path = list_snapshots(directory)[0][1]
        payload = path.read_bytes()[SNAPSHOT_HEAD.size :]
        if chance.random() < 0.5:
            payload = damage(chance, payload)
        else:
            payload = msgspec.msgpack.encode(_changed(chance, msgspec.msgpack.decode(payload)))
        magic, version, _, _ = SNAPSHOT_HEAD.unpack_from(path.read_bytes())
        head = SNAPSHOT_HEAD.pack(magic, version, crc32(payload), len(payload))
        path.write_bytes(head + payload)
        read_all(directory)


def _changed(chance: Random, value: object) -> object:
    """Return the value with one changed leaf; bytes may contain another document."""
    if isinstance(value, list) and value:
        index = chance.randrange(len(value))
        return [*value[:index], _changed(chance, value[index]), *value[index + 1 :]]
    if isinstance(value, bytes) and len(value) > 20 and chance.random() < 0.7:
        try:
            return msgspec.msgpack.encode(_changed(chance, msgspec.msgpack.decode(value)))
        except msgspec.DecodeError:
            return damage(chance, value)
    if isinstance(value, bytes):
        return damage(chance, value) if value else b"x"
    if isinstance(value, int):
        return chance.choice((0, 1, 3, 255, value + 1, 1 << 31, 1 << 40, (1 << 63) - 1, -1))
    return chance.choice((0, "x", b"", [], None))


@given(
    data=st.binary(max_size=60)
    | st.sampled_from([b"[" * 100_000, b'{"position":1e999}', b'{"position":' + b"9" * 5000 + b"}"])
)
def test_a_slot_that_is_none_is_damage(data: bytes) -> None:
    with TemporaryDirectory() as name:
        slots = Slots(Path(name))
        slots.create("reader")
        (Path(name) / "slots" / "reader.json").write_bytes(data)
        with pytest.raises(JournalDamaged):
            slots.list()


def _crc(data: bytes | bytearray) -> bytes:
    return crc32(data).to_bytes(4, "little")
