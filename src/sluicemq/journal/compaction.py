"""Snapshots, removal of segments without live records, and compaction of those with few.

A segment is removed when no record in it is live according to a snapshot on disk. (The present
state is not sufficient, because a crash may lose acknowledgements.) Compaction appends the live
records of a segment again as RELOCATED records, some with each group. They keep their sequence
numbers as identities.

Moved records fill segments, full segments cause snapshots, and snapshots cause moves. Without a
budget, an idle journal could rewrite its live records indefinitely. So each byte that the broker
writes permits moving one byte: moves at most double the written bytes.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from itertools import compress
from pathlib import Path
from typing import Final, NamedTuple

from sluicemq.journal.format import HEADER_BYTES, Record
from sluicemq.journal.interface import JournalOptions
from sluicemq.journal.liveness import Liveness, LiveSegment
from sluicemq.journal.reader import Lookup
from sluicemq.journal.segment import sealed_time, segment_path
from sluicemq.journal.slots import Slot, Slots, now_ms
from sluicemq.journal.snapshot import Capture, Snapshot, capture_segments, write_snapshot
from sluicemq.journal.space import ENTRY_BYTES, NO_SPACE, DiskSpace, ignore
from sluicemq.journal.writer import JournalWriter
from sluicemq.model.destination import Address, encode_name
from sluicemq.model.errors import JournalDamaged, JournalError, RecordNotFound

MOVE_BYTES: Final = 1 << 20
"""Maximum bytes to move per group, which limits the effect on live traffic."""
ALLOWANCE_SEGMENTS: Final = 4
"""Maximum budget for moves, in segments."""


class LostSlot(NamedTuple):
    """A slot to be marked lost, with its state at the decision; `abandoned` as in Slot."""

    name: str
    slot: Slot
    abandoned: bool


class Compactor:
    """Takes snapshots of a journal and reclaims space.

    space       disk space; while it is low, segments are reclaimed before the active one is full
    relocate    appends the record again as RELOCATED with its remaining references; returns its
                segment, sequence number and bytes
    on_failure  called with an error that shows that the journal cannot be trusted
    on_warning  called with warnings about slots, for the operator
    snapshot_failed  True if there was no space for the last snapshot
    """

    def __init__(
        self,
        directory: Path,
        options: JournalOptions,
        liveness: Liveness,
        lookup: Lookup,
        slots: Slots,
        writer: JournalWriter,
        space: DiskSpace,
        relocate: Callable[[Record, int], tuple[LiveSegment, int, int]],
        on_failure: Callable[[BaseException], None],
        on_warning: Callable[[str], None],
    ) -> None:
        self._directory = directory
        self._options = options
        self._liveness = liveness
        self._lookup = lookup
        self._slots = slots
        self._writer = writer
        self._space = space
        self._relocate = relocate
        self._on_failure = on_failure
        self._on_warning = on_warning
        self._idle_slots: set[str] = set()
        """Slots about which a warning was issued, because their readers may have gone."""
        self._reported_damage = ""
        """Last warning about a damaged slot, which is not repeated."""
        self._capture: Capture | None = None
        self._pending_moves: deque[tuple[LiveSegment, list[int]]] = deque()
        """Segments to empty, each with the numbers of its needed records, the first one last."""
        self._allowance = 0
        """Budget for moves in bytes; see `_adjust_allowance`."""
        self._own_bytes = 0
        """Bytes of moved records and of SNAPSHOT records that are not durable yet. They do not add
        to the budget."""
        self._finished: list[LiveSegment] = []
        """Segments without live records as of the last snapshot, held by slots."""
        self._position = 0
        """Position of the broker state in that snapshot. The segment with this position remains:
        recovery requires the predecessor of each segment that begins after it."""
        self.snapshot_failed = False

    @property
    def is_taking_snapshot(self) -> bool:
        """True while a snapshot is being taken."""
        return self._capture is not None

    # --- snapshots -------------------------------------------------------------------------------

    def take_snapshot(
        self,
        position: int,
        state_position: int,
        state: bytes,
        next_number: int,
        addresses: Mapping[int, Address],
    ) -> None:
        """Capture a snapshot; the writer writes it once `position` is durable."""
        names = [
            (number, address.kind, encode_name(address.name))
            for number, address in addresses.items()
        ]
        pairs = array("Q")
        for pair in self._liveness.relocated.items():
            pairs.extend(pair)
        snapshot = Snapshot(
            position, state_position, state, next_number, names, pairs.tobytes(), []
        )
        self._capture = capture_segments(self._liveness, snapshot)
        self._own_bytes += HEADER_BYTES

    def group_durable(self, sequence: int, size: int) -> None:
        """Note that `sequence` is durable, with a group of `size` bytes; write a due snapshot."""
        own_bytes = min(size, self._own_bytes)
        self._own_bytes -= own_bytes
        self._adjust_allowance(size - own_bytes)
        capture = self._capture
        if capture is not None and capture.is_waiting and capture.snapshot.position <= sequence:
            capture.is_waiting = False
            self._writer.defer(
                partial(write_snapshot, self._directory, capture, self._space),
                partial(self._finish_snapshot, capture),
            )

    def _finish_snapshot(self, capture: Capture) -> None:
        self._capture = None
        self.snapshot_failed = not capture.written
        if self.snapshot_failed:
            for segment, _ in capture.changed_segments:
                segment.changed = True  # the packed state was not written
            return
        for segment, state in capture.changed_segments:
            segment.packed_live = state.live
        self._finished = capture.finished
        self._position = capture.snapshot.state_position
        self.remove_finished()
        if self._allowance > 0 and not self._pending_moves and not self._space.is_using_reserve:
            try:
                self.schedule_moves(
                    [s for s in self._liveness.segments if self._needs_compaction(s)]
                )
            except (JournalError, OSError) as error:
                self._on_failure(error)

    @property
    def snapshot_would_free_segment(self) -> bool:
        """True if the next snapshot would permit removal of a segment that the last one kept."""
        return any(
            segment.sealed and segment.changed and not segment.is_needed
            for segment in self._liveness.segments
        )

    # --- removal ---------------------------------------------------------------------------------

    def remove_finished(self) -> None:
        """Remove segments without live records at the last snapshot that no slot holds, and slots
        whose lease is over."""
        candidates = self._removable()
        now = now_ms()
        try:
            slots = self._slots.list()
        except JournalDamaged as error:
            if str(error) != self._reported_damage:
                self._reported_damage = str(error)
                self._on_warning(f"no segment is removed: {error}")
            return  # an unreadable slot may need every segment
        active_slots = {name: slot for name, slot in slots.items() if not slot.is_expired(now)}
        expired_slots = list(slots.keys() - active_slots.keys())
        held_segments, lost_slots = self._review_slots(active_slots, candidates, now)
        segments = [segment for segment in candidates if segment not in held_segments]
        for segment in segments:
            self._liveness.remove(segment)
            self._lookup.forget(segment.first)
            self._finished.remove(segment)
        if segments or lost_slots or expired_slots:
            self._writer.defer(partial(self._remove, segments, lost_slots, expired_slots), ignore)

    def _review_slots(
        self, slots: Mapping[str, Slot], candidates: list[LiveSegment], now: int
    ) -> tuple[set[LiveSegment], list[LostSlot]]:
        """Return the segments that slots hold, and the slots to be marked lost: those that would
        hold too much, and those whose reader has gone. Warn about these and about idle ones.

        If the settings say so, no slot holds a segment while space is low.
        """
        invalidates_slots = self._options.invalidate_slots_on_low_disk_space and self._space.low
        timeout = self._options.slot_idle_timeout
        held_segments: set[LiveSegment] = set()
        lost_slots: list[LostSlot] = []
        idle_names: set[str] = set()
        for name, slot in slots.items():
            unread = _unread(slot, candidates)
            idle_time = 0
            if unread and timeout:
                idle_time = slot.idle_time(sealed_time(self._directory, unread[0].first), now)
            if sum(s.size for s in unread) > (0 if invalidates_slots else slot.limit_bytes):
                lost_slots.append(LostSlot(name, slot, abandoned=False))
                reason = (
                    "disk space is low (journal.invalidate_slots_on_low_disk_space)"
                    if invalidates_slots
                    else "it would retain more than its limit"
                )
                self._on_warning(f"the slot {name} is lost: {reason}")
            elif idle_time > timeout:
                lost_slots.append(LostSlot(name, slot, abandoned=True))
                self._on_warning(
                    f"the slot {name} is lost: its reader has not moved it for longer than "
                    f"journal.slot_idle_timeout ({timeout} ms)"
                )
            else:
                held_segments.update(unread)
                if 2 * idle_time > timeout:
                    idle_names.add(name)
        for name in sorted(idle_names - self._idle_slots):
            self._on_warning(
                f"the slot {name} retains segments, and its reader has not moved it for half of "
                f"journal.slot_idle_timeout ({timeout} ms), after which it is lost. Start the "
                "reader again, or delete the slot"
            )
        self._idle_slots = idle_names
        return held_segments, lost_slots

    def _removable(self) -> list[LiveSegment]:
        """Return the segments that could be removed if there were no slots."""
        return [
            segment
            for segment in self._finished
            if segment.sealed and segment.last < self._position and not segment.is_needed
        ]

    def bytes_held_by_slots(self) -> dict[str, int]:
        """Return the bytes of segments that only a slot keeps from being removed, by slot name."""
        candidates = self._removable()
        try:
            slots = self._slots.list() if candidates else {}
        except JournalDamaged:
            slots = {}
        held_bytes = {
            name: sum(segment.size for segment in _unread(slot, candidates))
            for name, slot in slots.items()
        }
        return {name: size for name, size in held_bytes.items() if size}

    def _remove(
        self, segments: list[LiveSegment], lost_slots: list[LostSlot], expired_slots: list[str]
    ) -> None:
        """Remove segments and update slots, on the writer's background thread."""
        removed = max((segment.last for segment in segments), default=0)
        unmarked_slots = [
            lost for lost in lost_slots if not self._mark_slot_lost(lost, removed, wait=False)
        ]
        for name in expired_slots:
            self._slots.delete_expired(name)
        for segment in segments:
            segment_path(self._directory, segment.first).unlink(missing_ok=True)
        for lost in unmarked_slots:  # the removed segments have freed space
            self._mark_slot_lost(lost, removed, wait=True)

    def _mark_slot_lost(self, lost: LostSlot, removed: int, *, wait: bool) -> bool:
        """Mark a slot lost. Return False if the disk is full."""
        name, slot, abandoned = lost
        action = partial(self._slots.mark_lost, name, slot, removed, abandoned=abandoned)
        try:
            self._space.retry_with_reserve(action, ENTRY_BYTES, essential=True, wait=wait)
        except RecordNotFound:
            return True
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            return False
        return True

    # --- moves -----------------------------------------------------------------------------------

    def _adjust_allowance(self, change: int) -> None:
        """Change the budget for moves, which is between plus and minus its maximum, in bytes."""
        limit = ALLOWANCE_SEGMENTS * self._options.segment_bytes
        self._allowance = min(max(self._allowance + change, -limit), limit)

    def _needs_compaction(self, segment: LiveSegment) -> bool:
        """Return whether a segment is worth emptying: little of it is live, and that does not end
        by itself: at least half of it was there at the snapshot before.

        Counting records is cheap and comes first; the cost and gain of a move are in bytes.
        """
        fraction = self._options.compaction_threshold
        return (
            segment.sealed
            and segment.last < self._position
            and segment.is_needed
            and segment.live_at_snapshot < fraction * segment.records
            and segment.live_at_previous_snapshot >= 0
            and 2 * segment.live_at_snapshot >= segment.live_at_previous_snapshot
            and self._lookup.needed_bytes(segment) < fraction * segment.size
        )

    def schedule_moves(self, segments: list[LiveSegment]) -> None:
        """Move all live and retained records out of the segments, in slices."""
        queued_segments = [segment for segment, _ in self._pending_moves]
        for segment in segments:
            if segment not in queued_segments:
                mask = segment.needed_mask()
                base = segment.base
                sequences = list(compress(range(base, base + len(mask)), mask))
                sequences.reverse()
                self._pending_moves.append((segment, sequences))

    def move_slice(self) -> None:
        """Move some records of segments that are to be emptied, if any, to the active segment. A
        damaged record fails the journal."""
        moved_bytes = 0
        while self._pending_moves and moved_bytes < MOVE_BYTES:
            segment, sequences = self._pending_moves[0]
            if not sequences:
                self._pending_moves.popleft()
                continue
            try:
                moved_bytes += self._move(segment, sequences.pop())
            except (JournalError, OSError) as error:
                self._pending_moves.popleft()
                self._on_failure(error)
                return

    def _move(self, segment: LiveSegment, sequence: int) -> int:
        """Move a record, if it is still needed, and return its bytes."""
        references = segment.live_references(sequence)
        if not references and not segment.retained_references(sequence):
            return 0
        record = self._lookup.read(segment, sequence)
        target, new_sequence, size = self._relocate(record, references)
        self._adjust_allowance(-size)
        self._own_bytes += size
        self._liveness.move(segment, sequence, record.identity, target, new_sequence)
        return size


def _unread(slot: Slot, segments: list[LiveSegment]) -> list[LiveSegment]:
    """Return the segments that the slot holds: those its reader has not read to the end."""
    return [] if slot.lost else [segment for segment in segments if segment.last > slot.position]
