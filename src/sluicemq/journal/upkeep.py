"""Snapshots, and the removal and compaction of segments after each snapshot."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from sluicemq.journal.format import HEADER_BYTES, Record
from sluicemq.journal.liveness import Liveness, LiveSegment
from sluicemq.journal.reader import Lookup
from sluicemq.journal.reclaim import (
    Allowance,
    Mover,
    Removable,
    removable,
    stuck,
    unread_segments,
)
from sluicemq.journal.segment import segment_path
from sluicemq.journal.slots import Slots, wall
from sluicemq.journal.snapshot import Capture, capture_segments, write_snapshot
from sluicemq.journal.space import ENTRY_BYTES, NO_SPACE, DiskSpace, ignore
from sluicemq.journal.writer import JournalWriter
from sluicemq.model.destination import Address, encode_name
from sluicemq.model.errors import JournalDamaged, JournalError, RecordNotFound


class Upkeep:
    """Snapshots and space reclamation of a journal.

    carry         appends the record again as RELOCATED with its remaining references; returns its
                  segment, sequence number and bytes
    failed        called with an error that shows that the journal cannot be trusted
    fraction      live fraction below which the live records of a segment are moved out
    allowance     maximum bytes to accumulate for moving records, see `reclaim.Allowance`
    idle_timeout  value of journal.slot_idle_timeout
    warn          called with warnings about slots, for the operator
    space         disk space; while it is low, segments are reclaimed before the active one is full
    drop_slots    True if no slot holds a segment while space is low
    """

    __slots__ = (
        "_allowance",
        "_capture",
        "_directory",
        "_drop_slots",
        "_failed",
        "_finished",
        "_idle",
        "_idle_timeout",
        "_liveness",
        "_lookup",
        "_mover",
        "_position",
        "_relocate",
        "_slots",
        "_space",
        "_warn",
        "_writer",
        "fraction",
        "unwritten",
    )

    def __init__(
        self,
        directory: Path,
        liveness: Liveness,
        lookup: Lookup,
        slots: Slots,
        writer: JournalWriter,
        fraction: float,
        allowance: int,
        relocate: Callable[[Record, int], tuple[LiveSegment, int, int]],
        failed: Callable[[BaseException], None],
        idle_timeout: int,
        warn: Callable[[str], None],
        space: DiskSpace,
        drop_slots: bool,
    ) -> None:
        self._directory = directory
        self._liveness = liveness
        self._lookup = lookup
        self._slots = slots
        self._writer = writer
        self._relocate = relocate
        self._failed = failed
        self._idle_timeout = idle_timeout
        self._idle: set[str] = set()
        """Idle slots about which a warning was issued."""
        self._warn = warn
        self._capture: Capture | None = None
        self._mover = Mover(self._move)
        self._allowance = Allowance(allowance)
        self._space = space
        self._drop_slots = drop_slots
        self._finished: list[LiveSegment] = []
        """Segments without live records as of the last snapshot, held by slots."""
        self._position = 0
        """Position of the broker state in that snapshot."""
        self.fraction = fraction
        self.unwritten = False
        """True if there was no space for the last snapshot."""

    @property
    def taking(self) -> bool:
        """True while a snapshot is being taken."""
        return self._capture is not None

    @property
    def moving(self) -> bool:
        """True while live records of old segments remain to be moved."""
        return not self._mover.idle

    def take_snapshot(
        self,
        position: int,
        state_position: int,
        state: bytes,
        next_number: int,
        addresses: Mapping[int, Address],
    ) -> None:
        """Capture a snapshot; the writer writes it once `position` is durable."""
        capture = capture_segments(self._liveness)
        snapshot = capture.snapshot
        snapshot.position = position
        snapshot.state_position = state_position
        snapshot.state = state
        snapshot.next_number = next_number
        snapshot.addresses = [
            (number, address.kind, encode_name(address.name))
            for number, address in addresses.items()
        ]
        pairs = array("Q")
        for pair in self._liveness.relocated.items():
            pairs.extend(pair)
        snapshot.relocated = pairs.tobytes()
        self._capture = capture
        self._allowance.discount(HEADER_BYTES)

    def durable(self, sequence: int, size: int) -> None:
        """Note that `sequence` is durable, with a group of `size` bytes; write a due snapshot."""
        self._allowance.written(size)
        capture = self._capture
        if capture is not None and capture.waits and capture.snapshot.position <= sequence:
            capture.waits = False
            self._writer.defer(
                partial(write_snapshot, self._directory, capture, self._space),
                partial(self._written, capture),
            )

    def _written(self, capture: Capture) -> None:
        self._capture = None
        self.unwritten = not capture.written
        if self.unwritten:
            for segment, _ in capture.raw:
                segment.changed = True  # the packed state was not written
            return
        for segment, state in capture.raw:
            segment.packed = state.live
        self._finished = capture.finished
        self._position = capture.snapshot.state_position
        self.remove_finished()
        if self._allowance.left and self._mover.idle and not self._space.spending:
            self._choose(self._position)

    def remove_finished(self) -> None:
        """Remove segments without live records at the last snapshot that no slot holds."""
        drop = self._drop_slots and self._space.low
        try:
            going, idle = removable(
                self._finished,
                self._position,
                self._slots,
                wall(),
                self._idle_timeout,
                self.completed,
                drop=drop,
            )
        except JournalDamaged:
            # an unreadable slot may need every segment
            going, idle = Removable([], [], [], []), []
        self._report(going, idle)
        for segment in going.segments:
            self._liveness.remove(segment)
            self._lookup.forget(segment)
        gone = {segment.first for segment in going.segments}
        self._finished = [segment for segment in self._finished if segment.first not in gone]
        if any(going):
            self._writer.defer(partial(self._remove, going), ignore)

    @property
    def worth_a_snapshot(self) -> bool:
        """True if the next snapshot would permit removal of a segment that the last one kept."""
        return any(
            segment.sealed and segment.changed and not segment.is_needed
            for segment in self._liveness.segments
        )

    def held_by_slots(self) -> dict[str, int]:
        """Return the bytes of segments that only a slot keeps from being removed, by slot name."""
        free = [
            segment
            for segment in self._finished
            if segment.sealed and segment.last < self._position and not segment.is_needed
        ]
        held: dict[str, int] = {}
        try:
            for name, slot in self._slots.list().items() if free else ():
                size = 0 if slot.lost else sum(s.size for s in unread_segments(slot, free))
                if size:
                    held[name] = size
        except JournalDamaged:
            return held
        return held

    def completed(self, segment: LiveSegment) -> int:
        """Return the time a segment was sealed, in ms since the epoch; 0 if it does not exist."""
        try:
            path = segment_path(self._directory, segment.first)
            return path.stat().st_mtime_ns // 1_000_000
        except OSError:
            return 0

    def _report(self, going: Removable, idle: list[str]) -> None:
        """Warn about lost slots, and once about each slot that is soon lost."""
        for name in going.lost:
            self._warn(f"the slot {name} is lost: it would hold back more than its limit")
        for name in going.abandoned:
            self._warn(
                f"the slot {name} is lost: its reader has not moved it for longer than "
                f"journal.slot_idle_timeout ({self._idle_timeout} ms)"
            )
        for name in idle:
            if name not in self._idle:
                self._warn(
                    f"the slot {name} holds segments back, and its reader has not moved it for "
                    f"half of journal.slot_idle_timeout ({self._idle_timeout} ms), after which it "
                    "is lost. Start the reader again, or drop the slot"
                )
        self._idle = set(idle)

    def _choose(self, position: int) -> None:
        try:
            self._mover.take(
                stuck(self._liveness.segments, position, self.fraction, self._lookup.needed_bytes)
            )
        except (JournalError, OSError) as error:
            self._failed(error)

    def _remove(self, going: Removable) -> None:
        """Remove segments and update slots, on the writer's background thread."""
        unmarked = [name for name in going.lost if not self._lose(name, wait=False)]
        given_up = [
            name for name in going.abandoned if not self._lose(name, wait=False, abandoned=True)
        ]
        for name in going.expired:
            with suppress(RecordNotFound):
                self._slots.drop(name)
        for segment in going.segments:
            segment_path(self._directory, segment.first).unlink(missing_ok=True)
        for name in unmarked:  # the removed segments have freed space
            self._lose(name, wait=True)
        for name in given_up:
            self._lose(name, wait=True, abandoned=True)

    def _lose(self, name: str, *, wait: bool, abandoned: bool = False) -> bool:
        """Mark a slot lost. Return False if the disk is full."""
        lose = partial(self._slots.lose, name, abandoned=abandoned)
        try:
            self._space.with_space(lose, ENTRY_BYTES, upkeep=True, wait=wait)
        except RecordNotFound:
            return True
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            return False
        return True

    def empty(self, segments: list[LiveSegment]) -> None:
        """Move all live records out of the segments."""
        self._mover.take(segments)

    def move_slice(self) -> None:
        """Move some live records to the active segment. A damaged record fails the journal."""
        try:
            self._mover.step()
        except (JournalError, OSError) as error:
            self._failed(error)

    def _move(self, segment: LiveSegment, sequence: int) -> int:
        liveness = self._liveness
        left = liveness.left(segment, sequence)
        if not left and not liveness.held(segment, sequence):
            return 0
        record = self._lookup.read(segment, sequence)
        target, place, size = self._relocate(record, left)
        self._allowance.spend(size)
        liveness.move(segment, sequence, record.identity, target, place)
        return size
