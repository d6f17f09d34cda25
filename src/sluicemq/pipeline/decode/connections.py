"""TCP connections of a capture and their packets, found in one pass.

The payload stays in the file. Each connection yields chunks of up to CHUNK notes of 30 bytes, with
the position of each packet's payload: a gigabyte of traffic becomes 20 MB, which can be sorted and
distributed. The task that decodes a connection reads its payload from the file.

A SYN that neither repeats the last SYN of its side nor fits before the bytes that side has sent
begins another connection between the same endpoints.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from ipaddress import IPv6Address
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from sluicemq.pipeline.decode.captures import NO_TIME, CaptureFault, Integers, read_packets
from sluicemq.pipeline.decode.headers import (
    ENDPOINT,
    FIN,
    RST,
    SYN,
    Passed,
    Segments,
    find_segments,
)
from sluicemq.pipeline.decode.options import DecodeOptions

NOTE: Final = np.dtype(
    [
        ("time", "<i8"),
        ("at", "<i8"),
        ("sequence", "<u4"),
        ("size", "<u4"),
        ("lost", "<u4"),
        ("flags", "u1"),
        ("side", "u1"),
    ]
)
"""Note of a packet: time, position of its payload in the file, sequence number of its first byte,
captured bytes, bytes behind them that were sent and not captured, TCP flags, and the index of the
sending endpoint (0 or 1)."""
CHUNK: Final = 512
"""Maximum number of notes of a chunk."""

_MOST_NOTES: Final = 1 << 18
"""Maximum number of notes in memory, for all connections of a file."""
_LATE_SYN: Final = 1 << 20
"""Bytes by which packets may precede the SYN of their side, if captured out of order."""
_PIECE: Final = 256 << 10
"""Bytes of a raw log that one note covers."""
_MAPPED: Final = bytes(10) + b"\xff\xff"

Notes = npt.NDArray[np.void]


class ConnectionPackets(NamedTuple):
    """Packets of one connection.

    connection  number in the file
    number      index of the chunk, from 0; chunks are read in this order
    endpoints   "address:port" of the sides 0 and 1
    notes       array of NOTE, as bytes
    """

    connection: int
    number: int
    endpoints: tuple[str, str]
    notes: bytes


@dataclass(slots=True)
class _Connection:
    """Connection that may receive more packets.

    pair    both endpoints
    begun   sequence number after the SYN, by side
    first   sequence number of the first captured byte, by side
    """

    number: int
    pair: bytes
    notes: list[Notes] = field(default_factory=list)
    count: int = 0
    chunks: int = 0
    begun: list[int | None] = field(default_factory=lambda: [None, None])
    first: list[int | None] = field(default_factory=lambda: [None, None])

    def drain(self) -> Iterator[ConnectionPackets]:
        """Yield the collected notes as chunks."""
        notes = np.concatenate(self.notes) if self.notes else np.empty(0, NOTE)
        self.notes.clear()
        self.count = 0
        endpoints = _text(self.pair[:ENDPOINT]), _text(self.pair[ENDPOINT:])
        for start in range(0, len(notes), CHUNK):
            part = notes[start : start + CHUNK].tobytes()
            yield ConnectionPackets(self.number, self.chunks, endpoints, part)
            self.chunks += 1


class Finder:
    """Assigns the segments of one file to connections."""

    def __init__(self, most: int) -> None:
        """Set `most`, the maximum number of connections in memory."""
        self._most = most
        self._current: dict[bytes, _Connection] = {}
        """Connection by pair of endpoints, in the order of last activity."""
        self._connections = 0
        self._notes = 0

    def add(self, segments: Segments) -> Iterator[ConnectionPackets]:
        """Add a batch of segments; yield the chunks that are full."""
        relevant = (segments.length > 0) | ((segments.flags & (SYN | FIN | RST)) != 0)
        if not relevant.any():
            return
        segments = Segments(*(column[relevant] for column in segments))
        numbers, sides, known = self._assign(segments)
        notes = _notes(segments, sides)
        order = np.argsort(numbers, kind="stable")
        starts = np.flatnonzero(np.diff(numbers[order], prepend=-1))
        for mine in np.split(order, starts[1:]):
            connection = known[int(numbers[mine[0]])]
            connection.notes.append(notes[mine])
            connection.count += len(mine)
            self._notes += len(mine)
            for side in (0, 1):
                if connection.first[side] is None:
                    sent = segments.sequence[mine][sides[mine] == side]
                    connection.first[side] = int(sent[0]) if len(sent) else None
        for connection in known.values():
            is_current = self._current[connection.pair] is connection
            if is_current:
                self._current[connection.pair] = self._current.pop(connection.pair)
            if not is_current or connection.count >= CHUNK:
                yield from self._drain(connection)
        if self._notes > _MOST_NOTES:
            yield from self.end()
        while len(self._current) > self._most:
            yield from self._drain(self._current.pop(next(iter(self._current))))

    def end(self) -> Iterator[ConnectionPackets]:
        """Yield all remaining chunks."""
        for connection in self._current.values():
            yield from self._drain(connection)

    def _drain(self, connection: _Connection) -> Iterator[ConnectionPackets]:
        self._notes -= connection.count
        return connection.drain()

    def _assign(self, segments: Segments) -> tuple[Integers, Integers, dict[int, _Connection]]:
        """Return each segment's connection number and side, and the connections by number."""
        keys = np.concatenate([segments.source, segments.target], axis=1)
        different, places, inverse = np.unique(
            keys.view(f"V{2 * ENDPOINT}").ravel(), return_index=True, return_inverse=True
        )
        names = [key.tobytes() for key in different]
        pairs = [min(name, name[ENDPOINT:] + name[:ENDPOINT]) for name in names]
        sides = np.array([name != pair for name, pair in zip(names, pairs, strict=True)])[inverse]
        slot_of = dict.fromkeys((pairs[index] for index in np.argsort(places)), 0)
        connections = [self._current.get(pair) or self._begin(pair) for pair in slot_of]
        slot_of = {pair: slot for slot, pair in enumerate(slot_of)}
        slots = np.array([slot_of[pair] for pair in pairs])[inverse]
        numbers = np.array([connection.number for connection in connections], np.int64)[slots]
        known = {connection.number: connection for connection in connections}
        for place in np.flatnonzero(segments.flags & SYN):
            connection, side = connections[slots[place]], int(sides[place])
            begun = (int(segments.sequence[place]) + 1) & 0xFFFF_FFFF
            first = connection.first[side]
            if first is None:
                same = (numbers[:place] == connection.number) & (sides[:place] == side)
                before = segments.sequence[:place][same]
                first = int(before[0]) if len(before) else None
            if not _is_same(begun, connection.begun[side], first):
                connection = connections[slots[place]] = self._begin(connection.pair)
                known[connection.number] = connection
                numbers[place:][slots[place:] == slots[place]] = connection.number
            connection.begun[side] = begun
        return numbers, sides.astype(np.int64), known

    def _begin(self, pair: bytes) -> _Connection:
        connection = self._current[pair] = _Connection(self._connections, pair)
        self._connections += 1
        return connection


def _is_same(begun: int, known: int | None, first: int | None) -> bool:
    """Return True if a SYN belongs to the connection.

    The side of that connection began at `known`, or its first byte was `first`."""
    if known is not None:
        return begun == known
    if first is None:
        return True
    # the SYN precedes the first byte by one
    return (first + 1 - begun) & 0xFFFF_FFFF <= _LATE_SYN


def _text(endpoint: bytes) -> str:
    port = int.from_bytes(endpoint[16:])
    if endpoint.startswith(_MAPPED):
        return f"{'.'.join(map(str, endpoint[12:16]))}:{port}"
    return f"[{IPv6Address(endpoint[:16])}]:{port}"


def _notes(segments: Segments, sides: Integers) -> Notes:
    lost = segments.length - segments.captured
    columns = (segments.time, segments.start, segments.sequence, segments.captured, lost)
    made: Notes = np.rec.fromarrays([*columns, segments.flags, sides], dtype=NOTE).view(np.ndarray)
    return made


def find_connections(
    path: Path, options: DecodeOptions
) -> Iterator[ConnectionPackets | CaptureFault]:
    """Yield all connections of a file in chunks, which are ordered within a connection.

    Raises OSError."""
    if options.raw is not None:
        yield from _raw(path)
        return
    finder = Finder(options.max_connections)
    passed = Passed()
    for packets in read_packets(path):
        if isinstance(packets, CaptureFault):
            yield packets
        else:
            yield from finder.add(find_segments(packets, passed))
    yield from finder.end()
    for count, description in (
        (passed["unknown"], "have a link type that is not known; nothing of them was decoded"),
        (passed["fragments"], "are fragments of IP, which are not put together"),
        (passed["broken"], "have headers that are cut or cannot be"),
    ):
        if count:
            yield CaptureFault(-1, f"{count} packets {description}")


def _raw(path: Path) -> Iterator[ConnectionPackets]:
    """Yield a log of raw bytes as chunks of one direction."""
    size = path.stat().st_size
    at = np.arange(0, size, _PIECE, dtype=np.int64)
    notes = np.zeros(1 + len(at), NOTE)
    notes["time"] = NO_TIME
    notes["flags"][0] = SYN
    notes["sequence"][0] = 0xFFFF_FFFF
    notes["at"][1:] = at
    notes["sequence"][1:] = at & 0xFFFF_FFFF
    notes["size"][1:] = np.minimum(size - at, _PIECE)
    for number, start in enumerate(range(0, len(notes), CHUNK)):
        yield ConnectionPackets(0, number, ("", ""), notes[start : start + CHUNK].tobytes())
