"""Snapshots, and after each of them the removal and emptying of segments."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from sluicemq.journal.format import HEADER_BYTES, Record
from sluicemq.journal.liveness import Liveness, Segment
from sluicemq.journal.lookup import Lookup
from sluicemq.journal.reclaim import Allowance, Mover, Removable, removable, stuck
from sluicemq.journal.segment import segment_path
from sluicemq.journal.slots import Slots, wall
from sluicemq.journal.snapshot import Capture, capture_segments, write_snapshot
from sluicemq.journal.writer import Writer, nothing
from sluicemq.model.destination import Address, encode_name
from sluicemq.model.errors import JournalDamaged, JournalError, RecordNotFound


class Upkeep:
    """What a journal does for the next start and for its space.

    carry    appends the record anew as CARRIED with what is left of its references; returns its
             segment, sequence number and bytes
    failed   called when something shows that the journal cannot be trusted
    fraction segments with less live are emptied
    allowance bytes that may be saved up for moving, see `reclaim.Allowance`
    """

    __slots__ = (
        "_allowance",
        "_capture",
        "_carry",
        "_directory",
        "_failed",
        "_liveness",
        "_lookup",
        "_mover",
        "_slots",
        "_writer",
        "fraction",
    )

    def __init__(
        self,
        directory: Path,
        liveness: Liveness,
        lookup: Lookup,
        slots: Slots,
        writer: Writer,
        fraction: float,
        allowance: int,
        carry: Callable[[Record, int], tuple[Segment, int, int]],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._directory = directory
        self._liveness = liveness
        self._lookup = lookup
        self._slots = slots
        self._writer = writer
        self._carry = carry
        self._failed = failed
        self._capture: Capture | None = None
        self._mover = Mover(self._move)
        self._allowance = Allowance(allowance)
        self.fraction = fraction

    @property
    def taking(self) -> bool:
        """A snapshot is under way."""
        return self._capture is not None

    @property
    def moving(self) -> bool:
        """There are segments to empty."""
        return not self._mover.idle

    def take_snapshot(
        self,
        position: int,
        state_position: int,
        state: bytes,
        next_number: int,
        addresses: Mapping[int, Address],
    ) -> None:
        """Copy what a snapshot needs; it is written once `position` is durable."""
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
        for pair in self._liveness.carried.items():
            pairs.extend(pair)
        snapshot.carried = pairs.tobytes()
        self._capture = capture
        self._allowance.discount(HEADER_BYTES)

    def durable(self, sequence: int, size: int) -> None:
        """Everything up to there is on disk now, with a group of `size` bytes."""
        self._allowance.written(size)
        capture = self._capture
        if capture is not None and capture.waits and capture.snapshot.position <= sequence:
            capture.waits = False
            self._writer.defer(
                partial(write_snapshot, self._directory, capture),
                partial(self._written, capture),
            )

    def _written(self, capture: Capture) -> None:
        self._capture = None
        for segment, state in capture.raw:
            segment.packed = state.live
        position = capture.snapshot.state_position
        try:
            going = removable(capture.finished, position, self._slots, wall())
        except JournalDamaged:
            going = Removable([], [], [])  # of a slot that cannot be read: it may need everything
        for segment in going.segments:
            self._liveness.remove(segment)
            self._lookup.forget(segment)
        if any(going):
            self._writer.defer(partial(self._remove, going), nothing)
        if self._allowance.left and self._mover.idle:
            self._choose(position)

    def _choose(self, position: int) -> None:
        try:
            self._mover.take(
                stuck(self._liveness.segments, position, self.fraction, self._lookup.needed_bytes)
            )
        except (JournalError, OSError) as error:
            self._failed(error)

    def _remove(self, going: Removable) -> None:
        """On the writer's second thread."""
        for name in going.lost:
            with suppress(RecordNotFound):
                self._slots.lose(name)
        for name in going.expired:
            with suppress(RecordNotFound):
                self._slots.drop(name)
        for segment in going.segments:
            segment_path(self._directory, segment.first).unlink(missing_ok=True)

    def empty(self, segments: list[Segment]) -> None:
        """Move everything live out of these."""
        self._mover.take(segments)

    def move_slice(self) -> None:
        """Move some records forward. Damage among them ends the journal."""
        try:
            self._mover.step()
        except (JournalError, OSError) as error:
            self._failed(error)

    def _move(self, segment: Segment, sequence: int) -> int:
        liveness = self._liveness
        left = liveness.left(segment, sequence)
        if not left and not liveness.held(segment, sequence):
            return 0
        record = self._lookup.read(segment, sequence)
        target, place, size = self._carry(record, left)
        self._allowance.spend(size)
        liveness.move(segment, sequence, record.identity, target, place)
        return size
