"""Parser for tcpdump's files: packets in batches of numpy columns, with bounded memory.

    pcap    = magic:u32 version:u16 u16 zone:i32 u32 snaplen:u32 link:u32, then records
    record  = seconds:u32 fraction:u32 captured:u32 original:u32, `captured` bytes
              magic A1B2C3D4: fractions are microseconds, A1B23C4D: nanoseconds; it also tells the
              order of bytes
    pcapng  = blocks: type:u32 length:u32 body length:u32, padded to 4 bytes
              0A0D0D0A section (tells the order of bytes), 1 interface (link type, unit of time),
              6 packet, 3 packet without time, 2 packet of old; others are skipped

(draft-ietf-opsawg-pcap, draft-ietf-opsawg-pcapng.)

Each record's header has the position of the next one, so a loop over packets is necessary; all
other work is done per batch. Libraries create an object for each packet: dpkt 1.9 took three times
as long for packets of 1,460 bytes.

A file's contents are not trusted: an invalid value yields a Fault, which is the last item.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from struct import Struct, calcsize, pack, unpack_from
from typing import BinaryIO, Final, NamedTuple

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

NO_TIME: Final = -(1 << 63)
"""Value of an unknown time."""
SLACK: Final = 4096
"""Zero bytes after a batch, so that reads of headers beyond its end are safe."""

_BLOCK: Final = 8 << 20
"""Bytes read at once."""
_LARGEST: Final = 16 << 20
"""Maximum size of a packet or block in bytes; a greater length is invalid."""
_BATCH: Final = 16_384
"""Maximum number of packets of a batch."""
_LAST_TIME: Final = 253_402_300_800 * 1_000_000
"""The year 10000 in µs; later times are invalid."""
_MOST_INTERFACES: Final = 4096
_SECTION: Final = b"\x0a\x0d\x0d\x0a"
_PCAP: Final = {
    pack(order + "I", magic): (order, units)
    for order in "<>"
    for magic, units in ((0xA1B2C3D4, 1), (0xA1B23C4D, 1000))
}
"""Order of bytes and time units per microsecond, by magic number."""
_ORDERS: Final = {pack(order + "I", 0x1A2B3C4D): order for order in "<>"}
_RECORD_SIZE: Final = 16

Scanned = tuple[npt.ArrayLike, int, str]
"""Columns of the packets in a block, the position of the first packet that is not whole, and an
error there, or ""."""


class CaptureFault(NamedTuple):
    """Error in a file, and its byte position. The rest of the file has not been read."""

    offset: int
    text: str


class Packets(NamedTuple):
    """Packets in capture order.

    buffer    bytes of the file, and SLACK zeros
    base      position of `buffer` in the file
    at        position of each packet in `buffer`
    captured  bytes of each packet that were captured
    original  bytes of each packet
    time      µs since the epoch, or NO_TIME
    link      link type (tcpdump.org/linktypes.html)
    """

    buffer: Bytes
    base: int
    at: Integers
    captured: Integers
    original: Integers
    time: Integers
    link: Integers


def read_packets(path: Path) -> Iterator[Packets | CaptureFault]:
    """Yield all packets of a file. Raises OSError."""
    with path.open("rb") as file:
        first = file.read(24)
        if first[:4] == _SECTION:
            file.seek(0)
            yield from _scan(file, 0, "block", _Pcapng().scan)
        elif first[:4] not in _PCAP:
            yield CaptureFault(0, _no_capture(first))
        elif len(first) < 24:
            yield CaptureFault(len(first), "the file ends within its header")
        else:
            yield from _scan(file, 24, "packet", partial(_pcap, first))


def _scan(
    file: BinaryIO, base: int, what: str, scan: Callable[[bytes], Scanned]
) -> Iterator[Packets | CaptureFault]:
    """Yield the packets that `scan` finds; the file is at `base` and consists of `what`s."""
    rest = b""
    while True:
        block = file.read(_BLOCK)
        data = rest + block
        found, position, error = scan(data)
        buffer = np.frombuffer(data[:position] + bytes(SLACK), np.uint8)
        columns = np.asarray(found, np.int64).reshape(-1, 5).T
        for start in range(0, columns.shape[1], _BATCH):
            yield Packets(buffer, base, *columns[:, start : start + _BATCH])
        rest = data[position:]
        base += position
        if not error and not block and rest:
            error = f"the file ends within a {what}"
        if error:
            yield CaptureFault(base, error)
        if error or not block:
            return


def _no_capture(first: bytes) -> str:
    if not first:
        return "the file is empty"
    if first[:2] == b"\x1f\x8b" or first[:4] == b"\x28\xb5\x2f\xfd":
        return "the file is compressed; decompress it first (gunzip, unzstd)"
    return (
        f"this is neither pcap nor pcapng: it begins with {first[:4].hex(' ')}. A log of raw bytes "
        "of one direction can be decoded as such (option raw)"
    )


def _pcap(header: bytes, data: bytes) -> Scanned:
    order, units = _PCAP[header[:4]]
    length_of = Struct(order + "I").unpack_from
    # the upper bits of the link type are the length of a checksum and flags
    link = length_of(header, 20)[0] & 0xFFFF
    places: list[int] = []
    position = 0
    error = ""
    while position + _RECORD_SIZE <= len(data):
        captured = length_of(data, position + 8)[0]
        if captured > _LARGEST:
            error = f"a packet of {captured} bytes is announced"
            break
        end = position + _RECORD_SIZE + captured
        if end > len(data):
            break
        places.append(position)
        position = end
    at = np.array(places, np.int64)
    heads = np.frombuffer(data, np.uint8)[at[:, None] + np.arange(_RECORD_SIZE)]
    seconds, fraction, captured, original = heads.view(order + "u4").astype(np.int64).T
    time = seconds * 1_000_000 + fraction // units
    links = np.full(len(at), link)
    return np.stack([at + _RECORD_SIZE, captured, original, time, links], 1), position, error


class _Interface(NamedTuple):
    """Link type; bytes kept of a packet, 0 = all; time units per second; seconds to add."""

    link: int = -1
    snaplen: int = 0
    units: int = 1_000_000
    offset: int = 0


class _Invalid(Exception):
    """A block is invalid."""


class _Pcapng:
    """Parser of pcapng. A section has an order of bytes, and interfaces."""

    def __init__(self) -> None:
        self._order = "<"
        self._interfaces: list[_Interface] = []

    def scan(self, data: bytes) -> Scanned:
        """Return the packets in `data`, which begins with a block."""
        packets: list[tuple[int, ...]] = []
        position = 0
        try:
            while position + 12 <= len(data):
                if data[position : position + 4] == _SECTION:
                    order = _ORDERS.get(data[position + 8 : position + 12])
                    if order is None:
                        raise _Invalid("a section does not tell the order of its bytes")
                    self._order, self._interfaces = order, []
                kind, length = unpack_from(self._order + "II", data, position)
                if length < 12 or length % 4 or length > _LARGEST:
                    raise _Invalid(f"a block of {length} bytes is announced")
                if position + length > len(data):
                    break
                if kind == 1:
                    self._interfaces.append(
                        self._interface(data, position + 8, position + length - 4)
                    )
                elif kind in (2, 3, 6):
                    packets.append(self._packet(kind, data, position + 8, position + length - 4))
                position += length
        except _Invalid as fault:
            return packets, position, str(fault)
        return packets, position, ""

    def _packet(self, kind: int, data: bytes, start: int, end: int) -> tuple[int, ...]:
        """Return the columns of the packet in the block `data[start:end]`."""
        layout = {2: "HHIIII", 3: "I", 6: "IIIII"}[kind]
        fields = self._fields("packet", layout, data, start, end)
        start += calcsize("=" + layout)
        if kind == 3:
            interface = self._find(0)
            captured = min(fields[0], interface.snaplen or fields[0], end - start)
            return start, captured, fields[0], NO_TIME, interface.link
        high, low, captured, original = fields[-4:]
        if captured > end - start:
            raise _Invalid(f"a packet of {captured} bytes is announced in a block of {end - start}")
        interface = self._find(fields[0])
        time = (high << 32 | low) * 1_000_000 // interface.units + interface.offset * 1_000_000
        known = 0 <= time < _LAST_TIME
        return start, captured, original, time if known else NO_TIME, interface.link

    def _fields(self, what: str, layout: str, data: bytes, start: int, end: int) -> tuple[int, ...]:
        if end - start < calcsize("=" + layout):
            raise _Invalid(f"{'an' if what == 'interface' else 'a'} {what} block is too short")
        return unpack_from(self._order + layout, data, start)

    def _find(self, number: int) -> _Interface:
        """Return an interface; packets of an undescribed one have no link type and are skipped."""
        return self._interfaces[number] if number < len(self._interfaces) else _Interface()

    def _interface(self, data: bytes, start: int, end: int) -> _Interface:
        link, _, snaplen = self._fields("interface", "HHI", data, start, end)
        if len(self._interfaces) >= _MOST_INTERFACES:
            raise _Invalid(f"there are more than {_MOST_INTERFACES} interfaces")
        interface = _Interface(link, snaplen)
        start += 8
        while start + 4 <= end:
            code, length = unpack_from(self._order + "HH", data, start)
            start += 4
            if code == 0 or start + length > end:
                break
            if code == 9 and length == 1:
                power = data[start]
                units = 1 << (power & 0x7F) if power & 0x80 else 10 ** min(power, 38)
                interface = interface._replace(units=units)
            elif code == 14 and length == 8:
                offset = unpack_from(self._order + "q", data, start)[0]
                interface = interface._replace(offset=offset)
            start += length + -length % 4
        return interface
