"""Identifiers of messages and transactions on the wire.

    SysMessageID  32 bytes   timestamp:i64 address:16 port:i32 sequence:i32
                             bytes 20-51 of the packet that carried the message
    ack block     36 or 40   consumer id (i32 or i64), SysMessageID
    Xid           136 bytes  format id:i32 gtrid length:i16 bqual length:i16 gtrid:64 bqual:64

The address is an IPv4 address mapped to IPv6, an IPv6 address, or Open MQ's own form that has a
pseudo MAC address before an IPv4 address: FF 00 00 00, 6 bytes, FF FF, 4 bytes. What it says is of
no consequence; it only makes ids differ. (Protocol specification, "SysMessageID", "Xid".)
"""

from __future__ import annotations

from ipaddress import IPv6Address
from struct import Struct
from typing import Final, NamedTuple

from sluicemq.model.errors import ProtocolError

SYSID_SIZE: Final = 32
XID_SIZE: Final = 136
NO_XID: Final = -1
"""Format id that says that there is no transaction."""
LONG_BLOCK: Final = 40
"""Bytes of an ack block with an i64 consumer id, the usual form."""
INT_BLOCK: Final = 36
"""Bytes of an ack block with an i32 consumer id, of protocol level 100."""
NULL_ADDRESS: Final = bytes(10) + b"\xff\xff" + bytes(4)

CONTROL_SYSID: Final = bytes(8) + NULL_ADDRESS + bytes(8)
"""The SysMessageID of packets that are no messages; it is not read."""

_sysid: Final = Struct(">q16sii")
_blocks: Final = {LONG_BLOCK: Struct(">q32s"), INT_BLOCK: Struct(">i32s")}
_xid: Final = Struct(">ihh64s64s")
_MAPPED: Final = NULL_ADDRESS[:12]
_MAC_BEGIN: Final = b"\xff\x00\x00\x00"
_MAC_END: Final = b"\xff\xff"
_LOW_BITS: Final = 0x7FFF_FFFF
_LOOPBACK: Final = b"\x7f\x01"


def encode_sysid(timestamp: int, address: bytes, port: int, sequence: int) -> bytes:
    """timestamp ms; address 16 bytes; port and sequence of 32 bits, signed."""
    return _sysid.pack(timestamp, address, port, sequence)


def make_sysid(identity: bytes, sequence: int, timestamp: int) -> bytes:
    """The SysMessageID of a message that came by another protocol.

    identity   `Broker.identity`, 8 bytes: ids of two brokers differ
    sequence   the journal's, 0 to 2^62 - 1: ids of one broker differ
    timestamp  ms; clients show it as the time of sending
    """
    address = b"".join(
        (
            _MAC_BEGIN,
            bytes((identity[0] | 0x80,)),  # no real MAC address begins with this bit
            identity[1:6],
            _MAC_END,
            _LOOPBACK,
            identity[6:8],
        )
    )
    return _sysid.pack(timestamp, address, sequence >> 31, sequence & _LOW_BITS)


def origin_text(origin: bytes) -> str:
    """The middle of an id's text, `-<address>-<port>-`; `origin` is address and port, 20 bytes."""
    address = origin[:16]
    if address[:12] == _MAPPED:
        text = _dotted(address[12:])
    elif address[:4] == _MAC_BEGIN and address[10:12] == _MAC_END:
        text = f"{_dotted(address[12:])}({':'.join(f'{byte:x}' for byte in address[4:10])})"
    else:
        text = str(IPv6Address(address))
    return f"-{text}-{int.from_bytes(origin[16:20], 'big', signed=True)}-"


def sysid_text(sysid: bytes) -> str:
    """JMSMessageID: "ID:" and `<sequence>-<address>-<port>-<timestamp>`."""
    timestamp, _, _, sequence = _sysid.unpack(sysid)
    return f"ID:{sequence}{origin_text(sysid[8:28])}{timestamp}"


def _dotted(address: bytes) -> str:
    return ".".join(map(str, address))


# --- lists in bodies ---------------------------------------------------------------------------


def decode_blocks(body: bytes, width: int = LONG_BLOCK) -> list[tuple[int, bytes]]:
    """(consumer id, SysMessageID) of each block; `width` is LONG_BLOCK or INT_BLOCK.

    Raises ProtocolError when the body is no whole number of blocks.
    """
    if len(body) % width:
        raise ProtocolError(f"{len(body)} bytes are no blocks of {width}")
    return list(_blocks[width].iter_unpack(body))


def encode_blocks(blocks: list[tuple[int, bytes]], width: int = LONG_BLOCK) -> bytes:
    """The inverse of `decode_blocks`."""
    pack = _blocks[width].pack
    return b"".join([pack(consumer_id, sysid) for consumer_id, sysid in blocks])


def decode_sysids(body: bytes) -> list[bytes]:
    """Raises ProtocolError when the body is no whole number of SysMessageIDs."""
    if len(body) % SYSID_SIZE:
        raise ProtocolError(f"{len(body)} bytes are no SysMessageIDs of {SYSID_SIZE}")
    return [body[at : at + SYSID_SIZE] for at in range(0, len(body), SYSID_SIZE)]


# --- transactions ------------------------------------------------------------------------------


class Xid(NamedTuple):
    """A global transaction's name (JTA's Xid).

    format_id  i32; NO_XID means that there is no transaction
    gtrid      global transaction id, up to 64 bytes
    bqual      branch qualifier, up to 64 bytes
    """

    format_id: int
    gtrid: bytes
    bqual: bytes

    def __str__(self) -> str:
        """JMQXid: bqual and gtrid in hex. It names the transaction to people; two Xids can have
        the same text."""
        if self.format_id == NO_XID:
            return "NULL_XID"
        return (self.bqual + self.gtrid).hex().upper()


def decode_xid(body: bytes) -> Xid:
    """Raises ProtocolError unless the body is one Xid."""
    if len(body) != XID_SIZE:
        raise ProtocolError(f"a Xid has {XID_SIZE} bytes, this has {len(body)}")
    format_id, gtrid_size, bqual_size, gtrid, bqual = _xid.unpack(body)
    if not (0 <= gtrid_size <= len(gtrid) and 0 <= bqual_size <= len(bqual)):
        raise ProtocolError(f"a Xid's parts have 0-64 bytes, not {gtrid_size} and {bqual_size}")
    return Xid(format_id, gtrid[:gtrid_size], bqual[:bqual_size])


def encode_xid(xid: Xid) -> bytes:
    """The 136 bytes of a Xid. Raises ProtocolError when a part is longer than 64 bytes."""
    if len(xid.gtrid) > 64 or len(xid.bqual) > 64:
        raise ProtocolError("a part of a Xid is longer than 64 bytes")
    return _xid.pack(xid.format_id, len(xid.gtrid), len(xid.bqual), xid.gtrid, xid.bqual)
