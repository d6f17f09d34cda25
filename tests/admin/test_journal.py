"""Segments over HTTP equal those on disk, up to the durable end."""

from __future__ import annotations

import base64
import socket
import threading
import time
from pathlib import Path

from sluicemq.cli.local import LocalBroker
from sluicemq.clients.blocking import BlockingClient
from sluicemq.clients.phpmq import PhpmqClient
from sluicemq.journal.format import FORMAT_VERSION
from sluicemq.journal.segment import list_segments, segment_path
from sluicemq.model.rows import row
from tests.server.conftest import Start
from tests.support.http import HTTP, PHPMQ, Client
from tests.support.polling import wait_until

STEP = 20
SMALL = {"SLUICEMQ_JOURNAL__SEGMENT_BYTES": "64KiB"}


def directory(broker: LocalBroker) -> Path:
    return broker.directory / "journal"


def fill(broker: LocalBroker, count: int, size: int = 1000, queue: str = "q") -> None:
    """Publish messages in groups, so that segments can end between them; all are on disk then."""
    writer = f"{queue}.{time.monotonic_ns()}"
    with Client(broker.port("http")) as client:
        for batch, start in enumerate(range(0, count, STEP)):
            numbers = range(start, min(start + STEP, count))
            rows = [row(queue, b"%d" % number * (size // len(str(number)))) for number in numbers]
            assert client.write(rows, writer=writer, batch=batch).status == 200


def test_list_matches_the_segments_on_disk(start: Start) -> None:
    broker = start(PHPMQ, HTTP, environment=SMALL)
    fill(broker, 300)
    with Client(broker.port("http")) as client:
        wait_until(
            lambda: client.journal()["segments"][-2]["sealed"], "the last but one is not sealed"
        )
        description = client.journal()
        status = client.get("/status").json()
        assert description["broker_id"] == status["broker_id"]
        assert (
            bytes.fromhex((directory(broker) / "identity").read_text())[:8].hex()
            == (description["broker_id"])
        )
        assert description["format_version"] == FORMAT_VERSION
        firsts = [segment["first_sequence"] for segment in description["segments"]]
        assert firsts == list_segments(directory(broker))
        assert description["earliest_sequence"] == firsts[0]
        assert len(firsts) > 3
        for segment in description["segments"]:
            on_disk = segment_path(directory(broker), segment["first_sequence"]).read_bytes()
            assert segment["created"] == int.from_bytes(on_disk[32:40], "little")
            response = client.segment(segment["first_sequence"])
            assert response.status == 200
            assert response.headers["accept-ranges"] == "bytes"
            assert response.body == on_disk[: segment["size"]]
            assert segment["sealed"] == (len(on_disk) == segment["size"])
            if segment["first_sequence"] == description["durable"]["segment"]:
                assert segment["size"] == description["durable"]["offset"]
        assert not description["segments"][-1]["sealed"]


def test_byte_ranges_of_a_segment_are_returned(start: Start) -> None:
    broker = start(PHPMQ, HTTP)
    fill(broker, 20)
    with Client(broker.port("http")) as client:
        [segment] = client.journal()["segments"]
        first, size = segment["first_sequence"], segment["size"]
        content = client.segment(first).body
        for byte_range, start_at, end in (
            ("0-7", 0, 8),
            ("8-8", 8, 9),
            ("100-", 100, size),
            ("-64", size - 64, size),
            (f"{size - 1}-{size + 1000}", size - 1, size),
            (f"-{size + 5}", 0, size),
        ):
            response = client.segment(first, byte_range)
            assert response.status == 206, byte_range
            assert response.body == content[start_at:end]
            assert response.headers["content-range"] == f"bytes {start_at}-{end - 1}/{size}"
        for byte_range in (f"{size}-", f"{size + 9}-{size + 10}", "-0"):
            response = client.segment(first, byte_range)
            assert (response.status, response.code) == (416, "range-not-satisfiable")
            assert response.headers["content-range"] == f"bytes */{size}"
            assert response.json()["size"] == size
        for byte_range in ("9-3", "a-b", "-", "", "1-2,4-5", "1" * 30 + "-"):
            response = client.get(f"/journal/segments/{first}", Range=f"bytes={byte_range}")
            assert (response.status, response.code) == (400, "bad-range"), byte_range
        head = client.request("HEAD", f"/journal/segments/{first}", Range="bytes=8-")
        assert (head.status, head.body) == (206, b"")
        assert head.headers["content-length"] == str(size - 8)


def test_unknown_segments_are_not_found(start: Start) -> None:
    broker = start(PHPMQ, HTTP)
    with Client(broker.port("http")) as client:
        first = client.journal()["segments"][-1]["first_sequence"]
        for name, status, code in (
            (str(first + 1000), 404, "not-found"),
            ("0", 404, "segment-not-found"),
            ("x", 400, "bad-number"),
            ("-1", 400, "bad-number"),
            ("1" * 40, 400, "bad-number"),
            ("%D9%A1", 400, "bad-number"),
            ("1/2", 404, "not-found"),
            ("..%2Fdurable", 400, "bad-number"),
        ):
            response = client.get(f"/journal/segments/{name}")
            assert (response.status, response.code) == (status, code), name


def test_ephemeral_broker_has_no_journal(start: Start) -> None:
    broker = start(HTTP, options=("--ephemeral",))
    with Client(broker.port("http")) as client:
        for path in ("/journal", "/journal/segments/1", "/journal/slots", "/journal/slots/a"):
            response = client.get(path)
            assert (response.status, response.code) == (409, "no-journal")


def test_follower_gets_every_byte_once_while_the_journal_grows(start: Start) -> None:
    """Rotated and sealed segments are followed with the information in the pages only."""
    broker = start(PHPMQ, HTTP, environment=SMALL)
    writer = threading.Thread(target=fill, args=(broker, 1000))
    writer.start()
    collected: dict[int, bytes] = {}
    with Client(broker.port("http")) as client:
        done = False
        while not done:
            done = not writer.is_alive()  # one more read gets the rest
            for segment in client.journal()["segments"]:
                first = segment["first_sequence"]
                copied = collected.get(first, b"")
                if len(copied) < segment["size"]:
                    response = client.segment(first, f"{len(copied)}-")
                    assert response.status == 206
                    collected[first] = copied + response.body
    writer.join()
    assert len(collected) > 10
    for first, data in collected.items():
        on_disk = segment_path(directory(broker), first).read_bytes()
        assert on_disk.startswith(data), first
    journal = b"".join(collected.values())
    for number in (0, 1, 499, 999):
        assert journal.count(b"%d" % number * (1000 // len(str(number)))) >= 1


def test_slow_readers_use_little_memory(start: Start) -> None:
    broker = start(PHPMQ, HTTP)
    fill(broker, 60, 1_000_000)
    with Client(broker.port("http")) as client:
        [segment] = client.journal()["segments"]
        assert segment["size"] > 40_000_000
        # so that memory allocated once is counted
        client.segment(segment["first_sequence"], "0-9999999")
        before = broker.status()["resident_memory_bytes"]
        request = b"GET /api/v1/journal/segments/%d HTTP/1.1\r\nHost: localhost\r\n\r\n"
        readers = []
        try:
            for _ in range(8):
                reader = socket.create_connection(("127.0.0.1", broker.port("http")), 30)
                reader.sendall(request % segment["first_sequence"])
                readers.append(reader)
            for reader in readers:
                assert reader.recv(12) == b"HTTP/1.1 200"
            # other clients are served repeatedly
            for _ in range(20):
                assert client.get("/status").status == 200
                assert broker.status()["resident_memory_bytes"] < before + 32_000_000  # of 480
        finally:
            for reader in readers:
                reader.close()


def test_removed_segment_is_not_found(start: Start) -> None:
    broker = start(PHPMQ, HTTP, environment=SMALL)
    fill(broker, 300)
    with Client(broker.port("http")) as client:
        oldest = client.journal()["segments"][0]["first_sequence"]
        with BlockingClient(PhpmqClient.connect, port=broker.port("phpmq")) as consumer:
            consumer.subscribe("q", 1000)
            for _ in range(300):
                consumer.receive(10).ack()
        fill(broker, 200, queue="more")  # segments are removed when others have been sealed
        wait_until(
            lambda: client.segment(oldest).status == 404, "the segment stays, though not needed"
        )
        assert client.segment(oldest).code == "segment-not-found"
        description = client.journal()
        assert description["earliest_sequence"] > oldest
        assert description["earliest_sequence"] == description["segments"][0]["first_sequence"]


def test_destinations_are_found_by_number(start: Start) -> None:
    """The names equal those in the index of a segment, where a reader finds them otherwise."""
    broker = start(PHPMQ, HTTP)
    fill(broker, 1, queue="orders")
    fill(broker, 1, queue="invoices.eu")
    with Client(broker.port("http")) as client:
        response = client.get("/journal/destinations?ids=" + ",".join(map(str, range(1, 60))))
        by_name = {
            base64.b64decode(name): (number, kind)
            for number, kind, name in response.json()["destinations"]
        }
        assert set(by_name) == {b"orders", b"invoices.eu"}
        number, kind = by_name[b"orders"]
        assert kind == 1
        filtered_response = client.get(f"/journal/destinations?ids={number},4000000000")
        assert [entry[0] for entry in filtered_response.json()["destinations"]] == [number]
        assert client.get("/journal/destinations").code == "bad-number"
        assert client.get("/journal/destinations?ids=1,x").code == "bad-number"
        too_many_ids = ",".join(["1"] * 501)
        assert client.get(f"/journal/destinations?ids={too_many_ids}").code == "too-many-ids"
