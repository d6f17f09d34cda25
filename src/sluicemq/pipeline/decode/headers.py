"""Headers of packets: from packets to TCP segments, batch by batch.

    link types   Ethernet (1) with VLAN tags, Linux cooked (113, 276), loopback (0, 108), raw IP
                 (12, 14, 101, 228, 229)
    network      IPv4 with options; IPv6 with extension headers
    TCP          RFC 9293

Checksums are ignored: captures on the sending machine precede the network card, which fills them
in. Such cards also leave the length of a large packet 0, which then extends to the end of the
captured bytes. IP fragments are counted and not reassembled, because TCP avoids them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from sluicemq.pipeline.decode.captures import Bytes, Integers, Packets

FIN: Final = 0x01
SYN: Final = 0x02
RST: Final = 0x04
ACK: Final = 0x10

ENDPOINT: Final = 18
"""Size of an endpoint: an address, IPv4 mapped to IPv6, and a port."""

_ETHERNET: Final = 1
_NULL: Final = (0, 108)
_COOKED: Final = 113
_COOKED_2: Final = 276
_RAW: Final = (12, 14, 101, 228, 229)
_IPV4: Final = 0x0800
_IPV6: Final = 0x86DD
_TAGS: Final = (0x8100, 0x88A8, 0x9100)
_MOST_TAGS: Final = 3
_TCP: Final = 6
_MOST_EXTENSIONS: Final = 8
_HOP, _ROUTING, _FRAGMENT, _AUTHENTICATION, _OPTIONS = 0, 43, 44, 51, 60
_EXTENSIONS: Final = (_HOP, _ROUTING, _FRAGMENT, _AUTHENTICATION, _OPTIONS)
_MAPPED: Final = np.frombuffer(bytes(10) + b"\xff\xff", np.uint8)


class Segments(NamedTuple):
    """TCP segments in capture order.

    source    sender's address and port, as bytes (ENDPOINT)
    target    receiver's address and port
    sequence  number of the first byte, modulo 2^32
    flags     TCP flags, see above
    start     position of the payload in the file
    length    bytes of payload that were sent
    captured  bytes of payload that were captured
    time      µs since the epoch, or NO_TIME
    """

    source: Bytes
    target: Bytes
    sequence: Integers
    flags: Integers
    start: Integers
    length: Integers
    captured: Integers
    time: Integers


@dataclass
class Passed:
    """Number of packets without a segment, by reason.

    unknown    unknown link type
    foreign    not TCP
    fragments  IP fragments
    broken     truncated or invalid headers
    """

    unknown: int = 0
    foreign: int = 0
    fragments: int = 0
    broken: int = 0


class _Rows:
    """Remaining packets of a batch; `index` has their positions, parallel to the other columns."""

    def __init__(self, buffer: Bytes, **columns: Integers) -> None:
        self._buffer = buffer
        self._columns = columns

    def __getitem__(self, name: str) -> Integers:
        return self._columns[name]

    def __setitem__(self, name: str, values: Integers) -> None:
        self._columns[name] = values

    def __len__(self) -> int:
        return len(self._columns["index"])

    def where(self, mask: npt.NDArray[np.bool_]) -> _Rows:
        return _Rows(self._buffer, **{name: each[mask] for name, each in self._columns.items()})

    def byte(self, offset: int) -> Integers:
        """Return the byte at `offset` from each packet's position `at`; it may be in the slack."""
        return self._buffer[self["at"] + offset].astype(np.int64)

    def u16(self, offset: int) -> Integers:
        return self.byte(offset) << 8 | self.byte(offset + 1)

    def u32(self, offset: int) -> Integers:
        return self.u16(offset) << 16 | self.u16(offset + 2)

    def bytes(self, offset: int, size: int) -> Bytes:
        found: Bytes = self._buffer[self["at"][:, None] + np.arange(offset, offset + size)]
        return found

    def has(self, size: int) -> npt.NDArray[np.bool_]:
        """Return the mask of packets that have `size` more bytes."""
        return self["at"] + size <= self["end"]


def find_segments(packets: Packets, passed: Passed) -> Segments:
    """Return the segments of a batch; other packets are counted in `passed`."""
    rows = _Rows(
        packets.buffer,
        index=np.arange(len(packets.at), dtype=np.int64),
        at=packets.at.copy(),
        end=packets.at + packets.captured,
        original_end=packets.at + packets.original,
        link=packets.link,
    )
    network = _unwrap(rows, passed)
    found = [_ipv4(network, passed), _ipv6(network, passed)]
    parts = [_tcp(each, packets, passed) for each in found]
    index = np.concatenate([part[0] for part in parts])
    order = np.argsort(index, kind="stable")
    columns = zip(*(part[1] for part in parts), strict=True)
    return Segments(*(np.concatenate(column)[order] for column in columns))


def _unwrap(rows: _Rows, passed: Passed) -> _Rows:
    """Return the IP packets, with `at` on their first byte."""
    link = rows["link"]
    at = rows["at"]
    kind = np.zeros(len(rows), np.int64)
    ethernet = link == _ETHERNET
    if ethernet.any():
        position = at + 12
        for _ in range(_MOST_TAGS):
            tagged = ethernet & np.isin(_Rows(rows._buffer, at=position).u16(0), _TAGS)
            if not tagged.any():
                break
            position = position + np.where(tagged, 4, 0)
        kind = np.where(ethernet, _Rows(rows._buffer, at=position).u16(0), kind)
        at = np.where(ethernet, position + 2, at)
    for cooked, where, size in ((_COOKED, 14, 16), (_COOKED_2, 0, 20)):
        mask = link == cooked
        kind = np.where(mask, rows.u16(where), kind)
        at = np.where(mask, rows["at"] + size, at)
    loopback = np.isin(link, _NULL)
    at = np.where(loopback, at + 4, at)
    plain = loopback | np.isin(link, _RAW)
    rows["at"] = at
    version = rows.byte(0) >> 4
    kind = np.where(plain, np.select([version == 4, version == 6], [_IPV4, _IPV6], 0), kind)
    rows["kind"] = kind
    known = plain | ethernet | (link == _COOKED) | (link == _COOKED_2)
    whole = rows.has(20)
    internet = np.isin(kind, (_IPV4, _IPV6))
    passed.unknown += int((~known).sum())
    passed.broken += int((known & internet & ~whole).sum())
    passed.foreign += int((known & ~internet).sum())
    return rows.where(known & whole & internet)


def _ipv4(rows: _Rows, passed: Passed) -> _Rows:
    """Return TCP packets over IPv4, `at` on the TCP header and `stop` at the payload's end."""
    rows = rows.where(rows["kind"] == _IPV4)
    head = (rows.byte(0) & 15) * 4
    total = rows.u16(2)
    total = np.where(total == 0, rows["original_end"] - rows["at"], total)
    whole = (rows.byte(0) >> 4 == 4) & (head >= 20) & (total >= head) & rows.has(20)
    fragment = (rows.u16(6) & 0x3FFF) != 0
    tcp = rows.byte(9) == _TCP
    passed.foreign += int((whole & ~tcp).sum())
    passed.fragments += int((whole & tcp & fragment).sum())
    passed.broken += int((~whole).sum())
    rows["stop"] = rows["at"] + total
    rows["head"] = head
    rows = rows.where(whole & tcp & ~fragment)
    addresses = rows.bytes(12, 8)
    _set_addresses(rows, _mapped(addresses[:, :4]), _mapped(addresses[:, 4:]))
    rows["at"] = rows["at"] + rows["head"]
    return rows


def _mapped(address: Bytes) -> Bytes:
    made = np.empty((len(address), 16), np.uint8)
    made[:, :12] = _MAPPED
    made[:, 12:] = address
    return made


def _set_addresses(rows: _Rows, source: Bytes, target: Bytes) -> None:
    """Store addresses as two 64-bit columns each."""
    for name, address in (("source", source), ("target", target)):
        pair = np.ascontiguousarray(address).view(np.int64)
        rows[name + "_1"] = pair[:, 0]
        rows[name + "_2"] = pair[:, 1]


def _address(rows: _Rows, name: str) -> Bytes:
    return np.stack([rows[name + "_1"], rows[name + "_2"]], axis=1).view(np.uint8)


def _ipv6(rows: _Rows, passed: Passed) -> _Rows:
    """Return TCP packets over IPv6, as `_ipv4` does."""
    rows = rows.where(rows["kind"] == _IPV6)
    whole = (rows.byte(0) >> 4 == 6) & rows.has(40)
    passed.broken += int((~whole).sum())
    rows = rows.where(whole)
    payload = rows.u16(4)
    rows["stop"] = np.where(payload == 0, rows["original_end"], rows["at"] + 40 + payload)
    rows["next"] = rows.byte(6)
    _set_addresses(rows, rows.bytes(8, 16), rows.bytes(24, 16))
    rows["at"] = rows["at"] + 40
    for _ in range(_MOST_EXTENSIONS):
        extended = np.isin(rows["next"], _EXTENSIONS)
        if not extended.any():
            break
        there = ~extended | rows.has(8)
        passed.broken += int((~there).sum())
        rows, extended = rows.where(there), extended[there]
        kind = rows["next"]
        fragment = (kind == _FRAGMENT) & ((rows.u16(2) & 0xFFF9) != 0)
        passed.fragments += int(fragment.sum())
        rows, extended, kind = rows.where(~fragment), extended[~fragment], kind[~fragment]
        size = np.select(
            [kind == _FRAGMENT, kind == _AUTHENTICATION],
            [8, (rows.byte(1) + 2) * 4],
            (rows.byte(1) + 1) * 8,
        )
        following = rows.byte(0)
        rows["at"] = rows["at"] + np.where(extended, size, 0)
        rows["next"] = np.where(extended, following, kind)
        # later reads must not exceed the slack
        inside = rows["at"] <= rows["end"]
        passed.broken += int((~inside).sum())
        rows = rows.where(inside)
    tcp = rows["next"] == _TCP
    passed.foreign += int((~tcp).sum())
    return rows.where(tcp)


def _tcp(
    rows: _Rows, packets: Packets, passed: Passed
) -> tuple[Integers, tuple[npt.NDArray[np.integer], ...]]:
    """Return the indexes of packets with segments, and the columns of Segments."""
    head = (rows.byte(12) >> 4) * 4
    whole = rows.has(20) & (head >= 20) & (rows["at"] + head <= rows["stop"])
    passed.broken += int((~whole).sum())
    rows["start"] = rows["at"] + head
    rows = rows.where(whole)
    start = rows["start"]
    length = rows["stop"] - start
    there = np.minimum(np.maximum(rows["end"] - start, 0), length)
    ports = rows.bytes(0, 4)
    index = rows["index"]
    return index, (
        np.concatenate([_address(rows, "source"), ports[:, :2]], axis=1),
        np.concatenate([_address(rows, "target"), ports[:, 2:]], axis=1),
        rows.u32(4),
        rows.byte(13),
        start + packets.base,
        length,
        there,
        packets.time[index],
    )
