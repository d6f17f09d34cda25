"""Journal on disk: appends, group commit, and reads.

The owner's thread builds records and tracks liveness; the writer threads write. At most one group
is being written; records appended meanwhile form the next group. Sealing a full segment does not
delay the next group: the background thread seals it while the group thread writes the next one.
"""

from __future__ import annotations

import json
import os
import time
from array import array
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from msgspec.structs import replace

from sluicemq.journal.append import Appender, now
from sluicemq.journal.compaction import Compactor
from sluicemq.journal.files import (
    NO_DESCRIPTOR,
    DurableEnd,
    DurableFile,
    inherit_owner,
    remove_temporary,
    take_lock,
)
from sluicemq.journal.format import GROUP_START, Record, RecordType, decode_message
from sluicemq.journal.interface import JournalOptions, JournalStats
from sluicemq.journal.liveness import SPAN_LIMIT, LiveSegment
from sluicemq.journal.reader import Lookup, find_pending
from sluicemq.journal.recovery import Recovery
from sluicemq.journal.segment import (
    SEGMENT_HEADER_BYTES,
    SegmentHeader,
    make_identity,
    read_identity,
)
from sluicemq.journal.slots import MAX_POSITION, Slots
from sluicemq.journal.space import DiskSpace, SpaceReport, convert_disk_errors, ignore
from sluicemq.journal.writer import Done, JournalWriter, SegmentFile, Work
from sluicemq.model.errors import JournalError, JournalFailed, RecordNotFound
from sluicemq.model.histogram import Histogram
from sluicemq.model.message import Message

SMALL_GROUP: Final = 4
"""Records. The owner's thread writes groups up to this size itself: passing a group to another
thread and receiving the result takes 1.5 times as long as a fast fdatasync."""
START_SECONDS: Final = 0.1
"""Interval between checks of whether the first group has to wait for space."""
FAST_SYNC: Final = 0.001
"""Seconds. If an fdatasync usually takes longer, the owner's thread never runs it."""
IDLE_SEGMENT: Final = 1 << 20
"""Bytes of records, none live, above which the active segment ends early while space is low."""
RECLAIM_SECONDS: Final = 10.0
"""Minimum interval between two snapshots taken to reclaim space."""

MAX_UNSYNCED: Final = 1 << 20
"""Maximum bytes written without a sync; a group beyond this is synced."""
MAX_WAITING: Final = 16 << 20
"""Bytes appended during the write of a group beyond which the journal is behind."""


class Group(NamedTuple):
    """Records written together: three buffers per record, the resulting end of the journal, and
    whether to sync. A group without buffers syncs earlier writes."""

    parts: list[bytes]
    file: SegmentFile
    end: DurableEnd
    sync: bool


Notify = Callable[[Callable[[], None]], object]


class FileJournal(Appender):
    """Journal in the files of a directory; implements `interface.Journal`."""

    __slots__ = (
        "_average_sync_time",
        "_closed",
        "_commit_requested_at",
        "_compactor",
        "_directory_identity",
        "_durable_file",
        "_file",
        "_files",
        "_group",
        "_groups",
        "_lock",
        "_lookup",
        "_on_durable",
        "_on_failure",
        "_on_written",
        "_reclaim_at",
        "_records",
        "_roll_requested",
        "_seal_job",
        "_snapshot_due",
        "_snapshot_source",
        "_state",
        "_state_position",
        "_sync_requested",
        "_unsynced",
        "_writer",
        "_written_bytes",
        "directory",
        "durable",
        "identity",
        "options",
        "recovery",
        "slots",
        "space",
        "syncs",
        "written",
    )

    def __init__(
        self,
        directory: Path,
        options: JournalOptions,
        identity: bytes,
        recovery: Recovery,
        lock: int,
        notify: Notify,
        on_failure: Callable[[JournalError], object],
        on_warning: Callable[[str], None],
        space: DiskSpace,
    ) -> None:
        """Initialize from a recovery; callers use `open`."""
        super().__init__(
            recovery.liveness, recovery.addresses, recovery.next_number, recovery.next_sequence
        )
        self.directory = directory
        self.options = options
        self.syncs = Histogram()
        self.identity = identity[:8]
        self.recovery = recovery
        self.slots = Slots(directory, options.slot_limit_bytes)
        self._on_durable: Callable[[int], None] = ignore
        self._on_written: Callable[[int], None] = ignore
        self._on_failure = on_failure
        self._snapshot_source: Callable[[], bytes] | None = None
        self._state = recovery.state
        self._state_position = recovery.position
        self._directory_identity = identity
        self._lock = lock
        self._closed = False

        self.durable = self.written = self._next - 1
        self._unsynced = 0
        """Bytes written since the last sync."""
        self._commit_requested_at = 0
        """Next sequence number at the last `commit` during the writing of a group."""
        self._sync_requested = False
        self._roll_requested = False
        self._group: Group | None = None
        self._seal_job: tuple[Work, Done] | None = None
        """Work that seals the full segment once its last group is on disk."""

        self.space = space
        self._reclaim_at = 0.0
        self._files: dict[int, SegmentFile] = {}
        self._lookup = Lookup(directory, self._files)
        self._snapshot_due = False
        self._groups = 0
        self._average_sync_time = 2 * FAST_SYNC
        """Smoothed sync duration in seconds; the initial value counts as slow."""
        self._records = 0
        self._written_bytes = 0

        self._durable_file = DurableFile(directory, space)
        self._writer = JournalWriter(notify, self.fail)
        self._compactor = Compactor(
            directory,
            options,
            self._liveness,
            self._lookup,
            self.slots,
            self._writer,
            space,
            self._relocate,
            self.fail,
            on_warning,
        )
        self._open_file()

    @classmethod
    def open(
        cls,
        directory: Path,
        options: JournalOptions | None = None,
        notify: Notify = ignore,
        on_failure: Callable[[JournalError], object] = ignore,
        *,
        on_warning: Callable[[str], None] = ignore,
        wait_for_space: bool = False,
    ) -> FileJournal:
        """Recover the journal of that directory, or create one.

        `notify(f)` must schedule a prompt call of f() on this thread; the writer threads call it.
        Without it, `sync` and `close` collect the writer's results. `on_failure` is called once,
        after a write has failed; the process should then stop. Without it, the next append raises.
        `on_warning` is called with texts for the operator.
        The journal's `recovery` has the broker's state; call its `close` after reading it.

        With `wait_for_space`, writes that find no space on a full file system, not even in the
        reserve, wait for space; call `measure_space` and `check_space` once a second. Without it,
        such writes fail.

        Raises JournalLocked, JournalDamaged, JournalFailed, JournalError, OSError.
        """
        options = options or JournalOptions()
        with convert_disk_errors(directory), ExitStack() as stack:
            if not directory.is_dir():
                directory.mkdir(parents=True, exist_ok=True, mode=0o750)
                inherit_owner(directory, directory.parent)
            lock = take_lock(directory)
            stack.callback(os.close, lock)
            remove_temporary(directory)
            space = DiskSpace(
                directory,
                options.disk_free_limit_bytes,
                options.disk_free_limit_percent,
                options.reserve_bytes,
                notify,
                wait_for_space=wait_for_space,
            )
            stack.callback(space.close_reserve)
            identity = read_identity(directory) or make_identity(directory)
            recovery = Recovery(directory, identity, verify=options.verify_on_start, space=space)
            journal = cls(
                directory, options, identity, recovery, lock, notify, on_failure, on_warning, space
            )
            stack.pop_all()
        try:
            started = json.dumps({"pid": os.getpid()}).encode()
            journal._append_internal(RecordType.STARTED, started)
            journal._write_start()
            journal._snapshot_due = len(recovery.parts) > 0
        except BaseException:
            journal.close()
            raise
        return journal

    def _write_start(self) -> None:
        """Write the first group, unless it has to wait for space. Raises JournalFailed."""
        self.commit()
        while self._writer.outstanding and not self.space.exhausted:
            self._writer.wait(START_SECONDS)
        if self._append_error:
            raise JournalFailed(self._append_error)

    # --- callbacks -----------------------------------------------------------------------------

    def observe(
        self,
        on_durable: Callable[[int], None] = ignore,
        on_written: Callable[[int], None] = ignore,
        on_space: Callable[[SpaceReport], None] = ignore,
    ) -> None:
        self._on_durable = on_durable
        self._on_written = on_written
        self.space.observe(on_space)

    def set_snapshot_source(self, source: Callable[[], bytes]) -> None:
        """Call `source` for each snapshot: it returns the broker state that recovery passes to the
        next start. Without it, that is the recovered state."""
        self._snapshot_source = source

    # --- group commit --------------------------------------------------------------------------

    @property
    def has_pending_records(self) -> bool:
        return bool(self._parts)

    @property
    def is_behind(self) -> bool:
        return self._fill - self._submitted > MAX_WAITING

    @property
    def is_stalled(self) -> bool:
        return self._next - self._segment.base > 2 * SPAN_LIMIT

    def commit(self, sync: bool = True) -> None:
        if self._in_unit or self._append_error:
            return
        if self._snapshot_due and not self._compactor.is_taking_snapshot:
            self._begin_snapshot()
        if self._group is not None:
            self._commit_requested_at = self._next
            self._sync_requested |= sync
            return
        if self._parts or self._roll_requested or (sync and self._unsynced):
            self._submit_group(sync)
        elif self.written < self._next - 1:
            # the numbers since `written` have no records
            self.written = self._next - 1
            self._on_written(self.written)
            if not self._unsynced:
                self.durable = self.written
                self._on_durable(self.durable)
                if self._next - self._segment.base > SPAN_LIMIT:
                    self._roll()

    def _submit_group(self, sync: bool) -> None:
        parts = self._parts
        last = (
            self._roll_requested
            or self._fill > self.options.segment_bytes
            or self._next - self._segment.base > SPAN_LIMIT
        )
        # a sync of the next file does not cover this one
        sync = sync or last or self._unsynced > MAX_UNSYNCED
        if parts or (sync and self._unsynced):
            self._parts = []
            self._submitted = self._fill
            self._sync_requested = False
            self._group_flags = GROUP_START if sync else 0
            self._last_recorded = self._next - 1
            end = DurableEnd(self._segment.first, self._fill, self._last_recorded)
            self._group = group = Group(parts, self._file, end, sync)
            is_small = len(parts) <= 3 * SMALL_GROUP and self._average_sync_time < FAST_SYNC
            # the owner's thread neither creates a file, as the first group of a file does,
            # nor waits for space, nor calls back before `_roll` has begun the next segment
            file = self._file
            fits = not self.space.low and file.fits(self._fill, len(parts) // 3)
            is_inline = is_small and not last and file.fd >= 0 and fits
            run = self._writer.run if is_inline else self._writer.submit
            run(partial(self._write_group, group), partial(self._finish_group, group))
        if last:
            self._roll()

    def _write_group(self, group: Group) -> None:
        """Write and sync a group, usually on the group thread."""
        if not group.sync:
            group.file.write(group.parts, False)
            return
        started = time.perf_counter()
        group.file.write(group.parts, True)
        duration = time.perf_counter() - started
        # capped, because a single very slow sync does not predict the next one
        self._average_sync_time += (min(duration, 2 * FAST_SYNC) - self._average_sync_time) / 8
        self._durable_file.write(group.end)

    def _finish_group(self, group: Group) -> None:
        self._group = None
        self._groups += 1
        size = sum(map(len, group.parts))
        self._records += len(group.parts) // 3
        self._written_bytes += size
        self.written = sequence = group.end.sequence
        if group.sync:
            size += self._unsynced
            self._unsynced = 0
            self._submit_seal()
            self.durable = sequence
            self._on_durable(sequence)
            self._compactor.group_durable(sequence, size)
        else:
            self._unsynced += size
        # confirm before the next commit, so that publishers send their next messages earlier
        self._on_written(sequence)
        if self._commit_requested_at == self._next:
            # the current event loop iteration has appended nothing
            self.commit(self._sync_requested)
        self._move_records()

    def _move_records(self) -> None:
        """Append some live records of old segments to the next group.

        While the reserve is being used, no records move: a move takes space before it frees any.
        """
        if not self._in_unit and not self._append_error and not self.space.is_using_reserve:
            self._compactor.move_slice()

    def sync(self) -> None:
        """Commit, and wait until all records are durable and all writer jobs are done.

        Raises JournalFailed.
        """
        self.commit()
        while self._writer.outstanding:
            self._writer.wait()
            self._move_records()
            self.commit()
        if self._append_error and not self._closed:
            raise JournalFailed(self._append_error)

    def fail(self, error: BaseException) -> None:
        if self._append_error:
            return
        if isinstance(error, JournalError):
            failure: JournalError = error
        else:
            remedy = "Check the disk and its free space"
            if isinstance(error, OSError) and error.errno in NO_DESCRIPTOR:
                remedy = "Raise the limit of open files (LimitNOFILE of systemd, ulimit -n)"
            failure = JournalFailed(
                f"writing the journal in {self.directory} failed: {error}. Nothing is "
                f"acknowledged any more. {remedy} before the next start; what was acknowledged so "
                "far is safe."
            )
        self._append_error = str(failure)
        self._parts = []
        self._on_failure(failure)

    # --- segments ------------------------------------------------------------------------------

    def _open_file(self) -> None:
        """Prepare the file of the new active segment; its first group creates the file."""
        segment = self._segment
        previous, previous_end = 0, 0
        if len(self._liveness.segments) > 1:
            predecessor = self._liveness.segments[-2]
            previous, previous_end = predecessor.first, predecessor.end
        header = SegmentHeader(
            segment.first, previous, now(), self._directory_identity, previous_end
        )
        preallocate = min(self.options.preallocate_bytes, self.options.segment_bytes)
        self._file = SegmentFile(self.directory, header, self.space, preallocate, self.syncs.record)
        self._files[segment.first] = self._file

    @property
    def segments(self) -> Sequence[LiveSegment]:
        """All segments in ascending order, as known to the owner's thread; read-only."""
        return self._liveness.segments

    def seal(self) -> None:
        """End the active segment, so that it can be read by column or removed."""
        self._roll_requested = True
        self.commit()

    def _roll(self) -> None:
        """End the active segment after the last group, and begin the next segment."""
        self._roll_requested = False
        segment = self._segment
        file = self._file
        if self._fill == SEGMENT_HEADER_BYTES:
            self._rebase_segment()
            return
        sequence = self._next
        self._next = sequence + 1
        segment.last = sequence - 1
        segment.end = self._fill
        names = {**self.addresses, **self._forgotten_destinations}
        self._seal_job = (
            partial(file.seal, sequence, names),
            partial(self._finish_seal, segment, file),
        )
        if self._group is None:
            self._submit_seal()
        self._begin_segment()
        self._open_file()
        self._snapshot_due = True

    def _submit_seal(self) -> None:
        """Seal the full segment, if any, once its last group is on disk.

        The job is queued before the next group is submitted, and therefore before any later
        snapshot: once such a snapshot is on disk, the segment is sealed.
        """
        if self._seal_job is not None:
            self._writer.defer(*self._seal_job)
            self._seal_job = None

    def _finish_seal(self, segment: LiveSegment, file: SegmentFile) -> None:
        segment.records = file.records
        segment.offsets = array("I")
        segment.size = file.end
        segment.sealed = True
        del self._files[segment.first]
        file.close()

    # --- snapshots and space -------------------------------------------------------------------

    def _begin_snapshot(self) -> None:
        source = self._snapshot_source
        if source is not None and not self.recovery.finished:
            return  # the broker has not recovered its state yet
        self._snapshot_due = False
        position = self._append_internal(RecordType.SNAPSHOT, b"")
        state = self._state
        if source is not None:
            state, self._state = source(), b""
            self._state_position = position
        self._compactor.take_snapshot(
            position, self._state_position, state, self._next_number, self.addresses
        )

    def measure_space(self) -> None:
        """Query the free space of the file system. May block; callable on any thread."""
        self.space.measure()

    def check_space(self) -> None:
        """Evaluate the last measurement of the free space, and reclaim segments while it is low.
        Call once a second."""
        space = self.space
        space.poll()
        if self._append_error:
            return
        if space.can_restore_reserve:
            self._writer.defer(space.restore_reserve, space.poll)
        if space.low:
            self._reclaim()

    def _reclaim(self) -> None:
        """Remove segments without live records before the active segment is full.

        Segments held only by slots are removed as soon as the slots release them. Other segments
        require a snapshot, and the active segment must end first. Both append records, so this
        happens at most once per `RECLAIM_SECONDS`, unless the reserve is being used.
        """
        compactor = self._compactor
        compactor.remove_finished()
        if compactor.is_taking_snapshot or self._in_unit:
            return
        moment = time.monotonic()
        if not self._snapshot_due and (moment >= self._reclaim_at or self.space.is_using_reserve):
            if self._fill > IDLE_SEGMENT and not self._segment.count_live():
                self._roll_requested = True  # a snapshot follows
            elif compactor.snapshot_failed or compactor.snapshot_would_free_segment:
                self._snapshot_due = True
        if self._roll_requested or self._snapshot_due:
            self._reclaim_at = moment + RECLAIM_SECONDS
            self.commit()

    def space_state(self) -> SpaceReport:
        return self.space.state()

    def bytes_held_by_slots(self) -> dict[str, int]:
        """Return the bytes that only a retention slot keeps from being reclaimed, by slot name."""
        return self._compactor.bytes_held_by_slots()

    def compact(self) -> None:
        """Move live records out of partly live segments, and remove segments without any.

        Blocks until the moved records are written. Segments that the broker state in the snapshot
        does not cover remain. Raises JournalFailed.
        """
        self._sync_snapshot()
        self._compactor.schedule_moves(
            [
                segment
                for segment in self._liveness.segments
                if segment.sealed
                and segment.last < self._state_position
                and segment.count_live() < segment.records
            ]
        )
        self._sync_snapshot()

    def _sync_snapshot(self) -> None:
        """Write all records and a snapshot of the result."""
        self._move_records()
        self.seal()
        self.sync()
        self._snapshot_due = True
        self.sync()

    # --- reading back --------------------------------------------------------------------------

    def fetch(self, sequence: int) -> Message:
        return self._message(sequence, self.fetch_entry(sequence))

    def fetch_head(self, sequence: int) -> Message:
        segment, position = self._liveness.locate(sequence)
        if position > self.written:
            return self.fetch(sequence)
        return self._message(sequence, self._lookup.head(segment, position))

    def _message(self, sequence: int, record: Record) -> Message:
        address = self.addresses.get(record.destination)
        if address is None or not record.is_message:
            raise RecordNotFound(f"record {sequence} is not a message of an existing destination")
        return decode_message(record, address)

    def fetch_entry(self, sequence: int) -> Record:
        segment, position = self._liveness.locate(sequence)
        if position <= self.written:
            return self._lookup.read(segment, position)
        for parts in (self._parts, self._group.parts if self._group else ()):
            record = find_pending(parts, position)
            if record is not None:
                return record
        raise RecordNotFound(f"sequence number {sequence} has no record")

    # --- statistics and end --------------------------------------------------------------------

    def stats(self) -> JournalStats:
        segments = self._liveness.segments
        return JournalStats(
            segments=len(segments),
            bytes=sum(segment.size for segment in segments)
            + sum(file.end for file in self._files.values()),
            durable=self.durable,
            live=sum(segment.count_live() for segment in segments),
            relocated=len(self._liveness.relocated),
            groups=self._groups,
            records=self._records,
            written_bytes=self._written_bytes,
        )

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if not self._append_error and not self._in_unit:
            self._append_internal(RecordType.STOPPED, b"")
        self.space.close()
        self.sync()
        self._append_error = self._append_error or "the journal is closed"
        self._writer.stop()
        self.recovery.close()
        self._lookup.close()
        for file in self._files.values():
            file.close()
        self._durable_file.close()
        self.space.close_reserve()
        os.close(self._lock)


def without_slot_limits(options: JournalOptions) -> JournalOptions:
    """Return the options for the journal of a stopped broker, which lose no slot: its reader may be
    idle because the broker is stopped, and the broker's own settings may not be known."""
    return replace(
        options,
        slot_limit_bytes=MAX_POSITION,
        slot_idle_timeout=0,
        invalidate_slots_on_low_disk_space=False,
    )


def compact(
    directory: Path,
    options: JournalOptions | None = None,
    adopt: Callable[[FileJournal], None] | None = None,
) -> tuple[JournalStats, JournalStats]:
    """Compact a journal that no broker has open; return its statistics before and after.

    `adopt` reads the recovery as a broker does and calls `set_snapshot_source`; without it,
    segments after the broker's last snapshot are not compacted. Slots are kept.

    Raises JournalFailed and the errors of `FileJournal.open`.
    """
    journal = FileJournal.open(directory, without_slot_limits(options or JournalOptions()))
    try:
        if adopt is not None:
            adopt(journal)
        journal.recovery.close()
        before = journal.stats()
        journal.compact()
        after = journal.stats()
    finally:
        journal.close()
    return before, after
