from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sluicemq.server.identity import checks
from sluicemq.server.identity.checks import Attempt, Checks


class Loop:
    """What threads want to be called, one after the other."""

    def __init__(self) -> None:
        self._calls: queue.Queue[tuple[Callable[..., Any], tuple[Any, ...]]] = queue.Queue()

    def call_soon(self, callback: Callable[..., Any], *arguments: Any) -> None:
        self._calls.put((callback, arguments))

    def run_one(self) -> None:
        callback, arguments = self._calls.get(timeout=20)
        callback(*arguments)

    @property
    def idle(self) -> bool:
        return self._calls.empty()


class Bench:
    """Checks whose every comparison waits until the test lets it go."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.allowed = threading.Semaphore(0)
        self.compared: list[str] = []
        self.outcomes: list[tuple[str, bool | None]] = []
        self.unwanted: set[str] = set()
        self.checks = Checks(self.loop.call_soon, threads=1, verify=self._verify)

    def _verify(self, stored: str, password: str) -> bool:
        assert self.allowed.acquire(timeout=20)
        self.compared.append(password)
        return stored == password

    def begin(self, password: str) -> bool:
        return self.checks.begin(
            Attempt(
                password.encode(),
                "right",
                password,
                lambda: password not in self.unwanted,
                lambda right: self.outcomes.append((password, right)),
            )
        )

    def finish(self, number: int = 1) -> None:
        for _ in range(number):
            self.allowed.release()
            self.loop.run_one()


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    for _ in range(1000):
        bench.allowed.release()
    bench.checks.close()


def test_the_loop_is_told_in_the_order_of_the_attempts(bench: Bench) -> None:
    for password in ("wrong", "right", "other"):
        assert bench.begin(password)
    assert bench.outcomes == []
    bench.finish(3)
    assert bench.outcomes == [("wrong", False), ("right", True), ("other", False)]


def test_the_same_attempt_is_checked_once_for_all_who_make_it(bench: Bench) -> None:
    for _ in range(1000):
        assert bench.begin("right")
    bench.finish()
    assert bench.outcomes == [("right", True)] * 1000
    assert bench.compared == ["right"]
    assert bench.loop.idle
    bench.begin("right")
    bench.finish()
    assert bench.compared == ["right"] * 2


def test_few_wait_at_a_time(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "MOST_WAITING", 3)
    assert [bench.begin(str(number)) for number in range(6)] == [True] * 4 + [False] * 2
    bench.finish()
    assert bench.begin("again")
    assert not bench.begin("and again")


def test_whoever_is_throttled_meanwhile_is_not_checked(bench: Bench) -> None:
    for password in ("first", "second", "third"):
        bench.begin(password)
    bench.unwanted = {"second"}
    bench.finish(2)
    assert bench.outcomes == [("first", False), ("second", None), ("third", False)]
    assert bench.compared == ["first", "third"]


def test_nobody_is_told_after_the_end(bench: Bench) -> None:
    def closed(*_: Any) -> None:
        raise RuntimeError("the loop is closed")

    bench.checks._call_soon = closed
    bench.begin("first")
    bench.begin("second")
    bench.checks.close()
    bench.allowed.release()
    bench.checks._pool.shutdown(wait=True)
    assert bench.outcomes == []
    assert bench.compared == ["first"]
