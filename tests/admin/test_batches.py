"""Parts of batches: every row exactly once despite repetitions, and rejected rows."""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from random import Random
from typing import Any

import pytest

from sluicemq.admin import batches
from sluicemq.admin.batches import PartReader
from sluicemq.cli.local import LocalBroker
from sluicemq.journal import RecordType
from sluicemq.journal.format import decode_address, decode_message
from sluicemq.journal.reader import read_records
from sluicemq.model.access import EVERYBODY
from sluicemq.model.dead_letters import origin_of
from sluicemq.model.destination import Address, Kind
from sluicemq.model.errors import FrameTooLarge
from sluicemq.model.message import BodyKind, Message
from sluicemq.model.rows import FRAME_ROWS, RowValues, encode, frame, row
from tests.faults.plan import SMALL_SEGMENTS, seeded_random, size
from tests.server.conftest import Start
from tests.support.api import ApiFixture, in_event_loop
from tests.support.http import HTTP, PHPMQ, Client, ready_counts

KILLS = size(4, 80)


def rows(count: int, destination: str = "q", start: int = 0) -> list[RowValues]:
    return [row(destination, b"%d" % number) for number in range(start, start + count)]


def journaled_messages(broker: LocalBroker) -> list[Message]:
    """Return every message in the journal in order."""
    messages = []
    addresses: dict[int, Address] = {}
    for _, _, record in read_records(broker.directory / "journal"):
        if record.type == RecordType.DESTINATION_CREATED:
            addresses[record.destination] = decode_address(record.body)
        elif record.type == RecordType.MESSAGE:
            address = addresses.get(record.destination, Address(Kind.QUEUE, "?"))
            messages.append(decode_message(record, address))
    return messages


def reasons(response: Any) -> dict[int, str]:
    return {rejection["row"]: rejection["reason"] for rejection in response["rejected"]}


def test_every_field_is_published(start: Start) -> None:
    broker = start(HTTP)
    complete_row = row(
        "tâche",
        '{"é": 1}'.encode(),
        body_kind=BodyKind.JSON,
        priority=9,
        ttl=3_600_000,
        deliver_at=4_000_000_000_000,
        message_id="id",
        correlation_id="to",
        reply_to="back",
        reply_topic=True,
        type="t",
        properties={"s": "é", "i": -5, "f": 1.5, "b": True, "n": None, "x": b"\xff"},
        timestamp=1_700_000_000_000,
    )
    with Client(broker.port("http")) as client:
        response = client.write([complete_row, row(b"raw\xff", expiration=4_100_000_000_000)])
        assert response.status == 200, response
        assert response.json()["written"] == 2
    first, second = journaled_messages(broker)
    assert first.body == '{"é": 1}'.encode()
    assert (first.kind, first.priority, first.type) == (BodyKind.JSON, 9, "t")
    assert (first.message_id, first.correlation_id) == ("id", "to")
    assert first.reply_to == Address(Kind.TOPIC, "back")
    assert first.properties == {"s": "é", "i": -5, "f": 1.5, "b": True, "n": None, "x": b"\xff"}
    assert (first.timestamp, first.deliver_at) == (1_700_000_000_000, 4_000_000_000_000)
    # the time to live starts when the broker accepts the message
    assert 1_790_000_000_000 < first.expiration < 4_000_000_000_000
    assert second.expiration == 4_100_000_000_000
    assert second.timestamp > 1_790_000_000_000
    names = {destination["name"] for destination in broker.status()["destinations"]}
    assert names == {"tâche", ascii("raw\udcff")[1:-1]}


def test_part_is_written_once(start: Start) -> None:
    broker = start(HTTP)
    with Client(broker.port("http")) as client, Client(broker.port("http")) as other_client:
        assert client.write(rows(5), part=0, final="false").json()["written"] == 5
        for writer in (client, other_client):
            response = writer.write(rows(5), part=0, final="false").json()
            assert (response["duplicate"], response["written"]) == (True, 0)
        conflict = client.write(rows(5, start=1), part=0, final="false")
        assert (conflict.status, conflict.code) == (409, "batch-conflict")
        gap_conflict = client.write(rows(5), part=2)
        assert (gap_conflict.status, gap_conflict.code) == (409, "batch-conflict")
        assert client.write(rows(2), part=1, final="true").json()["written"] == 2
        assert client.write(rows(3), partition=1).json()["written"] == 3
        assert client.write(rows(4), batch=1).json()["written"] == 4
        assert client.write(rows(9), batch=0, partition=7).json()["duplicate"] is True
        assert client.write(rows(1), writer="another").json()["written"] == 1
        assert ready_counts(broker) == {"q": 5 + 2 + 3 + 4 + 1}
    broker.kill()
    broker.start()
    with Client(broker.port("http")) as client:
        assert client.write(rows(4), batch=1).json()["duplicate"] is True
        assert client.write(rows(3), partition=1).json()["duplicate"] is True
        assert ready_counts(broker) == {"q": 15}


def test_other_rows_of_a_complete_partition_conflict(start: Start) -> None:
    broker = start(HTTP)
    with Client(broker.port("http")) as client:
        assert client.write(rows(3), part=0, final="false").json()["written"] == 3
        assert client.write(rows(3, start=3), part=1).json()["written"] == 3
    for _ in range(2):
        with Client(broker.port("http")) as client:
            reordered = [*rows(2, start=4), *rows(4)]
            assert client.write(reordered, part=0).json()["duplicate"] is True
            assert client.write(reordered[:5], part=0, final="false").json()["duplicate"] is True
            assert client.write(reordered[5:], part=1).json()["duplicate"] is True
            conflict = client.write(rows(6, start=1), part=0)
            assert (conflict.status, conflict.code) == (409, "batch-conflict")
            conflict = client.write(rows(6, "r"), part=0)
            assert (conflict.status, conflict.code) == (409, "batch-conflict")
            assert ready_counts(broker) == {"q": 6}
        broker.kill()
        broker.start()


def test_concurrent_requests_write_a_part_once(start: Start) -> None:
    broker = start(HTTP)
    responses: list[dict[str, Any]] = []

    def send() -> None:
        with Client(broker.port("http")) as client:
            responses.append(client.write(rows(2000)).json())

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(response["written"] for response in responses) == [0, 0, 0, 2000]
    assert ready_counts(broker) == {"q": 2000}


def test_kill_and_a_repetition_leave_every_row_once(tmp_path: Path) -> None:
    random = seeded_random()
    broker = LocalBroker(tmp_path, [HTTP], environment=SMALL_SEGMENTS)
    sent = 0
    broker.start()
    try:
        for batch in range(KILLS):
            parts = [rows(random.randint(1, 400), start=sent + 1000 * n) for n in range(3)]
            killer = threading.Timer(random.uniform(0, 0.06), broker.kill)
            killer.start()
            confirmed: list[bool] = []
            with suppress(OSError, HTTPException):
                write_parts(broker, batch, parts, confirmed)
            killer.join()
            broker.start()
            repetitions: list[bool] = []
            write_parts(broker, batch, parts, repetitions)
            assert all(repetitions[: len(confirmed)]), "a part that had been confirmed was lost"
            write_parts(broker, batch, parts, [])
            sent += sum(map(len, parts))
            assert ready_counts(broker) == {"q": sent}
        broker.stop()
    finally:
        broker.kill()


def write_parts(
    broker: LocalBroker, batch: int, parts: list[list[RowValues]], duplicates: list[bool]
) -> None:
    """Write all parts; append to `duplicates` whether each was written before."""
    with Client(broker.port("http")) as client:
        for number, part in enumerate(parts):
            final = "true" if number == len(parts) - 1 else "false"
            response = client.write(part, batch=batch, part=number, final=final)
            assert response.status == 200, response
            duplicates.append(response.json()["duplicate"])


def test_large_part_uses_bounded_memory(start: Start) -> None:
    broker = start(HTTP)
    large_part = [row(f"q{number % 7}", b"x" * 1000) for number in range(10_000)]
    with Client(broker.port("http")) as client:
        assert client.write(large_part).json()["written"] == 10_000
        before = broker.status()["resident_memory_bytes"]
        for _ in range(3):
            assert client.write(large_part, batch=0).json()["duplicate"] is True
        assert broker.status()["resident_memory_bytes"] < before + 40_000_000
        assert client.write([], batch=1).json()["written"] == 0
    assert sum(ready_counts(broker).values()) == 10_000


INVALID_ROWS: list[RowValues] = [
    row(""),
    row("x" * 1025),
    row("wild.*", topic=True),
    row("ok", b"\xff", body_kind=BodyKind.TEXT),
    row("ok", b'{"a":', body_kind=BodyKind.JSON),
    row("ok", b"x", body_kind=BodyKind.NONE),
    row("ok", properties={"a": [1]}),  # type: ignore[dict-item]
    (["no name"], *row("ok")[1:]),  # type: ignore[list-item]
    row("ok", b'"\xff"', body_kind=BodyKind.JSON),
    (["ok", "no such priority"], *row("ok")[1:]),  # type: ignore[list-item]
]
VALID_ROWS: list[RowValues] = [row("ok", b"1"), row("ok", b"2")]


def test_rejected_rows_fail_the_part(start: Start) -> None:
    broker = start(HTTP)
    with Client(broker.port("http")) as client:
        response = client.write([VALID_ROWS[0], *INVALID_ROWS, VALID_ROWS[1]])
        assert (response.status, response.code) == (409, "rejected")
        error = response.json()
        assert error["rejected_rows"] == len(INVALID_ROWS)
        assert list(reasons(error)) == list(range(1, 1 + len(INVALID_ROWS)))
        assert ready_counts(broker) == {}
        long_response = client.write(INVALID_ROWS * 20).json()
        assert (len(long_response["rejected"]), long_response["rejected_rows"]) == (
            100,
            20 * len(INVALID_ROWS),
        )
        assert client.write(VALID_ROWS).json()["written"] == 2  # the rejected part left no state


def test_rejected_rows_are_left_out(start: Start) -> None:
    broker = start(HTTP)
    with Client(broker.port("http")) as client:
        response = client.write(
            [VALID_ROWS[0], *INVALID_ROWS, VALID_ROWS[1]], bad_rows="drop"
        ).json()
        assert (response["written"], response["rejected_rows"]) == (2, len(INVALID_ROWS))
        assert ready_counts(broker) == {"ok": 2}
        repetition = client.write(
            [VALID_ROWS[0], *INVALID_ROWS, VALID_ROWS[1]], bad_rows="drop"
        ).json()
        assert repetition["duplicate"] is True


def test_rejected_rows_become_dead_letters(start: Start) -> None:
    broker = start(HTTP)
    with Client(broker.port("http")) as client:
        query = {"bad_rows": "dead-letter", "dead_letter_queue": "bad.rows"}
        response = client.write([VALID_ROWS[0], *INVALID_ROWS, VALID_ROWS[1]], **query).json()
        assert (response["written"], response["dead_lettered"]) == (2, len(INVALID_ROWS))
    assert ready_counts(broker) == {"ok": 2, "bad.rows": len(INVALID_ROWS)}
    dead_letters = journaled_messages(broker)[2:]
    assert [dead_letter.body for dead_letter in dead_letters] == [
        values[2] for values in INVALID_ROWS
    ]
    for dead_letter, reason in zip(dead_letters, reasons(response).values(), strict=True):
        assert dead_letter.properties is not None
        assert dead_letter.properties["deadLetterReason"] == reason
    assert dead_letters[3].properties is not None
    assert dead_letters[3].properties["originalQueue"] == "ok"


def test_dead_letter_of_a_row_that_its_sender_could_not_convert(start: Start) -> None:
    broker = start(HTTP)
    valid_row = row("news", b"\xff", topic=True, body_kind=BodyKind.JSON, properties={"p": 1})
    invalid_rows: Any = [
        (["news", "no such type"], *valid_row[1:]),
        ([b"\xff", "too large"], False, b""),
        ([5, "x"], False, b""),
    ]
    with Client(broker.port("http")) as client:
        response = client.write(invalid_rows).json()
        assert list(reasons(response).values())[:2] == ["no such type", "too large"]
        query = {"bad_rows": "dead-letter", "dead_letter_queue": "bad.rows"}
        assert client.write(invalid_rows, **query).json()["dead_lettered"] == 3
    first, second, third = journaled_messages(broker)
    properties = dict(first.properties or {})
    assert (first.body, first.kind, properties["p"]) == (b"\xff", BodyKind.BYTES, 1)
    assert (properties["originalQueue"], properties["originalKind"]) == ("news", "topic")
    assert properties["deadLetterReason"] == "no such type"
    assert origin_of(first) == (Address(Kind.TOPIC, "news"), "")
    assert origin_of(second) == (Address(Kind.QUEUE, "\udcff"), "")
    assert origin_of(third) is None


def test_rows_that_the_broker_rejects(start: Start, tmp_path: Path) -> None:
    """Unknown destinations and size limits reject rows; a full queue fails the part."""
    (tmp_path / "sluicemq.toml").write_text(
        "[broker]\nauto_create_queues = false\n"
        "[destinations.small]\nmax_message_bytes = 10\n"
        "[destinations.full]\nmax_messages = 2\n"
        "[destinations.dlq]\n"
    )
    broker = start(HTTP, options=("--config", str(tmp_path / "sluicemq.toml")))
    mixed = [row("small", b"x" * 10), row("small", b"x" * 11), row("unknown")]
    with Client(broker.port("http")) as client:
        response = client.write(mixed)
        assert (response.status, response.code) == (409, "rejected")
        assert list(reasons(response.json())) == [1, 2]
        query = {"bad_rows": "dead-letter", "dead_letter_queue": "dlq"}
        assert client.write(mixed, **query).json()["dead_lettered"] == 2
        assert ready_counts(broker) == {"small": 1, "dlq": 2}
        assert [message.body for message in journaled_messages(broker)] == [
            b"x" * 10,
            b"x" * 11,
            b"",
        ]
        second_response = client.write(
            mixed, batch=1, bad_rows="dead-letter", dead_letter_queue="unknown"
        )
        assert (second_response.status, second_response.code) == (409, "rejected")
        assert client.write([row("full")] * 2, batch=2).json()["written"] == 2
        for policy in ("fail", "drop", "dead-letter"):
            third_response = client.write([row("full"), row("small")], batch=3, bad_rows=policy)
            assert (third_response.status, third_response.code) == (503, "temporarily-unavailable")
            assert third_response.headers["retry-after"] == "1"
        assert ready_counts(broker) == {"small": 1, "dlq": 2, "full": 2}


INVALID_PARAMETERS: dict[str, tuple[object, ...]] = {
    "writer": ("", "w" * 256, "%00"),
    "batch": ("", -1, 1 << 63, "%D9%A1", "1" * 5000),
    "partition": ("", 1 << 20),
    "part": ("1.0", 1 << 32),
    "final": ("perhaps",),
    "bad_rows": ("ignore",),
    "dead_letter_queue": ("", "%C3%A9" * 1024),
    "colour": ("red",),
}


def test_names_of_rejected_rows_may_have_any_bytes(start: Start) -> None:
    broker = start(HTTP)
    with Client(broker.port("http")) as client:
        path = "/destinations/queue/%FF"
        assert (
            client.request("PUT", path, b'{"max_message_bytes": 2, "max_messages": 1}').status
            == 201
        )
        too_large = [row(b"\xff", b"123"), VALID_ROWS[0]]
        for handling in ("drop", "dead-letter"):
            response = client.write(too_large, writer=handling, bad_rows=handling)
            assert response.status == 200, response
            [reason] = reasons(response.json()).values()
            assert "\\udcff accepts bodies of up to 2 bytes" in reason
        assert client.write(too_large).code == "rejected"
        assert client.write([row(b"\xff")]).json()["written"] == 1
        assert client.write([row(b"\xff")], batch=1).code == "temporarily-unavailable"
        query = {"bad_rows": "dead-letter", "dead_letter_queue": "%FF"}
        assert client.write(INVALID_ROWS[1:2], batch=1, **query).code == "temporarily-unavailable"
    dead_letter = journaled_messages(broker)[2].properties
    assert dead_letter is not None
    assert dead_letter["deadLetterReason"] == reason


def test_long_reply_addresses_are_rejected() -> None:
    reader = PartReader(EVERYBODY, 0, 64)
    data = frame([row("q", reply_to="é" * 32), row("q", reply_to="é" * 33)])
    reader.read(memoryview(data)[4:])
    assert reader.refused == {1: "the reply address has more than 64 bytes"}
    assert reader.messages[1][1].reply_to is None


def test_too_many_properties_end_the_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "MAX_PROPERTIES", 10)
    reader = PartReader(EVERYBODY, 0, 64)
    data = frame([row("q", properties=dict.fromkeys("abcdef", 1))] * 5)
    with pytest.raises(FrameTooLarge):
        reader.read(memoryview(data)[4:])
    assert len(reader.messages) == 1


@pytest.mark.parametrize("name", ["digest", "decode"])
@in_event_loop
async def test_part_of_a_closed_connection_is_not_processed(
    api_fixture: ApiFixture, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    http_client = api_fixture.http_client(local=True)
    process = getattr(batches, name)
    processed: list[memoryview] = []

    def count(frame: memoryview) -> Any:
        processed.append(frame)
        http_client.caller.is_closed = len(processed) >= 2
        return process(frame)

    monkeypatch.setattr(batches, name, count)
    content = b"".join(encode(rows(3 * FRAME_ROWS)))
    path = "/batches?writer=w&batch=0&partition=0&part=0&final=true"
    response = await http_client.request("POST", path, content)
    assert response.code == "client-disconnected", response
    assert len(processed) == 2
    assert not list(api_fixture.broker.destinations)


def test_invalid_parameters_are_rejected(start: Start) -> None:
    broker = start(HTTP)
    with Client(broker.port("http")) as client:
        for name, values in INVALID_PARAMETERS.items():
            for value in values:
                response = client.write(VALID_ROWS, **{name: value})
                assert (response.status, response.code) == (400, "bad-parameter"), (name, value)
                assert name in response.json()["detail"]
    assert ready_counts(broker) == {}


def test_invalid_bodies_are_rejected(start: Start) -> None:
    broker = start(HTTP + "?max_frame_bytes=1MiB")
    path = "/batches?writer=w&batch=0&partition=0&part=0"
    valid_body = b"".join(encode(VALID_ROWS))
    with Client(broker.port("http")) as client:
        for body, status, code in (
            (b"\0", 400, "bad-request"),
            (b"\xff\xff\xff\xff", 400, "bad-request"),
            (valid_body[:-1], 400, "bad-request"),
            (valid_body + b"\1\0\0\0\xc1", 400, "bad-request"),
            (valid_body + frame([]), 400, "bad-request"),
            (frame([["only a name", 5]]), 400, "bad-request"),
            (frame([row("q", priority=10)]), 400, "bad-request"),
            (frame([row("q", ttl=-1)]), 400, "bad-request"),
            (frame([row("q", deliver_at=1 << 62)]), 400, "bad-request"),
            (frame([row("q")] * (FRAME_ROWS + 1)), 413, "too-large"),
            (b"\5\0\0\0\xdd\xff\xff\xff\xff", 413, "too-many-rows"),
            (frame([["q"]] * FRAME_ROWS) * 40, 413, "too-many-rows"),
            (bytes((17 << 20) + 1), 413, "too-large"),
        ):
            response = client.request("POST", path, body)
            assert (response.status, response.code) == (status, code), body[:20]
        assert "several parts" in response.json()["detail"]
        chunked = client.request("POST", path, None, **{"Transfer-Encoding": "chunked"})
        assert (chunked.status, chunked.code) == (411, "length-required")
    assert ready_counts(broker) == {}
    assert "Traceback" not in broker.log.read_text()


def test_stop_between_parts_is_reported(start: Start) -> None:
    """Confirmed parts exist after the stop, and a repetition writes the remaining parts."""
    broker = start(PHPMQ, HTTP)
    random = Random(1)
    parts_written = 0
    with Client(broker.port("http")) as client, suppress(OSError, HTTPException):
        stopper = threading.Timer(random.uniform(0.05, 0.1), broker.stop)
        stopper.start()
        while True:
            response = client.write(rows(50), batch=parts_written)
            if response.status != 200:
                assert (response.status, response.code) == (503, "stopping")
                break
            parts_written += 1
    stopper.join()
    broker.start()
    with Client(broker.port("http")) as client:
        last_response = client.write(rows(50), batch=parts_written)
        assert last_response.status == 200
        assert json.dumps(ready_counts(broker)) == json.dumps({"q": 50 * (parts_written + 1)})


def test_part_with_too_many_destinations_is_rejected(start: Start, tmp_path: Path) -> None:
    (tmp_path / "sluicemq.toml").write_text(
        "[http]\nmax_batch_destinations = 3\n[broker]\nmax_destinations_per_user = 5\n"
    )
    broker = start(HTTP, options=("--config", str(tmp_path / "sluicemq.toml")))
    with Client(broker.port("http")) as client:
        refusal = client.write([row(f"a{number}", b"") for number in range(4)])
        assert (refusal.status, refusal.code) == (413, "too-large")
        assert "max_batch_destinations" in refusal.json()["detail"]
        assert ready_counts(broker) == {}
        for batch in range(2):
            batch_rows = [row(f"{batch}{number}", b"") for number in range(3)]
            response = client.write(batch_rows, batch=batch)
        assert (response.status, response.code) == (409, "rejected")
        assert "max_destinations_per_user" in response.json()["detail"]
        assert ready_counts(broker)["00"] == 1
        assert client.write(rows(1, "00"), batch=2).status == 200
        invalid_rows: Any = [([f"b{number}", "too large"], False, b"") for number in range(4)]
        known_rows = [row(f"0{number}", b"") for number in range(3)]
        response = client.write(known_rows + invalid_rows, batch=3, bad_rows="drop").json()
        assert (response["written"], response["rejected_rows"]) == (3, 4)
