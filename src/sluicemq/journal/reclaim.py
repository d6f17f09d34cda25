"""Space: which segments may go, and moving what is left of old ones forward.

A segment goes when a snapshot that is on disk says that nothing in it is live. (That the journal
says so now is not enough: a crash could take the settlements back.) What pins a segment of which
little is live is written anew as CARRIED records, a slice per group, and settled under its old
number wherever it is then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import compress
from typing import Final, NamedTuple

from sluicemq.journal.liveness import Segment
from sluicemq.journal.slots import Slot, Slots

MOVE_BYTES: Final = 1 << 20
"""Moved per group, so that live traffic hardly notices."""


class Removable(NamedTuple):
    """Segments to remove, slots to mark lost because they would hold too much, slots to mark lost
    because their reader has gone, and slots to remove because their lease is over."""

    segments: list[Segment]
    lost: list[str]
    abandoned: list[str]
    expired: list[str]


def removable(
    finished: list[Segment],
    position: int,
    slots: Slots,
    now: int,
    idle_limit: int,
    completed: Callable[[Segment], int],
    *,
    drop: bool = False,
) -> tuple[Removable, list[str]]:
    """Return what may go, and the slots that have been idle for half of `idle_limit`, ms, 0 = none.

    With `drop` no slot holds a segment: those that would are lost.

    `finished` are those that the snapshot has nothing live in, `position` is that of the broker's
    part of it. The segment that has this position stays: recovery expects the one before each
    segment that begins behind it. `now`, and `completed`, when a segment was sealed, are in ms
    since the epoch.
    """
    free = [s for s in finished if s.sealed and s.last < position and not s.is_needed]
    lost: list[str] = []
    abandoned: list[str] = []
    expired: list[str] = []
    idle: list[str] = []
    held: set[int] = set()
    for name, slot in slots.list().items():
        if slot.expired(now):
            expired.append(name)
            continue
        if slot.lost:
            continue
        wanted = wanted_by(slot, free)
        if sum(s.size for s in wanted) > (0 if drop else slot.limit_bytes):
            lost.append(name)
            continue
        waited = slot.idle(completed(wanted[0]), now) if wanted and idle_limit else 0
        if waited and waited > idle_limit:
            abandoned.append(name)
            continue
        if waited and 2 * waited > idle_limit:
            idle.append(name)
        held.update(s.first for s in wanted)
    segments = [s for s in free if s.first not in held]
    return Removable(segments, lost, abandoned, expired), idle


def wanted_by(slot: Slot, segments: list[Segment]) -> list[Segment]:
    """Segments that its reader has not read to the end."""
    return [segment for segment in segments if segment.last > slot.position]


def stuck(
    segments: list[Segment],
    position: int,
    fraction: float,
    needed_bytes: Callable[[Segment], int],
) -> list[Segment]:
    """Sealed segments worth emptying: little of them is live, and that little does not go by
    itself: at least half of it was there at the snapshot before.

    Counting records is cheap and comes first, but what a move costs and gains are bytes.
    """
    return [
        segment
        for segment in segments
        if segment.sealed
        and segment.last < position
        and segment.is_needed
        and segment.alive < fraction * segment.records
        and segment.before >= 0
        and 2 * segment.alive >= segment.before
        and needed_bytes(segment) < fraction * segment.size
    ]


class Allowance:
    """Moves are paid for with what the broker itself has written, byte for byte.

    Moved records fill segments, full segments lead to snapshots, and snapshots to moves. Without
    this an idle journal could go on rewriting its leftovers for ever; with it, moving at most
    doubles what is written. `limit` bytes are saved up at most, or owed.
    """

    __slots__ = ("_bytes", "_limit")

    def __init__(self, limit: int) -> None:
        self._bytes = 0
        self._limit = limit

    def written(self, size: int) -> None:
        """A group of that many bytes is on disk, whatever was in it."""
        self._bytes = min(self._bytes + size, self._limit)

    def spend(self, size: int) -> None:
        """A record was moved: once for its cost, once because `written` will count it."""
        self._bytes = max(self._bytes - 2 * size, -self._limit)

    def discount(self, size: int) -> None:
        """`written` will count that many bytes which are the journal's own."""
        self._bytes = max(self._bytes - size, -self._limit)

    @property
    def left(self) -> bool:
        return self._bytes > 0


class Mover:
    """Empties segments, a slice at a time.

    carry   moves the record with that number out of the segment; returns its bytes
    """

    def __init__(self, carry: Callable[[Segment, int], int]) -> None:
        self._carry = carry
        self._work: deque[tuple[Segment, list[int]]] = deque()

    def take(self, segments: list[Segment]) -> None:
        """Empty these, unless that is under way already."""
        known = {segment.first for segment, _ in self._work}
        for segment in segments:
            if segment.first not in known:
                needed = segment.needed()
                base = segment.base
                left = list(compress(range(base, base + len(needed)), needed))
                left.reverse()
                self._work.append((segment, left))

    @property
    def idle(self) -> bool:
        return not self._work

    def step(self) -> None:
        """Move one slice. Raises JournalDamaged; the segment is then left alone."""
        moved = 0
        while self._work and moved < MOVE_BYTES:
            segment, left = self._work[0]
            if not left:
                self._work.popleft()
                continue
            try:
                moved += self._carry(segment, left.pop())
            except BaseException:
                self._work.popleft()
                raise
