"""File formats and link types: the decoded rows do not depend on them."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluicemq.protocols.phpmq.wire import encode_acknowledge, encode_send
from tests.pipeline.decode.packet_captures import (
    COOKED,
    COOKED_2,
    ETHERNET,
    LOOP,
    NULL,
    RAW,
    START,
    CapturedPacket,
    TcpConnection,
    block,
    capture,
    encode_link_frame,
    enhanced,
    interface,
    ip_packet,
    pcap,
    pcapng,
    section,
)
from tests.pipeline.decode.tables import decoded, decoded_bytes
from tests.protocols.phpmq.harness import encode_dispatch

V6 = ("fe80::1", 40_000), ("fe80::2", 9100)


def connection(*ends: tuple[str, int]) -> TcpConnection:
    conversation = TcpConnection(*ends).open()
    conversation.send(0, encode_send(b"orders", b"a" * 2000))
    conversation.send(1, encode_dispatch(b"orders", b"b" * 10, b"0" * 32))
    return conversation.send(0, encode_acknowledge(b"orders", b"0" * 32)).close()


def check(directory: Path, data: bytes, stream: str = "10.0.0.1:40000 > 10.0.0.2:9100") -> None:
    rows = decoded_bytes(directory, data)
    assert [row["error"] for row in rows] == [None] * 3
    assert [(row["direction"], row["frame"], row["offset"]) for row in rows] == [
        ("to-client", "dispatch", 0),
        ("to-server", "send", 0),
        ("to-server", "acknowledge", len(encode_send(b"orders", b"a" * 2000))),
    ]
    assert {row["stream"] for row in rows} == {stream}
    # SYN, SYN, ACK; two packets of the send, then one
    assert [round(row["time"].timestamp() * 1e6) - START for row in rows] == [5000, 4000, 6000]


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("nano", [False, True])
def test_decodes_pcap(tmp_path: Path, order: str, nano: bool) -> None:
    check(tmp_path, pcap(capture(connection().segments), ETHERNET, order, nano))


@pytest.mark.parametrize("link", [ETHERNET, NULL, LOOP, RAW, COOKED, COOKED_2])
@pytest.mark.parametrize("tags", [0, 1, 2])
def test_decodes_all_link_types(tmp_path: Path, link: int, tags: int) -> None:
    check(tmp_path, pcap(capture(connection().segments, link, tags=tags), link))
    stream = "[fe80::1]:40000 > [fe80::2]:9100"
    check(tmp_path, pcap(capture(connection(*V6).segments, link, tags=tags), link), stream)


@pytest.mark.parametrize("order", ["<", ">"])
def test_decodes_pcapng(tmp_path: Path, order: str) -> None:
    check(tmp_path, pcapng(capture(connection().segments), ETHERNET, order))


def test_decodes_pcapng_with_all_kinds_of_blocks(tmp_path: Path) -> None:
    packets = capture(connection().segments, RAW)
    check(
        tmp_path,
        b"".join(
            [
                section("<"),
                block(0x0BAD, b"something else"),
                interface(ETHERNET, "<"),
                interface(RAW, "<", 9),
                *(enhanced(packet, 1, "<", 1_000_000_000) for packet in packets[:4]),
                section(">"),  # interfaces and the order of bytes begin anew
                interface(RAW, ">", 0x80 | 30),
                *(
                    # 2^30 units a second are no whole microseconds
                    enhanced(CapturedPacket(packet.time + 1, packet.data), 0, ">", 1 << 30)
                    for packet in packets[4:]
                ),
            ]
        ),
    )


def test_packets_without_time(tmp_path: Path) -> None:
    packets = capture(connection().segments, RAW)
    blocks = [block(3, len(packet.data).to_bytes(4, "little") + packet.data) for packet in packets]
    rows = decoded_bytes(tmp_path, b"".join([section(), interface(RAW), *blocks]))
    assert [(row["frame"], row["time"]) for row in rows] == [
        ("dispatch", None),
        ("send", None),
        ("acknowledge", None),
    ]


def with_extensions(packet: bytes) -> bytes:
    """Insert hop-by-hop options of 16 bytes and a destination header into an IPv6 packet."""
    extensions = bytes((60, 1)) + bytes(14) + bytes((6, 0)) + bytes(6)
    size = int.from_bytes(packet[4:6]) + len(extensions)
    return packet[:4] + size.to_bytes(2) + b"\0" + packet[7:40] + extensions + packet[40:]


def test_ipv6_extension_headers_and_ipv4_options(tmp_path: Path) -> None:
    packets = [
        CapturedPacket(
            segment.time, encode_link_frame(with_extensions(ip_packet(segment)), ETHERNET)
        )
        for segment in connection(*V6).segments
    ]
    check(tmp_path, pcap(packets), "[fe80::1]:40000 > [fe80::2]:9100")
    packets = []
    for segment in connection().segments:
        packet = ip_packet(segment)
        size = (int.from_bytes(packet[2:4]) + 8).to_bytes(2)
        longer = b"\x47" + packet[1:2] + size + packet[4:20] + bytes(8) + packet[20:]
        packets.append(CapturedPacket(segment.time, encode_link_frame(longer, ETHERNET)))
    check(tmp_path, pcap(packets))


@pytest.mark.parametrize(
    ("header", "expected"),
    [(44, ["None: 1 packets are fragments of IP packets, which are not reassembled"]), (51, [])],
)
def test_ipv6_fragments_are_counted_and_authenticated_packets_are_not(
    tmp_path: Path, header: int, expected: list[str]
) -> None:
    original = ip_packet(connection(*V6).segments[3])
    size = int.from_bytes(original[4:6]) + 8
    head = original[:4] + size.to_bytes(2) + bytes((header,)) + original[7:40]
    packet = head + b"\x06" + bytes(7) + original[40:]
    assert errors(tmp_path, pcap([CapturedPacket(START, packet)], RAW)) == expected


def test_ip_length_of_0_is_taken_from_capture(tmp_path: Path) -> None:
    packets = []
    for segment in connection().segments:
        packet = ip_packet(segment)
        packets.append(
            CapturedPacket(segment.time, encode_link_frame(packet[:2] + b"\0\0" + packet[4:], RAW))
        )
    check(tmp_path, pcap(packets, RAW))


def test_padding_of_short_ethernet_packets_is_no_payload(tmp_path: Path) -> None:
    packets = [
        CapturedPacket(packet.time, packet.data + bytes(6))
        for packet in capture(connection().segments)
    ]
    check(tmp_path, pcap(packets))


def test_other_traffic_is_skipped(tmp_path: Path) -> None:
    packets = capture(connection().segments)
    arp = bytes(12) + b"\x08\x06" + bytes(28)
    udp = bytearray(packets[0].data)
    udp[14 + 9] = 17
    check(tmp_path, pcap([CapturedPacket(START, arp), CapturedPacket(START, bytes(udp)), *packets]))


def errors(directory: Path, data: bytes) -> list[str]:
    rows = decoded_bytes(directory, data)
    assert all(row["connection"] is None for row in rows if row["stream"] is None)
    return [f"{row['offset']}: {row['error']}" for row in rows if row["stream"] is None]


def test_file_that_is_not_capture_is_reported(tmp_path: Path) -> None:
    assert errors(tmp_path, b"") == ["0: the file is empty"]
    assert "neither pcap nor pcapng: it begins with 48 30 31 30" in errors(tmp_path, b"H0100102")[0]
    assert "gunzip" in errors(tmp_path, b"\x1f\x8b\x08\0")[0]
    assert errors(tmp_path, pcap([])[:20]) == ["20: the file ends within its header"]
    rows = decoded(tmp_path / "missing")
    assert [row["error"] for row in rows] == ["the file cannot be read: No such file or directory"]


def test_truncated_capture_is_decoded_up_to_its_end(tmp_path: Path) -> None:
    for data, part in (
        (pcap(capture(connection().segments)), "packet"),
        (pcapng(capture(connection().segments)), "block"),
    ):
        rows = decoded_bytes(tmp_path, data[:-3])
        assert len(rows) == 4
        fault = next(row for row in rows if row["connection"] is None)
        assert fault["error"] == f"the file ends within a {part}"
        assert 0 < fault["offset"] < len(data)


def test_invalid_lengths_end_reading(tmp_path: Path) -> None:
    intact = pcap(capture(connection().segments))
    damaged = intact + bytes(8) + b"\xff\xff\xff\x7f" * 2
    rows = decoded_bytes(tmp_path, damaged)
    assert len(rows) == 4
    assert f"{len(intact)}: a packet of 2147483647 bytes is announced" in errors(tmp_path, damaged)
    intact = pcapng(capture(connection().segments))
    for tail, expected in (
        (b"\6\0\0\0\x0d\0\0\0" + bytes(8), "a block of 13 bytes is announced"),
        (block(6, bytes(12) + b"\xff\0\0\0" + bytes(4)), "a packet of 255 bytes is announced in"),
        (block(6, bytes(4)), "a packet block is too short"),
        (block(1, bytes(4)), "an interface block is too short"),
        (b"\x0a\x0d\x0d\x0a" + bytes(12), "a section does not state its byte order"),
    ):
        (fault,) = errors(tmp_path, intact + tail)
        assert fault.startswith(f"{len(intact)}: {expected}")


def test_undecodable_packets_are_counted(tmp_path: Path) -> None:
    packets = capture(connection().segments, RAW)
    assert errors(tmp_path, pcap(packets, 105)) == [
        f"None: {len(packets)} packets have an unknown link type and were not decoded"
    ]
    fragment = bytearray(packets[3].data)
    fragment[6] = 0x20
    short_packet = packets[3].data[:30]
    reasons = errors(
        tmp_path,
        pcap([CapturedPacket(START, bytes(fragment)), CapturedPacket(START, short_packet)], RAW),
    )
    assert sorted(reasons) == [
        "None: 1 packets are fragments of IP packets, which are not reassembled",
        "None: 1 packets have truncated or invalid headers",
    ]
