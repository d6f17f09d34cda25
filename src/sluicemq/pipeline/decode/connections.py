"""TCP connections of a capture and their packets, found in one pass.

The payload stays in the file. Each connection yields chunks of up to CHUNK notes of 30 bytes, with
the position of each packet's payload: a gigabyte of traffic becomes 20 MB, which can be sorted and
distributed. The task that decodes a connection reads its payload from the file.

A SYN that neither repeats the last SYN of its side nor fits before the bytes that side has sent
begins another connection between the same endpoints.
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv6Address
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from sluicemq.pipeline.decode.captures import NO_TIME, CaptureFault, read_packets
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


class _Connection:
    """Connection that may receive more packets."""

    __slots__ = ("begun", "chunks", "count", "endpoints", "first", "notes", "number", "slot")

    def __init__(self, number: int, slot: int, endpoints: tuple[str, str]) -> None:
        self.number = number
        self.slot = slot
        self.endpoints = endpoints
        self.notes: list[Notes] = []
        self.count = 0
        self.chunks = 0
        self.begun: list[int | None] = [None, None]
        """Sequence number after the SYN, by side."""
        self.first: list[int | None] = [None, None]
        """Sequence number of the first captured byte, by side."""

    def drain(self) -> Iterator[ConnectionPackets]:
        """Yield the collected notes as chunks."""
        if not self.count:
            return
        notes = np.concatenate(self.notes)
        self.notes.clear()
        self.count = 0
        for start in range(0, len(notes), CHUNK):
            part = notes[start : start + CHUNK].tobytes()
            yield ConnectionPackets(self.number, self.chunks, self.endpoints, part)
            self.chunks += 1


class Finder:
    """Assigns the segments of one file to connections."""

    def __init__(self, most: int) -> None:
        """Set `most`, the maximum number of connections in memory."""
        self._most = most
        self._sides: dict[bytes, tuple[int, int]] = {}
        """Index of the endpoint pair and of the source in it, by source and target."""
        self._keys: dict[int, bytes] = {}
        """Key of side 0, by index of the pair."""
        self._slots = 0
        self._current: dict[int, _Connection] = {}
        """Connection by index of the pair, in the order of last activity."""
        self._connections = 0
        self._notes = 0

    def add(self, segments: Segments) -> Iterator[ConnectionPackets]:
        """Add a batch of segments; yield the chunks that are full."""
        relevant = (segments.length > 0) | ((segments.flags & (SYN | FIN | RST)) != 0)
        if not relevant.any():
            return
        segments = Segments(*(column[relevant] for column in segments))
        slots, sides = self._pairs(segments)
        numbers, replaced = self._numbers(segments, slots, sides)
        known = {each.number: each for each in map(self._current.__getitem__, set(slots.tolist()))}
        known |= replaced
        notes = _notes(segments, sides)
        order = np.argsort(numbers, kind="stable")
        ordered = numbers[order]
        starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
        for start, stop in zip(starts, [*starts[1:], len(ordered)], strict=True):
            connection = known[int(ordered[start])]
            mine = notes[order[start:stop]]
            connection.notes.append(mine)
            connection.count += len(mine)
            self._notes += len(mine)
            for side in (0, 1):
                if connection.first[side] is None:
                    sent = mine["sequence"][mine["side"] == side]
                    connection.first[side] = int(sent[0]) if len(sent) else None
            if connection.number not in replaced:
                self._current[connection.slot] = self._current.pop(connection.slot)
                if connection.count >= CHUNK:
                    yield from self._drain(connection)
        for connection in replaced.values():
            yield from self._drain(connection)
        if self._notes > _MOST_NOTES:
            yield from self.end()
        while len(self._current) > self._most:
            yield from self._forget(next(iter(self._current)))

    def end(self) -> Iterator[ConnectionPackets]:
        """Yield all remaining chunks."""
        for connection in self._current.values():
            yield from self._drain(connection)

    def _drain(self, connection: _Connection) -> Iterator[ConnectionPackets]:
        self._notes -= connection.count
        return connection.drain()

    def _forget(self, slot: int) -> Iterator[ConnectionPackets]:
        key = self._keys.pop(slot)
        del self._sides[key]
        self._sides.pop(_turned(key), None)
        return self._drain(self._current.pop(slot))

    def _pairs(self, segments: Segments) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return each segment's endpoint pair and the index of its sender in it."""
        keys = np.concatenate([segments.source, segments.target], axis=1)
        different, inverse = np.unique(keys.view(f"V{2 * ENDPOINT}").ravel(), return_inverse=True)
        found = [self._side(key.tobytes()) for key in different]
        slots, sides = np.array(found, np.int64).T
        return slots[inverse], sides[inverse]

    def _side(self, key: bytes) -> tuple[int, int]:
        known = self._sides.get(key)
        if known is None:
            slot = self._slots
            self._slots += 1
            self._keys[slot] = key
            # a connection from an endpoint to itself has one side only
            self._sides[_turned(key)] = slot, 1
            self._sides[key] = known = slot, 0
        return known

    def _numbers(
        self,
        segments: Segments,
        slots: npt.NDArray[np.int64],
        sides: npt.NDArray[np.int64],
    ) -> tuple[npt.NDArray[np.int64], dict[int, _Connection]]:
        """Return each segment's connection number, and the connections that others replaced."""
        different, places, inverse = np.unique(slots, return_index=True, return_inverse=True)
        for slot in different[np.argsort(places)].tolist():
            if slot not in self._current:
                self._begin(slot)
        present = [self._current[slot] for slot in different.tolist()]
        numbers = np.array([each.number for each in present], np.int64)[inverse]
        replaced: dict[int, _Connection] = {}
        for place in np.flatnonzero(segments.flags & SYN):
            slot, side = int(slots[place]), int(sides[place])
            connection = self._current[slot]
            begun = (int(segments.sequence[place]) + 1) & 0xFFFF_FFFF
            first = connection.first[side]
            if first is None:
                before = np.flatnonzero(
                    (numbers[:place] == connection.number) & (sides[:place] == side)
                )
                first = int(segments.sequence[before[0]]) if len(before) else None
            if _is_same(begun, connection.begun[side], first):
                connection.begun[side] = begun
                continue
            replaced[connection.number] = connection
            connection = self._begin(slot)
            connection.begun[side] = begun
            later = np.flatnonzero(slots[place:] == slot) + place
            numbers[later] = connection.number
        return numbers, replaced

    def _begin(self, slot: int) -> _Connection:
        key = self._keys[slot]
        endpoints = _text(key[:ENDPOINT]), _text(key[ENDPOINT:])
        connection = self._current[slot] = _Connection(self._connections, slot, endpoints)
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


def _turned(key: bytes) -> bytes:
    return key[ENDPOINT:] + key[:ENDPOINT]


def _text(endpoint: bytes) -> str:
    port = int.from_bytes(endpoint[16:])
    if endpoint.startswith(_MAPPED):
        return f"{'.'.join(map(str, endpoint[12:16]))}:{port}"
    return f"[{IPv6Address(endpoint[:16])}]:{port}"


def _notes(segments: Segments, sides: npt.NDArray[np.int64]) -> Notes:
    notes = np.empty(len(sides), NOTE)
    notes["time"] = segments.time
    notes["at"] = segments.start
    notes["sequence"] = segments.sequence
    notes["size"] = segments.captured
    notes["lost"] = segments.length - segments.captured
    notes["flags"] = segments.flags
    notes["side"] = sides
    return notes


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
        (passed.unknown, "have a link type that is not known; nothing of them was decoded"),
        (passed.fragments, "are fragments of IP, which are not put together"),
        (passed.broken, "have headers that are cut or cannot be"),
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
