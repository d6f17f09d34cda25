"""The queue of login checks; the test determines when a check ends."""

from __future__ import annotations

import queue
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sluicemq.model.errors import AccessError, AuthenticationFailed, LoginBusy, TooManyFailures
from sluicemq.security.logins import LoginCheck, LoginQueue, Verdict


class ManualEventLoop:
    """An event loop that runs one scheduled call at a time."""

    def __init__(self) -> None:
        self._calls: queue.Queue[tuple[Callable[..., Any], tuple[Any, ...]]] = queue.Queue()

    def call_soon(self, callback: Callable[..., Any], *arguments: Any) -> None:
        self._calls.put((callback, arguments))

    def run_one(self) -> None:
        callback, arguments = self._calls.get(timeout=60)
        callback(*arguments)

    @property
    def idle(self) -> bool:
        return self._calls.empty()


class ManualExecutor:
    """Replaces the thread pool: the test runs the checks, in any order."""

    def __init__(self) -> None:
        self.running_labels: list[tuple[Callable[[LoginCheck], None], LoginCheck]] = []

    def submit(self, run: Callable[[LoginCheck], None], check: LoginCheck) -> None:
        self.running_labels.append((run, check))

    def shutdown(self, **_: bool) -> None:
        pass


class LoginQueueFixture:
    """A queue whose checks end when `finish` is called. The correct password is "right"."""

    def __init__(self, checks: int = 2, max_waiting: int = 1000) -> None:
        self.threads = ManualExecutor()
        self.queue = LoginQueue(
            self._call_now, checks=checks, max_waiting=max_waiting, verify=self._verify
        )
        self.queue._pool.shutdown()
        self.queue._pool = self.threads  # type: ignore[assignment]
        self.compared: list[str] = []
        self.results: list[tuple[str, Verdict]] = []
        self.recorded: list[tuple[str, bool]] = []
        self.decisions: dict[str, Verdict] = {}
        """Results that need no check, by label."""

    def _call_now(self, callback: Callable[..., Any], *arguments: Any) -> None:
        callback(*arguments)

    def _verify(self, stored: str, password: str, highest: int) -> bool:
        self.compared.append(password)
        return stored == password

    def submit(self, address: str, user: str, password: str) -> LoginCheck:
        """Submit a check; its label in all lists is `address user password`."""
        label = f"{address} {user} {password}"

        def conclude(right: bool) -> bool:
            self.recorded.append((label, right))
            return right

        check = LoginCheck(
            address,
            user,
            f"{user} {password}".encode(),
            stored="right",
            password=password,
            highest=0,
            decide=lambda: self.decisions.get(label),
            conclude=conclude,
            answer=lambda verdict: self.results.append((label, verdict)),
        )
        self.queue.submit(check)
        return check

    @property
    def running_labels(self) -> list[str]:
        return [
            f"{check.address} {check.user} {check.password}"
            for _, check in self.threads.running_labels
        ]

    def finish(self, index: int = 0) -> None:
        run, check = self.threads.running_labels.pop(index)
        run(check)

    def finish_all(self) -> list[str]:
        """Finish all checks; return their labels in the order in which they began."""
        order = list(self.running_labels)
        while self.threads.running_labels:
            before = len(self.running_labels)
            self.finish()
            order += self.running_labels[before - 1 :]
        return order


@pytest.fixture
def fixture() -> LoginQueueFixture:
    return LoginQueueFixture()


def test_results_are_those_of_the_checks(fixture: LoginQueueFixture) -> None:
    fixture.submit("a", "anna", "right")
    fixture.submit("b", "bert", "wrong")
    fixture.finish(1)
    fixture.finish()
    assert fixture.results == [("b bert wrong", False), ("a anna right", True)]
    assert fixture.recorded == fixture.results


def test_two_checks_run_at_a_time(fixture: LoginQueueFixture) -> None:
    for number in range(10):
        fixture.submit(f"a{number}", "anna", "wrong")
        assert len(fixture.running_labels) == min(number + 1, 2)
    for remaining in range(10, 0, -1):
        assert len(fixture.running_labels) == min(remaining, 2)
        fixture.finish()
    assert len(fixture.results) == 10
    assert fixture.queue.size == 0


def test_one_check_of_a_pair_runs_at_a_time(fixture: LoginQueueFixture) -> None:
    for number in range(3):
        fixture.submit("a", "anna", f"wrong{number}")
    assert fixture.running_labels == ["a anna wrong0"]
    fixture.submit("a", "bert", "wrong")
    assert fixture.running_labels == ["a anna wrong0", "a bert wrong"]
    fixture.finish()
    assert fixture.running_labels == ["a bert wrong", "a anna wrong1"]


def test_checks_alternate_between_addresses() -> None:
    fixture = LoginQueueFixture(checks=1)
    for user in range(100):
        fixture.submit("flood", f"user{user}", "wrong")
    fixture.submit("b", "bert", "right")
    fixture.submit("c", "clara", "right")
    fixture.submit("b", "berta", "right")
    order = fixture.finish_all()
    assert [order.index(label) for label in ("b bert right", "c clara right", "b berta right")] == [
        2,
        3,
        5,
    ]
    assert len(order) == 103


def test_equal_checks_of_an_address_share_the_outcome(fixture: LoginQueueFixture) -> None:
    for _ in range(100):
        fixture.submit("a", "anna", "wrong")
    fixture.submit("a", "anna", "right")
    fixture.submit("b", "anna", "wrong")
    fixture.finish()
    assert fixture.results == [("a anna wrong", False)] * 100
    assert fixture.recorded == [("a anna wrong", False)], "counted once"
    assert fixture.running_labels == ["b anna wrong", "a anna right"]


def test_logins_decided_before_their_check_are_not_checked() -> None:
    fixture = LoginQueueFixture(checks=1)
    fixture.submit("a", "anna", "wrong")
    for user in ("bert", "clara", "dora"):
        fixture.submit("a", user, "wrong")
    failure = TooManyFailures("for this user from this address", 8)
    fixture.decisions = {"a bert wrong": failure, "a clara wrong": True}
    fixture.finish()
    assert fixture.results[1:] == [("a bert wrong", failure), ("a clara wrong", True)]
    assert fixture.recorded[1:] == [("a clara wrong", True)]
    assert fixture.running_labels == ["a dora wrong"]


def test_cancelled_check_leaves_the_queue() -> None:
    fixture = LoginQueueFixture(checks=1, max_waiting=3)
    first = fixture.submit("a", "anna", "wrong")
    waiting = [fixture.submit(address, "bert", "wrong") for address in ("a", "b", "c")]
    for check in waiting[:2]:
        fixture.queue.cancel(check)
        fixture.queue.cancel(check)
    assert fixture.queue.size == 1
    assert all(isinstance(verdict, AuthenticationFailed) for _, verdict in fixture.results)
    fixture.submit("d", "dora", "right")
    fixture.queue.cancel(first)
    assert fixture.finish_all() == ["a anna wrong", "c bert wrong", "d dora right"]
    assert fixture.recorded[0] == ("a anna wrong", False), "a running check is not cancelled"


def test_full_queue_rejects_the_address_with_most_checks() -> None:
    fixture = LoginQueueFixture(checks=1, max_waiting=5)
    for number in range(8):
        fixture.submit("flood", f"user{number}", "wrong")
    assert [label for label, _ in fixture.results] == ["flood user6 wrong", "flood user7 wrong"]
    assert all(isinstance(verdict, LoginBusy) for _, verdict in fixture.results)
    fixture.results.clear()
    for address in ("b", "c", "d", "e", "f"):
        fixture.submit(address, "user", "right")
        assert fixture.queue.size == 5
    # the newest checks of the flood are rejected while it has more than other addresses
    assert [label for label, _ in fixture.results] == [
        "flood user5 wrong",
        "flood user4 wrong",
        "flood user3 wrong",
        "flood user2 wrong",
        "f user right",
    ]
    assert "try again" in str(fixture.results[-1][1])


def test_exception_in_a_check_does_not_block_the_queue(fixture: LoginQueueFixture) -> None:
    def broken(stored: str, password: str, highest: int) -> bool:
        raise MemoryError

    fixture.queue._verify = broken
    for number in range(5):
        fixture.submit("a", f"user{number}", "right")
    fixture.finish_all()
    assert [verdict for _, verdict in fixture.results] == [False] * 5


@pytest.mark.parametrize("seed", range(20))
def test_random_load_keeps_the_invariants(seed: int) -> None:
    """Each check has one result; at most two run, of different pairs; the queue is bounded."""
    rng = random.Random(seed)
    fixture = LoginQueueFixture(max_waiting=10)
    checks: list[LoginCheck] = []
    for number in range(500):
        action = rng.random()
        if action < 0.55:
            address = rng.choice("aaaabcd")
            password = rng.choice(("right", "wrong", f"wrong{number}"))
            checks.append(fixture.submit(address, f"u{rng.randrange(4)}", password))
        elif action < 0.65 and checks:
            fixture.queue.cancel(rng.choice(checks))
        elif fixture.running_labels:
            fixture.finish(rng.randrange(len(fixture.running_labels)))
        pairs = [label.split()[:2] for label in fixture.running_labels]
        assert len(pairs) <= 2
        assert len(pairs) < 2 or pairs[0] != pairs[1]
        assert fixture.queue.size <= 10
        assert fixture.queue.size == sum(map(len, fixture.queue._waiting.values()))
        assert len(pairs) + fixture.queue.size + len(fixture.results) == len(checks)
    fixture.finish_all()
    assert len(fixture.results) == len(checks)
    for label, verdict in fixture.results:
        assert isinstance(verdict, AccessError) or verdict == label.endswith(" right")


@pytest.fixture
def loop() -> ManualEventLoop:
    return ManualEventLoop()


@pytest.fixture
def threaded_queue(loop: ManualEventLoop) -> Iterator[LoginQueue]:
    login_queue = LoginQueue(
        loop.call_soon, checks=2, max_waiting=10, verify=lambda s, p, h: s == p
    )
    yield login_queue
    login_queue.close()


def test_checks_run_in_threads_and_answer_on_the_loop(
    threaded_queue: LoginQueue, loop: ManualEventLoop
) -> None:
    results: list[Verdict] = []
    for user in ("anna", "bert"):
        threaded_queue.submit(
            LoginCheck(
                "a",
                user,
                user.encode(),
                stored="right",
                password="right",
                highest=0,
                decide=lambda: None,
                conclude=lambda right: right,
                answer=results.append,
            )
        )
    assert results == []
    loop.run_one()
    loop.run_one()
    assert results == [True, True]


def test_no_login_is_answered_after_the_loop_has_closed(threaded_queue: LoginQueue) -> None:
    def closed(*_: Any) -> None:
        raise RuntimeError("the loop is closed")

    fixture = LoginQueueFixture()
    fixture.queue._call_soon = closed
    fixture.submit("a", "anna", "right")
    fixture.submit("a", "anna", "other")
    fixture.queue.close()
    fixture.finish()
    assert fixture.results == []
    assert fixture.compared == ["right"]
