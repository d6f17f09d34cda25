"""Packet captures like those of tcpdump, generated from the data of two sides."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final, NamedTuple

FIN, SYN, RST, PSH, ACK = 1, 2, 4, 8, 16

CLIENT: Final = ("10.0.0.1", 40_000)
SERVER: Final = ("10.0.0.2", 9100)
START: Final = 1_700_000_000_000_000
"""µs since the epoch."""

ETHERNET, NULL, RAW, LOOP, COOKED, COOKED_2 = 1, 0, 101, 108, 113, 276

Endpoint = tuple[str, int]


class Segment(NamedTuple):
    """A TCP segment."""

    source: Endpoint
    target: Endpoint
    sequence: int
    payload: bytes = b""
    flags: int = ACK
    time: int = START


def ip_packet(segment: Segment) -> bytes:
    """Encode an IP packet without checksums, which the decoder ignores."""
    tcp = struct.pack(
        ">HHIIBBHHH",
        segment.source[1],
        segment.target[1],
        segment.sequence & 0xFFFF_FFFF,
        0,
        5 << 4,
        segment.flags,
        65_535,
        0,
        0,
    )
    source, target = ip_address(segment.source[0]), ip_address(segment.target[0])
    data = tcp + segment.payload
    if isinstance(source, IPv4Address):
        head = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(data), 0, 0x4000, 64, 6, 0)
    else:
        head = struct.pack(">IHBB", 6 << 28, len(data), 6, 64)
    return head + source.packed + target.packed + data


def encode_link_frame(packet: bytes, link: int, tags: int = 0) -> bytes:
    """Encode the frame of a link type around an IP packet."""
    kind = 0x0800 if packet[0] >> 4 == 4 else 0x86DD
    if link == ETHERNET:
        return bytes(12) + struct.pack(">HH", 0x8100, 7) * tags + struct.pack(">H", kind) + packet
    if link == NULL:
        return struct.pack("<I", 2 if kind == 0x0800 else 30) + packet
    if link == LOOP:
        return struct.pack(">I", 2 if kind == 0x0800 else 24) + packet
    if link == COOKED:
        return bytes(14) + struct.pack(">H", kind) + packet
    if link == COOKED_2:
        return struct.pack(">H", kind) + bytes(18) + packet
    return packet


class CapturedPacket(NamedTuple):
    """A packet, its time in µs, and its maximum captured length."""

    time: int
    data: bytes
    snaplen: int = 1 << 18


def pcap(
    packets: Iterable[CapturedPacket], link: int = ETHERNET, order: str = "<", nano: bool = False
) -> bytes:
    magic = 0xA1B23C4D if nano else 0xA1B2C3D4
    parts = [struct.pack(order + "IHHiIII", magic, 2, 4, 0, 0, 1 << 18, link)]
    for time, data, snaplen in packets:
        seconds, fraction = divmod(time, 1_000_000)
        if nano:
            fraction = fraction * 1000 + 999
        content = data[:snaplen]
        parts.append(
            struct.pack(order + "IIII", seconds, fraction, len(content), len(data)) + content
        )
    return b"".join(parts)


def block(kind: int, body: bytes, order: str = "<") -> bytes:
    """Encode a block of a pcapng file."""
    body += bytes(-len(body) % 4)
    size = struct.pack(order + "I", len(body) + 12)
    return struct.pack(order + "I", kind) + size + body + size


def section(order: str = "<") -> bytes:
    return block(0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1), order)


def interface(link: int, order: str = "<", resolution: int | None = None) -> bytes:
    options = b""
    if resolution is not None:
        options = struct.pack(order + "HHB3x", 9, 1, resolution) + bytes(4)
    return block(1, struct.pack(order + "HHI", link, 0, 0) + options, order)


def enhanced(
    packet: CapturedPacket, number: int = 0, order: str = "<", units: int = 1_000_000
) -> bytes:
    time = packet.time * units // 1_000_000
    content = packet.data[: packet.snaplen]
    head = struct.pack(
        order + "IIIII", number, time >> 32, time & 0xFFFF_FFFF, len(content), len(packet.data)
    )
    return block(6, head + content, order)


def pcapng(packets: Iterable[CapturedPacket], link: int = ETHERNET, order: str = "<") -> bytes:
    return b"".join(
        [
            section(order),
            interface(link, order),
            *(enhanced(packet, 0, order) for packet in packets),
        ]
    )


class TcpConnection:
    """The segments of a TCP connection."""

    def __init__(
        self,
        client: Endpoint = CLIENT,
        server: Endpoint = SERVER,
        numbers: tuple[int, int] = (1000, 5_000_000),
        mss: int = 1460,
        time: int = START,
    ) -> None:
        """`numbers` are the sequence numbers of the two SYNs."""
        self.ends = client, server
        self.next = list(numbers)
        self.mss = mss
        self.time = time
        self.segments: list[Segment] = []

    def _send(self, side: int, payload: bytes, flags: int) -> None:
        self.segments.append(
            Segment(
                self.ends[side], self.ends[1 - side], self.next[side], payload, flags, self.time
            )
        )
        self.next[side] += len(payload) + bool(flags & (SYN | FIN))
        self.time += 1000

    def open(self) -> TcpConnection:
        self._send(0, b"", SYN)
        self._send(1, b"", SYN | ACK)
        self._send(0, b"", ACK)
        return self

    def send(self, side: int, data: bytes) -> TcpConnection:
        for start in range(0, len(data), self.mss):
            self._send(side, data[start : start + self.mss], ACK | PSH)
            self.segments.append(
                Segment(self.ends[1 - side], self.ends[side], self.next[1 - side], time=self.time)
            )
        return self

    def close(self) -> TcpConnection:
        self._send(0, b"", FIN | ACK)
        self._send(1, b"", FIN | ACK)
        return self


def capture(
    segments: Sequence[Segment], link: int = ETHERNET, snaplen: int = 1 << 18, tags: int = 0
) -> list[CapturedPacket]:
    return [
        CapturedPacket(segment.time, encode_link_frame(ip_packet(segment), link, tags), snaplen)
        for segment in segments
    ]


def is_v6(endpoint: Endpoint) -> bool:
    return isinstance(ip_address(endpoint[0]), IPv6Address)
