"""TCP reassembly: packets of one direction to its bytes, in order (RFC 9293, section 3.4).

Sequence numbers count modulo 2^32 and are unrolled to positions in the stream: 0 is the byte after
the SYN, or the first one captured. Of repeated bytes, the first copy that could be passed on is
used. Packets ahead of a missing one wait, as notes without payload; if too many wait, or at the
end of the capture, the missing bytes are reported as a Gap.

The time of a byte is the latest of all packets up to it, when the stream was complete up to it.
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
"""Largest TCP window in bytes (RFC 7323). Packets further away belong to another connection."""


class ByteRange(NamedTuple):
    """Consecutive bytes of a direction.

    offset  position of the first one in the stream
    at      position of each piece in the file
    size    bytes of each piece, more than 0
    time    µs since the epoch or NO_TIME, at which the stream was complete up to its end
    """

    offset: int
    at: Integers
    size: Integers
    time: Integers


class Gap(NamedTuple):
    """Bytes of a direction missing from the capture; `cut` if packets were truncated."""

    offset: int
    size: int
    cut: bool


class _Packet(NamedTuple):
    """Position in the stream; position in the file; bytes; µs; missing bytes behind it."""

    place: int
    at: int
    size: int
    time: int
    lost: int


class Reassembler:
    """Reassembles one direction of a connection; at most `limit` packets wait."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._base: int | None = None
        """Sequence number of position 0."""
        self._next = 0
        """Position of the next byte."""
        self._lost = 0
        """Known number of bytes from there on that were not captured."""
        self._waiting: list[_Packet] = []
        """Heap, by position in the stream and then in the file."""
        self._latest = NO_TIME
        self.begins = False
        """True if position 0 is the beginning of the connection, not only of the capture."""
        self.closed = False
        """True if FIN or RST was captured."""
        self.foreign = 0
        """Number of packets whose sequence numbers do not belong to this connection."""

    def add(self, notes: Notes) -> list[ByteRange | Gap]:
        """Add packets in capture order; return the bytes and gaps that are complete now."""
        if not len(notes):
            return []
        flags = notes["flags"]
        self.closed = self.closed or bool((flags & (FIN | RST)).any())
        sequence = notes["sequence"].astype(np.int64)
        syn = (flags & SYN) != 0
        sequence[syn] += 1
        if self._base is None:
            self._base = self._find_base(sequence, syn)
        # the position nearest to the next byte that has this sequence number
        expected = self._base + self._next
        place = self._next + ((sequence - expected + (1 << 31)) & 0xFFFF_FFFF) - (1 << 31)
        size = notes["size"].astype(np.int64)
        lost = notes["lost"].astype(np.int64)
        near = np.abs(place - self._next) < _WINDOW
        self.foreign += int(((size + lost > 0) & ~near).sum())
        # a FIN without payload marks the end of the stream
        relevant = near & ((size + lost > 0) | ((flags & FIN) != 0))
        columns = place, notes["at"], size, notes["time"], lost
        return self._sort(*(column[relevant] for column in columns))

    def _find_base(self, sequence: Integers, syn: npt.NDArray[np.bool_]) -> int:
        """Return the sequence number of position 0: from the SYN, else the lowest one."""
        if syn.any():
            self.begins = True
            return int(sequence[syn][0])
        first = int(sequence[0])
        apart = ((sequence - first + (1 << 31)) & 0xFFFF_FFFF) - (1 << 31)
        return first + int(apart[np.abs(apart) < _WINDOW].min())

    def _sort(
        self, place: Integers, at: Integers, size: Integers, time: Integers, lost: Integers
    ) -> list[ByteRange | Gap]:
        if not len(place):
            return []
        end = place + size
        in_order = place[0] == self._next and (place[1:] == end[:-1]).all() and size.all()
        if in_order and not self._waiting and not lost.any() and not self._lost:
            time = np.maximum(np.maximum.accumulate(time), self._latest)
            self._next = int(end[-1])
            self._latest = int(time[-1])
            return [ByteRange(int(place[0]), at, size, time)]
        out = _Out(self._next)
        columns = (each.tolist() for each in (place, at, size, time, lost))
        for packet in map(_Packet, *columns):
            if packet.place <= self._next:
                self._pass_on(out, packet)
            elif self._lost and packet.place == self._next + self._lost:
                self._lose(out, packet.place)
                self._pass_on(out, packet)
            else:
                heappush(self._waiting, packet)
                if len(self._waiting) <= self._limit:
                    continue
                self._lose(out, self._waiting[0].place)
            self._wake(out)
        return out.end()

    def end(self) -> list[ByteRange | Gap]:
        """Return the remaining bytes and gaps at the end of the capture."""
        out = _Out(self._next)
        while self._waiting:
            self._lose(out, self._waiting[0].place)
            self._wake(out)
        if self._lost:
            self._lose(out, self._next + self._lost)
        return out.end()

    def _pass_on(self, out: _Out, packet: _Packet) -> None:
        """Pass on a packet that begins at or before the next byte."""
        known = self._next - packet.place
        if known < packet.size:
            self._next = packet.place + packet.size
            self._latest = max(self._latest, packet.time)
            self._lost = packet.lost
            out.chunks.append((packet.at + known, packet.size - known, self._latest))
        else:
            self._lost = max(self._lost, packet.size + packet.lost - known)

    def _wake(self, out: _Out) -> None:
        """Pass on the waiting packets that are in order now."""
        while self._waiting and self._waiting[0].place <= self._next:
            self._pass_on(out, heappop(self._waiting))

    def _lose(self, out: _Out, place: int) -> None:
        """Report the missing bytes before `place` as a gap."""
        out.gap(Gap(self._next, place - self._next, self._lost > 0))
        self._next = place
        self._lost = 0


def add_event(events: list[ByteRange | Gap], event: ByteRange | Gap) -> None:
    """Append an event; consecutive gaps become one."""
    last = events[-1] if events else None
    if isinstance(event, Gap) and isinstance(last, Gap):
        events[-1] = Gap(last.offset, last.size + event.size, last.cut or event.cut)
    else:
        events.append(event)


class _Out:
    """Builds runs from pieces and gaps."""

    def __init__(self, offset: int) -> None:
        self._made: list[ByteRange | Gap] = []
        self._offset = offset
        self.chunks: list[tuple[int, int, int]] = []

    def gap(self, gap: Gap) -> None:
        add_event(self.end(), gap)
        self._offset = gap.offset + gap.size

    def end(self) -> list[ByteRange | Gap]:
        """Return all events."""
        if self.chunks:
            at, size, time = np.array(self.chunks, np.int64).T
            self._made.append(ByteRange(self._offset, at, size, time))
            self._offset += int(size.sum())
            self.chunks = []
        return self._made
