"""kill -9 while the API moves, sends back and deletes many messages: each is in one place, once."""

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
"""Until one has come in the middle of a request."""
DESTINATIONS = "/api/v1/destinations/queue"


def ask(port: int, method: str, path: str, body: Any = None) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    try:
        connection.request(method, path, data)
        answer = connection.getresponse()
        content = answer.read()
    finally:
        connection.close()
    assert answer.status < 400, content
    return json.loads(content) if content else None


def bodies(port: int, name: str) -> list[str]:
    texts: list[str] = []
    cursor = ""
    while True:
        query = f"?limit=500&body=true&cursor={cursor}"
        page = ask(port, "GET", f"{DESTINATIONS}/{name}/messages{query}")
        texts += [item["body"]["value"] for item in page["items"]]
        if page["next_cursor"] is None:
            return texts
        cursor = page["next_cursor"]


def fill(port: int) -> None:
    rows = [row("source", str(number).encode()) for number in range(COUNT)]
    query = f"writer=w{time.monotonic_ns()}&batch=0&partition=0&part=0&final=true"
    ask(port, "POST", f"/api/v1/batches?{query}", b"".join(encode(rows)))
    for name in ("source", "target"):  # created on purpose, so they stay when they are empty
        ask(port, "PUT", f"{DESTINATIONS}/{name}", {})


def waiting(port: int, name: str) -> int:
    return int(ask(port, "GET", f"{DESTINATIONS}/{name}")["ready"])


def killed_when(broker: LocalBroker, left: int, body: Any) -> Any:
    """Act on the source, and kill the broker when so few messages or fewer are left there. The
    answer, or None if the kill came first."""
    port = broker.port("http")
    answers: list[Any] = []

    def acting() -> None:
        with suppress(OSError, http.client.HTTPException):
            answers.append(ask(port, "POST", f"{DESTINATIONS}/source/messages/actions", body))

    thread = threading.Thread(target=acting)
    thread.start()
    while thread.is_alive() and waiting(port, "source") > left:
        pass
    broker.kill()
    thread.join()
    broker.start()
    return answers[0] if answers else None


def test_messages_that_are_moved_while_the_broker_is_killed(tmp_path: Path) -> None:
    dice = random.Random(5)
    expected = {str(number) for number in range(COUNT)}
    body = {"action": "move", "all": True, "target": {"kind": "queue", "name": "target"}}
    with LocalBroker(tmp_path / "data", ("http://127.0.0.1:0",)) as broker:
        split = 0
        for turn in range(MAX_KILLS):
            if turn >= KILLS and split:
                break
            fill(broker.port("http"))
            answer = killed_when(broker, dice.randrange(COUNT), body)
            port = broker.port("http")
            source, target = bodies(port, "source"), bodies(port, "target")
            assert len(source) + len(target) == COUNT
            assert {*source, *target} == expected
            assert sorted(source, key=int) == source, "what stays keeps its order"
            if answer is not None:
                assert len(target) >= answer["processed"], "what was answered has happened"
            split += bool(source) and bool(target)
            ask(port, "POST", f"{DESTINATIONS}/source/messages/actions", body)
            assert sorted(bodies(port, "target"), key=int) == sorted(expected, key=int)
            ask(port, "POST", f"{DESTINATIONS}/target/purge")
    assert split, "no kill came in the middle: nothing has been tested"


def test_messages_that_are_deleted_while_the_broker_is_killed(tmp_path: Path) -> None:
    dice = random.Random(6)
    with LocalBroker(tmp_path / "data", ("http://127.0.0.1:0",)) as broker:
        fill(broker.port("http"))
        remaining = COUNT
        for _ in range(KILLS - 1):
            request = {"action": "delete", "all": True, "limit": COUNT // 3}
            answer = killed_when(broker, remaining - dice.randrange(COUNT // 3), request)
            bodies_left = bodies(broker.port("http"), "source")
            assert bodies_left == [str(number) for number in range(COUNT - len(bodies_left), COUNT)]
            assert remaining - COUNT // 3 <= len(bodies_left) <= remaining
            if answer is not None:
                assert len(bodies_left) == remaining - answer["processed"]
            remaining = len(bodies_left)
