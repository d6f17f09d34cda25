"""kill -9 while the API moves or deletes many messages: no message is lost or duplicated."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from sluicemq.cli.local import LocalBroker
from sluicemq.model.rows import encode, row

COUNT = 5000
KILLS = 3
MAX_KILLS = 30
"""Maximum kills until one has occurred during a request."""
DESTINATIONS = "/api/v1/destinations/queue"


def request(port: int, method: str, path: str, body: Any = None) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    try:
        connection.request(method, path, data)
        response = connection.getresponse()
        content = response.read()
    finally:
        connection.close()
    assert response.status < 400, content
    return json.loads(content) if content else None


def bodies(port: int, name: str) -> list[str]:
    texts: list[str] = []
    cursor = ""
    while True:
        query = f"?limit=500&body=true&cursor={cursor}"
        page = request(port, "GET", f"{DESTINATIONS}/{name}/messages{query}")
        texts += [item["body"]["value"] for item in page["items"]]
        if page["next_cursor"] is None:
            return texts
        cursor = page["next_cursor"]


def fill(port: int) -> None:
    rows = [row("source", str(number).encode()) for number in range(COUNT)]
    query = f"writer=w{time.monotonic_ns()}&batch=0&partition=0&part=0&final=true"
    request(port, "POST", f"/api/v1/batches?{query}", b"".join(encode(rows)))
    for name in ("source", "target"):  # explicitly created queues are kept when empty
        request(port, "PUT", f"{DESTINATIONS}/{name}", {})


def ready_count(port: int, name: str) -> int:
    return int(request(port, "GET", f"{DESTINATIONS}/{name}")["ready"])


def kill_during_action(broker: LocalBroker, remaining: int, body: Any) -> Any:
    """Request an action on the source; kill the broker when at most `remaining` messages are left.

    Return the response, or None if the broker was killed before.
    """
    port = broker.port("http")
    responses: list[Any] = []

    def send_action() -> None:
        with suppress(OSError, http.client.HTTPException):
            responses.append(request(port, "POST", f"{DESTINATIONS}/source/messages/actions", body))

    thread = threading.Thread(target=send_action)
    thread.start()
    while thread.is_alive() and ready_count(port, "source") > remaining:
        pass
    broker.kill()
    thread.join()
    broker.start()
    return responses[0] if responses else None


def test_kill_during_move_keeps_each_message_once(tmp_path: Path) -> None:
    rng = random.Random(5)
    expected = {str(number) for number in range(COUNT)}
    body = {"action": "move", "all": True, "target": {"kind": "queue", "name": "target"}}
    with LocalBroker(tmp_path / "data", ("http://127.0.0.1:0",)) as broker:
        split = 0
        for iteration in range(MAX_KILLS):
            if iteration >= KILLS and split:
                break
            fill(broker.port("http"))
            response = kill_during_action(broker, rng.randrange(COUNT), body)
            port = broker.port("http")
            source, target = bodies(port, "source"), bodies(port, "target")
            assert len(source) + len(target) == COUNT
            assert {*source, *target} == expected
            assert sorted(source, key=int) == source, (
                "the order of the remaining messages has changed"
            )
            if response is not None:
                assert len(target) >= response["processed"], "a confirmed move is lost"
            split += bool(source) and bool(target)
            request(port, "POST", f"{DESTINATIONS}/source/messages/actions", body)
            assert sorted(bodies(port, "target"), key=int) == sorted(expected, key=int)
            request(port, "POST", f"{DESTINATIONS}/target/purge")
    assert split, "no kill occurred during a move"


def test_kill_during_delete_keeps_the_other_messages(tmp_path: Path) -> None:
    rng = random.Random(6)
    with LocalBroker(tmp_path / "data", ("http://127.0.0.1:0",)) as broker:
        fill(broker.port("http"))
        remaining = COUNT
        for _ in range(KILLS - 1):
            body = {"action": "delete", "all": True, "limit": COUNT // 3}
            response = kill_during_action(broker, remaining - rng.randrange(COUNT // 3), body)
            bodies_after = bodies(broker.port("http"), "source")
            assert bodies_after == [
                str(number) for number in range(COUNT - len(bodies_after), COUNT)
            ]
            assert remaining - COUNT // 3 <= len(bodies_after) <= remaining
            if response is not None:
                assert len(bodies_after) == remaining - response["processed"]
            remaining = len(bodies_after)
