from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluicemq.cli.status import age, size
from tests.cli.conftest import Run

DOCUMENT = {
    "version": "1.2.3",
    "uptime": 90.0,
    "memory": 3 * 1024**2,
    "listeners": [{"url": "phpmq://127.0.0.1:9100", "connections": 4}],
    "destinations": [
        {"name": "orders", "kind": "queue", "waiting": 7, "bytes": 2048, "oldest_ms": 1500},
        {"name": "mail\x1b[2J", "kind": "queue", "waiting": 90, "rate_in": 2.5},
        {"name": "news", "kind": "topic", "something_new": True},
    ],
}


class FakeBroker:
    """Answers every connection to a Unix socket with the same bytes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.answer = json.dumps(DOCUMENT).encode()
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(path))
        self._listening.listen()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._listening.accept()
            with connection:
                if not self.answer:
                    return
                connection.sendall(self.answer)

    def stop(self) -> None:
        self.answer = b""
        with socket.socket(socket.AF_UNIX) as last:
            last.connect(str(self.path))
        self._thread.join()
        self._listening.close()


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeBroker]:
    broker = FakeBroker(tmp_path / "status.sock")
    yield broker
    broker.stop()


def test_queues(run: Run, fake: FakeBroker) -> None:
    result = run("queues", "--data-dir", str(fake.path.parent))
    assert result.code == 0
    head, *rows = [line.split() for line in result.out.splitlines()]
    assert head[:2] == ["name", "waiting"]
    assert rows == [
        ["mail\\x1b[2J", "90", "0", "0", "B", "0", "2.5", "0.0", "0.0", "s"],
        ["topic:news", "0", "0", "0", "B", "0", "0.0", "0.0", "-"],
        ["orders", "7", "0", "2.0", "KiB", "0", "0.0", "0.0", "1.5", "s"],
    ]


def test_queues_by_pattern_and_order(run: Run, fake: FakeBroker) -> None:
    where = ["--status-socket", str(fake.path)]
    rows = run("queues", *where, "--sort", "waiting").out.splitlines()[1:]
    assert [row.split()[1] for row in rows] == ["90", "7", "0"]
    assert run("queues", "or*", *where).out.splitlines()[1].startswith("orders")
    nothing = run("queues", "none*", *where)
    assert (nothing.code, nothing.out) == (1, "")
    assert "none*" in nothing.err


def test_queues_as_json_pass_everything_on(run: Run, fake: FakeBroker) -> None:
    result = run("queues", "news", "--status-socket", str(fake.path), "--json")
    assert json.loads(result.out) == [DOCUMENT["destinations"][2]]


def test_top_prints_each_look(run: Run, fake: FakeBroker) -> None:
    result = run("top", "--status-socket", str(fake.path), "--count", "2", "--interval", "0.1")
    assert result.code == 0
    assert result.out.count("sluicemq 1.2.3  up 1.5 min  3.0 MiB memory  4 connections") == 2


def test_an_unknown_column_is_a_usage_error(run: Run) -> None:
    result = run("queues", "--sort", "watiing")
    assert result.code == 2
    assert "did you mean waiting?" in result.err


def test_no_broker(run: Run, tmp_path: Path) -> None:
    result = run("queues", "--data-dir", str(tmp_path))
    assert result.code == 1
    assert f"no broker answers at {tmp_path}/status.sock: No such file" in result.err
    assert "sluicemq serve" in result.err


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400", b"[]", b'{"destinations": 3}', b"\xff"])
def test_something_else_answers(run: Run, fake: FakeBroker, answer: bytes) -> None:
    fake.answer = answer
    result = run("queues", "--status-socket", str(fake.path))
    assert result.code == 1
    assert str(fake.path) in result.err


def test_amounts_for_people() -> None:
    assert [size(n) for n in (0, 1023, 1024, 5 * 1024**3, 3 * 1024**4)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "5.0 GiB",
        "3.0 TiB",
    ]
    assert [age(ms) for ms in (0, 59_000, 60_000, 5_400_000, 172_800_000)] == [
        "0.0 s",
        "59.0 s",
        "1.0 min",
        "1.5 h",
        "2.0 d",
    ]
