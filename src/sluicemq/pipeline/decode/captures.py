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

from collections.abc import Iterator
from pathlib import Path
from struct import Struct
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
_MICRO: Final = 0xA1B2C3D4
_NANO: Final = 0xA1B23C4D
_SECTION: Final = 0x0A0D0D0A
_ORDER: Final = 0x1A2B3C4D
_RECORD_SIZE: Final = 16


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


def is_capture(first: bytes) -> bool:
    """Return True if a file with these first bytes is a pcap or pcapng file."""
    return _byte_order(first, (_MICRO, _NANO)) != "" or first[:4] == b"\x0a\x0d\x0d\x0a"


def _byte_order(first: bytes, magics: tuple[int, ...]) -> str:
    """Return "<" or ">", or "" if the bytes match none of the magic numbers."""
    if len(first) >= 4:
        for order in "<>":
            if Struct(order + "I").unpack_from(first)[0] in magics:
                return order
    return ""


def read_packets(path: Path) -> Iterator[Packets | CaptureFault]:
    """Yield all packets of a file. Raises OSError."""
    with path.open("rb") as file:
        first = file.read(24)
        order = _byte_order(first, (_MICRO, _NANO))
        if order:
            yield from _pcap(file, first, order)
        elif first[:4] == b"\x0a\x0d\x0d\x0a":
            file.seek(0)
            yield from _pcapng(file)
        else:
            yield CaptureFault(0, _no_capture(first))


def _no_capture(first: bytes) -> str:
    if not first:
        return "the file is empty"
    if first[:2] == b"\x1f\x8b" or first[:4] == b"\x28\xb5\x2f\xfd":
        return "the file is compressed; decompress it first (gunzip, unzstd)"
    return (
        f"this is neither pcap nor pcapng: it begins with {first[:4].hex(' ')}. A log of raw bytes "
        "of one direction can be decoded as such (option raw)"
    )


# --- pcap ----------------------------------------------------------------------------------------


def _pcap(file: BinaryIO, first: bytes, order: str) -> Iterator[Packets | CaptureFault]:
    if len(first) < 24:
        yield CaptureFault(len(first), "the file ends within its header")
        return
    magic, _, _, _, _, _, link = Struct(order + "IHHiIII").unpack(first)
    link &= 0xFFFF  # the upper bits are the length of a checksum and flags
    units = 1000 if magic == _NANO else 1
    length_of = Struct(order + "I").unpack_from
    rest = b""
    base = 24
    while True:
        block = file.read(_BLOCK)
        data = rest + block
        size = len(data)
        position = 0
        places: list[int] = []
        fault: CaptureFault | None = None
        while position + _RECORD_SIZE <= size:
            captured = length_of(data, position + 8)[0]
            if captured > _LARGEST:
                fault = CaptureFault(base + position, f"a packet of {captured} bytes is announced")
                break
            end = position + _RECORD_SIZE + captured
            if end > size:
                break
            places.append(position)
            position = end
        if places:
            buffer = np.frombuffer(data[:position] + bytes(SLACK), np.uint8)
            for start in range(0, len(places), _BATCH):
                yield _records(buffer, base, places[start : start + _BATCH], order, units, link)
        if fault is None and not block and position < size:
            fault = CaptureFault(base + position, "the file ends within a packet")
        if fault is not None:
            yield fault
        if fault is not None or not block:
            return
        rest = data[position:]
        base += position


def _records(
    buffer: Bytes, base: int, places: list[int], order: str, units: int, link: int
) -> Packets:
    at = np.array(places, np.int64)
    heads = buffer[at[:, None] + np.arange(_RECORD_SIZE)]
    seconds, fraction, captured, original = heads.view(order + "u4").astype(np.int64).T
    return Packets(
        buffer,
        base,
        at + _RECORD_SIZE,
        captured,
        original,
        seconds * 1_000_000 + fraction // units,
        np.full(len(places), link, np.int64),
    )


# --- pcapng --------------------------------------------------------------------------------------


class _Interface(NamedTuple):
    """Link type; bytes kept of a packet, 0 = all; time units per second; seconds to add."""

    link: int
    snaplen: int
    units: int
    offset: int


_NO_INTERFACE: Final = _Interface(-1, 0, 1_000_000, 0)


class _Columns:
    """Columns of Packets under construction."""

    def __init__(self) -> None:
        self.at: list[int] = []
        self.captured: list[int] = []
        self.original: list[int] = []
        self.time: list[int] = []
        self.link: list[int] = []

    def add(self, at: int, captured: int, original: int, time: int, link: int) -> None:
        self.at.append(at)
        self.captured.append(captured)
        self.original.append(original)
        self.time.append(time)
        self.link.append(link)

    def packets(self, data: bytes, base: int) -> Iterator[Packets]:
        buffer = np.frombuffer(data + bytes(SLACK), np.uint8)
        columns = [
            np.array(column, np.int64)
            for column in (self.at, self.captured, self.original, self.time, self.link)
        ]
        for start in range(0, len(self.at), _BATCH):
            at, captured, original, time, link = (
                column[start : start + _BATCH] for column in columns
            )
            yield Packets(buffer, base, at, captured, original, time, link)


class _Section:
    """Section of a pcapng file: a byte order, and interfaces."""

    def __init__(self, order: str) -> None:
        self.block = Struct(order + "II")
        self._packet = Struct(order + "IIIII")
        self._old = Struct(order + "HHIIII")
        self._interface = Struct(order + "HHI")
        self._option = Struct(order + "HH")
        self._length = Struct(order + "I")
        self._offset = Struct(order + "q")
        self._interfaces: list[_Interface] = []

    def take(self, kind: int, data: bytes, start: int, end: int, columns: _Columns) -> str:
        """Parse the block body `data[start:end]`. Return an error message, or ""."""
        if kind == 1:
            if end - start < 8:
                return "an interface block is too short"
            link, _, snaplen = self._interface.unpack_from(data, start)
            if len(self._interfaces) >= _MOST_INTERFACES:
                return f"there are more than {_MOST_INTERFACES} interfaces"
            units, offset = self._clock(data, start + 8, end)
            self._interfaces.append(_Interface(link, snaplen, units, offset))
            return ""
        if kind == 3:
            if end - start < 4:
                return "a packet block is too short"
            original = self._length.unpack_from(data, start)[0]
            interface = self._find(0)
            captured = min(original, interface.snaplen or original, end - start - 4)
            columns.add(start + 4, captured, original, NO_TIME, interface.link)
            return ""
        if end - start < 20:
            return "a packet block is too short"
        if kind == 6:
            number, high, low, captured, original = self._packet.unpack_from(data, start)
        else:
            number, _, high, low, captured, original = self._old.unpack_from(data, start)
        start += 20
        if captured > end - start:
            return f"a packet of {captured} bytes is announced in a block of {end - start}"
        interface = self._find(number)
        ticks = high << 32 | low
        time = ticks * 1_000_000 // interface.units + interface.offset * 1_000_000
        if not 0 <= time < _LAST_TIME:
            time = NO_TIME
        columns.add(start, captured, original, time, interface.link)
        return ""

    def _find(self, number: int) -> _Interface:
        """Return an interface; packets of an undescribed one have no link type and are skipped."""
        return self._interfaces[number] if number < len(self._interfaces) else _NO_INTERFACE

    def _clock(self, data: bytes, position: int, end: int) -> tuple[int, int]:
        """Return the time units per second, and the seconds to add."""
        units = 1_000_000
        offset = 0
        while position + 4 <= end:
            code, length = self._option.unpack_from(data, position)
            position += 4
            if code == 0 or position + length > end:
                break
            if code == 9 and length == 1:
                power = data[position]
                units = 1 << (power & 0x7F) if power & 0x80 else 10 ** min(power, 38)
            elif code == 14 and length == 8:
                offset = self._offset.unpack_from(data, position)[0]
            position += length + -length % 4
        return units, offset


def _pcapng(file: BinaryIO) -> Iterator[Packets | CaptureFault]:
    rest = b""
    base = 0
    section = _Section("<")
    while True:
        block = file.read(_BLOCK)
        data = rest + block
        size = len(data)
        position = 0
        columns = _Columns()
        error = ""
        while position + 12 <= size:
            if data[position : position + 4] == b"\x0a\x0d\x0d\x0a":
                order = _byte_order(data[position + 8 : position + 12], (_ORDER,))
                if not order:
                    error = "a section does not tell the order of its bytes"
                    break
                section = _Section(order)
            kind, length = section.block.unpack_from(data, position)
            if length < 12 or length % 4 or length > _LARGEST:
                error = f"a block of {length} bytes is announced"
                break
            if position + length > size:
                break
            if kind in (1, 2, 3, 6):
                error = section.take(kind, data, position + 8, position + length - 4, columns)
                if error:
                    break
            position += length
        yield from columns.packets(data[:position], base)
        if not error and not block and position < size:
            error = "the file ends within a block"
        if error:
            yield CaptureFault(base + position, error)
        if error or not block:
            return
        rest = data[position:]
        base += position
