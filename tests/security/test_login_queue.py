"""The queue of login checks: the test decides when a check ends."""

from __future__ import annotations

import queue
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sluicemq.model.errors import AccessError, AuthenticationFailed, LoginBusy, TooManyFailures
from sluicemq.security.logins import LoginCheck, LoginQueue, Verdict


class Loop:
    """A double of an event loop that runs the calls of threads one after the other."""

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


class Threads:
    """In place of the thread pool: checks run when the test says so, in any order."""

    def __init__(self) -> None:
        self.running: list[tuple[Callable[[LoginCheck], None], LoginCheck]] = []

    def submit(self, run: Callable[[LoginCheck], None], check: LoginCheck) -> None:
        self.running.append((run, check))

    def shutdown(self, **_: bool) -> None:
        pass


class Bench:
    """A queue whose checks compare at once when `finish` is called. The right password is
    "right"."""

    def __init__(self, checks: int = 2, max_waiting: int = 1000) -> None:
        self.threads = Threads()
        self.queue = LoginQueue(
            self._call_now, checks=checks, max_waiting=max_waiting, verify=self._verify
        )
        self.queue._pool.shutdown()
        self.queue._pool = self.threads  # type: ignore[assignment]
        self.compared: list[str] = []
        self.answers: list[tuple[str, Verdict]] = []
        self.concluded: list[tuple[str, bool]] = []
        self.decided: dict[str, Verdict] = {}
        """Verdicts that need no check, by label."""

    def _call_now(self, callback: Callable[..., Any], *arguments: Any) -> None:
        callback(*arguments)

    def _verify(self, stored: str, password: str, highest: int) -> bool:
        self.compared.append(password)
        return stored == password

    def submit(self, address: str, user: str, password: str) -> LoginCheck:
        """Its label, in all lists, is `address user password`."""
        label = f"{address} {user} {password}"

        def conclude(right: bool) -> bool:
            self.concluded.append((label, right))
            return right

        check = LoginCheck(
            address,
            user,
            f"{user} {password}".encode(),
            stored="right",
            password=password,
            highest=0,
            decide=lambda: self.decided.get(label),
            conclude=conclude,
            answer=lambda verdict: self.answers.append((label, verdict)),
        )
        self.queue.submit(check)
        return check

    @property
    def running(self) -> list[str]:
        return [
            f"{check.address} {check.user} {check.password}" for _, check in self.threads.running
        ]

    def finish(self, index: int = 0) -> None:
        run, check = self.threads.running.pop(index)
        run(check)

    def finish_all(self) -> list[str]:
        """Let all checks end; returns them in the order in which they began."""
        order = list(self.running)
        while self.threads.running:
            before = len(self.running)
            self.finish()
            order += self.running[before - 1 :]
        return order


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_outcomes_are_those_of_the_checks(bench: Bench) -> None:
    bench.submit("a", "anna", "right")
    bench.submit("b", "bert", "wrong")
    bench.finish(1)
    bench.finish()
    assert bench.answers == [("b bert wrong", False), ("a anna right", True)]
    assert bench.concluded == bench.answers


def test_two_run_at_a_time(bench: Bench) -> None:
    for number in range(10):
        bench.submit(f"a{number}", "anna", "wrong")
        assert len(bench.running) == min(number + 1, 2)
    for remaining in range(10, 0, -1):
        assert len(bench.running) == min(remaining, 2)
        bench.finish()
    assert len(bench.answers) == 10
    assert bench.queue.size == 0


def test_one_of_a_pair_runs_at_a_time(bench: Bench) -> None:
    for number in range(3):
        bench.submit("a", "anna", f"wrong{number}")
    assert bench.running == ["a anna wrong0"]
    bench.submit("a", "bert", "wrong")
    assert bench.running == ["a anna wrong0", "a bert wrong"]
    bench.finish()
    assert bench.running == ["a bert wrong", "a anna wrong1"]


def test_addresses_take_turns() -> None:
    bench = Bench(checks=1)
    for user in range(100):
        bench.submit("flood", f"user{user}", "wrong")
    bench.submit("b", "bert", "right")
    bench.submit("c", "clara", "right")
    bench.submit("b", "berta", "right")
    order = bench.finish_all()
    assert [order.index(label) for label in ("b bert right", "c clara right", "b berta right")] == [
        2,
        3,
        5,
    ]
    assert len(order) == 103


def test_equal_checks_of_an_address_share_the_outcome(bench: Bench) -> None:
    for _ in range(100):
        bench.submit("a", "anna", "wrong")
    bench.submit("a", "anna", "right")
    bench.submit("b", "anna", "wrong")
    bench.finish()
    assert bench.answers == [("a anna wrong", False)] * 100
    assert bench.concluded == [("a anna wrong", False)], "counted once"
    assert bench.running == ["b anna wrong", "a anna right"]


def test_logins_decided_before_their_check_are_not_checked() -> None:
    bench = Bench(checks=1)
    bench.submit("a", "anna", "wrong")
    for user in ("bert", "clara", "dora"):
        bench.submit("a", user, "wrong")
    failure = TooManyFailures("for this user from this address", 8)
    bench.decided = {"a bert wrong": failure, "a clara wrong": True}
    bench.finish()
    assert bench.answers[1:] == [("a bert wrong", failure), ("a clara wrong", True)]
    assert bench.concluded[1:] == [("a clara wrong", True)]
    assert bench.running == ["a dora wrong"]


def test_cancelled_check_leaves_the_queue() -> None:
    bench = Bench(checks=1, max_waiting=3)
    first = bench.submit("a", "anna", "wrong")
    waiting = [bench.submit(address, "bert", "wrong") for address in ("a", "b", "c")]
    for check in waiting[:2]:
        bench.queue.cancel(check)
        bench.queue.cancel(check)
    assert bench.queue.size == 1
    assert all(isinstance(verdict, AuthenticationFailed) for _, verdict in bench.answers)
    bench.submit("d", "dora", "right")
    bench.queue.cancel(first)
    assert bench.finish_all() == ["a anna wrong", "c bert wrong", "d dora right"]
    assert bench.concluded[0] == ("a anna wrong", False), "what runs already counts"


def test_full_queue_refuses_who_has_the_most_waiting() -> None:
    bench = Bench(checks=1, max_waiting=5)
    for number in range(8):
        bench.submit("flood", f"user{number}", "wrong")
    assert [label for label, _ in bench.answers] == ["flood user6 wrong", "flood user7 wrong"]
    assert all(isinstance(verdict, LoginBusy) for _, verdict in bench.answers)
    bench.answers.clear()
    for address in ("b", "c", "d", "e", "f"):
        bench.submit(address, "user", "right")
        assert bench.queue.size == 5
    # the newest checks of the flood make room, until it has no more than others
    assert [label for label, _ in bench.answers] == [
        "flood user5 wrong",
        "flood user4 wrong",
        "flood user3 wrong",
        "flood user2 wrong",
        "f user right",
    ]
    assert "try again" in str(bench.answers[-1][1])


def test_fault_in_a_check_gives_its_place_back(bench: Bench) -> None:
    def broken(stored: str, password: str) -> bool:
        raise MemoryError

    bench.queue._verify = broken
    for number in range(5):
        bench.submit("a", f"user{number}", "right")
    bench.finish_all()
    assert [verdict for _, verdict in bench.answers] == [False] * 5


@pytest.mark.parametrize("seed", range(20))
def test_random_load_keeps_the_promises(seed: int) -> None:
    """Every check is answered once; two at most run, no two of one pair; the bound holds."""
    chance = random.Random(seed)
    bench = Bench(max_waiting=10)
    checks: list[LoginCheck] = []
    for number in range(500):
        action = chance.random()
        if action < 0.55:
            address = chance.choice("aaaabcd")
            password = chance.choice(("right", "wrong", f"wrong{number}"))
            checks.append(bench.submit(address, f"u{chance.randrange(4)}", password))
        elif action < 0.65 and checks:
            bench.queue.cancel(chance.choice(checks))
        elif bench.running:
            bench.finish(chance.randrange(len(bench.running)))
        pairs = [label.split()[:2] for label in bench.running]
        assert len(pairs) <= 2
        assert len(pairs) < 2 or pairs[0] != pairs[1]
        assert bench.queue.size <= 10
        assert bench.queue.size == sum(map(len, bench.queue._waiting.values()))
        assert len(pairs) + bench.queue.size + len(bench.answers) == len(checks)
    bench.finish_all()
    assert len(bench.answers) == len(checks)
    for label, verdict in bench.answers:
        assert isinstance(verdict, AccessError) or verdict == label.endswith(" right")


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def threaded(loop: Loop) -> Iterator[LoginQueue]:
    login_queue = LoginQueue(
        loop.call_soon, checks=2, max_waiting=10, verify=lambda s, p, h: s == p
    )
    yield login_queue
    login_queue.close()


def test_checks_run_in_threads_and_answer_on_the_loop(threaded: LoginQueue, loop: Loop) -> None:
    answers: list[Verdict] = []
    for user in ("anna", "bert"):
        threaded.submit(
            LoginCheck(
                "a",
                user,
                user.encode(),
                stored="right",
                password="right",
                highest=0,
                decide=lambda: None,
                conclude=lambda right: right,
                answer=answers.append,
            )
        )
    assert answers == []
    loop.run_one()
    loop.run_one()
    assert answers == [True, True]


def test_no_login_is_answered_after_the_loop_has_closed(threaded: LoginQueue) -> None:
    def closed(*_: Any) -> None:
        raise RuntimeError("the loop is closed")

    bench = Bench()
    bench.queue._call_soon = closed
    bench.submit("a", "anna", "right")
    bench.submit("a", "anna", "other")
    bench.queue.close()
    bench.finish()
    assert bench.answers == []
    assert bench.compared == ["right"]
