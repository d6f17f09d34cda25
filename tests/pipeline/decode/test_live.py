"""Decoded traffic of real clients and a real broker equals the messages sent."""

from __future__ import annotations

from pathlib import Path
from random import Random

import msgspec
import pytest

from sluicemq.pipeline.decode import DecodeOptions
from tests.pipeline.decode.conftest import BODIES, PORTS, Recorded
from tests.pipeline.decode.packet_captures import capture, pcap, pcapng
from tests.pipeline.decode.tables import Row, decoded_bytes
from tests.pipeline.decode.test_streams import check_tiling, reorder_segments, without_time


@pytest.fixture(scope="module")
def rows(recorded: Recorded, tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    return decoded_bytes(tmp_path_factory.mktemp("live"), pcap(capture(recorded.segments)))


def frames(rows: list[Row], protocol: str, frame: str) -> list[Row]:
    return [row for row in rows if (row["protocol"], row["frame"]) == (protocol, frame)]


def test_all_bytes_are_decoded(rows: list[Row], recorded: Recorded) -> None:
    assert [row["error"] for row in rows if row["error"]] == []
    for protocol in PORTS:
        for side, direction in enumerate(("to-server", "to-client")):
            sizes = [len(frame) for frame in recorded.sent(protocol, side)]
            frame_rows = [
                row for row in rows if (row["protocol"], row["direction"]) == (protocol, direction)
            ]
            assert sum(row["length"] for row in frame_rows) == sum(sizes)
            if len(sizes) == 1:
                check_tiling(frame_rows, sizes[0])


def test_messages_are_those_that_were_sent(rows: list[Row]) -> None:
    for protocol, sent, delivered, queue in (
        ("phpmq", "send", "dispatch", "orders"),
        ("msglite", "message", "message", "letters"),
        ("vibemq", "PUBLISH", "DELIVER", "events"),
        ("jmq", "TEXT_MESSAGE", "TEXT_MESSAGE", "accounts"),
    ):
        for frame, direction in ((sent, "to-server"), (delivered, "to-client")):
            message_rows = [
                row for row in frames(rows, protocol, frame) if row["direction"] == direction
            ]
            bodies = [row["body"] for row in message_rows]
            if protocol == "vibemq":
                bodies = [msgspec.json.decode(body, type=str).encode() for body in bodies]
            assert bodies == BODIES
            assert {(row["destination"], row["destination_kind"]) for row in message_rows} == {
                (queue, "queue")
            }


def test_requests_and_replies_can_be_correlated(rows: list[Row]) -> None:
    dispatched = [row["message_id"] for row in frames(rows, "phpmq", "dispatch")]
    assert [row["message_id"] for row in frames(rows, "phpmq", "acknowledge")] == dispatched
    assert {row["properties"][0][0] for row in frames(rows, "phpmq", "send")} == {"ttl"}
    assert {row["reply_to"] for row in frames(rows, "msglite", "message")} == {"answers"}
    message_ids = {row["message_id"] for row in frames(rows, "vibemq", "PUBLISH")}
    assert len(message_ids) == len(BODIES)
    for frame in ("PUBLISH_ACK", "DELIVER", "ACK"):
        assert {row["message_id"] for row in frames(rows, "vibemq", frame)} == message_ids
    assert {row["correlation_id"] for row in frames(rows, "vibemq", "PUBLISH")} == {"c"}
    sent = [row for row in frames(rows, "jmq", "TEXT_MESSAGE") if row["direction"] == "to-server"]
    assert [row["correlation_id"] for row in sent] == [f"c{n}" for n in range(len(BODIES))]
    assert dict(sent[1]["properties"]) == {"n": "1", "ok": "true"}
    acknowledged = " ".join(row["message_id"] for row in frames(rows, "jmq", "ACKNOWLEDGE"))
    assert set(acknowledged.split()) == {row["message_id"] for row in sent}
    request_ids = {row["request_id"] for row in frames(rows, "jmq", "HELLO")}
    assert {row["request_id"] for row in frames(rows, "jmq", "HELLO_REPLY")} == request_ids


def test_passwords_are_masked(recorded: Recorded, tmp_path: Path, rows: list[Row]) -> None:
    (login,) = frames(rows, "jmq", "AUTHENTICATE")
    assert login["body"] == b"***"
    data = pcap(capture(recorded.segments))
    (login,) = frames(
        decoded_bytes(tmp_path, data, DecodeOptions(secrets=True)), "jmq", "AUTHENTICATE"
    )
    assert login["body"] != b"***"


def test_rows_do_not_depend_on_capture_format(
    recorded: Recorded, rows: list[Row], tmp_path: Path
) -> None:
    expected = [without_time(row) for row in rows]
    chance = Random(11)
    for encode in (pcap, pcapng):
        decoded = decoded_bytes(
            tmp_path, encode(capture(reorder_segments(chance, recorded.segments)))
        )
        assert len(decoded) == len(expected)
        drop = ("file", "connection")
        key = ("stream", "direction", "offset")
        for original, other in zip(
            sorted(expected, key=lambda row: [row[name] for name in key]),
            sorted((without_time(row) for row in decoded), key=lambda row: [row[n] for n in key]),
            strict=True,
        ):
            assert {n: v for n, v in original.items() if n not in drop} == {
                n: v for n, v in other.items() if n not in drop
            }


def test_times_equal_those_of_proxy(recorded: Recorded, rows: list[Row]) -> None:
    position = 0
    ends = []
    for chunk in recorded.chunks["phpmq"]:
        if chunk.side == 0:
            position += len(chunk.data)
            ends.append((position, chunk.time))
    for row in frames(rows, "phpmq", "send"):
        end = row["offset"] + row["length"]
        arrival = next(time for position, time in ends if position >= end)
        assert round(row["time"].timestamp() * 1e6) == arrival
