"""Slots over HTTP: creation, advance and deletion by several clients, and retained segments."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from sluicemq.admin.errors import ApiError
from sluicemq.admin.journal import _create_or_advance
from sluicemq.clients.blocking import BlockingClient
from sluicemq.clients.phpmq import PhpmqClient
from sluicemq.journal import Slot, Slots
from sluicemq.management.journal import SlotRequest
from tests.admin.test_journal import SMALL, directory, fill
from tests.server.conftest import Start
from tests.support.http import HTTP, PHPMQ, Client
from tests.support.polling import wait_until


def put_slot(
    client: Client, name: str, position: int, **more: int
) -> tuple[int, dict[str, object]]:
    body = json.dumps({"position": position, **more}).encode()
    response = client.request("PUT", f"/journal/slots/{name}", body)
    return response.status, response.json()


def test_clients_see_the_slots_of_others(start: Start) -> None:
    port = start(PHPMQ, HTTP).port("http")
    with Client(port) as first, Client(port) as second:
        status, slot = put_slot(first, "spark.1", 5, limit_bytes=1000)
        assert status == 200
        assert (slot["name"], slot["position"], slot["limit_bytes"]) == ("spark.1", 5, 1000)
        assert slot["lost"] is False
        assert second.get("/journal/slots").json()["items"] == [slot]
        assert put_slot(second, "spark.1", 7)[1]["position"] == 7
        assert put_slot(second, "spark.1", 7)[0] == 200
        assert first.get("/journal/slots/spark.1").json()["position"] == 7
        status, problem = put_slot(first, "spark.1", 6)
        assert (status, problem["code"]) == (409, "slot-ahead")  # type: ignore[index]
        assert put_slot(first, "b", 0)[0] == 200
        names = [slot["name"] for slot in second.get("/journal/slots").json()["items"]]
        assert names == ["b", "spark.1"]
        page = second.get("/journal/slots?limit=1&offset=1").json()
        assert (page["items"], page["total"], page["next_cursor"]) == (
            [first.get("/journal/slots/spark.1").json()],
            2,
            None,
        )
        assert second.get("/journal/slots?limit=1").json()["next_cursor"] == "1"
        assert first.request("DELETE", "/journal/slots/b").status == 204
        for method in ("GET", "DELETE"):
            response = second.request(method, "/journal/slots/b")
            assert (response.status, response.code) == (404, "slot-not-found")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda slots: slots.advance("s", 9), "slot-ahead"),
        (lambda slots: slots.mark_lost("s", slots.get("s")), "slot-lost"),
    ],
)
def test_slot_that_changes_during_a_request_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Slots], object], code: str
) -> None:
    slots = Slots(tmp_path)
    slots.create("s", 1)
    get = slots.get

    def change_after_read(name: str) -> Slot:
        slot = get(name)
        monkeypatch.setattr(slots, "get", get)
        change(slots)
        return slot

    monkeypatch.setattr(slots, "get", change_after_read)
    with pytest.raises(ApiError) as raised:
        _create_or_advance(slots, "s", SlotRequest(position=5))
    assert (raised.value.status, raised.value.code) == (409, code)


def test_damaged_slot_is_reported_and_affects_no_other(start: Start) -> None:
    broker = start(HTTP)
    with Client(broker.port("http")) as client:
        assert put_slot(client, "a", 1)[0] == put_slot(client, "b", 2)[0] == 200
        (directory(broker) / "slots" / "a.json").write_text("{")
        for method, path in (("GET", ""), ("GET", "/a"), ("PUT", "/a")):
            response = client.request(method, f"/journal/slots{path}", b'{"position": 3}')
            assert (response.status, response.code) == (500, "slot-damaged")
            assert "a.json is not a slot file" in response.json()["detail"]
        assert put_slot(client, "b", 3)[0] == put_slot(client, "c", 1)[0] == 200
        with urllib.request.urlopen(f"http://127.0.0.1:{broker.port('http')}/metrics") as metrics:
            exposition = metrics.read().decode()
        assert 'slot="b"' in exposition
        assert 'slot="a"' not in exposition
        assert client.request("DELETE", "/journal/slots/a").status == 204
        assert client.get("/journal/slots").json()["total"] == 2


def test_slot_has_one_holder_at_a_time(start: Start) -> None:
    with Client(start(HTTP).port("http")) as client:

        def claim(holder: str, lease_ms: int) -> tuple[int, dict[str, object]]:
            body = {"position": 9, "holder": holder, "lease_ms": lease_ms}
            response = client.request("PUT", "/journal/slots/w", json.dumps(body).encode())
            return response.status, response.json()

        status, slot = claim("first", 60_000)
        assert (status, slot["holder"], slot["position"]) == (200, "first", 9)
        status, problem = claim("second", 60_000)
        assert (status, problem["code"]) == (409, "slot-held")  # type: ignore[index]
        assert "the slot w is held by first until 20" in str(problem)
        assert claim("first", 0)[0] == 200
        assert claim("second", 60_000)[1]["holder"] == "second"


INVALID_SLOTS = (
    ("UPPER", b'{"position": 1}', "bad-name"),
    ("a%20b", b'{"position": 1}', "bad-name"),
    ("%2E%2E", b'{"position": 1}', "bad-name"),
    ("a" * 64, b'{"position": 1}', "bad-name"),
    ("a", b"", "bad-body"),
    ("a", b"[]", "bad-body"),
    ("a", b"{", "bad-body"),
    ("a", b'{"position": -1}', "bad-body"),
    ("a", b'{"position": 1.5}', "bad-body"),
    ("a", b'{"position": 9223372036854775808}', "bad-body"),
    ("a", b'{"position": 1, "limit_bytes": 0}', "bad-body"),
    ("a", b'{"position": 1, "more": 0}', "bad-body"),
    ("a", b'{"position": 1, "holder": "h", "lease_ms": -1}', "bad-body"),
    ("a", b"[" * 60_000, "bad-body"),
)


def test_invalid_slots_are_rejected(start: Start) -> None:
    with Client(start(HTTP).port("http")) as client:
        for name, body, code in INVALID_SLOTS:
            response = client.request("PUT", f"/journal/slots/{name}", body)
            assert (response.status, response.code) == (400, code), (name, body[:20])
        assert client.get("/journal/slots").json()["items"] == []


def test_concurrent_advances_never_move_a_slot_back(start: Start) -> None:
    port = start(HTTP).port("http")
    with Client(port) as client:
        put_slot(client, "s", 0)

        def advance(step: int) -> None:
            with Client(port) as client:
                for position in range(step, 60, 3):
                    put_slot(client, "s", position)

        threads = [threading.Thread(target=advance, args=(step,)) for step in range(3)]
        for thread in threads:
            thread.start()
        positions = [0]
        while any(thread.is_alive() for thread in threads):
            positions.append(client.get("/journal/slots/s").json()["position"])
        for thread in threads:
            thread.join()
        assert positions == sorted(positions)
        assert client.get("/journal/slots/s").json()["position"] == 59


def test_slot_retains_segments_until_it_is_dropped_or_lost(start: Start) -> None:
    broker = start(PHPMQ, HTTP, environment=SMALL)
    with Client(broker.port("http")) as client:
        fill(broker, 200)
        oldest = client.journal()["earliest_sequence"]
        put_slot(client, "keeps", 0)
        with BlockingClient(PhpmqClient.connect, port=broker.port("phpmq")) as consumer:
            consumer.subscribe("q", 1000)
            for _ in range(200):
                consumer.receive(10).ack()
        fill(broker, 200, queue="more")
        assert client.journal()["earliest_sequence"] == oldest
        assert client.request("DELETE", "/journal/slots/keeps").status == 204
        put_slot(client, "small", 0, limit_bytes=1)
        fill(broker, 200, queue="more")
        wait_until(
            lambda: client.journal()["earliest_sequence"] > oldest,
            "the segments stay without the slot",
        )
        assert len(list(directory(broker).glob("slots/*.json"))) == 1
