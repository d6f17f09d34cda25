from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicemq.model.errors import ProtocolError
from sluicemq.protocols.jmq.fields import (
    INT_BLOCK,
    LONG_BLOCK,
    NO_XID,
    Xid,
    decode_blocks,
    decode_xid,
    encode_blocks,
    encode_sysid,
    encode_xid,
    make_sysid,
    sysid_text,
)

# bodies of ACKNOWLEDGE packets of the Java client and of the C client
JAVA_BLOCK = bytes.fromhex(
    "7c36a1fc99939600000001a1fc998bb6ff000000de6e438d7202ffff7f0000010000807e00000029"
)
C_BLOCK = bytes.fromhex(
    "7c36a1fca2de1d00000001a1fca2ddff00000000000000000000ffff7f0000010000d2c000000005"
)
XID = bytes.fromhex("0000004d00030001010203") + bytes(61) + b"\4" + bytes(63)

sysids = st.binary(min_size=32, max_size=32)


def test_text_of_ids_of_java_and_c_clients() -> None:
    [(consumer, sysid)] = decode_blocks(JAVA_BLOCK)
    assert consumer == 8950519415725856256
    assert sysid_text(sysid) == "ID:41-127.0.0.1(de:6e:43:8d:72:2)-32894-1795239283638"
    [(consumer, sysid)] = decode_blocks(C_BLOCK)
    assert consumer == 8950519415881735424
    assert sysid_text(sysid) == "ID:5-127.0.0.1-53952-1795239894527"


def test_text_of_ids_with_other_addresses() -> None:
    v6 = bytes.fromhex("20010db8000000000000000000000001")
    assert sysid_text(encode_sysid(7, v6, 8, 9)) == "ID:9-2001:db8::1-8-7"
    assert sysid_text(bytes(32)) == "ID:0-::-0-0"
    assert sysid_text(b"\xff" * 32).startswith("ID:-1-")


@given(sysids)
def test_any_id_has_a_text(sysid: bytes) -> None:
    assert sysid_text(sysid).startswith("ID:")


@given(
    st.lists(
        st.tuples(
            st.binary(min_size=8, max_size=8),
            st.integers(0, 2**62 - 1),
            st.integers(0, 2**53),
        ),
        unique=True,
        max_size=5,
    )
)
def test_ids_of_different_messages_differ(messages: list[tuple[bytes, int, int]]) -> None:
    # ids do not depend on the first bit of a broker's identity
    messages = [
        (bytes([identity[0] | 0x80]) + identity[1:], sequence, timestamp)
        for identity, sequence, timestamp in messages
    ]
    ids = {make_sysid(*message) for message in messages}
    assert len(ids) == len(set(messages))
    assert len({sysid_text(sysid) for sysid in ids}) == len(ids)
    assert all(len(sysid) == 32 for sysid in ids)


def test_created_id_contains_time_and_source() -> None:
    sysid = make_sysid(bytes(range(8)), (3 << 31) + 5, 1795239283638)
    assert sysid_text(sysid) == "ID:5-127.1.6.7(80:1:2:3:4:5)-3-1795239283638"


@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), sysids), max_size=4))
def test_blocks(blocks: list[tuple[int, bytes]]) -> None:
    body = encode_blocks(blocks)
    assert len(body) == LONG_BLOCK * len(blocks)
    assert list(decode_blocks(body)) == blocks


def test_acknowledgement_blocks_of_old_clients() -> None:
    blocks = [(-1, bytes(32)), (2**31 - 1, b"a" * 32)]
    body = encode_blocks(blocks, INT_BLOCK)
    assert len(body) == 72
    assert list(decode_blocks(body, INT_BLOCK)) == blocks


@pytest.mark.parametrize("size", [1, 31, 33, 39, 41, 79, 81])
def test_acknowledgement_with_incomplete_block_is_refused(size: int) -> None:
    for width in (LONG_BLOCK, INT_BLOCK):
        with pytest.raises(ProtocolError):
            decode_blocks(bytes(size), width)


def test_decodes_xid_of_java_client() -> None:
    xid = decode_xid(XID)
    assert xid == Xid(77, b"\1\2\3", b"\4")
    assert str(xid) == "04010203"
    assert encode_xid(xid) == XID
    assert str(xid._replace(format_id=NO_XID)) == "NULL_XID"


parts = st.binary(max_size=64)


@given(st.builds(Xid, st.integers(-(2**31), 2**31 - 1), parts, parts))
def test_xids(xid: Xid) -> None:
    assert decode_xid(encode_xid(xid)) == xid


@pytest.mark.parametrize(
    "body",
    [
        b"",
        XID[:-1],
        XID + b"\0",
        XID[:4] + b"\xff\xff" + XID[6:],
        XID[:4] + b"\0\x41" + XID[6:],
        XID[:6] + b"\0\x41" + XID[8:],
        XID[:6] + b"\x80\0" + XID[8:],
    ],
)
def test_malformed_xids_are_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_xid(body)


def test_xid_with_part_that_is_too_long_is_not_encoded() -> None:
    for xid in (Xid(1, bytes(65), b""), Xid(1, b"", bytes(65))):
        with pytest.raises(ProtocolError):
            encode_xid(xid)
