"""Connections of a capture: from its segments to rows, in one pass.

A SYN that neither repeats the last SYN of its side nor fits before the bytes that side has sent
begins another connection between the same endpoints.

The protocol of a connection and its server side are detected from

    1. a TLS record (RFC 8446, section 5.1) at the beginning of a side: TLS
    2. the port of one side, if it is known; unless its codec reports an error at once and another
       codec finds frames
    3. the codecs: the one that finds frames without an error before in the first bytes

Without a SYN and a known port, the side with the lower port is the server, unless the codec
decides.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from typing import Final

import pyarrow as pa

from sluicemq.pipeline.decode.captures import NO_TIME, CaptureError, read_packets
from sluicemq.pipeline.decode.codecs import CODECS, Codec, HttpCodec
from sluicemq.pipeline.decode.columns import FrameColumns, RowBuffer
from sluicemq.pipeline.decode.flow import MID_STREAM, Flow
from sluicemq.pipeline.decode.options import REPORTED, DecodeOptions
from sluicemq.pipeline.decode.tcp import (
    ACK,
    FIN,
    RST,
    SYN,
    Chunk,
    Reassembler,
    Segment,
    Skipped,
    endpoint_text,
    find_segment,
)

_MAX_CONNECTIONS: Final = 20_000
"""Connections in memory. Beyond that, the longest idle one ends; its later packets form another."""
_RAW_PIECE: Final = 256 << 10
"""Bytes read at once from a log of raw bytes."""
_HEAD: Final = 16 << 10
"""Number of bytes of a connection that are examined."""

_FOUND: Final = [kind for kind in CODECS.values() if kind is not HttpCodec]
"""Codecs in the order of trial, without HTTP, which other servers use, too."""
_TLS: Final = re.compile(rb"[\x14-\x17]\x03[\0-\x04]")
_MOST_TRIALS: Final = 256
_FRAMES, _NOTHING, _FAULT = 2, 1, 0

Heads = tuple[tuple[bytes, bool], tuple[bytes, bool]]


class Connection:
    """Both directions of a connection; side 0 has the lower address."""

    def __init__(
        self, number: int, endpoints: list[str], options: DecodeOptions, rows: RowBuffer
    ) -> None:
        self._number = number
        self._endpoints = endpoints
        self._options = options
        self._rows = rows
        self.sides = Reassembler(), Reassembler()
        self._early: tuple[list[Chunk], list[Chunk]] = [], []
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
        if not self._flows and any(self._early):
            self._begin()
        closed = any(reassembler.closed for reassembler in self.sides)
        for flow, reassembler in zip(self._flows, self.sides, strict=False):
            flow.end(closed)
            if reassembler.foreign:
                text = (
                    f"{reassembler.foreign} packets have sequence numbers that do not belong to "
                    "the connection, and were left out"
                )
                flow.emit(NO_TIME, None, None, FrameColumns(error=text))

    def _handle(self, side: int, chunks: list[Chunk]) -> None:
        if self._flows:
            self._flows[side].add(chunks)
            return
        self._early[side].extend(chunks)
        self._early_bytes += sum(len(chunk.data) for chunk in chunks)
        if self._early_bytes >= _HEAD:
            self._begin()

    def _begin(self) -> None:
        """Detect the protocol, and pass the early bytes to its flows."""
        one, other = (int(endpoint.rpartition(":")[2] or 0) for endpoint in self._endpoints)
        heads = self._head(0), self._head(1)
        protocol, server = _recognise(heads, (one, other), self._client, self._options)
        ends = self._endpoints[1 - server], self._endpoints[server]
        stream = self._rows.file if self._options.raw else " > ".join(ends)
        codec = CODECS.get(protocol or "")
        reason = MID_STREAM if codec else None
        if protocol is None:
            reason = (
                "the protocol was not recognised; if it is one of ours, set ports=PORT=PROTOCOL"
            )
        for side, chunks in enumerate(self._early):
            place = (self._number, stream, "to-client" if side == server else "to-server", protocol)
            arguments = side != server, self._options
            flow = Flow(self._rows, place, codec, arguments, self.sides[side].begins, reason)
            self._flows.append(flow)
            flow.add(chunks)
            chunks.clear()

    def _head(self, side: int) -> tuple[bytes, bool]:
        """Return the first captured bytes of a side, and whether the connection begins with them.

        They end at a gap."""
        begins = self.sides[side].begins
        data = bytearray()
        for chunk in self._early[side]:
            if chunk.missing and data:
                break
            begins = begins and not chunk.missing
            data += chunk.data
        return bytes(data[:_HEAD]), begins


def decode_file(file: str, options: DecodeOptions) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file (columns.FRAMES). Errors in the file are rows, too."""
    rows = RowBuffer(file)
    skipped: Counter[Skipped] = Counter()
    connections: dict[bytes, Connection] = {}
    """By both endpoints, in the order of last activity."""
    numbers = count()
    try:
        for segment in _segments(Path(file), options, skipped):
            one, other = sorted((segment.source, segment.target))
            side = int(segment.source != one)
            connection = connections.pop(one + other, None)
            if connection is not None and not connection.sides[side].accepts(segment):
                connection.end()
                connection = None
            if connection is None:
                endpoints = [endpoint_text(each) if each else "" for each in (one, other)]
                connection = Connection(next(numbers), endpoints, options, rows)
            connections[one + other] = connection
            connection.add(side, segment)
            if len(connections) > _MAX_CONNECTIONS:
                connections.pop(next(iter(connections))).end()
            if rows.is_full:
                yield from rows.batches()
    except CaptureError as error:
        rows.add_fault(error.offset, str(error))
    except OSError as error:
        rows.add_fault(None, f"the file cannot be read: {error.strerror}")
    for connection in connections.values():
        connection.end()
        if rows.is_full:
            yield from rows.batches()
    for reason, packets in skipped.items():
        if reason is not Skipped.FOREIGN:
            rows.add_fault(None, f"{packets} packets {reason}")
    yield from rows.batches()


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


def _recognise(
    heads: Heads, ports: tuple[int, int], client: int | None, options: DecodeOptions
) -> tuple[str | None, int]:
    """Return the protocol, None if it was not recognised, and the server side, 0 or 1.

    `heads` has each side's first bytes, and whether the connection begins with them;
    `ports` has both sides' ports; `client` is the side that opened the connection, if known."""
    # the more likely server first
    known = [side for side in (0, 1) if ports[side] in options.ports]
    servers = known if len(known) == 1 else [0, 1] if ports[0] < ports[1] else [1, 0]
    if client is not None:
        servers = [1 - client]
    raw = None if options.raw is None else options.raw.protocol
    if raw is not None or any(_TLS.match(data) for data, _ in heads):
        return raw or "tls", servers[0]
    named = [(options.ports[ports[side]], side) for side in servers if side in known]
    expected, server = named[0] if named else (None, servers[0])
    if expected in REPORTED or not any(data for data, _ in heads):
        return expected, server
    # the port of JMQ has both
    likely = ("jmq", "jmq-portmapper") if expected == "jmq" else (expected,)
    for kinds in ([kind for name, kind in CODECS.items() if name in likely], _FOUND):
        trials = [
            (_judge(kind, heads, side, options), kind.name, side)
            for kind in kinds
            for side in servers
        ]
        points, best, side = max(trials, key=lambda trial: trial[0], default=(0, "", 0))
        if points > 0:
            return best, side
    return expected, server


def _judge(kind: type[Codec], heads: Heads, server: int, options: DecodeOptions) -> int:
    """Return a score: more than 0 if the protocol is possible; higher is more likely."""
    sides = [
        _try(kind, side != server, data, begins, options)
        for side, (data, begins) in enumerate(heads)
        if data
    ]
    if _FRAMES in sides:
        return 4 + sides.count(_FRAMES) - 2 * sides.count(_FAULT)
    return 0 if _FAULT in sides else 1


def _try(
    kind: type[Codec], to_server: bool, data: bytes, begins: bool, options: DecodeOptions
) -> int:
    """Return the score of one side: what its codec finds first."""
    matches = kind.signature.finditer(data) if kind.signature else ()
    places = [0] if begins else [match.start() for match in islice(matches, _MOST_TRIALS)]
    for place in places:
        codec = kind(to_server, options)
        if codec.feed(data[place:]) or codec.end():
            return _FRAMES
        if codec.error is None:
            return _NOTHING
    return _FAULT
