"""The list of batch writers."""

from __future__ import annotations

from sluicemq.cli.local import LocalBroker
from sluicemq.model.rows import row
from tests.server.conftest import Start
from tests.support.http import HTTP, Client


def test_writers_are_sorted_by_their_latest_batch(start: Start) -> None:
    broker: LocalBroker = start(HTTP)
    with Client(broker.port("http")) as client:
        assert client.get("/batches").json() == {
            "items": [],
            "total": 0,
            "next_cursor": None,
        }
        rows = [row("orders", b"x")] * 3
        client.write(rows, writer="one", batch=4)
        client.write(rows, writer="two", batch=1, final="false")
        client.write(rows, writer="two", batch=1, part=1)
        client.write(rows, writer="two", batch=1, partition=1, final="false")
        response = client.get("/batches").json()
    assert response["total"] == 2
    newer, older = response["items"]
    assert newer.pop("last_seen") >= older.pop("last_seen") > 0
    common = {"owner": "", "partitions_done": 1}
    assert newer == {**common, "writer": "two", "batch": 1, "parts_open": 1, "rows": 9}
    assert older == {**common, "writer": "one", "batch": 4, "parts_open": 0, "rows": 3}


def test_writers_are_listed_in_pages(start: Start) -> None:
    with Client(start(HTTP).port("http")) as client:
        for number in range(5):
            assert client.write([row("q", b"")], writer=f"w{number}").status == 200
        response = client.get("/batches?offset=2&limit=2").json()
        assert [item["writer"] for item in response["items"]] == ["w2", "w1"]
        assert response["total"] == 5
        response = client.get("/batches?order=asc&limit=2").json()
        assert [item["writer"] for item in response["items"]] == ["w0", "w1"]
        assert client.get("/batches?sort=name").status == 400
