"""Captures of tcpdump: from a file to the segments of TCP (RFC 9293).

    pcap         magic:u32 version:u16 u16 zone:i32 u32 snaplen:u32 link:u32, then records:
                 seconds:u32 fraction:u32 captured:u32 original:u32, `captured` bytes
                 magic A1B2C3D4: fractions are microseconds, A1B23C4D: nanoseconds; it also states
                 the byte order
    pcapng       blocks: type:u32 length:u32 body length:u32, padded to 4 bytes
                 0A0D0D0A section (states the byte order), 1 interface (link type, unit of time),
                 6 packet, 3 packet without time, 2 packet (obsolete); others are skipped
    link types   Ethernet (1) with VLAN tags, Linux cooked (113, 276), loopback (0, 108), raw IP
                 (12, 14, 101, 228, 229)
    network      IPv4 with options; IPv6 with extension headers except authentication

(draft-ietf-opsawg-pcap, draft-ietf-opsawg-pcapng.)

A file's contents are not trusted: an invalid value ends the reading with a CaptureError. The
libraries for these formats drop what is needed here, or read any length that a file announces
(docs/pipeline/decode.md).

Checksums are ignored: captures on the sending machine precede the network card, which fills them
in. Such cards also leave the length of a large packet 0, which then extends to the end of the
captured bytes. IP fragments are counted and not reassembled, because TCP avoids them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import StrEnum
from ipaddress import ip_address
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

NO_TIME: Final = -1

_MAX_BLOCK: Final = 16 << 20
"""Maximum size of a packet or block in bytes; a greater length is invalid."""
_LAST_TIME: Final = 253_402_300_800 * 1_000_000
"""The year 10000 in µs; later times are invalid."""
_SECTION: Final = b"\x0a\x0d\x0d\x0a"
_PCAP: Final = {
    struct.pack(order + "I", magic): (order, units)
    for order in "<>"
    for magic, units in ((0xA1B2C3D4, 1), (0xA1B23C4D, 1000))
}
"""Byte order and time units per microsecond, by magic number."""
_ORDERS: Final = {struct.pack(order + "I", 0x1A2B3C4D): order for order in "<>"}
_PACKETS: Final = {2: "HHIIII", 3: "I", 6: "IIIII"}
"""Fields before the bytes of a packet, by type of block."""

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
_EXTENSIONS: Final = (0, 43, 60)
"""IPv6 headers that are skipped: hop-by-hop options, routing, destination options."""
_u16: Final = struct.Struct(">H").unpack_from
_header: Final = struct.Struct(">HHIIBBHHH").unpack_from


class CaptureError(Exception):
    """Error in a file, at the byte position `offset`. The rest of the file has not been read."""

    def __init__(self, offset: int, text: str) -> None:
        super().__init__(text)
        self.offset = offset


class Packet(NamedTuple):
    """Captured packet.

    data      captured bytes
    original  bytes of the packet when it was sent
    time      µs since the epoch, or NO_TIME
    link      link type (tcpdump.org/linktypes.html)
    """

    data: bytes
    original: int
    time: int
    link: int


def read_packets(path: Path) -> Iterator[Packet]:
    """Yield all packets of a file. Raises OSError and CaptureError."""
    with path.open("rb") as file:
        first = file.read(4)
        if first == _SECTION:
            file.seek(0)
            yield from _pcapng(file)
        elif first in _PCAP:
            yield from _pcap(file, *_PCAP[first])
        else:
            raise CaptureError(0, _unknown_format_error(first))


def _unknown_format_error(first: bytes) -> str:
    if not first:
        return "the file is empty"
    if first[:2] == b"\x1f\x8b" or first == b"\x28\xb5\x2f\xfd":
        return "the file is compressed; decompress it first (gunzip, unzstd)"
    return (
        f"this is neither pcap nor pcapng: it begins with {first.hex(' ')}. A log of raw bytes "
        "of one direction can be decoded as such (option raw)"
    )


def _pcap(file: BinaryIO, order: str, units: int) -> Iterator[Packet]:
    """Yield the packets of a pcap file, which is read from behind its magic number."""
    header = file.read(20)
    if len(header) < 20:
        raise CaptureError(4 + len(header), "the file ends within its header")
    # the upper bits of the link type are the length of a checksum and flags
    link = struct.unpack_from(order + "I", header, 16)[0] & 0xFFFF
    record = struct.Struct(order + "IIII")
    position = 24
    while head := file.read(record.size):
        if len(head) < record.size:
            raise CaptureError(position, "the file ends within a packet")
        seconds, fraction, captured, original = record.unpack(head)
        if captured > _MAX_BLOCK:
            raise CaptureError(position, f"a packet of {captured} bytes is announced")
        data = file.read(captured)
        if len(data) < captured:
            raise CaptureError(position, "the file ends within a packet")
        yield Packet(data, original, seconds * 1_000_000 + fraction // units, link)
        position += record.size + captured


class _Interface(NamedTuple):
    """Link type; bytes kept of a packet, 0 = all; time units per second; seconds to add."""

    link: int = -1
    snaplen: int = 0
    units: int = 1_000_000
    offset: int = 0


def _pcapng(file: BinaryIO) -> Iterator[Packet]:
    order = "<"
    interfaces: list[_Interface] = []
    position = 0
    while head := file.read(12):
        if head[:4] == _SECTION:
            order, interfaces = _ORDERS.get(head[8:], ""), []
        if not order:
            raise CaptureError(position, "a section does not state its byte order")
        if len(head) < 12:
            raise CaptureError(position, "the file ends within a block")
        kind, length = struct.unpack_from(order + "II", head)
        if length < 12 or length % 4 or length > _MAX_BLOCK:
            raise CaptureError(position, f"a block of {length} bytes is announced")
        body = head[8:] + file.read(length - 12)
        if len(body) < length - 8:
            raise CaptureError(position, "the file ends within a block")
        try:
            if kind == 1:
                interfaces.append(_interface(order, body[:-4]))
            elif kind in _PACKETS:
                yield _packet(order, kind, body[:-4], interfaces)
        except struct.error:
            block_name = "an interface" if kind == 1 else "a packet"
            raise CaptureError(position, f"{block_name} block is too short") from None
        except ValueError as error:
            raise CaptureError(position, str(error)) from None
        position += length


def _packet(order: str, kind: int, body: bytes, interfaces: list[_Interface]) -> Packet:
    layout = _PACKETS[kind]
    fields = struct.unpack_from(order + layout, body)
    data = body[struct.calcsize("=" + layout) :]
    number = 0 if kind == 3 else fields[0]
    # packets of an undescribed interface have no link type and are skipped
    interface = interfaces[number] if number < len(interfaces) else _Interface()
    if kind == 3:
        captured = min(fields[0], interface.snaplen or fields[0])
        return Packet(data[:captured], fields[0], NO_TIME, interface.link)
    high, low, captured, original = fields[-4:]
    if captured > len(data):
        raise ValueError(f"a packet of {captured} bytes is announced in a block of {len(data)}")
    time = (high << 32 | low) * 1_000_000 // interface.units + interface.offset * 1_000_000
    timestamp = time if 0 <= time < _LAST_TIME else NO_TIME
    return Packet(data[:captured], original, timestamp, interface.link)


def _interface(order: str, body: bytes) -> _Interface:
    link, _, snaplen = struct.unpack_from(order + "HHI", body)
    interface = _Interface(link, snaplen)
    start = 8
    while start + 4 <= len(body):
        code, length = struct.unpack_from(order + "HH", body, start)
        value = body[start + 4 : start + 4 + length]
        if code == 0 or len(value) < length:
            break
        if code == 9 and length == 1:
            power = value[0]
            units = 1 << (power & 0x7F) if power & 0x80 else 10 ** min(power, 38)
            interface = interface._replace(units=units)
        elif code == 14 and length == 8:
            interface = interface._replace(offset=struct.unpack_from(order + "q", value)[0])
        start += 4 + length + -length % 4
    return interface


# --- headers of a packet --------------------------------------------------------------------------


class Skipped(StrEnum):
    """Reason why a packet has no segment."""

    LINK = "have an unknown link type and were not decoded"
    FOREIGN = "are not TCP"
    FRAGMENT = "are fragments of IP packets, which are not reassembled"
    BROKEN = "have truncated or invalid headers"


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
    position = _IP_AT[link]
    if link in _TYPE_AT:
        kind = data[_TYPE_AT[link] : _TYPE_AT[link] + 2]
        while link == _ETHERNET and kind in _TAGS:
            position += 4
            kind = data[position - 2 : position]
        if kind not in _IP:
            return Skipped.FOREIGN
    try:
        version = data[position] >> 4
        if version == 4:
            return _ipv4(packet, position)
        return _ipv6(packet, position) if version == 6 else Skipped.FOREIGN
    except (IndexError, struct.error):
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
    next_header = data[at + 6]
    at += 40
    stop = at + payload if payload else packet.original
    while next_header in _EXTENSIONS:
        next_header, at = data[at], at + (data[at + 1] + 1) * 8
    if next_header == _FRAGMENT:
        return Skipped.FRAGMENT
    return _tcp(packet, at, stop, source, target) if next_header == _TCP else Skipped.FOREIGN


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
    address, port = ip_address(endpoint[:-2]), int.from_bytes(endpoint[-2:])
    return f"{address}:{port}" if address.version == 4 else f"[{address}]:{port}"
