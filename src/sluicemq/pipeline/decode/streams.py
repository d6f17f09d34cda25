"""Streams of a capture: from its segments to rows, in one pass.

A SYN that neither repeats the last SYN of its side nor fits before the bytes that side has sent
begins another connection between the same endpoints.

Each direction is

    in step       the codec receives all bytes
    out of step   bytes are missing, the codec has reported an error, or the capture begins within
                  the connection: a new codec tries each position that looks like the beginning of
                  a frame. The first position at which it finds a frame without an error before it
                  is the next beginning; the bytes between become one row with the reason
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from itertools import count, islice
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa

from sluicemq.pipeline.decode.captures import (
    ACK,
    FIN,
    NO_TIME,
    RST,
    SYN,
    CaptureError,
    Segment,
    Skipped,
    endpoint_text,
    find_segment,
    read_packets,
)
from sluicemq.pipeline.decode.codecs import CODECS, FRAMES, REPORTED, Codec, DecodeOptions, Row

_MODULUS: Final = 1 << 32
_WINDOW: Final = 1 << 30
"""Largest TCP window in bytes (RFC 7323). Segments further away belong to another connection."""
_LATE_SYN: Final = 1 << 20
"""Bytes by which segments may precede the SYN of their side, if captured out of order."""
_START_SEGMENTS: Final = 64
"""Number of segments among which the lowest is the first, if there is no SYN."""
_MAX_WAITING: Final = 8 << 20
"""Bytes that wait for earlier ones; beyond that, the earlier ones are missing in the capture."""

_ACCEPTED_BYTES: Final = 64 << 10
"""Bytes without an error after which a beginning is accepted before a frame is complete."""
_OVERLAP: Final = 64
"""Overlap of searches in bytes, not less than the longest signature."""

_MAX_ROWS: Final = 4096
"""Rows with which a batch is due."""
_MAX_BYTES: Final = 16 << 20
"""Bytes of bodies with which a batch is due."""

_MAX_CONNECTIONS: Final = 20_000
"""Connections in memory. Beyond that, the longest idle one ends; its later packets form another."""
_RAW_PIECE: Final = 256 << 10
"""Bytes read at once from a log of raw bytes."""
_DETECTION_BYTES: Final = 16 << 10

_BEGINNINGS: Final = {
    "tls": re.compile(rb"[\x14-\x17]\x03[\0-\x04]"),
    "jmq-portmapper": re.compile(rb"101(?: \S+ \d+)?\r?\n"),
}
"""Patterns of the first bytes of a side, by protocol, for protocols without a codec: a TLS record
(RFC 8446, section 5.1), and a line of JMQ's port mapper."""
_MAX_TRIALS: Final = 256
_FRAMES, _NOTHING, _FAULT = 4, 1, -1
"""Scores of a side. In their sums, frames of one side outweigh a fault of the other, and an
undecided side does not."""

FirstBytes = tuple[tuple[bytes, bool], tuple[bytes, bool]]


class Chunk(NamedTuple):
    """Next bytes of a direction, and those missing from the capture before them.

    missing  number of missing bytes
    cut      packets with missing bytes are truncated in the capture
    data     the bytes; empty only for missing bytes at the end
    time     µs since the epoch or NO_TIME, at which the stream was complete up to their end
    """

    missing: int
    cut: bool
    data: bytes
    time: int


class Reassembler:
    """Puts the segments of one direction of a connection in order.

    Sequence numbers count modulo 2^32 and are unrolled to numbers that always grow. Of repeated
    bytes, the first copy that could be passed on is used. Segments ahead of a missing one wait,
    until _MAX_WAITING is exceeded or the capture ends: then the missing bytes are given up. Bytes
    that were cut off from a captured packet are given up at once.
    """

    def __init__(self) -> None:
        self._base: int | None = None
        """Sequence number after the SYN, or of the first segment."""
        self._started = False
        """True if `_next` is known: after the SYN, or after _START_SEGMENTS segments without it."""
        self._next = 0
        """Unrolled sequence number of the next byte."""
        self._waiting: list[tuple[int, int, Segment]] = []
        """Heap, by unrolled sequence number and then by time."""
        self._waiting_bytes = 0
        self._latest = NO_TIME
        self._missing = 0
        """Number of missing bytes before `_next`."""
        self._cut = False
        self.begins = False
        """True if the first byte is the first of the connection, not only of the capture."""
        self.closed = False
        """True if FIN or RST was captured."""
        self.foreign_segments = 0
        """Number of segments whose sequence numbers do not belong to this connection."""

    def accepts(self, segment: Segment) -> bool:
        """Return False if the segment is the SYN of another connection.

        A SYN of this one repeats its SYN, or fits before its first segment."""
        if not segment.flags & SYN or self._base is None:
            return True
        distance = (self._base - segment.sequence - 1) % _MODULUS
        return distance == 0 if self.begins else distance <= _LATE_SYN

    def add(self, segment: Segment) -> list[Chunk]:
        """Add the next segment of the capture; return the chunks that are complete now."""
        is_syn = bool(segment.flags & SYN)
        sequence = segment.sequence + is_syn
        if self._base is None:
            self._base = self._next = sequence
        # the number nearest to the next byte's that is this sequence number modulo 2^32
        distance = (sequence - self._next + _MODULUS // 2) % _MODULUS - _MODULUS // 2
        number = self._next + distance
        size = len(segment.payload)
        self.closed = self.closed or bool(segment.flags & (FIN | RST))
        if abs(distance) >= _WINDOW:
            self.foreign_segments += size + segment.lost > 0
            return []
        if is_syn and not self._started:
            self.begins = self._started = True
            self._base = self._next = number
        # a FIN without payload marks the end of the stream
        if size or segment.lost or segment.flags & FIN:
            self._waiting_bytes += size
            heappush(self._waiting, (number, segment.time, segment))
        return self._take_complete(at_end=False)

    def end(self) -> list[Chunk]:
        """Return the rest at the end of the capture."""
        chunks = self._take_complete(at_end=True)
        if self._missing:
            chunks.append(Chunk(self._missing, self._cut, b"", self._latest))
        return chunks

    def _take_complete(self, at_end: bool) -> list[Chunk]:
        """Return the complete chunks; at the end, all."""
        chunks: list[Chunk] = []
        waiting = self._waiting
        if not self._started and (len(waiting) >= _START_SEGMENTS or (at_end and waiting)):
            self._started = True
            self._next = waiting[0][0]
        while (
            self._started
            and waiting
            and (waiting[0][0] <= self._next or at_end or self._waiting_bytes > _MAX_WAITING)
        ):
            number, _, segment = heappop(waiting)
            self._waiting_bytes -= len(segment.payload)
            self._skip_to(number, cut=False)
            data = segment.payload[self._next - number :]
            if data:
                self._next += len(data)
                self._latest = max(self._latest, segment.time)
                chunks.append(Chunk(self._missing, self._cut, data, self._latest))
                self._missing, self._cut = 0, False
            self._skip_to(number + len(segment.payload) + segment.lost, cut=True)
        return chunks

    def _skip_to(self, number: int, *, cut: bool) -> None:
        """Count the bytes before `number` as missing."""
        if number > self._next:
            self._missing += number - self._next
            self._cut = self._cut or cut
            self._next = number


class RowBuffer:
    """Rows of a file that do not form a batch yet."""

    def __init__(self, file: str) -> None:
        self.file = file
        self._rows: list[Row] = []
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        return len(self._rows) >= _MAX_ROWS or self._bytes >= _MAX_BYTES

    def add(self, row: Row) -> None:
        """Add a row, and set its column `file`."""
        row["file"] = self.file
        self._rows.append(row)
        self._bytes += len(row.get("body") or b"")

    def take(self) -> pa.RecordBatch:
        """Return all added rows, possibly none, and clear them."""
        rows, self._rows, self._bytes = self._rows, [], 0
        return pa.RecordBatch.from_pylist(rows, FRAMES)


class Flow:
    """Turns the bytes of one direction of a connection into the rows of its frames.

    Without a codec, they are one row with the reason, if there is one.
    """

    def __init__(
        self,
        rows: RowBuffer,
        shared_columns: Row,
        kind: type[Codec] | None,
        arguments: tuple[bool, DecodeOptions],
        begins: bool,
        reason: str | None,
    ) -> None:
        """Set the columns that all rows share, and how codecs are constructed.

        `begins`: the first byte is the first of the connection; otherwise, `reason` is why the
        bytes before the first frame are not decoded, None if that is no error."""
        self._rows = rows
        self._shared_columns = shared_columns
        self._kind = kind
        self._arguments = arguments
        self._codec = kind(*arguments) if kind is not None and begins else None
        """None: out of step."""
        self._buffer = bytearray()
        """Bytes from `_begin` on; out of step, the last bytes, to search from index
        `_search_start` on."""
        self._search_start = 0
        self._begin = 0
        """Position of the first byte that is not in a row yet."""
        self._end = 0
        """Position behind the last byte."""
        self._reason = reason
        self._sync_lost_at = NO_TIME
        """Time at which synchronisation was lost."""
        self._gaps = 0
        """Number of gaps while out of step, except the one that is the reason."""
        self._latest = NO_TIME

    def emit(self, time: int, offset: int | None, length: int | None, columns: Row) -> None:
        self._rows.add(
            {
                **self._shared_columns,
                "time": None if time == NO_TIME else time,
                "offset": offset,
                "length": length,
                **columns,
            }
        )

    def add(self, chunks: Iterable[Chunk]) -> None:
        for chunk in chunks:
            if chunk.missing:
                self._skip(chunk)
            self._take(chunk)

    def end(self, closed: bool) -> None:
        """Handle the end of the stream; `closed`: the connection had ended."""
        if self._codec is None:
            self._report(self._end)
        elif self._codec.decoder.incomplete and self._end > self._begin:
            size = self._end - self._begin
            source = "connection" if closed else "capture"
            text = f"the {source} ends within a frame, of which {size} bytes were captured"
            self.emit(self._latest, self._begin, size, {"error": text})

    def _take(self, chunk: Chunk) -> None:
        self._end += len(chunk.data)
        self._latest = chunk.time
        self._buffer += chunk.data
        if self._codec is not None:
            self._accept(self._codec, self._codec.decoder.feed(chunk.data))
        while self._codec is None and (result := self._search()) is not None:
            self._codec, frames = result
            self._accept(self._codec, frames)

    def _skip(self, chunk: Chunk) -> None:
        if self._codec is None:
            self._gaps += 1
        else:
            reason = f"{chunk.missing} bytes are missing in the capture at {self._end}"
            if chunk.cut:
                reason += (
                    ", because packets are truncated (tcpdump -s 0 captures all of their bytes)"
                )
            self._lose_sync(reason)
        self._buffer.clear()
        self._search_start = 0
        self._end += chunk.missing

    def _accept(self, codec: Codec, frames: list[Any]) -> None:
        """Emit rows for the frames that `codec` found in the kept bytes."""
        position = 0
        for frame in frames:
            size = codec.size(self._buffer, position, frame)
            self.emit(self._latest, self._begin + position, size, codec.describe(frame))
            position += size
        error = codec.decoder.error
        if error is None and not codec.decoder.incomplete:
            # blank lines between frames belong to no frame
            position = len(self._buffer)
        del self._buffer[:position]
        self._begin += position
        if error is not None:
            self._lose_sync(str(error))
            self._search_start = 1

    def _lose_sync(self, reason: str) -> None:
        self._codec = None
        self._reason = reason
        self._sync_lost_at = self._latest

    def _search(self) -> tuple[Codec, list[Any]] | None:
        """Return the next codec in step, and the frames it found in the kept bytes.

        Return None if more bytes are needed."""
        kind, buffer, result = self._kind, self._buffer, None
        if kind is not None:
            result = _first_frames(
                kind, self._arguments, buffer, kind.starts(buffer, self._search_start)
            )
        # no frame begins in the bytes before
        del buffer[
            : max(self._search_start, len(buffer) - _OVERLAP) if result is None else result[0]
        ]
        self._search_start = 0
        if result is None or not (result[2] or len(buffer) >= _ACCEPTED_BYTES):
            return None
        self._report(self._end - len(buffer))
        self._begin = self._end - len(buffer)
        return result[1:]

    def _report(self, until: int) -> None:
        """Emit a row with the reason why the bytes before `until` were not decoded."""
        size = until - self._begin
        if size > 0:
            suffix = f", and {self._gaps} more gaps" if self._gaps else ""
            text = f"{self._reason}{suffix}; {size} bytes from {self._begin} on are not decoded"
            time = self._latest if self._sync_lost_at == NO_TIME else self._sync_lost_at
            self.emit(time, self._begin, size, {"error": None if self._reason is None else text})
        self._gaps = 0


class Connection:
    """Both directions of a connection, whose protocol it detects; side 0 has the lower address."""

    def __init__(
        self, number: int, endpoints: list[str], options: DecodeOptions, rows: RowBuffer
    ) -> None:
        self._number = number
        self._endpoints = endpoints
        self._options = options
        self._rows = rows
        self.sides = Reassembler(), Reassembler()
        self._early_chunks: tuple[list[Chunk], list[Chunk]] = [], []
        """Bytes of both sides before the protocol was detected."""
        self._early_bytes = 0
        self._client: int | None = None
        """Side of the client, if known."""
        self._flows: list[Flow] = []

    def add(self, side: int, segment: Segment) -> None:
        """Add a segment that this side sent."""
        if self._client is None and segment.flags & SYN:
            self._client = 1 - side if segment.flags & ACK else side
        self._handle(side, self.sides[side].add(segment))

    def end(self) -> None:
        """Add the remaining rows after the last segment."""
        for side in (0, 1):
            self._handle(side, self.sides[side].end())
        if not self._flows and any(self._early_chunks):
            self._begin()
        closed = any(reassembler.closed for reassembler in self.sides)
        for flow, reassembler in zip(self._flows, self.sides, strict=False):
            flow.end(closed)
            if reassembler.foreign_segments:
                text = (
                    f"{reassembler.foreign_segments} packets have sequence numbers that do not "
                    "belong to the connection, and were ignored"
                )
                flow.emit(NO_TIME, None, None, {"error": text})

    def _handle(self, side: int, chunks: list[Chunk]) -> None:
        if self._flows:
            self._flows[side].add(chunks)
            return
        self._early_chunks[side].extend(chunks)
        self._early_bytes += sum(len(chunk.data) for chunk in chunks)
        if self._early_bytes >= _DETECTION_BYTES:
            self._begin()

    def _begin(self) -> None:
        """Detect the protocol, and pass the early bytes to its flows."""
        first_port, second_port = (
            int(endpoint.rpartition(":")[2] or 0) for endpoint in self._endpoints
        )
        first_bytes = self._first_bytes(0), self._first_bytes(1)
        protocol, server = _detect_protocol(
            first_bytes, (first_port, second_port), self._client, self._options
        )
        ends = self._endpoints[1 - server], self._endpoints[server]
        stream = self._rows.file if self._options.raw else " > ".join(ends)
        codec = CODECS.get(protocol or "")
        reason = "the capture begins within the connection" if codec else None
        if protocol is None:
            reason = (
                "the protocol was not recognised; if it is one of ours, set ports=PORT=PROTOCOL"
            )
        for side, chunks in enumerate(self._early_chunks):
            shared_columns: Row = {
                "connection": self._number,
                "stream": stream,
                "direction": "to-client" if side == server else "to-server",
                "protocol": protocol,
            }
            arguments = side != server, self._options
            flow = Flow(
                self._rows, shared_columns, codec, arguments, self.sides[side].begins, reason
            )
            self._flows.append(flow)
            flow.add(chunks)
            chunks.clear()

    def _first_bytes(self, side: int) -> tuple[bytes, bool]:
        """Return the first captured bytes of a side, and whether the connection begins with them.

        They end at a gap."""
        chunks = self._early_chunks[side]
        begins = self.sides[side].begins and not (chunks and chunks[0].missing)
        gap = next((n for n, chunk in enumerate(chunks) if n and chunk.missing), len(chunks))
        return b"".join(chunk.data for chunk in chunks[:gap])[:_DETECTION_BYTES], begins


def decode_file(file: str, options: DecodeOptions) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file (codecs.FRAMES). Errors in the file are rows, too."""
    rows = RowBuffer(file)
    skipped: Counter[Skipped] = Counter()
    connections: dict[bytes, Connection] = {}
    """By both endpoints, in the order of last activity."""
    numbers = count()
    try:
        for segment in _segments(Path(file), options, skipped):
            first, second = sorted((segment.source, segment.target))
            side = int(segment.source != first)
            connection = connections.pop(first + second, None)
            if connection is not None and not connection.sides[side].accepts(segment):
                connection.end()
                connection = None
            if connection is None:
                endpoints = [
                    endpoint_text(endpoint) if endpoint else "" for endpoint in (first, second)
                ]
                connection = Connection(next(numbers), endpoints, options, rows)
            connections[first + second] = connection
            connection.add(side, segment)
            if len(connections) > _MAX_CONNECTIONS:
                connections.pop(next(iter(connections))).end()
            if rows.is_full:
                yield rows.take()
    except CaptureError as error:
        rows.add({"offset": error.offset, "error": str(error)})
    except OSError as error:
        rows.add({"error": f"the file cannot be read: {error.strerror}"})
    for connection in connections.values():
        connection.end()
        if rows.is_full:
            yield rows.take()
    for reason, packets in skipped.items():
        if reason is not Skipped.FOREIGN:
            rows.add({"error": f"{packets} packets {reason}"})
    yield rows.take()


def _segments(path: Path, options: DecodeOptions, skipped: Counter[Skipped]) -> Iterator[Segment]:
    """Yield the segments with payload or flags; count the packets that have none."""
    if options.raw is not None:
        yield from _raw_segments(path, SYN if options.raw.role == "client" else SYN | ACK)
        return
    for packet in read_packets(path):
        segment = find_segment(packet)
        if isinstance(segment, Skipped):
            skipped[segment] += 1
        elif segment.payload or segment.lost or segment.flags & (SYN | FIN | RST):
            yield segment


def _raw_segments(path: Path, flags: int) -> Iterator[Segment]:
    """Yield a log of raw bytes as the segments of one direction; `flags` tell the sender."""
    sequence = 0
    yield Segment(b"", b"", (1 << 32) - 1, flags, b"", 0, NO_TIME)
    with path.open("rb") as file:
        while data := file.read(_RAW_PIECE):
            yield Segment(b"", b"", sequence % (1 << 32), ACK, data, 0, NO_TIME)
            sequence += len(data)


# --- detection of the protocol ------------------------------------------------------------------


def _detect_protocol(
    first_bytes: FirstBytes, ports: tuple[int, int], client: int | None, options: DecodeOptions
) -> tuple[str | None, int]:
    """Return the protocol, None if it was not recognised, and the server side, 0 or 1.

    In this order, it is: the one with a fixed beginning; that of a known port; the one whose codec
    finds frames. The last two change places if the port's codec finds an error at once.

    `first_bytes` has each side's first bytes, and whether the connection begins with them;
    `ports` has both sides' ports; `client` is the side that opened the connection, if known."""
    # the more likely server first
    known_sides = [side for side in (0, 1) if ports[side] in options.ports]
    servers = known_sides if len(known_sides) == 1 else [0, 1] if ports[0] < ports[1] else [1, 0]
    if client is not None:
        servers = [1 - client]
    matches = (
        name
        for name, beginning in _BEGINNINGS.items()
        if any(beginning.match(data) for data, _ in first_bytes)
    )
    detected = (options.raw and options.raw.protocol) or next(matches, None)
    if detected is not None:
        return detected, servers[0]
    candidates = [(options.ports[ports[side]], side) for side in servers if side in known_sides]
    expected, server = candidates[0] if candidates else (None, servers[0])
    if expected in REPORTED or not any(data for data, _ in first_bytes):
        return expected, server
    for kinds in ([kind for name, kind in CODECS.items() if name == expected], [*CODECS.values()]):
        trials = [
            (_score_protocol(kind, first_bytes, side, options), kind.name, side)
            for kind in kinds
            for side in servers
        ]
        points, best_protocol, side = max(trials, key=lambda trial: trial[0], default=(0, "", 0))
        if points > 0:
            return best_protocol, side
    return expected, server


def _score_protocol(
    kind: type[Codec], first_bytes: FirstBytes, server: int, options: DecodeOptions
) -> int:
    """Return a score: more than 0 if the protocol is possible; higher is more likely."""
    score = 0
    for side, (data, begins) in enumerate(first_bytes):
        if data:
            starts = [0] if begins else islice(kind.starts(data), _MAX_TRIALS)
            result = _first_frames(kind, (side != server, options), data, starts)
            score += _FAULT if result is None else _FRAMES if result[2] else _NOTHING
    return score


def _first_frames(
    kind: type[Codec],
    arguments: tuple[bool, DecodeOptions],
    data: bytes | bytearray,
    starts: Iterable[int],
) -> tuple[int, Codec, list[Any]] | None:
    """Return the first start from which a codec finds no error before a frame.

    Return it with the codec and its frames, none if more bytes are needed."""
    for start in starts:
        codec = kind(*arguments)
        frames = codec.decoder.feed(bytes(memoryview(data)[start:]))
        if frames or codec.decoder.error is None:
            return start, codec, frames
    return None
