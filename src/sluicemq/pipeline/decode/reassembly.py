"""Packets of one direction -> its bytes, in order (RFC 9293, section 3.4).

Sequence numbers count modulo 2^32 and are unrolled to places in the stream: 0 is the byte after the
SYN, or the first one captured. Of bytes that came several times, those captured first that could
be passed on count. Packets that come before their turn wait, as notes without payload; when
too many wait, or nothing more comes, what is missing before them is given up as a Gap.

The time of a byte is that of the packet that made the stream complete up to it: the latest of all
packets up to it.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from sluicemq.pipeline.decode.captures import NO_TIME, Integers
from sluicemq.pipeline.decode.connections import Notes
from sluicemq.pipeline.decode.headers import FIN, RST, SYN

_WINDOW: Final = 1 << 30
"""Bytes: the largest window of TCP (RFC 7323). What seems farther away does not belong here."""


class Run(NamedTuple):
    """Bytes of a direction that follow each other.

    offset  place of the first one in the stream
    at      where each piece stands in the file
    size    bytes of each, more than 0
    time    µs since the epoch or NO_TIME, at which the stream was complete up to its end
    """

    offset: int
    at: Integers
    size: Integers
    time: Integers


class Gap(NamedTuple):
    """Bytes of a direction that are not in the capture; `cut` if only parts of packets are."""

    offset: int
    size: int
    cut: bool

    def joined(self, later: Gap) -> Gap:
        """Both in one; `later` begins where this one ends."""
        return Gap(self.offset, self.size + later.size, self.cut or later.cut)


class _Packet(NamedTuple):
    """place in the stream; where it stands in the file; bytes; µs; bytes missing behind it."""

    place: int
    at: int
    size: int
    time: int
    lost: int


class Reassembler:
    """One direction of one connection. `limit` is the number of packets that may wait."""

    __slots__ = (
        "_arrivals",
        "_base",
        "_latest",
        "_limit",
        "_lost",
        "_next",
        "_waiting",
        "begins",
        "closed",
        "foreign",
    )

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._base: int | None = None
        """Sequence number of place 0."""
        self._next = 0
        """Place of the byte that comes next."""
        self._lost = 0
        """Bytes from there on that were captured by nobody, as far as is known."""
        self._waiting: list[tuple[int, int, _Packet]] = []
        """A heap: place, order of arrival, packet."""
        self._arrivals = 0
        self._latest = NO_TIME
        self.begins = False
        """Whether place 0 is the beginning of the connection, not only of the capture."""
        self.closed = False
        """Whether FIN or RST was captured."""
        self.foreign = 0
        """Packets whose sequence numbers cannot belong to this connection."""

    def add(self, notes: Notes) -> list[Run | Gap]:
        """Take packets in the order in which they were captured; give what is complete now."""
        if not len(notes):
            return []
        flags = notes["flags"]
        self.closed = self.closed or bool((flags & (FIN | RST)).any())
        sequence = notes["sequence"].astype(np.int64)
        syn = (flags & SYN) != 0
        sequence[syn] += 1
        if self._base is None:
            self._base = self._find_base(sequence, syn)
        # the nearest place to where the stream has come that has this sequence number
        expected = self._base + self._next
        place = self._next + ((sequence - expected + (1 << 31)) & 0xFFFF_FFFF) - (1 << 31)
        size = notes["size"].astype(np.int64)
        lost = notes["lost"].astype(np.int64)
        near = np.abs(place - self._next) < _WINDOW
        self.foreign += int(((size + lost > 0) & ~near).sum())
        # a FIN without payload tells where the stream ends
        wanted = near & ((size + lost > 0) | ((flags & FIN) != 0))
        columns = place, notes["at"], size, notes["time"], lost
        return self._sort(*(column[wanted] for column in columns))

    def _find_base(self, sequence: Integers, syn: npt.NDArray[np.bool_]) -> int:
        """The SYN tells; without one, the lowest number of the first packets."""
        if syn.any():
            self.begins = True
            return int(sequence[syn][0])
        first = int(sequence[0])
        apart = ((sequence - first + (1 << 31)) & 0xFFFF_FFFF) - (1 << 31)
        return first + int(apart[np.abs(apart) < _WINDOW].min())

    def _sort(
        self, place: Integers, at: Integers, size: Integers, time: Integers, lost: Integers
    ) -> list[Run | Gap]:
        if not len(place):
            return []
        end = place + size
        in_order = place[0] == self._next and (place[1:] == end[:-1]).all() and size.all()
        if in_order and not self._waiting and not lost.any() and not self._lost:
            time = np.maximum(np.maximum.accumulate(time), self._latest)
            self._next = int(end[-1])
            self._latest = int(time[-1])
            return [Run(int(place[0]), at, size, time)]
        out = _Out(self._next)
        columns = (each.tolist() for each in (place, at, size, time, lost))
        for packet in map(_Packet, *columns):
            if packet.place <= self._next:
                self._pass_on(out, packet)
            elif self._lost and packet.place == self._next + self._lost:
                self._lose(out, packet.place)
                self._pass_on(out, packet)
            else:
                self._arrivals += 1
                heappush(self._waiting, (packet.place, self._arrivals, packet))
                if len(self._waiting) <= self._limit:
                    continue
                self._lose(out, self._waiting[0][0])
            self._wake(out)
        return out.end()

    def end(self) -> list[Run | Gap]:
        """Nothing more will come."""
        out = _Out(self._next)
        while self._waiting:
            self._lose(out, self._waiting[0][0])
            self._wake(out)
        if self._lost:
            self._lose(out, self._next + self._lost)
        return out.end()

    def _pass_on(self, out: _Out, packet: _Packet) -> None:
        """A packet that begins at or before the next byte."""
        known = self._next - packet.place
        if known < packet.size:
            self._next = packet.place + packet.size
            self._latest = max(self._latest, packet.time)
            self._lost = packet.lost
            out.piece(packet.at + known, packet.size - known, self._latest)
        else:
            self._lost = max(self._lost, packet.size + packet.lost - known)

    def _wake(self, out: _Out) -> None:
        """Pass on who waits no longer."""
        waiting = self._waiting
        while waiting and waiting[0][0] <= self._next:
            self._pass_on(out, heappop(waiting)[2])

    def _lose(self, out: _Out, place: int) -> None:
        """What is before that place and has not come will not come."""
        out.gap(Gap(self._next, place - self._next, self._lost > 0))
        self._next = place
        self._lost = 0


def add_event(events: list[Run | Gap], event: Run | Gap) -> None:
    """At the end; gaps that follow each other become one."""
    last = events[-1] if events else None
    if isinstance(event, Gap) and isinstance(last, Gap):
        events[-1] = last.joined(event)
    else:
        events.append(event)


class _Out:
    """Pieces and gaps, put together as runs."""

    def __init__(self, offset: int) -> None:
        self._made: list[Run | Gap] = []
        self._offset = offset
        self._pieces: list[tuple[int, int, int]] = []

    def piece(self, at: int, size: int, time: int) -> None:
        self._pieces.append((at, size, time))

    def gap(self, gap: Gap) -> None:
        self._close()
        add_event(self._made, gap)
        self._offset = gap.offset + gap.size

    def _close(self) -> None:
        if self._pieces:
            at, size, time = np.array(self._pieces, np.int64).T
            self._made.append(Run(self._offset, at, size, time))
            self._offset += int(size.sum())
            self._pieces = []

    def end(self) -> list[Run | Gap]:
        self._close()
        return self._made
