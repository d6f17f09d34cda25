"""TCP streams of all four protocols in captures: reordered, duplicated, incomplete or with lost
packets.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicemq.pipeline.decode import FRAMES, DecodeOptions, Raw, streams
from sluicemq.pipeline.decode.codecs import CODECS
from sluicemq.protocols.msglite.wire import encode_message
from sluicemq.protocols.phpmq.wire import encode_consume, encode_send
from sluicemq.protocols.vibemq import wire as vibemq
from tests.fuzz import corpus
from tests.fuzz import jmq as jmq_corpus
from tests.fuzz.mutations import mutate
from tests.pipeline.decode.packet_captures import (
    ACK,
    SERVER,
    SYN,
    Segment,
    TcpConnection,
    capture,
    pcap,
)
from tests.pipeline.decode.tables import Row, decoded_bytes, of

SOME = settings(max_examples=max(25, settings.default.max_examples // 4))
seeds = st.randoms(use_true_random=False)

PROTOCOLS: Final[dict[str, tuple[corpus.Conversation, corpus.Conversation]]] = {
    "phpmq": (corpus.phpmq, corpus.phpmq_broker),
    "msglite": (corpus.msglite, corpus.msglite_broker),
    "vibemq": (corpus.vibemq, corpus.vibemq),
    "jmq": (jmq_corpus.client, jmq_corpus.broker),
}
PORTS: Final = {"phpmq": 9100, "msglite": 9813, "vibemq": 2925, "jmq": 7676}
WRAP: Final = 1 << 32
COLUMNS: Final = FRAMES.names[FRAMES.names.index("frame") :]
"""Columns that a codec sets."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("captures")


def conversation(chance: Random, protocol: str) -> tuple[list[bytes], list[bytes], TcpConnection]:
    """Return the frames of both sides, and their segments."""
    sides = [make_frames(chance) for make_frames in PROTOCOLS[protocol]]
    numbers = tuple(chance.choice((0, 7, WRAP - 1, WRAP - 300)) for _ in range(2))
    connection = TcpConnection(
        server=(SERVER[0], PORTS[protocol]), numbers=numbers, mss=chance.choice((5, 100, 1460))
    ).open()
    waiting = [list(side) for side in sides]
    while any(waiting):
        side = chance.choice([number for number in (0, 1) if waiting[number]])
        count = chance.randint(1, 3)
        connection.send(side, b"".join(waiting[side][:count]))
        del waiting[side][:count]
    return sides[0], sides[1], connection.close()


def reorder_segments(chance: Random, segments: Sequence[Segment]) -> list[Segment]:
    """Duplicate, refragment and delay the segments."""
    ordered: list[tuple[float, Segment]] = []
    for number, segment in enumerate(segments):
        ordered.append((number + chance.choice((0, 0, 0, 4, 9)), segment))
        if segment.payload and chance.random() < 0.3:
            first = chance.randrange(len(segment.payload))
            last = chance.randint(first, len(segment.payload))
            repeated = segment._replace(
                sequence=segment.sequence + first, payload=segment.payload[first:last]
            )
            ordered.append((number + chance.choice((-3, 1, 30)), repeated))
    return [segment for _, segment in sorted(ordered, key=lambda pair: pair[0])]


def check_tiling(rows: list[Row], size: int) -> None:
    """Check that each byte belongs to exactly one row."""
    position = 0
    for row in rows:
        assert row["offset"] == position
        assert row["length"] > 0
        position += row["length"]
    assert position == size


@pytest.mark.parametrize("protocol", PROTOCOLS)
@SOME
@given(chance=seeds)
def test_every_frame_is_found_where_it_stands(
    directory: Path, protocol: str, chance: Random
) -> None:
    client, server, connection = conversation(chance, protocol)
    expected = decoded_bytes(directory, pcap(capture(connection.segments)))
    assert {row["protocol"] for row in expected} == {protocol}
    assert [row["error"] for row in expected if row["frame"] is None] == []
    for direction, sent in (("to-server", client), ("to-client", server)):
        rows = of(expected, direction)
        check_tiling(rows, sum(map(len, sent)))
        assert [row["length"] for row in rows] == [len(frame) for frame in sent if frame]
        codec = CODECS[protocol](direction == "to-server", DecodeOptions())
        frames = codec.decoder.feed(b"".join(sent))
        for row, frame in zip(rows, frames, strict=True):
            fields = codec.describe(frame)
            assert {name: row[name] for name in COLUMNS} == dict.fromkeys(COLUMNS) | fields
    disturbed_rows = decoded_bytes(
        directory, pcap(capture(reorder_segments(chance, connection.segments)))
    )
    assert [without_time(row) for row in disturbed_rows] == [without_time(row) for row in expected]


def spans_of(sent: Sequence[bytes]) -> set[tuple[int, int]]:
    """Return offset and length of each frame."""
    ends = list(accumulate(map(len, sent)))
    return {(end - len(frame), len(frame)) for end, frame in zip(ends, sent, strict=True)}


def without_time(row: Row) -> Row:
    return {name: value for name, value in row.items() if name != "time"}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@SOME
@given(chance=seeds)
def test_exactly_the_lost_bytes_are_reported(
    directory: Path, protocol: str, chance: Random
) -> None:
    client, server, connection = conversation(chance, protocol)
    loss = chance.choice((0.02, 0.2, 0.6))
    captured_segments = [
        segment for segment in connection.segments if not segment.payload or chance.random() > loss
    ]
    snaplen = chance.choice((1 << 18, 1 << 18, 300, 100, 54))
    rows = decoded_bytes(
        directory, pcap(capture(reorder_segments(chance, captured_segments), snaplen=snaplen))
    )
    if len(captured_segments) == len(connection.segments) and snaplen == 1 << 18:
        assert all(row["frame"] for row in rows)
    for side, (direction, sent) in enumerate((("to-server", client), ("to-client", server))):
        direction_rows = of(rows, direction)
        last = max(
            (
                segment.sequence + len(segment.payload)
                for segment in captured_segments
                if segment.source == connection.ends[side]
            ),
            default=0,
        )
        first = (
            next(
                segment.sequence
                for segment in connection.segments
                if segment.source == connection.ends[side]
            )
            + 1
        )
        lost_segments = [
            segment
            for segment in connection.segments
            if segment.payload and segment not in captured_segments
        ]
        if any(
            segment.source == connection.ends[side] and segment.sequence < last
            for segment in lost_segments
        ):
            # bytes that are lost behind the last captured ones are not known to exist
            assert not direction_rows or not all(row["frame"] for row in direction_rows)
        if protocol == "msglite":
            continue  # what is in a body may look like a command, and be taken for one
        if direction_rows:
            check_tiling(direction_rows, last - first)
        intact_ranges = {
            (row["offset"], row["length"]) for row in direction_rows if row["error"] is None
        }
        assert intact_ranges <= spans_of(sent)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@SOME
@given(chance=seeds)
def test_a_capture_that_begins_late_finds_the_next_frame(
    directory: Path, protocol: str, chance: Random
) -> None:
    sent = PROTOCOLS[protocol][0](chance) * 2
    connection = TcpConnection(server=(SERVER[0], PORTS[protocol]), mss=chance.choice((11, 300)))
    connection.send(0, b"".join(sent))
    rest = [segment for segment in connection.segments if segment.payload]
    rest = rest[chance.randrange(len(rest)) :]
    rows = decoded_bytes(directory, pcap(capture(rest)))
    data = b"".join(segment.payload for segment in rest)
    size = len(data)
    if protocol == "msglite":
        return  # what is in a body may look like a command, and be taken for one
    if {row["protocol"] for row in rows} == {"msglite"}:
        assert CODECS["msglite"].signature.search(data)
        return
    check_tiling(rows, size)
    shift = sum(map(len, sent)) - size
    intact_ranges = {(row["offset"] + shift, row["length"]) for row in rows if row["error"] is None}
    assert intact_ranges <= spans_of(sent)
    # what is in a frame may be wrong, and it is found all the same
    frame_ranges = {
        (row["offset"] + shift, row["length"]) for row in rows if row["frame"] is not None
    }
    last = (sum(map(len, sent)) - len(sent[-1]), len(sent[-1]))
    assert last in frame_ranges or last[0] < shift or protocol == "vibemq"


@pytest.mark.parametrize("protocol", PROTOCOLS)
@SOME
@given(chance=seeds)
def test_damage_is_reported_where_it_is(directory: Path, protocol: str, chance: Random) -> None:
    sent = [b"".join(mutate(chance, make_frames(chance))) for make_frames in PROTOCOLS[protocol]]
    connection = TcpConnection(
        server=(SERVER[0], PORTS[protocol]), mss=chance.choice((5, 1460))
    ).open()
    connection.send(0, sent[0]).send(1, sent[1]).close()
    options = DecodeOptions(max_frame_bytes=5000)
    rows = decoded_bytes(directory, pcap(capture(connection.segments)), options)
    for direction, data in zip(("to-server", "to-client"), sent, strict=True):
        direction_rows = of(rows, direction)
        assert sum(row["length"] for row in direction_rows) <= len(data)
        assert all(row["offset"] + row["length"] <= len(data) for row in direction_rows)


@SOME
@given(chance=seeds, protocol=st.sampled_from(sorted(PROTOCOLS)))
def test_a_damaged_file_gives_rows(directory: Path, protocol: str, chance: Random) -> None:
    _, _, connection = conversation(chance, protocol)
    data = bytearray(pcap(capture(connection.segments)))
    for _ in range(chance.choice((1, 5, 50))):
        data[chance.randrange(len(data))] = chance.choice((0, 255, 1, chance.randrange(256)))
    decoded_bytes(directory, bytes(data[: chance.randint(0, len(data) * 2)]))


@SOME
@given(data=st.binary(max_size=400), chance=seeds)
def test_noise_gives_rows(directory: Path, data: bytes, chance: Random) -> None:
    decoded_bytes(directory, data)
    decoded_bytes(directory, pcap([])[: chance.choice((20, 24))] + data)
    connection = TcpConnection(
        server=(SERVER[0], chance.choice((*PORTS.values(), 4))), mss=9
    ).open()
    connection.send(0, data).send(1, data[::-1])
    rows = decoded_bytes(directory, pcap(capture(connection.segments)))
    for direction in ("to-server", "to-client"):
        direction_rows = of(rows, direction)
        assert direction_rows or not data
    for protocol in CODECS:
        decoded_bytes(directory, data, DecodeOptions(raw=Raw(protocol, "server")))


# --- cases ---------------------------------------------------------------------------------------


def frames(count: int, size: int = 500) -> list[bytes]:
    return [encode_send(b"orders", b"%04d" % number + b"x" * size) for number in range(count)]


def test_several_connections_between_same_endpoints(directory: Path) -> None:
    segments: list[Segment] = []
    for number in range(3):
        connection = TcpConnection(
            numbers=(1000 * number, 77 * number), time=1_000_000 * (number + 1)
        ).open()
        connection.send(0, encode_send(b"orders", b"%d" % number))
        segments += connection.segments
        # the SYN again changes nothing
        segments += connection.segments[:1]
    rows = decoded_bytes(directory, pcap(capture(segments)))
    assert [(row["connection"], row["offset"], row["body"]) for row in rows] == [
        (0, 0, b"0"),
        (1, 0, b"1"),
        (2, 0, b"2"),
    ]


def test_late_syn_does_not_begin_connection(directory: Path) -> None:
    connection = TcpConnection().open().send(0, b"".join(frames(3)))
    syn, *others = connection.segments
    rows = decoded_bytes(directory, pcap(capture([*others[:4], syn, *others[4:]])))
    assert {row["connection"] for row in rows} == {0}
    assert [row["error"] for row in rows] == [None] * 3


def test_concurrent_connections_exceed_memory_limit(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connections = [
        TcpConnection(client=("10.0.0.9", 1024 + number)).open() for number in range(300)
    ]
    for index in range(4):
        for connection in connections:
            connection.send(0, frames(4)[index]).send(1, b"")
    segments = [
        segment
        for group in zip(*(t.segments for t in connections), strict=True)
        for segment in group
    ]
    rows = decoded_bytes(directory, pcap(capture(segments)))
    assert len(rows) == 1200
    assert len({row["connection"] for row in rows}) == 300
    assert {row["error"] for row in rows} == {None}
    # with too little room they fall into pieces, but nothing is lost
    monkeypatch.setattr(streams, "_MAX_CONNECTIONS", 10)
    rows = decoded_bytes(directory, pcap(capture(segments)))
    assert sum(row["length"] for row in rows) == 300 * sum(map(len, frames(4)))
    assert {row["error"] for row in rows} == {None}


def test_overlapping_packets_are_merged(directory: Path) -> None:
    frame = encode_send(b"orders", bytes(range(256)) * 4)
    first = TcpConnection(mss=300).open().send(0, frame)
    other = TcpConnection(mss=410).open().send(0, frame)
    mixed = [*first.segments[:5], *other.segments[3:], *first.segments[5:]]
    (row,) = decoded_bytes(directory, pcap(capture(mixed)))
    assert row["body"] == bytes(range(256)) * 4


def test_lost_packet_costs_one_frame(directory: Path) -> None:
    connection = TcpConnection(mss=100).open().send(0, b"".join(frames(3)))
    size = len(frames(1)[0])
    lost_segment = next(
        segment for segment in connection.segments if segment.sequence == 1001 + 700
    )
    captured_segments = [segment for segment in connection.segments if segment is not lost_segment]
    rows = decoded_bytes(directory, pcap(capture(captured_segments)))
    assert [(row["frame"], row["offset"], row["length"]) for row in rows] == [
        ("send", 0, size),
        (None, size, size),
        ("send", 2 * size, size),
    ]
    assert rows[1]["error"] == (
        f"100 bytes are missing in the capture at 700; {size} bytes from {size} on are not decoded"
    )


def test_msglite_commands_are_found_after_gap(directory: Path) -> None:
    sent = [encode_message(5, b"orders", b"%d" % number + b"x" * 300) for number in range(9)]
    sent += [b". \r\n", b"< 5 orders\r\n"]
    connection = TcpConnection(server=(SERVER[0], 9813), mss=100).open().send(0, b"".join(sent))
    captured_segments = [
        segment for segment in connection.segments if segment.sequence != 1001 + 1400
    ]
    for packets in (captured_segments, captured_segments[9:]):
        rows = decoded_bytes(directory, pcap(capture(packets)))
        assert [row["frame"] for row in rows[-2:]] == ["quit", "ready"]
        assert [row["error"] is None for row in rows].count(False) == 1 + (
            packets is not captured_segments
        )
        assert [row["frame"] for row in rows].count("message") == (
            8 if packets is captured_segments else 7
        )


def test_waiting_for_lost_packet_is_limited(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = TcpConnection(mss=100).open().send(0, b"".join(frames(60)))
    captured_segments = [
        segment for segment in connection.segments if segment.sequence != 1001 + 700
    ]
    monkeypatch.setattr(streams, "_MAX_WAITING", 1000)
    rows = decoded_bytes(directory, pcap(capture(captured_segments)))
    assert [row["frame"] for row in rows].count("send") == 59
    # what came while it was waited for has the times at which it came
    times = [row["time"] for row in rows]
    assert times == sorted(times)
    assert len(set(times)) > 50


def test_frame_has_time_of_packet_that_completes_it(directory: Path) -> None:
    connection = TcpConnection(mss=100).open().send(0, b"".join(frames(2)))
    data = [segment for segment in connection.segments if segment.payload]
    late_segment = data[2]._replace(time=data[-1].time + 5_000_000)
    rows = decoded_bytes(
        directory, pcap(capture([*connection.segments[:3], *data[:2], *data[3:], late_segment]))
    )
    assert [round(row["time"].timestamp() * 1e6) for row in rows] == [late_segment.time] * 2


def test_truncated_packets_are_reported(directory: Path) -> None:
    connection = TcpConnection().open().send(0, b"".join(frames(5, 1200)))
    rows = decoded_bytes(directory, pcap(capture(connection.segments, snaplen=120)))
    check_tiling(rows, len(b"".join(frames(5, 1200))))
    assert {row["frame"] for row in rows} == {None}
    assert all("packets are truncated" in row["error"] for row in rows)
    (row,) = decoded_bytes(directory, pcap(capture(connection.segments, snaplen=54)))
    assert (row["offset"], row["length"]) == (0, len(b"".join(frames(5, 1200))))
    assert "packets are truncated" in row["error"]
    # without the SYN, the known port is the server's, whichever address is the lower one
    for client in ("9.9.9.9", "10.9.9.9"):
        connection = TcpConnection(client=(client, 40_000)).send(0, b"".join(frames(5, 1200)))
        (row,) = decoded_bytes(directory, pcap(capture(connection.segments, snaplen=54)))
        assert (row["stream"], row["direction"]) == (f"{client}:40000 > 10.0.0.2:9100", "to-server")


def test_implausible_packets_are_omitted_and_counted(directory: Path) -> None:
    connection = TcpConnection().open().send(0, b"".join(frames(2)))
    stray_segment = connection.segments[-2]._replace(sequence=1001 + (1 << 31), payload=b"stray")
    rows = decoded_bytes(directory, pcap(capture([*connection.segments, stray_segment])))
    assert [row["frame"] for row in rows].count("send") == 2
    assert [row["error"] for row in rows if row["error"]] == [
        "1 packets have sequence numbers that do not belong to the connection, and were ignored"
    ]


def test_capture_may_end_within_frame(directory: Path) -> None:
    frame = frames(1)[0]
    connection = TcpConnection().open().send(0, frame[:-5])
    (row,) = decoded_bytes(directory, pcap(capture(connection.segments)))
    size = len(frame) - 5
    assert (row["offset"], row["length"]) == (0, size)
    assert row["error"] == f"the capture ends within a frame, of which {size} bytes were captured"
    (row,) = decoded_bytes(directory, pcap(capture(connection.close().segments)))
    assert (
        row["error"] == f"the connection ends within a frame, of which {size} bytes were captured"
    )


def test_frame_above_limit_is_error(directory: Path) -> None:
    sent = [encode_consume(b"a", 1), *frames(1, 5000), encode_consume(b"b", 2)]
    connection = TcpConnection().open().send(0, b"".join(sent))
    rows = decoded_bytes(
        directory, pcap(capture(connection.segments)), DecodeOptions(max_frame_bytes=1000)
    )
    assert [row["frame"] for row in rows] == ["consume", None, "consume"]
    assert "announces 5004 bytes, the limit is 1000" in rows[1]["error"]


@pytest.mark.parametrize("announced", [6000, 1 << 24])
@pytest.mark.parametrize("mss", [1, 11, 1460])
def test_jmq_packet_above_limit_does_not_hide_later_packets(
    directory: Path, announced: int, mss: int
) -> None:
    chance = Random(3)
    sent = jmq_corpus.client(chance)
    oversized = bytearray(sent[0][:200])
    oversized[8:12] = announced.to_bytes(4)
    connection = TcpConnection(server=(SERVER[0], 7676), mss=mss).open()
    connection.send(0, b"".join([sent[0], oversized, *sent[1:3]])).close()
    rows = decoded_bytes(
        directory, pcap(capture(connection.segments)), DecodeOptions(max_frame_bytes=5000)
    )
    check_tiling(rows, len(sent[0]) + len(oversized) + len(sent[1]) + len(sent[2]))
    assert [row["frame"] is None for row in rows] == [False, True, False, False]
    assert f"packets have up to 5000 bytes, this one {announced}" in rows[1]["error"]


def test_each_frame_of_vibemq_has_name() -> None:
    kinds = vibemq.FROM_CLIENT | vibemq.FROM_SERVER
    codec = CODECS["vibemq"](True, DecodeOptions(max_frame_bytes=1 << 20))
    names = {kind: codec.describe(vibemq.Frame(kind, ""))["frame"] for kind in kinds}
    assert names == {kind: name for name, kind in vars(vibemq).items() if name in names.values()}
    assert (names[vibemq.CONNECT], names[vibemq.CONNECT_ACK]) == ("CONNECT", "CONNECT_ACK")


def test_tls_is_reported(directory: Path) -> None:
    connection = (
        TcpConnection()
        .open()
        .send(0, b"\x16\x03\x01\x02\0\x01" + b"x" * 600)
        .send(1, b"\x16\x03\x03" * 9)
    )
    rows = decoded_bytes(directory, pcap(capture(connection.segments)))
    assert [(row["direction"], row["protocol"], row["length"], row["error"]) for row in rows] == [
        ("to-client", "tls", 27, None),
        ("to-server", "tls", 606, None),
    ]


def test_other_protocols_are_reported(directory: Path) -> None:
    connection = TcpConnection(server=(SERVER[0], 25)).open()
    connection.send(1, b"220 mail.example.org\r\n").send(0, b"EHLO x\r\n")
    rows = decoded_bytes(directory, pcap(capture(connection.segments)))
    assert [(row["protocol"], row["frame"], row["length"]) for row in rows] == [
        (None, None, 22),
        (None, None, 8),
    ]
    assert "ports=PORT=PROTOCOL" in rows[0]["error"]
    rows = decoded_bytes(
        directory, pcap(capture(connection.segments)), DecodeOptions(ports={25: "msglite"})
    )
    assert {row["protocol"] for row in rows} == {"msglite"}
    assert "unknown command" in rows[0]["error"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("opened", [True, False])
def test_protocols_are_recognised_on_any_port(directory: Path, protocol: str, opened: bool) -> None:
    chance = Random(7)
    client, server = (make_frames(chance) for make_frames in PROTOCOLS[protocol])
    # without the beginning, the higher port is taken for the client's
    connection = TcpConnection(client=("10.0.0.7", 30_000), server=(SERVER[0], 20_000))
    if opened:
        connection.open()
    connection.send(1, b"".join(server * 3)).send(0, b"".join(client * 3))
    rows = decoded_bytes(directory, pcap(capture(connection.segments)))
    assert {row["protocol"] for row in rows} == {protocol}
    assert {row["stream"] for row in rows} == {"10.0.0.7:30000 > 10.0.0.2:20000"}
    assert len(of(rows, "to-server")) == len(client * 3)


def test_port_mapper_and_http_gateway_are_reported(directory: Path) -> None:
    port_mapper = TcpConnection(server=(SERVER[0], 7676)).open().send(0, b"101\n")
    port_mapper.send(1, b"101 sluicemq 301\njms tcp NORMAL 7677\n.\n").close()
    gateway = TcpConnection(client=("10.0.0.4", 999), server=(SERVER[0], 9814)).open()
    gateway.send(0, b"POST /a/b HTTP/1.0\r\nContent-Length: 2\r\n\r\nhi").close()
    rows = decoded_bytes(directory, pcap(capture([*port_mapper.segments, *gateway.segments])))
    assert [(row["protocol"], row["direction"], row["length"]) for row in rows] == [
        ("jmq-portmapper", "to-client", 39),
        ("jmq-portmapper", "to-server", 4),
        ("msglite-http", "to-server", 43),
    ]
    assert [(row["frame"], row["error"]) for row in rows] == [(None, None)] * 3


def test_decodes_log_of_raw_bytes(directory: Path) -> None:
    sent = frames(2000, 400)
    for protocol in ("phpmq", None):
        rows = decoded_bytes(directory, b"".join(sent), DecodeOptions(raw=Raw(protocol, "client")))
        assert [(row["frame"], row["time"]) for row in rows] == [("send", None)] * 2000
        assert {(row["direction"], row["protocol"]) for row in rows} == {("to-server", "phpmq")}
    check_tiling(rows, sum(map(len, sent)))
    (row,) = decoded_bytes(directory, sent[0], DecodeOptions(raw=Raw("phpmq", "server")))
    assert (row["direction"], row["error"]) == (
        "to-client",
        "message type 001 does not come from this side; "
        f"{len(sent[0])} bytes from 0 on are not decoded",
    )


def test_connection_of_host_to_itself(directory: Path) -> None:
    endpoint = ("10.0.0.1", 9100)
    segments = [
        Segment(endpoint, endpoint, 1, flags=SYN),
        Segment(endpoint, endpoint, 2, encode_send(b"a", b"b"), ACK),
    ]
    rows = decoded_bytes(directory, pcap(capture(segments)))
    assert [row["frame"] for row in rows if row["frame"]] in ([], ["send"])
