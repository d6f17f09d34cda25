"""TCP (RFC 9293): from packets to segments, and from the segments of one direction to its bytes.

    link types   Ethernet (1) with VLAN tags, Linux cooked (113, 276), loopback (0, 108), raw IP
                 (12, 14, 101, 228, 229)
    network      IPv4 with options; IPv6 with extension headers

Checksums are ignored: captures on the sending machine precede the network card, which fills them
in. Such cards also leave the length of a large packet 0, which then extends to the end of the
captured bytes. IP fragments are counted and not reassembled, because TCP avoids them.
"""

from __future__ import annotations

from enum import StrEnum
from heapq import heappop, heappush
from ipaddress import IPv4Address, IPv6Address
from struct import Struct, error
from typing import Final, NamedTuple

from sluicemq.pipeline.decode.captures import NO_TIME, Packet

FIN: Final = 0x01
SYN: Final = 0x02
RST: Final = 0x04
ACK: Final = 0x10

_ETHERNET: Final = 1
_TYPE_AT: Final = {_ETHERNET: 12, 113: 14, 276: 0}
"""Position of the EtherType, by link type."""
_IP_AT: Final = {_ETHERNET: 14, 113: 16, 276: 20, 0: 4, 108: 4} | dict.fromkeys(
    (12, 14, 101, 228, 229), 0
)
"""Position of the IP header, by link type."""
_IP: Final = (b"\x08\x00", b"\x86\xdd")
_TAGS: Final = (b"\x81\x00", b"\x88\xa8", b"\x91\x00")
_TCP: Final = 6
_FRAGMENT: Final = 44
_AUTHENTICATION: Final = 51
_EXTENSIONS: Final = (0, 43, _FRAGMENT, _AUTHENTICATION, 60)
_u16: Final = Struct(">H").unpack_from
_header: Final = Struct(">HHIIBBHHH").unpack_from

_MODULUS: Final = 1 << 32
_WINDOW: Final = 1 << 30
"""Largest TCP window in bytes (RFC 7323). Segments further away belong to another connection."""
_LATE_SYN: Final = 1 << 20
"""Bytes by which segments may precede the SYN of their side, if captured out of order."""
_FIRST: Final = 64
"""Number of segments among which the lowest is the first, if there is no SYN."""
_MAX_WAITING: Final = 8 << 20
"""Bytes that wait for earlier ones; beyond that, the earlier ones are missing in the capture."""


class Skipped(StrEnum):
    """Reason why a packet has no segment."""

    LINK = "have a link type that is not known; nothing of them was decoded"
    FOREIGN = "are not TCP"
    FRAGMENT = "are fragments of IP, which are not put together"
    BROKEN = "have headers that are cut or cannot be"


class Segment(NamedTuple):
    """TCP segment.

    source    sender's address and port
    target    receiver's address and port
    sequence  number of the first byte, modulo 2^32
    flags     TCP flags, see above
    payload   captured bytes of payload
    lost      bytes of payload behind them that were sent and not captured
    time      µs since the epoch, or NO_TIME
    """

    source: bytes
    target: bytes
    sequence: int
    flags: int
    payload: bytes
    lost: int
    time: int


def find_segment(packet: Packet) -> Segment | Skipped:
    """Return the TCP segment of a packet."""
    data, link = packet.data, packet.link
    if link not in _IP_AT:
        return Skipped.LINK
    at = _IP_AT[link]
    if link in _TYPE_AT:
        kind = data[_TYPE_AT[link] : _TYPE_AT[link] + 2]
        while link == _ETHERNET and kind in _TAGS:
            at += 4
            kind = data[at - 2 : at]
        if kind not in _IP:
            return Skipped.FOREIGN
    try:
        version = data[at] >> 4
        if version == 4:
            return _ipv4(packet, at)
        return _ipv6(packet, at) if version == 6 else Skipped.FOREIGN
    except (IndexError, error):
        return Skipped.BROKEN


def _ipv4(packet: Packet, at: int) -> Segment | Skipped:
    data = packet.data
    head = (data[at] & 15) * 4
    total = _u16(data, at + 2)[0] or packet.original - at
    if head < 20 or total < head:
        return Skipped.BROKEN
    if data[at + 9] != _TCP:
        return Skipped.FOREIGN
    if _u16(data, at + 6)[0] & 0x3FFF:
        return Skipped.FRAGMENT
    return _tcp(packet, at + head, at + total, data[at + 12 : at + 16], data[at + 16 : at + 20])


def _ipv6(packet: Packet, at: int) -> Segment | Skipped:
    data = packet.data
    source, target = data[at + 8 : at + 24], data[at + 24 : at + 40]
    payload = _u16(data, at + 4)[0]
    following = data[at + 6]
    at += 40
    stop = at + payload if payload else packet.original
    while following in _EXTENSIONS:
        size = (data[at + 1] + 1) * 8
        if following == _FRAGMENT:
            size = 8
            if _u16(data, at + 2)[0] & 0xFFF9:
                return Skipped.FRAGMENT
        elif following == _AUTHENTICATION:
            size = (data[at + 1] + 2) * 4
        following = data[at]
        at += size
    return _tcp(packet, at, stop, source, target) if following == _TCP else Skipped.FOREIGN


def _tcp(packet: Packet, at: int, stop: int, source: bytes, target: bytes) -> Segment | Skipped:
    """Return the segment at `data[at:stop]`."""
    data = packet.data
    _, _, sequence, _, length, flags, *_ = _header(data, at)
    start = at + (length >> 4) * 4
    if start < at + 20 or start > stop:
        return Skipped.BROKEN
    payload = data[start:stop]
    return Segment(
        source + data[at : at + 2],
        target + data[at + 2 : at + 4],
        sequence,
        flags,
        payload,
        stop - start - len(payload),
        packet.time,
    )


def endpoint_text(endpoint: bytes) -> str:
    """Return "address:port"; IPv6 addresses in brackets."""
    address, port = endpoint[:-2], int.from_bytes(endpoint[-2:])
    return (
        f"{IPv4Address(address)}:{port}"
        if len(address) == 4
        else f"[{IPv6Address(address)}]:{port}"
    )


class Chunk(NamedTuple):
    """Next bytes of a direction, and those missing from the capture before them.

    missing  number of missing bytes
    cut      packets with missing bytes were captured in part
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
        """True if `_next` is known: after the SYN, or after _FIRST segments without it."""
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
        self.foreign = 0
        """Number of segments whose sequence numbers do not belong to this connection."""

    def accepts(self, segment: Segment) -> bool:
        """Return False if the segment is the SYN of another connection.

        A SYN of this one repeats its SYN, or fits before its first segment."""
        if not segment.flags & SYN or self._base is None:
            return True
        distance = (self._base - segment.sequence - 1) % _MODULUS
        return distance == 0 if self.begins else distance <= _LATE_SYN

    def add(self, segment: Segment) -> list[Chunk]:
        """Add the next segment of the capture; return what is complete now."""
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
            self.foreign += size + segment.lost > 0
            return []
        if is_syn and not self._started:
            self.begins = self._started = True
            self._base = self._next = number
        # a FIN without payload marks the end of the stream
        if size or segment.lost or segment.flags & FIN:
            self._waiting_bytes += size
            heappush(self._waiting, (number, segment.time, segment))
        return self._in_order(at_end=False)

    def end(self) -> list[Chunk]:
        """Return the rest at the end of the capture."""
        chunks = self._in_order(at_end=True)
        if self._missing:
            chunks.append(Chunk(self._missing, self._cut, b"", self._latest))
        return chunks

    def _in_order(self, at_end: bool) -> list[Chunk]:
        """Return what is complete; at the end, everything."""
        chunks: list[Chunk] = []
        waiting = self._waiting
        if not self._started and (len(waiting) >= _FIRST or (at_end and waiting)):
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
