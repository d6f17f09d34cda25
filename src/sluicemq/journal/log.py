"""The journal on disk: appends, group commit, reading back.

The owner's thread builds records and counts what is live; the writer's thread writes. At most one
group is being written; what is appended meanwhile is the next one.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple
from zlib import crc32

import msgspec

from sluicemq.journal.format import (
    DELAYED,
    ENTRY,
    GROUP_START,
    HEADER_BYTES,
    MAX_RECORD_BYTES,
    MAX_REFERENCES,
    MAX_SETTLED,
    PADDING,
    REST,
    ROUTED,
    SIZE_AND_CRC,
    UNIT_END,
    Record,
    RecordType,
    decode_record,
    encode_address,
    encode_record,
    encode_settled,
    record_size,
)
from sluicemq.journal.liveness import LARGEST, Liveness, Segment
from sluicemq.journal.meta import decode_message, encode_meta
from sluicemq.journal.port import JournalStats
from sluicemq.journal.reader import read_records
from sluicemq.journal.reclaim import Mover, removable, stuck
from sluicemq.journal.recovery import Recovery
from sluicemq.journal.segment import (
    IDENTITY_BYTES,
    SEGMENT_HEADER_BYTES,
    SUFFIX,
    SegmentHeader,
    SegmentView,
    damaged,
    list_segments,
    segment_path,
    sequence_at,
)
from sluicemq.journal.slots import DEFAULT_SLOT_LIMIT, Slots
from sluicemq.journal.snapshot import Capture, capture_segments, write_snapshot
from sluicemq.journal.writer import (
    DurableEnd,
    DurableFile,
    SegmentFile,
    Writer,
    write_whole,
)
from sluicemq.model.destination import Address, encode_name
from sluicemq.model.errors import (
    JournalDamaged,
    JournalError,
    JournalFailed,
    JournalLocked,
    RecordNotFound,
)
from sluicemq.model.message import Message

IDENTITY_NAME: Final = "identity"
LOCK_NAME: Final = "lock"
SPAN_LIMIT: Final = 1 << 22
"""Sequence numbers per segment: there are five bytes of memory for each, used or not."""
NUMBERED_EVERY: Final = 1 << 19
"""Numbers given without a record before one is written for their sake."""
OPEN_VIEWS: Final = 256
"""Sealed segments kept mapped for reading back."""
READ_AHEAD: Final = 4096


class JournalOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the journal.

    segment_bytes      a segment is ended when it has this size (1 MiB or more is sensible)
    preallocate        reserve a segment's space when it is created
    verify_on_start    compare every sealed segment with its CRC
    leftover_fraction  sealed segments with a smaller live part are emptied (0 = never, up to 1)
    slot_limit_bytes   limit of a retention slot that names none
    """

    segment_bytes: int = 64 << 20
    preallocate: bool = False
    verify_on_start: bool = True
    leftover_fraction: float = 0.25
    slot_limit_bytes: int = DEFAULT_SLOT_LIMIT


class Group(NamedTuple):
    """What is written together: buffers, three to a record, and where that gets the journal."""

    parts: list[bytes]
    file: SegmentFile
    end: DurableEnd


Notify = Callable[[Callable[[], None]], object]


def _inline(call: Callable[[], None]) -> None:
    """Without an event loop, `sync` and `close` run what the writer's thread reports."""


def _raise(error: JournalError) -> None:
    """Without somebody to tell, the next append tells."""


def _ignore(durable: int) -> None:
    """Nobody wants to know."""


class FileJournal:
    """See `port.Journal` for the methods it shares with every journal."""

    def __init__(
        self,
        directory: Path,
        options: JournalOptions,
        identity: bytes,
        recovery: Recovery,
        lock: int,
        notify: Notify,
        on_failure: Callable[[JournalError], None],
    ) -> None:
        """Use `open`."""
        self.directory = directory
        self.options = options
        self.identity = identity[:8]
        self.recovery = recovery
        self.slots = Slots(directory)
        self.on_durable: Callable[[int], None] = _ignore
        self.on_failure = on_failure
        self.snapshot_source: Callable[[], bytes] = self._recovered_state
        self.addresses = recovery.addresses
        self._numbers = {address: number for number, address in self.addresses.items()}
        self._next_number = recovery.next_number
        self._liveness = recovery.liveness
        self._state = recovery.state
        self._state_position = recovery.position
        self._directory_identity = identity
        self._lock = lock
        self._refusal = ""
        self._closed = False

        self._next = recovery.next_sequence
        self.durable = self._next - 1
        self._recorded = self._next - 1
        self._parts: list[bytes] = []
        self._open = False
        self._wanted = False
        self._roll_wanted = False
        self._group: Group | None = None

        self._views: OrderedDict[int, SegmentView] = OrderedDict()
        self._files: dict[int, SegmentFile] = {}
        self._gone: dict[int, Address] = {}
        self._snapshot_due = False
        self._capture: Capture | None = None
        self._mover = Mover(self._carry)
        self._groups = 0
        self._sync_last = 0.0
        self._sync_total = 0.0
        self._last_records = 0
        self._last_bytes = 0

        self._durable_file = DurableFile(directory)
        self._writer = Writer(notify, self._fail)
        self._start_segment()

    @classmethod
    def open(
        cls,
        directory: Path,
        options: JournalOptions | None = None,
        notify: Notify = _inline,
        on_failure: Callable[[JournalError], None] = _raise,
    ) -> FileJournal:
        """Recover the journal of that directory, or create one.

        `notify(f)` must arrange for f() to be called on this thread, soon; it is called from
        another one. `on_failure` is called once, when a write has failed: the process should
        stop. `recovery` has what the broker needs to know; call its `done` after that.

        Raises JournalLocked, JournalDamaged, JournalError, OSError.
        """
        options = options or JournalOptions()
        directory.mkdir(parents=True, exist_ok=True, mode=0o750)
        lock = _take_lock(directory)
        try:
            for name in os.listdir(directory):
                if name.endswith(".tmp"):
                    (directory / name).unlink()
            identity = _identity(directory)
            recovery = Recovery(directory, identity, verify=options.verify_on_start, mend=True)
            journal = cls(directory, options, identity, recovery, lock, notify, on_failure)
        except BaseException:
            os.close(lock)
            raise
        try:
            started = json.dumps({"pid": os.getpid()}).encode()
            journal._append(RecordType.STARTED, started, _now())
            journal.sync()
        except BaseException:
            journal.close()
            raise
        return journal

    # --- appending: the hot path ---------------------------------------------------------------

    def append_message(
        self, message: Message, destination: int, references: int = 1, last: bool = True
    ) -> int:
        if self._refusal:
            raise JournalFailed(self._refusal)
        body = message.body
        parts = self._parts
        flags = UNIT_END if last else 0
        if not parts:
            flags |= GROUP_START
        start = HEADER_BYTES
        size = HEADER_BYTES + len(body)
        if (
            message.properties
            or message.native
            or message.message_id
            or message.routes
            or message.reply_to
            or message.correlation_id
            or message.type
            or message.deliver_at
        ):
            meta = encode_meta(message)
            start += len(meta)
            size += len(meta)
            body = meta + body
            if message.routes:
                flags |= ROUTED
            if message.deliver_at:
                flags |= DELAYED
        if references > LARGEST or size > MAX_RECORD_BYTES - 7:
            self._check(references, size)
        message.sequence = sequence = self._next
        rest = REST.pack(
            sequence,
            message.timestamp * 1000,
            message.expiration,
            0,
            destination,
            1,
            flags,
            message.priority,
            message.origin,
            message.kind,
            message.durability,
            references,
            start,
        )
        parts += (SIZE_AND_CRC.pack(size, crc32(body, crc32(rest))) + rest, body, PADDING[size & 7])
        fill = self._fill
        self._places.append(fill >> 3)
        self._fill = fill + size + 7 & -8
        if references > LARGEST:
            self._live.append(0)
            self._liveness.expect(self._segment, sequence, references)
        else:
            self._live.append(references)
        self._next = self._recorded = sequence + 1
        self._open = not last
        return sequence

    def append_settled(
        self,
        subscription: int,
        destination: int,
        cause: int,
        sequences: list[int],
        time_ms: int,
        last: bool = True,
    ) -> int:
        if len(sequences) > MAX_SETTLED:
            for start in range(0, len(sequences) - MAX_SETTLED, MAX_SETTLED):
                part = sequences[start : start + MAX_SETTLED]
                self.append_settled(subscription, destination, cause, part, time_ms, False)
            sequences = sequences[-((len(sequences) - 1) % MAX_SETTLED + 1) :]
        sequence = self._append(
            2,
            encode_settled(subscription, sequences),
            time_ms * 1000,
            destination=destination,
            kind=cause,
            last=last,
        )
        self._liveness.settle(sequences)
        return sequence

    def append_entry(
        self,
        type: int,
        payload: bytes,
        time_ms: int,
        *,
        reference: int = 0,
        destination: int = 0,
        references: int = 0,
        last: bool = True,
    ) -> int:
        sequence = self._append(
            type,
            payload,
            time_ms * 1000,
            reference=reference,
            destination=destination,
            references=references,
            last=last,
        )
        if type == RecordType.RESOLVED:
            self._liveness.settle([reference])
        return sequence

    def _append(
        self,
        type: int,
        body: bytes,
        time_us: int,
        *,
        reference: int = 0,
        destination: int = 0,
        kind: int = 0,
        references: int = 0,
        last: bool = True,
    ) -> int:
        if self._refusal:
            raise JournalFailed(self._refusal)
        size = HEADER_BYTES + len(body)
        self._check(references, size)
        parts = self._parts
        sequence = self._next
        rest = REST.pack(
            sequence,
            time_us,
            0,
            reference,
            destination,
            type,
            (UNIT_END if last else 0) | (0 if parts else GROUP_START),
            0,
            0,
            kind,
            0,
            references,
            HEADER_BYTES,
        )
        parts += (SIZE_AND_CRC.pack(size, crc32(body, crc32(rest))) + rest, body, PADDING[size & 7])
        self._note(sequence, size, references)
        self._open = not last
        return sequence

    def _check(self, references: int, size: int) -> None:
        if not 0 <= references <= MAX_REFERENCES:
            raise JournalError(f"a record has 0 to {MAX_REFERENCES} references, not {references}")
        if size > MAX_RECORD_BYTES - 7:
            raise JournalError(f"a record of {size} bytes is larger than the format allows")

    def _note(self, sequence: int, size: int, references: int) -> None:
        """The record that `_parts` now ends with: where it is, and what it waits for."""
        fill = self._fill
        self._places.append(fill >> 3)
        self._fill = fill + size + 7 & -8
        self._live.append(0)
        if references:
            self._liveness.expect(self._segment, sequence, references)
        self._next = self._recorded = sequence + 1

    def _append_own(self, type: int, body: bytes, destination: int = 0) -> int:
        """A record of the journal's own, which must not end a unit of the broker's."""
        return self._append(type, body, _now(), destination=destination, last=not self._open)

    def next_sequence(self) -> int:
        sequence = self._next
        if sequence - self._recorded >= NUMBERED_EVERY:
            self._append_own(RecordType.NUMBERED, b"")
            sequence = self._next
        self._next = sequence + 1
        self._live.append(0)
        self._places.append(0)
        return sequence

    def destination(self, address: Address) -> int:
        number = self._numbers.get(address)
        if number is None:
            number = self._next_number
            self._append_own(RecordType.DESTINATION, encode_address(address), number)
            self._next_number = number + 1
            self._numbers[address] = number
            self.addresses[number] = address
        return number

    def forget_destination(self, address: Address) -> None:
        number = self._numbers.get(address)
        if number is not None:
            self._append_own(RecordType.DESTINATION_GONE, encode_address(address), number)
            del self._numbers[address], self.addresses[number]
            self._gone[number] = address

    def retain(self, sequence: int, count: int = 1) -> None:
        self._liveness.retain(sequence, count)

    def release(self, sequence: int) -> bool:
        return self._liveness.release(sequence)

    # --- group commit --------------------------------------------------------------------------

    def commit(self) -> None:
        if self._open or self._refusal:
            return
        if self._snapshot_due and self._capture is None:
            self._begin_snapshot()
        if self._group is not None:
            self._wanted = True
        elif self._parts or self._roll_wanted:
            self._hand_over()
        elif self.durable < self._next - 1:
            self.durable = self._next - 1
            self.on_durable(self.durable)
            if self._next - self._segment.base > SPAN_LIMIT:
                self._roll()

    def _hand_over(self) -> None:
        parts = self._parts
        if parts:
            self._parts = []
            end = DurableEnd(self._segment.first, self._fill, self._next - 1)
            self._group = group = Group(parts, self._file, end)
            self._writer.submit(partial(self._write, group), partial(self._written, group))
        if (
            self._roll_wanted
            or self._fill > self.options.segment_bytes
            or self._next - self._segment.base > SPAN_LIMIT
        ):
            self._roll()

    def _write(self, group: Group) -> None:
        """On the writer's thread."""
        started = time.perf_counter()
        group.file.write(group.parts)
        self._sync_last = time.perf_counter() - started
        self._durable_file.write(group.end)

    def _written(self, group: Group) -> None:
        self._group = None
        self._groups += 1
        self._sync_total += self._sync_last
        self._last_records = len(group.parts) // 3
        self._last_bytes = sum(map(len, group.parts))
        self.durable = durable = group.end.sequence
        self.on_durable(durable)
        capture = self._capture
        if capture is not None and capture.snapshot.position <= durable:
            self._write_snapshot(capture)
        if not self._mover.idle and not self._open and not self._refusal:
            try:
                self._mover.step()
                self._wanted = True
            except JournalDamaged as error:
                self._fail(error)
        if self._wanted and self._group is None and not self._open and not self._refusal:
            self._wanted = False
            if self._parts or self._roll_wanted:
                self._hand_over()

    def sync(self) -> None:
        """Commit, and wait until everything is durable and all work behind it is done.

        Raises JournalFailed.
        """
        self.commit()
        while self._writer.outstanding:
            self._writer.wait()
            self.commit()
        if self._refusal and not self._closed:
            raise JournalFailed(self._refusal)

    def fence(self) -> None:
        if not self._refusal:
            self.sync()
            self._refusal = "the journal is fenced: somebody else writes it now"

    def _fail(self, error: BaseException) -> None:
        if self._refusal:
            return
        if isinstance(error, JournalError):
            failure: JournalError = error
        else:
            failure = JournalFailed(
                f"writing the journal in {self.directory} failed: {error}. Nothing is "
                "acknowledged any more. Check the disk and its free space before the next start; "
                "what was acknowledged so far is safe."
            )
        self._refusal = str(failure)
        self._parts = []
        self.on_failure(failure)

    # --- segments ------------------------------------------------------------------------------

    def _start_segment(self) -> None:
        segments = self._liveness.segments
        previous = segments[-1].first if segments else 0
        self._segment = segment = Segment(self._next, previous)
        self._liveness.add(segment)
        self._live = segment.live
        self._places = segment.places
        self._fill = SEGMENT_HEADER_BYTES
        header = SegmentHeader(segment.first, previous, _now(), self._directory_identity)
        reserve = self.options.segment_bytes if self.options.preallocate else 0
        self._file = SegmentFile(self.directory, header, reserve)
        self._files[segment.first] = self._file
        self._writer.submit(self._file.create, _nothing)

    def seal(self) -> None:
        self._roll_wanted = True
        self.commit()

    def _roll(self) -> None:
        """End the segment behind the group that was just handed over, and start the next."""
        self._roll_wanted = False
        segment = self._segment
        file = self._file
        if self._fill == SEGMENT_HEADER_BYTES:
            segment.base = self._next  # empty: its columns only stand for numbers without records
            segment.live.clear()
            segment.places = self._places = array("I")
            return
        sequence = self._next
        self._next = sequence + 1
        segment.last = sequence - 1
        names = {**self.addresses, **self._gone}
        self._gone = {}
        self._writer.submit(
            partial(self._seal, file, sequence, names), partial(self._sealed, segment, file)
        )
        self._start_segment()
        self._snapshot_due = True

    def _seal(self, file: SegmentFile, sequence: int, names: dict[int, Address]) -> None:
        """On the writer's thread."""
        file.seal(sequence, names)
        self._durable_file.write(DurableEnd(file.first, file.end, sequence))

    def _sealed(self, segment: Segment, file: SegmentFile) -> None:
        segment.records = len(segment.places) - segment.places.count(0)
        segment.places = array("I")
        segment.size = file.end
        segment.sealed = True
        del self._files[segment.first]
        file.close()

    # --- snapshots and space -------------------------------------------------------------------

    def _recovered_state(self) -> bytes:
        """What the last start found: for tools, which run no broker."""
        return self._state

    def _begin_snapshot(self) -> None:
        self._snapshot_due = False
        position = self._append_own(RecordType.SNAPSHOT, b"")
        if self.snapshot_source != self._recovered_state:
            self._state = b""
            self._state_position = position
        capture = capture_segments(self._liveness)
        snapshot = capture.snapshot
        snapshot.position = position
        snapshot.state_position = self._state_position
        snapshot.state = self.snapshot_source()
        snapshot.next_number = self._next_number
        snapshot.addresses = [
            (number, int(address.kind), encode_name(address.name))
            for number, address in self.addresses.items()
        ]
        pairs = array("Q")
        for pair in self._liveness.carried.items():
            pairs.extend(pair)
        snapshot.carried = pairs.tobytes()
        self._capture = capture

    def _write_snapshot(self, capture: Capture) -> None:
        self._writer.submit(
            partial(write_snapshot, self.directory, capture),
            partial(self._snapshot_written, capture),
        )

    def _snapshot_written(self, capture: Capture) -> None:
        self._capture = None
        for segment, state in capture.raw:
            segment.packed = state.live
        position = capture.snapshot.state_position
        try:
            gone, lost = removable(capture.finished, position, self.slots)
        except (JournalError, OSError) as error:
            self._fail(error)
            return
        for segment in gone:
            self._liveness.remove(segment)
            view = self._views.pop(segment.first, None)
            if view is not None:
                view.close()
        if gone or lost:
            self._writer.submit(partial(self._remove, gone, lost), _nothing)
        self._mover.take(stuck(self._liveness.segments, position, self.options.leftover_fraction))
        if not self._mover.idle and self._group is None and not self._open:
            self._mover.step()
            self.commit()

    def _remove(self, gone: list[Segment], lost: list[str]) -> None:
        """On the writer's thread."""
        for name in lost:
            with contextlib.suppress(RecordNotFound):
                self.slots.lose(name)
        for segment in gone:
            segment_path(self.directory, segment.first).unlink(missing_ok=True)

    def _carry(self, segment: Segment, sequence: int) -> int:
        """Write a live record anew. Returns its size; 0 when it has gone meanwhile."""
        liveness = self._liveness
        left = liveness.left(segment, sequence)
        if not left and not liveness.held(segment, sequence):
            return 0
        record = self._read(segment, sequence)
        parts = self._parts
        flags = record.flags & (ROUTED | DELAYED | ENTRY) | UNIT_END
        if not record.is_message:
            flags |= ENTRY
        target = self._next
        encoded = encode_record(
            RecordType.CARRIED,
            target,
            record.time,
            record.body,
            meta=record.meta,
            expiration=record.expiration,
            reference=record.identity,
            destination=record.destination,
            flags=flags if parts else flags | GROUP_START,
            priority=record.priority,
            origin=record.origin,
            kind=record.kind,
            durability=record.durability,
            references=left,
        )
        parts += encoded
        size = HEADER_BYTES + len(encoded[1])
        self._note(target, size, 0)
        liveness.move(segment, sequence, record.identity, self._segment, target)
        return size

    # --- reading back --------------------------------------------------------------------------

    def fetch(self, sequence: int) -> Message:
        record = self.entry(sequence)
        address = self.addresses.get(record.destination)
        if address is None or not record.is_message:
            raise RecordNotFound(f"record {sequence} is no message of a destination that exists")
        return decode_message(record, address)

    def entry(self, sequence: int) -> Record:
        segment, place = self._liveness.locate(sequence)
        return self._read(segment, place)

    def _read(self, segment: Segment, sequence: int) -> Record:
        if segment.sealed:
            return self._read_sealed(segment, sequence)
        place = segment.places[sequence - segment.base] << 3
        if not place:
            raise RecordNotFound(f"number {sequence} was given without a record")
        if sequence > self.durable:
            return self._read_pending(sequence)
        fd = self._files[segment.first].fd
        data = os.pread(fd, READ_AHEAD, place)
        size = int.from_bytes(data[:4], "little")
        if size > len(data):
            data += os.pread(fd, size + 8 - len(data), place + len(data))
        return self._decode(memoryview(data), 0, segment, sequence, place)

    def _read_sealed(self, segment: Segment, sequence: int) -> Record:
        view = self._views.get(segment.first)
        if view is None:
            view = SegmentView(segment_path(self.directory, segment.first))
            self._views[segment.first] = view
            if len(self._views) > OPEN_VIEWS:
                self._views.popitem(last=False)[1].close()
        index = view.index
        if index is None:
            raise damaged(view.path, view.size, "the index is not intact")
        row = index.row(sequence)
        if row == index.count or index.sequences[row] != sequence:
            raise RecordNotFound(f"number {sequence} was given without a record")
        place = int(index.columns["offset"][row])
        return self._decode(view.view, place, segment, sequence, place)

    def _decode(
        self, data: memoryview, offset: int, segment: Segment, sequence: int, place: int
    ) -> Record:
        size = record_size(data, offset)
        if not size or sequence_at(data, offset) != sequence:
            path = segment_path(self.directory, segment.first)
            raise damaged(path, place, f"record {sequence} is not intact")
        return decode_record(data, offset, size)

    def _read_pending(self, sequence: int) -> Record:
        """A record that is not on disk yet."""
        for parts in (self._parts, self._group.parts if self._group else []):
            for start in range(0, len(parts), 3):
                if sequence_at(memoryview(parts[start]), 0) == sequence:
                    data = b"".join(parts[start : start + 3])
                    return decode_record(memoryview(data), 0, len(data) - len(parts[start + 2]))
        raise RecordNotFound(f"no record {sequence}")

    def read_from(self, sequence: int) -> Iterator[Record]:
        for _, _, record in read_records(self.directory, sequence=sequence):
            yield record

    # --- the rest ------------------------------------------------------------------------------

    def stats(self) -> JournalStats:
        segments = self._liveness.segments
        return JournalStats(
            segments=len(segments),
            bytes=sum(segment.size for segment in segments)
            + sum(file.end for file in self._files.values()),
            durable=self.durable,
            live=sum(segment.count_live() for segment in segments),
            carried=len(self._liveness.carried),
            groups=self._groups,
            group_records=self._last_records,
            group_bytes=self._last_bytes,
            sync_last=self._sync_last,
            sync_total=self._sync_total,
        )

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if not self._refusal and not self._open:
            self._append(RecordType.STOPPED, b"", _now())
        self.sync()
        self._refusal = self._refusal or "the journal is closed"
        self._writer.stop()
        self.recovery.done()
        for view in self._views.values():
            view.close()
        for file in self._files.values():
            file.close()
        self._durable_file.close()
        os.close(self._lock)


def _nothing() -> None:
    """Nothing waits for this job."""


def _now() -> int:
    return time.time_ns() // 1000


def _take_lock(directory: Path) -> int:
    fd = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(fd)
        raise JournalLocked(
            f"{directory} is in use by process {holder}. Stop it, or choose another directory."
        ) from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, b"%d\n" % os.getpid(), 0)
    return fd


def _identity(directory: Path) -> bytes:
    """The directory's own 16 bytes; drawn when there are neither they nor segments."""
    path = directory / IDENTITY_NAME
    try:
        identity = bytes.fromhex(path.read_text("ascii"))
    except FileNotFoundError:
        if list_segments(directory):
            raise damaged(path, 0, f"the file is missing, but there are {SUFFIX} files") from None
        identity = os.urandom(IDENTITY_BYTES)
        write_whole(path, identity.hex().encode() + b"\n")
    except ValueError:
        identity = b""
    if len(identity) != IDENTITY_BYTES:
        raise damaged(path, 0, "the file does not hold 32 hexadecimal digits")
    return identity
