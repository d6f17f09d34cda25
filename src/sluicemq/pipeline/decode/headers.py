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

from collections import Counter
from typing import Any, Final, NamedTuple

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


Passed = Counter[str]
"""Number of packets without a segment, by reason.

unknown    unknown link type
foreign    not TCP
fragments  IP fragments
broken     truncated or invalid headers
"""


class _Rows(dict[str, npt.NDArray[Any]]):
    """Columns of the remaining packets of a batch; `index` has their positions in it."""

    def __init__(self, buffer: Bytes, **columns: npt.NDArray[Any]) -> None:
        super().__init__(columns)
        self._buffer = buffer

    def where(self, mask: npt.NDArray[np.bool_]) -> _Rows:
        return _Rows(self._buffer, **{name: column[mask] for name, column in self.items()})

    def only(self, mask: npt.NDArray[np.bool_], passed: Passed, reason: str) -> _Rows:
        """Return the packets in `mask`, which may be all; others are counted in `passed`."""
        passed[reason] += len(mask) - int(mask.sum())
        return self if mask.all() else self.where(mask)

    def byte(self, offset: int) -> Integers:
        """Return the byte at `offset` from each packet's position `at`; it may be in the slack."""
        found: Integers = self._buffer[self["at"] + offset].astype(np.int64)
        return found

    def u16(self, offset: int) -> Integers:
        return self.byte(offset) << 8 | self.byte(offset + 1)

    def u32(self, offset: int) -> Integers:
        return self.u16(offset) << 16 | self.u16(offset + 2)

    def bytes(self, offset: int, size: int) -> Bytes:
        found: Bytes = self._buffer[self["at"][:, None] + np.arange(offset, offset + size)]
        return found

    def has(self, size: int) -> npt.NDArray[np.bool_]:
        """Return the mask of packets that have `size` more bytes."""
        mask: npt.NDArray[np.bool_] = self["at"] + size <= self["end"]
        return mask


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
    ethernet = link == _ETHERNET
    position = at + 12
    for _ in range(_MOST_TAGS if ethernet.any() else 0):
        tagged = np.isin(_Rows(rows._buffer, at=position).u16(0), _TAGS)
        position = position + np.where(ethernet & tagged, 4, 0)
    kind = np.where(ethernet, _Rows(rows._buffer, at=position).u16(0), 0)
    at = np.where(ethernet, position + 2, at)
    for cooked, where, size in ((_COOKED, 14, 16), (_COOKED_2, 0, 20)):
        kind = np.where(link == cooked, rows.u16(where), kind)
        at = np.where(link == cooked, rows["at"] + size, at)
    loopback = np.isin(link, _NULL)
    at = np.where(loopback, at + 4, at)
    plain = loopback | np.isin(link, _RAW)
    rows["at"] = at
    version = rows.byte(0) >> 4
    kind = np.where(plain, np.select([version == 4, version == 6], [_IPV4, _IPV6], 0), kind)
    rows["kind"] = kind
    rows = rows.only(plain | np.isin(link, (_ETHERNET, _COOKED, _COOKED_2)), passed, "unknown")
    rows = rows.only(np.isin(rows["kind"], (_IPV4, _IPV6)), passed, "foreign")
    return rows.only(rows.has(20), passed, "broken")


def _ipv4(rows: _Rows, passed: Passed) -> _Rows:
    """Return TCP packets over IPv4, `at` on the TCP header and `stop` at the payload's end."""
    rows = rows.where(rows["kind"] == _IPV4)
    rows["head"] = (rows.byte(0) & 15) * 4
    total = rows.u16(2)
    total = np.where(total == 0, rows["original_end"] - rows["at"], total)
    rows["stop"] = rows["at"] + total
    whole = (rows.byte(0) >> 4 == 4) & (rows["head"] >= 20) & (total >= rows["head"])
    rows = rows.only(whole, passed, "broken")
    rows = rows.only(rows.byte(9) == _TCP, passed, "foreign")
    rows = rows.only((rows.u16(6) & 0x3FFF) == 0, passed, "fragments")
    addresses = rows.bytes(12, 8)
    rows["source"], rows["target"] = _mapped(addresses[:, :4]), _mapped(addresses[:, 4:])
    rows["at"] = rows["at"] + rows["head"]
    return rows


def _mapped(address: Bytes) -> Bytes:
    return np.hstack([np.broadcast_to(_MAPPED, (len(address), 12)), address])


def _ipv6(rows: _Rows, passed: Passed) -> _Rows:
    """Return TCP packets over IPv6, as `_ipv4` does."""
    rows = rows.where(rows["kind"] == _IPV6)
    rows = rows.only((rows.byte(0) >> 4 == 6) & rows.has(40), passed, "broken")
    payload = rows.u16(4)
    rows["stop"] = np.where(payload == 0, rows["original_end"], rows["at"] + 40 + payload)
    rows["next"] = rows.byte(6)
    rows["source"], rows["target"] = rows.bytes(8, 16), rows.bytes(24, 16)
    rows["at"] = rows["at"] + 40
    for _ in range(_MOST_EXTENSIONS):
        extended = np.isin(rows["next"], _EXTENSIONS)
        if not extended.any():
            break
        rows = rows.only(~extended | rows.has(8), passed, "broken")
        fragment = (rows["next"] == _FRAGMENT) & ((rows.u16(2) & 0xFFF9) != 0)
        rows = rows.only(~fragment, passed, "fragments")
        kind = rows["next"]
        extended = np.isin(kind, _EXTENSIONS)
        size = np.select(
            [kind == _FRAGMENT, kind == _AUTHENTICATION],
            [8, (rows.byte(1) + 2) * 4],
            (rows.byte(1) + 1) * 8,
        )
        following = rows.byte(0)
        rows["at"] = rows["at"] + np.where(extended, size, 0)
        rows["next"] = np.where(extended, following, kind)
        # later reads must not exceed the slack
        rows = rows.only(rows["at"] <= rows["end"], passed, "broken")
    return rows.only(rows["next"] == _TCP, passed, "foreign")


def _tcp(
    rows: _Rows, packets: Packets, passed: Passed
) -> tuple[Integers, tuple[npt.NDArray[np.integer], ...]]:
    """Return the indexes of packets with segments, and the columns of Segments."""
    head = (rows.byte(12) >> 4) * 4
    whole = rows.has(20) & (head >= 20) & (rows["at"] + head <= rows["stop"])
    rows["start"] = rows["at"] + head
    rows = rows.only(whole, passed, "broken")
    start = rows["start"]
    length = rows["stop"] - start
    there = np.minimum(np.maximum(rows["end"] - start, 0), length)
    ports = rows.bytes(0, 4)
    index = rows["index"]
    return index, (
        np.concatenate([rows["source"], ports[:, :2]], axis=1),
        np.concatenate([rows["target"], ports[:, 2:]], axis=1),
        rows.u32(4),
        rows.byte(13),
        start + packets.base,
        length,
        there,
        packets.time[index],
    )
