"""Recovery after a crash, and damage that fails the start."""

from __future__ import annotations

import shutil
from array import array
from pathlib import Path
from zlib import crc32

import pytest

from sluicemq.journal import FileJournal, JournalOptions, RecordType, Recovery, segment
from sluicemq.journal.files import lock_if_stopped, read_durable
from sluicemq.journal.format import (
    DEPTH,
    FORMAT_VERSION,
    GROUP_START,
    HEADER,
    HEADER_BYTES,
    encode_completed,
    encode_record,
    record_size,
    size_at,
)
from sluicemq.journal.inspect import check
from sluicemq.journal.liveness import SPAN_LIMIT
from sluicemq.journal.segment import MappedSegment, has_later_group, record_offsets
from sluicemq.journal.snapshot import list_snapshots
from sluicemq.model.destination import Address, Kind
from sluicemq.model.errors import JournalDamaged, JournalError, JournalLocked
from tests.journal.support import (
    ORDERS,
    T0,
    TINY,
    crash,
    live_of,
    make_message,
    put,
    recover,
    reopen,
    rows_of,
    segments_of,
    take,
)


def bodies(recovery: Recovery) -> list[bytes]:
    """Return the bodies of the live messages, read from the files."""
    contents = []
    live = {row.sequence for row in recovery.live_rows()}
    for part in recovery.parts:
        for row, sequence in enumerate(part.segment_index.sequences):
            if sequence in live:
                start = part.segment_index.columns["offset"][row]
                body = start + part.segment_index.columns["body"][row]
                contents.append(
                    bytes(part.view.view[body : start + part.segment_index.columns["size"][row]])
                )
    recovery.close()
    return contents


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A killed journal: one segment with groups for a, the unit b+c, d and the unit e+f."""
    directory = tmp_path / "written"
    journal = reopen(directory)
    put(journal, b"a")
    journal.sync()
    number = journal.destination_number(ORDERS)
    for unit in (b"bc", b"d", b"ef"):
        for index, byte in enumerate(unit):
            last = index == len(unit) - 1
            journal.append_message(make_message(bytes([byte])), number, last=last)
        journal.sync()
    crash(journal)
    return directory


def test_torn_tail_is_truncated_after_last_complete_unit(written: Path, tmp_path: Path) -> None:
    path = segments_of(written)[0]
    data = path.read_bytes()
    view = MappedSegment(path)
    end_positions = [
        offset + (size + 7 & -8) for offset, size in record_offsets(view.view, view.size)
    ]
    view.close()
    assert end_positions[-1] == len(data)
    # STARTED, DESTINATION, a, b, c, d, e, f: the end of each unit, and the live messages then
    units = [
        (64, b""),
        (end_positions[2], b"a"),
        (end_positions[4], b"abc"),
        (end_positions[5], b"abcd"),
        (end_positions[7], b"abcdef"),
    ]
    for length in range(len(data) + 1):
        directory = tmp_path / str(length)
        shutil.copytree(written, directory)
        (directory / "durable").unlink()
        (directory / path.name).write_bytes(data[:length])
        recovery = recover(directory)
        expected = max((unit for unit in units if unit[0] <= length), default=(0, b""))
        assert b"".join(bodies(recovery)) == expected[1], length
        valid_end = max(
            [64, *(e for i, e in enumerate(end_positions) if e <= length and i not in (3, 6))]
        )
        assert recovery.report["torn_bytes"] == (
            len(data[valid_end:length].rstrip(b"\0")) if length >= 64 else length
        ), length
        shutil.rmtree(directory)


def test_last_write_with_missing_pages_is_torn_tail(written: Path) -> None:
    path = segments_of(written)[0]
    (written / "durable").unlink()
    data = bytearray(path.read_bytes())
    data[-128:-64] = bytes(64)  # e is blank, f behind it is intact but not the first of a write
    path.write_bytes(data)
    assert b"".join(bodies(recover(written))) == b"abcd"


def test_bytes_lost_below_durable_end_are_reported(written: Path) -> None:
    path = segments_of(written)[0]
    path.write_bytes(path.read_bytes()[:-1])
    recovery = recover(written)
    assert b"".join(bodies(recovery)) == b"abcd"
    assert recovery.report["lost_bytes"] == 128


@pytest.mark.parametrize("size", [0, 1, 63, 64, 100])
def test_emptied_newest_segment_is_reported_as_lost_data(written: Path, size: int) -> None:
    path = segments_of(written)[0]
    durable = read_durable(written)
    assert durable is not None
    path.write_bytes(path.read_bytes()[:size])
    assert path.name in str(check(written).problems)
    recovery = recover(written)
    assert bodies(recovery) == []
    assert recovery.report["confirmed"] == "lost"
    assert recovery.report["emptied"] == path.name
    header_end = 64 if size >= 64 else 0
    assert recovery.report["lost_bytes"] == durable.offset - header_end
    assert recovery.next_sequence > durable.sequence


@pytest.mark.parametrize("size", [0, 63, 64])
def test_emptied_segment_without_durable_end_is_reported_as_unknown(
    written: Path, size: int
) -> None:
    path = segments_of(written)[0]
    (written / "durable").unlink()
    path.write_bytes(path.read_bytes()[:size])
    assert "not known" in str(check(written).problems)
    recovery = recover(written)
    assert recovery.report["confirmed"] == "unknown"
    assert recovery.report["emptied"] == path.name
    recovery.close()


def test_emptied_segment_behind_durable_end_is_reported(tmp_path: Path) -> None:
    journal = reopen(tmp_path)
    put(journal, b"first")
    journal.sync()
    before = (tmp_path / "durable").read_bytes()
    journal.seal()
    put(journal, b"second")
    journal.sync()
    crash(journal)
    (tmp_path / "durable").write_bytes(before)  # as after a crash of the machine
    for _, snapshot in list_snapshots(tmp_path):
        snapshot.unlink()
    path = segments_of(tmp_path)[-1]
    path.write_bytes(b"")
    assert path.name in str(check(tmp_path).problems)
    recovery = recover(tmp_path)
    assert bodies(recovery) == [b"first"]
    assert recovery.report["confirmed"] == "unknown"
    assert recovery.report["emptied"] == path.name


def test_emptied_segment_that_snapshot_covers_is_lost_data(tmp_path: Path) -> None:
    journal = reopen(tmp_path)
    journal.recovery.close()
    journal.set_snapshot_source(lambda: b"state")
    first = put(journal, b"first")
    journal.seal()
    put(journal, b"second")
    journal.sync()
    position, _ = list_snapshots(tmp_path)[0]
    crash(journal)
    (tmp_path / "durable").unlink()
    path = segments_of(tmp_path)[-1]
    assert first < int(path.stem) <= position
    path.write_bytes(b"")
    recovery = recover(tmp_path)
    assert recovery.report["confirmed"] == "lost"
    assert recovery.next_sequence > position
    recovery.close()


def test_garbage_behind_last_record_is_truncated(written: Path) -> None:
    path = segments_of(written)[0]
    with path.open("ab") as file:
        file.write(b"garbage" * 40)
    recovery = recover(written)
    assert b"".join(bodies(recovery)) == b"abcdef"
    assert recovery.report["torn_bytes"] == 280
    assert recovery.report["lost_bytes"] == 0
    assert recovery.report["confirmed"] == "complete"


def test_bit_flipped_in_durable_data_fails_start(written: Path) -> None:
    path = segments_of(written)[0]
    data = path.read_bytes()
    for position in range(len(data)):
        damaged_data = bytearray(data)
        damaged_data[position] ^= 1 << position % 8
        path.write_bytes(damaged_data)
        with pytest.raises(JournalError, match=path.name):
            recover(written)
    path.write_bytes(data)
    assert b"".join(bodies(recover(written))) == b"abcdef"


def test_without_durable_file_later_groups_reveal_damage(written: Path) -> None:
    path = segments_of(written)[0]
    (written / "durable").unlink()
    data = path.read_bytes()
    for position in range(64, len(data) - 128):
        damaged_data = bytearray(data)
        damaged_data[position] ^= 1 << position % 8
        path.write_bytes(damaged_data)
        with pytest.raises(JournalDamaged, match="sluicemq journal check"):
            recover(written)


def test_sequence_numbers_too_far_apart_for_memory_are_damage(written: Path) -> None:
    path = segments_of(written)[0]
    (written / "durable").unlink()
    data = bytearray(path.read_bytes())
    view = MappedSegment(path)
    *_, (offset, size) = record_offsets(view.view, view.size)
    view.close()
    data[offset + 8 : offset + 16] = (1 << 40).to_bytes(8, "little")
    data[offset + 4 : offset + 8] = crc32(data[offset + 8 : offset + size]).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(JournalDamaged, match="too large"):
        recover(written)


def test_numbers_assigned_during_slow_write_are_no_damage(tmp_path: Path) -> None:
    journal = reopen(tmp_path)
    first = put(journal, b"first")
    count = 5 * SPAN_LIMIT  # to messages that are not journaled, before the next group begins
    journal._live.extend(bytes(count))
    journal._offsets.frombytes(bytes(journal._offsets.itemsize * count))
    journal._next += count
    second = put(journal, b"second")
    journal.sync()
    for _ in range(2):  # from the records, then from a snapshot
        crash(journal)
        journal = reopen(tmp_path)
        assert live_of(journal) == {first: b"first", second: b"second"}
        journal.recovery.close()
        journal.sync()
        assert list_snapshots(tmp_path)
    journal.close()


def test_invalid_priority_is_damage(written: Path) -> None:
    path = segments_of(written)[0]
    (written / "durable").unlink()
    data = bytearray(path.read_bytes())
    view = MappedSegment(path)
    *_, (offset, size) = record_offsets(view.view, view.size)
    view.close()
    data[offset + 46] = 10
    data[offset + 4 : offset + 8] = crc32(data[offset + 8 : offset + size]).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(JournalDamaged, match="priority"):
        recover(written)


def test_index_whose_sequence_numbers_do_not_ascend_is_damage(tmp_path: Path) -> None:
    journal = reopen(tmp_path)
    put(journal)
    journal.next_sequence()
    put(journal)
    journal.seal()
    journal.sync()
    crash(journal)
    path = segments_of(tmp_path)[0]
    view = MappedSegment(path)
    assert view.index is not None
    numbers, index_offset = view.index.sequences.tolist(), view.index_offset
    view.close()
    data = bytearray(path.read_bytes())
    swapped_numbers = [numbers[0], numbers[2], numbers[1], *numbers[3:]]
    position = data.index(array("Q", numbers).tobytes())
    data[position : position + 8 * len(numbers)] = array("Q", swapped_numbers).tobytes()
    size = int.from_bytes(data[index_offset : index_offset + 4], "little")
    for position, start, end in (
        (index_offset + 4, index_offset + 8, index_offset + size),
        (len(data) - 8, 0, len(data) - 32),
        (len(data) - 4, len(data) - 32, len(data) - 4),
    ):
        data[position : position + 4] = crc32(data[start:end]).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(JournalDamaged, match="do not ascend"):
        recover(tmp_path)


def test_bit_flipped_in_sealed_segment_stops_start(tmp_path: Path) -> None:
    journal = reopen(tmp_path)
    put(journal, b"sealed")
    journal.seal()
    put(journal, b"open")
    journal.sync()
    crash(journal)
    path = segments_of(tmp_path)[0]
    data = path.read_bytes()
    for position in range(len(data)):
        damaged_data = bytearray(data)
        damaged_data[position] ^= 1 << position % 8
        path.write_bytes(damaged_data)
        with pytest.raises(JournalError, match=path.name):
            recover(tmp_path)


def test_crash_while_sealing_loses_nothing(tmp_path: Path) -> None:
    journal = reopen(tmp_path / "a")
    put(journal, b"sealed")
    journal.sync()
    durable = (tmp_path / "a" / "durable").read_bytes()
    before = segments_of(tmp_path / "a")[0].stat().st_size
    journal.seal()
    journal.sync()
    crash(journal)
    for path in segments_of(tmp_path / "a")[1:]:
        path.unlink()
    path = segments_of(tmp_path / "a")[0]
    data = path.read_bytes()
    (tmp_path / "a" / "durable").write_bytes(durable)
    for _, snapshot in list_snapshots(tmp_path / "a"):
        snapshot.unlink()
    for length in range(before, len(data) + 1, 7):
        directory = tmp_path / str(length)
        shutil.copytree(tmp_path / "a", directory)
        (directory / path.name).write_bytes(data[:length])
        assert bodies(recover(directory)) == [b"sealed"]
        view = MappedSegment(directory / path.name)
        assert view.index is not None
        view.verify()
        view.close()


def test_records_inside_body_are_no_damage_in_complete_tail(tmp_path: Path) -> None:
    journal = reopen(tmp_path)
    inner = b"".join(encode_record(1, 10**6, 0, b"inner", flags=3))
    put(journal, inner)
    journal.sync()
    crash(journal)
    assert bodies(recover(tmp_path)) == [inner]


def killed_in_a_write(directory: Path, body: bytes) -> Path:
    """Return the segment of a journal that was killed when half of a message was written."""
    journal = FileJournal.open(directory, JournalOptions(reserve_bytes=0))
    put(journal, b"kept")
    journal.sync()
    durable = (directory / "durable").read_bytes()
    end = read_durable(directory)
    assert end is not None
    put(journal, body)
    journal.sync()
    crash(journal)
    path = segments_of(directory)[0]
    with path.open("r+b") as file:
        file.seek(end.offset + len(body) // 2)
        file.write(bytes(len(body)))
    (directory / "durable").write_bytes(durable)
    return path


def test_records_inside_torn_body_are_no_damage(tmp_path: Path) -> None:
    inner = b"".join(encode_record(1, 10**6, 0, b"inner", flags=3))
    killed_in_a_write(tmp_path, inner * 20)
    recovery = recover(tmp_path)
    assert recovery.report["torn_bytes"] > 9 * len(inner)
    assert bodies(recovery) == [b"kept"]


@pytest.mark.parametrize("size", range(8))
def test_bit_flipped_in_size_of_record_is_damage(tmp_path: Path, size: int) -> None:
    """This includes sizes by which the record would extend over later ones."""
    journal = FileJournal.open(tmp_path, JournalOptions(reserve_bytes=0))
    put(journal, bytes(100))
    journal.sync()
    end = read_durable(tmp_path)
    assert end is not None
    for length in (size, 300):
        put(journal, b"x" * length)
        journal.sync()
    crash(journal)
    (tmp_path / "durable").unlink()
    path = segments_of(tmp_path)[0]
    data = path.read_bytes()
    for bit in range(32):
        damaged_data = bytearray(data)
        damaged_data[end.offset + bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged_data)
        with pytest.raises(JournalDamaged, match="later ones are intact"):
            recover(tmp_path)


@pytest.mark.parametrize("is_damaged", [False, True])
def test_torn_body_full_of_headers_is_read_few_times(
    written: Path, monkeypatch: pytest.MonkeyPatch, is_damaged: bool
) -> None:
    """The record of each header would extend to the end of the file."""
    path = segments_of(written)[0]
    records_end = path.stat().st_size
    size = 200_000
    headers = b"".join(
        HEADER.pack(end, 1, 10**6, 0, 0, 0, 0, 1, GROUP_START, 4, 0, 0, 0, 0, HEADER_BYTES)
        for end in range(size, HEADER_BYTES, -HEADER_BYTES)
    )
    later_group = b"".join(encode_record(1, 10**6, 0, b"later", flags=3)) if is_damaged else b""
    with path.open("ab") as file:
        file.write(bytes(8) + headers.ljust(size) + later_group)
    read_bytes = 0

    def read(view: memoryview, offset: int) -> int:
        nonlocal read_bytes
        read_bytes += size_at(view, offset)
        return record_size(view, offset)

    monkeypatch.setattr(segment, "record_size", read)
    data = memoryview(path.read_bytes())
    assert has_later_group(data, records_end, 100) is is_damaged
    assert read_bytes < 20 * size


@pytest.mark.parametrize("torn", [b"", b"half a record"])
def test_preallocated_space_is_no_torn_tail(tmp_path: Path, torn: bytes) -> None:
    options = JournalOptions(segment_bytes=4096, preallocate_bytes=1024)
    journal = FileJournal.open(tmp_path, options)
    put(journal, b"x")
    journal.sync()
    end = read_durable(tmp_path)
    crash(journal)
    assert end is not None
    path = segments_of(tmp_path)[0]
    assert path.stat().st_size > end.offset + len(torn)
    with path.open("r+b") as file:
        file.seek(end.offset)
        file.write(torn)
    recovery = recover(tmp_path)
    assert recovery.report["torn_bytes"] == len(torn)
    assert recovery.report["lost_bytes"] == 0
    assert bodies(recovery) == [b"x"]
    assert segments_of(tmp_path)[0].stat().st_size < 4096


def test_missing_segments_fail_start(tmp_path: Path) -> None:
    journal = reopen(tmp_path / "a")
    for body in (b"1", b"2", b"3"):
        put(journal, body)
        journal.seal()
        journal.sync()
    put(journal, b"4")
    journal.sync()
    crash(journal)
    for number, path in enumerate(segments_of(tmp_path / "a")):
        directory = tmp_path / str(number)
        shutil.copytree(tmp_path / "a", directory)
        (directory / path.name).unlink()
        with pytest.raises(JournalDamaged, match="missing"):
            recover(directory)


def test_missing_segment_without_snapshot_fails_start(tmp_path: Path) -> None:
    for body in (b"1", b"2", b"3"):
        journal = reopen(tmp_path)
        put(journal, body)
        journal.close()
        for _, snapshot in list_snapshots(tmp_path):
            snapshot.unlink()
    segments_of(tmp_path)[1].unlink()
    with pytest.raises(JournalDamaged, match="missing"):
        reopen(tmp_path)


def test_damaged_snapshot_fails_start(tmp_path: Path) -> None:
    journal = reopen(tmp_path)
    journal.set_snapshot_source(lambda: b"state")
    journal.recovery.close()
    put(journal)
    journal.seal()
    put(journal)
    journal.sync()
    journal.close()
    ((_, path),) = list_snapshots(tmp_path)
    data = path.read_bytes()
    for position in range(0, len(data), 3):
        damaged_data = bytearray(data)
        damaged_data[position] ^= 1
        path.write_bytes(damaged_data)
        with pytest.raises(JournalError, match=path.name):
            recover(tmp_path)
    path.write_bytes(data[:10])
    with pytest.raises(JournalDamaged, match="incomplete"):
        recover(tmp_path)


@pytest.mark.parametrize("version", [0, FORMAT_VERSION + 1])
@pytest.mark.parametrize("suffix", ["segment", "snapshot"])
def test_file_of_another_format_version_is_refused(
    tmp_path: Path, suffix: str, version: int
) -> None:
    journal = reopen(tmp_path)
    put(journal)
    journal.seal()
    journal.sync()
    crash(journal)
    path = sorted(tmp_path.glob(f"*.{suffix}"))[0]
    data = bytearray(path.read_bytes())
    data[8] = version
    path.write_bytes(data)
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(JournalError, match=f"{path.name} has format version {version}; this"):
        reopen(tmp_path)
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_recovery_reports_deliveries_but_not_depths(tmp_path: Path) -> None:
    journal = reopen(tmp_path)
    sequences = [put(journal, b"kept" * 100) for _ in range(10)]
    journal.append_entry(RecordType.DELIVERED, encode_completed(1, sequences), T0, destination=1)
    journal.append_entry(RecordType.DEPTH, DEPTH.pack(10, 0, 0, 0), T0, destination=1)
    take(journal, *sequences[:-1])
    journal.sync()
    crash(journal)
    journal = reopen(tmp_path)
    assert list(live_of(journal)) == sequences[-1:]
    events = {record.type for record in journal.recovery.events()}
    assert RecordType.DELIVERED in events
    assert RecordType.DEPTH not in events
    journal.close()


@pytest.mark.parametrize("type", [RecordType.DELIVERED, RecordType.BATCH_PART])
def test_group_that_begins_with_any_type_marks_durable_end(
    tmp_path: Path, type: RecordType
) -> None:
    journal = reopen(tmp_path)
    put(journal, b"damaged soon")
    journal.sync()
    journal.append_entry(type, encode_completed(1, [1]), T0)
    journal.sync()
    crash(journal)
    [path] = segments_of(tmp_path)
    data = bytearray(path.read_bytes())
    data[data.index(b"damaged soon")] ^= 1
    path.write_bytes(data)
    (tmp_path / "durable").unlink()
    with pytest.raises(JournalDamaged, match="later ones are intact"):
        FileJournal.open(tmp_path, TINY)


def test_segments_of_another_directory_are_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        journal = reopen(tmp_path / name)
        put(journal)
        journal.close()
    shutil.copy(segments_of(tmp_path / "a")[0], segments_of(tmp_path / "b")[0])
    with pytest.raises(JournalDamaged, match="another"):
        reopen(tmp_path / "b")
    (tmp_path / "a" / "identity").write_text("no digits")
    with pytest.raises(JournalDamaged, match="identity"):
        reopen(tmp_path / "a")
    (tmp_path / "a" / "identity").unlink()
    with pytest.raises(JournalDamaged, match="identity"):
        reopen(tmp_path / "a")


def test_journal_without_broker_can_be_locked(tmp_path: Path) -> None:
    with lock_if_stopped(tmp_path) as is_stopped:
        assert is_stopped
    assert not any(tmp_path.iterdir())
    journal = reopen(tmp_path)
    with lock_if_stopped(tmp_path) as is_stopped:
        assert not is_stopped
    journal.close()
    with lock_if_stopped(tmp_path) as is_stopped:
        assert is_stopped
        with pytest.raises(JournalLocked):
            reopen(tmp_path)
    reopen(tmp_path).close()


def test_second_process_learns_owner_of_directory(tmp_path: Path) -> None:
    journal = reopen(tmp_path)
    with pytest.raises(JournalLocked, match=r"process \d+"):
        reopen(tmp_path)
    journal.close()
    reopen(tmp_path).close()


def test_identity_is_stable_and_numbers_are_never_reused(tmp_path: Path) -> None:
    journal = reopen(tmp_path)
    identity = journal.identity
    highest = put(journal)
    for _ in range(600_000):  # more than the gap would cover with the 600,000 that follow
        highest = journal.next_sequence()
    journal.sync()
    for _ in range(600_000):
        highest = journal.next_sequence()
    journal.sync()
    crash(journal)
    journal = reopen(tmp_path)
    assert journal.identity == identity
    assert len(identity) == 8
    assert journal.next_sequence() > highest
    journal.close()


def test_rows_have_fields_broker_needs(tmp_path: Path) -> None:
    journal = reopen(tmp_path)
    topic = Address(Kind.TOPIC, "news")
    number = journal.destination_number(topic)
    message = make_message(
        b"12345", address=topic, priority=9, expiration=T0 + 5, deliver_at=T0 + 1, routes=(4, 5, 6)
    )
    sequence = journal.append_message(message, number, 3)
    journal.append_completed(4, number, 1, [sequence], T0)
    shared_sequence = journal.append_message(make_message(b"", address=topic), number, 1000)
    expired_sequence = journal.append_message(make_message(b"", address=topic), number)
    journal.append_completed(4, number, 1, [expired_sequence, shared_sequence], T0)
    journal.close()
    journal = reopen(tmp_path)
    first, second = rows_of(journal)
    assert first == (sequence, number, 9, T0 + 5, T0, 5, 2, True, False)
    assert (second.sequence, second.references, second.delayed) == (shared_sequence, 999, False)
    assert journal.addresses[number] == topic
    assert journal.fetch(sequence).routes == (4, 5, 6)
    journal.close()


def test_events_after_snapshot_are_reported_in_order(tmp_path: Path) -> None:
    journal = reopen(tmp_path)
    journal.recovery.close()
    journal.set_snapshot_source(lambda: b"the broker's state")
    number = journal.destination_number(ORDERS)
    journal.append_entry(RecordType.DESTINATION_SETTINGS, b"before", T0)
    journal.seal()
    journal.commit()
    journal.sync()
    journal.append_entry(RecordType.DESTINATION_SETTINGS, b"after", T0)
    sequence = put(journal)
    take(journal, sequence)
    journal.forget_destination(ORDERS)
    journal.close()
    journal = reopen(tmp_path)
    recovery = journal.recovery
    assert recovery.state == b"the broker's state"
    events = list(recovery.events())
    assert [e.type for e in events] == [
        RecordType.DESTINATION_SETTINGS,
        RecordType.COMPLETED,
        RecordType.DESTINATION_DELETED,
        RecordType.STOPPED,
    ]
    assert events[0].body == b"after"
    assert (events[1].subscription, events[1].sequences) == (1, [sequence])
    assert events[2].address == ORDERS
    assert all(e.sequence > recovery.position for e in events)
    assert number not in journal.addresses
    assert journal.destination_number(ORDERS) > number
    journal.close()


def test_tool_that_opens_journal_keeps_brokers_state(tmp_path: Path) -> None:
    journal = reopen(tmp_path)
    journal.recovery.close()
    journal.set_snapshot_source(lambda: b"state")
    journal.seal()
    journal.sync()
    journal.append_entry(RecordType.DESTINATION_SETTINGS, b"after", T0)
    journal.close()
    for _ in range(2):
        journal = reopen(tmp_path)
        assert journal.recovery.state == b"state"
        assert b"after" in [e.body for e in journal.recovery.events()]
        journal.seal()
        journal.sync()
        journal.close()


def test_no_snapshot_is_requested_before_recovery(tmp_path: Path) -> None:
    journal = reopen(tmp_path)
    put(journal)
    journal.close()
    journal = reopen(tmp_path)
    requests: list[int] = []
    journal.set_snapshot_source(lambda: bytes(requests.append(1) or 0))
    journal.sync()
    assert not requests
    journal.recovery.close()
    journal.sync()
    assert requests == [1]
    journal.close()


def test_published_end_follows_durable_groups(tmp_path: Path) -> None:
    journal = reopen(tmp_path)
    sequence = put(journal)
    journal.sync()
    end = read_durable(tmp_path)
    assert end is not None
    assert (end.sequence, end.offset) == (sequence, segments_of(tmp_path)[0].stat().st_size)
    (tmp_path / "durable").write_bytes(b"x" * 28)
    assert read_durable(tmp_path) is None
    journal.close()


def test_large_message_is_read_back_from_open_and_sealed_segment(tmp_path: Path) -> None:
    journal = reopen(tmp_path, JournalOptions())
    body = bytes(range(256)) * 1000
    sequence = put(journal, body)
    journal.sync()
    assert journal.fetch(sequence).body == body
    journal.seal()
    journal.sync()
    assert journal.fetch(sequence).body == body
    journal.close()


def test_damage_found_while_reading_raises(tmp_path: Path) -> None:
    journal = reopen(tmp_path)
    sequence = put(journal, b"x" * 100)
    journal.sync()
    path = segments_of(tmp_path)[0]
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(data)
    with pytest.raises(JournalDamaged, match=path.name):
        journal.fetch(sequence)
    crash(journal)


def test_header_size_matches_format() -> None:
    assert HEADER_BYTES == 56


def test_live_messages_survive_clean_stop(tmp_path: Path) -> None:
    journal = reopen(tmp_path)
    sequences = [put(journal, b"%d" % n) for n in range(100)]
    journal.sync()
    take(journal, *sequences[::2])
    journal.close()
    journal = reopen(tmp_path)
    assert live_of(journal) == {s: b"%d" % n for n, s in enumerate(sequences) if n % 2}
    journal.close()
    assert TINY.segment_bytes == 2000
