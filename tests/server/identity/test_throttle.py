from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicemq.server.identity import throttle
from sluicemq.server.identity.throttle import Throttle, address_of


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def make(clock: Clock) -> Throttle:
    return Throttle(clock, free=3, delay=1, delay_max=10, memory=100)


def test_the_wait_doubles_up_to_its_limit() -> None:
    clock = Clock()
    counted = make(clock)
    assert [counted.fail("a") for _ in range(9)] == [0, 0, 0, 1, 2, 4, 8, 10, 10]
    assert counted.wait("a") == 10
    assert counted.wait("b") == 0
    clock.now += 9.5
    assert counted.wait("a") == 0.5
    clock.now += 0.5
    assert counted.wait("a") == 0
    assert counted.fail("a") == 10


def test_failures_are_forgotten_after_a_while_without_one() -> None:
    clock = Clock()
    counted = make(clock)
    for _ in range(5):
        counted.fail("a")
    clock.now += 100
    assert counted.fail("a") == 4
    clock.now += 100.1
    assert counted.fail("a") == 0


def test_few_names_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throttle, "MOST_NAMES", 3)
    counted = make(Clock())
    for name in "aaaabbbbcccca":
        counted.fail(name)
    counted.fail("d")
    assert [counted.wait(name) > 0 for name in "abcd"] == [True, False, True, False]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 60)), max_size=40))
def test_as_a_naive_model_has_it(steps: list[tuple[str, int]]) -> None:
    clock = Clock()
    counted = make(clock)
    past: dict[str, list[float]] = {"a": [], "b": []}
    for name, pause in steps:
        clock.now += pause
        times = past[name]
        if times and clock.now - times[-1] > 100:
            times.clear()
        times.append(clock.now)
        expected = 0 if len(times) <= 3 else min(10, 2 ** (len(times) - 4))
        assert counted.fail(name) == counted.wait(name) == expected


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("10.1.2.3:5000", "10.1.2.3"),
        ("unix", ""),
        ("2001:db8:1:2:3:4:5:6:5000", "2001:db8:1:2::/64"),
        ("::ffff:10.1.2.3:5000", "10.1.2.3"),
        ("fe80::1%eth0:5000", "fe80::/64"),
        ("::1:5000", "::/64"),
    ],
)
def test_who_is_blamed(peer: str, address: str) -> None:
    assert address_of(peer) == address
