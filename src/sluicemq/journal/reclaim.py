"""Space: which segments may go, and moving what is left of old ones forward.

A segment goes when a snapshot that is on disk says that nothing in it is live. (That the journal
says so now is not enough: a crash could take the settlements back.) What pins a segment of which
little is live is written anew as RELOCATED records, a slice per group, and settled under its old
number wherever it is then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import compress
from typing import Final, NamedTuple

from sluicemq.journal.liveness import LiveSegment
from sluicemq.journal.slots import Slot, Slots

MOVE_BYTES: Final = 1 << 20
"""Maximum bytes to move per group, which limits the effect on live traffic."""


class Removable(NamedTuple):
    """Segments to remove, slots to mark lost because they would hold too much, slots to mark lost
    because their reader has gone, and slots to remove because their lease is over."""

    segments: list[LiveSegment]
    lost: list[str]
    abandoned: list[str]
    expired: list[str]


def removable(
    finished: list[LiveSegment],
    position: int,
    slots: Slots,
    now: int,
    idle_timeout: int,
    completed: Callable[[LiveSegment], int],
    *,
    drop: bool = False,
) -> tuple[Removable, list[str]]:
    """Return what to remove, and the slots that have been idle for half of `idle_timeout`.

    `idle_timeout` is in ms, 0 = none. With `drop`, slots that would retain a segment are lost.

    `finished` are the segments without live records in the snapshot, and `position` is that of its
    broker state. The segment with this position remains: recovery requires the predecessor of each
    segment that begins after it. `now` and the result of `completed`, the time a segment was
    sealed, are in ms since the epoch.
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
        unread = unread_segments(slot, free)
        if sum(s.size for s in unread) > (0 if drop else slot.limit_bytes):
            lost.append(name)
            continue
        waited = slot.idle(completed(unread[0]), now) if unread and idle_timeout else 0
        if waited and waited > idle_timeout:
            abandoned.append(name)
            continue
        if waited and 2 * waited > idle_timeout:
            idle.append(name)
        held.update(s.first for s in unread)
    segments = [s for s in free if s.first not in held]
    return Removable(segments, lost, abandoned, expired), idle


def unread_segments(slot: Slot, segments: list[LiveSegment]) -> list[LiveSegment]:
    """Return the segments that the slot's reader has not read to the end."""
    return [segment for segment in segments if segment.last > slot.position]


def stuck(
    segments: list[LiveSegment],
    position: int,
    fraction: float,
    needed_bytes: Callable[[LiveSegment], int],
) -> list[LiveSegment]:
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
    """Budget for moves: each byte that the broker writes permits moving one byte.

    Moved records fill segments, full segments cause snapshots, and snapshots cause moves. Without
    a budget, an idle journal could rewrite its live records indefinitely; with it, moves at most
    double the written bytes. The budget ranges from -`limit` to `limit` bytes.
    """

    __slots__ = ("_bytes", "_limit")

    def __init__(self, limit: int) -> None:
        self._bytes = 0
        self._limit = limit

    def written(self, size: int) -> None:
        """Add the bytes of a group that is on disk, including moved records."""
        self._bytes = min(self._bytes + size, self._limit)

    def spend(self, size: int) -> None:
        """Subtract a moved record twice: for its cost, and because `written` will add it."""
        self._bytes = max(self._bytes - 2 * size, -self._limit)

    def discount(self, size: int) -> None:
        """Subtract bytes of the journal's own records, which `written` will add."""
        self._bytes = max(self._bytes - size, -self._limit)

    @property
    def left(self) -> bool:
        return self._bytes > 0


class Mover:
    """Mover of live records out of segments, in slices.

    carry   moves the record with that number out of the segment; returns its bytes
    """

    def __init__(self, relocate: Callable[[LiveSegment, int], int]) -> None:
        self._relocate = relocate
        self._work: deque[tuple[LiveSegment, list[int]]] = deque()

    def take(self, segments: list[LiveSegment]) -> None:
        """Queue the segments that are not queued yet."""
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
        """Move one slice. Raises JournalDamaged; the damaged segment is then dequeued."""
        moved = 0
        while self._work and moved < MOVE_BYTES:
            segment, left = self._work[0]
            if not left:
                self._work.popleft()
                continue
            try:
                moved += self._relocate(segment, left.pop())
            except BaseException:
                self._work.popleft()
                raise
