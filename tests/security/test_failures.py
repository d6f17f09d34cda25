"""The table of failed logins, compared with a model."""

from __future__ import annotations

import random

import pytest

from sluicemq.security.access import AuthSettings
from sluicemq.security.failures import FailureTable, address_of


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def make_table(clock: Clock, max_failures: int = 3, max_entries: int = 100) -> FailureTable:
    settings = AuthSettings(
        max_login_failures=max_failures,
        login_backoff=1.0,
        login_backoff_max=10.0,
        login_failure_window=100.0,
        max_login_failure_entries=max_entries,
    )
    return FailureTable(clock, settings)


def test_block_begins_with_the_last_allowed_failure_and_doubles(clock: Clock) -> None:
    table = make_table(clock)
    waits = []
    for _ in range(9):
        waits.append(table.fail("a", "anna"))
        assert table.wait("a", "anna") == waits[-1]
        clock.now += waits[-1]
        assert table.wait("a", "anna") == 0
    assert waits == [0, 0, 1, 2, 4, 8, 10, 10, 10]
    assert table.wait("a", "bert") == table.wait("b", "anna") == 0


def test_many_failures_do_not_overflow(clock: Clock) -> None:
    table = make_table(clock)
    for _ in range(3000):
        assert table.fail("a", "anna") <= 10


def test_success_clears_only_the_pair(clock: Clock) -> None:
    table = make_table(clock)
    for address, user in (("a", "anna"), ("a", "bert"), ("b", "anna")):
        for _ in range(2):
            table.fail(address, user)
    table.clear("a", "anna")
    table.clear("a", "unknown")
    assert table.size == 2
    assert [table.fail(*pair) for pair in (("a", "anna"), ("a", "bert"), ("b", "anna"))] == [
        0,
        1,
        1,
    ]


def test_failures_expire(clock: Clock) -> None:
    table = make_table(clock)
    for _ in range(2):
        table.fail("a", "anna")
        table.fail("b", "anna")
    clock.now += 60
    table.fail("a", "bert")
    clock.now += 60
    assert table.fail("a", "anna") == 0, "the count of an expired entry begins anew"
    assert table.size == 2, "an address without recent failures is dropped"


def test_guesser_does_not_evict_its_entry_with_other_users(clock: Clock) -> None:
    table = make_table(clock, max_entries=50)
    table.fail("other", "someone")
    for _ in range(6):
        table.fail("guesser", "anna")
    assert table.wait("guesser", "anna") == 8
    for number in range(1000):
        table.fail("guesser", f"invented{number}")
        assert table.size <= 50
        assert table.wait("guesser", "anna") > 0
    # the entries of the address are merged now, and successful logins do not clear them
    table.clear("guesser", "anna")
    assert table.wait("guesser", "a user that has not failed") > 0
    assert table.wait("other", "someone") == 0
    clock.now += 101
    table.fail("other", "someone")
    assert table.wait("guesser", "anna") == 0
    assert table.size == 1


def test_merging_keeps_the_entries_of_other_addresses(clock: Clock) -> None:
    table = make_table(clock, max_entries=20)
    for _ in range(4):
        table.fail("honest", "anna")
        table.fail("honest", "bert")
    for number in range(100):
        table.fail("guesser", f"user{number}")
    assert table.wait("honest", "anna") == table.wait("honest", "bert") == 2
    assert table.wait("honest", "clara") == 0


def test_entry_is_evicted_only_by_as_many_other_addresses(clock: Clock) -> None:
    table = make_table(clock, max_entries=50)
    for _ in range(6):
        table.fail("guesser", "anna")
    for number in range(49):
        table.fail(f"address{number}", "anna")
    assert table.wait("guesser", "anna") == 8
    table.fail("one more", "anna")
    assert table.wait("guesser", "anna") == 0
    assert table.size == 50


@pytest.mark.parametrize("seed", range(20))
def test_counts_never_fall_below_the_model(seed: int) -> None:
    """The table blocks every pair that the model blocks while fewer addresses fail than it has
    entries. The model only removes expired and cleared entries."""
    rng = random.Random(seed)
    clock = Clock()
    table = make_table(clock, max_entries=12)
    model: dict[tuple[str, str], tuple[int, float, float]] = {}
    for _ in range(2000):
        clock.now += rng.choice((0.0, 0.1, 2.0, 11.0))
        address, user = f"a{rng.randrange(6)}", f"u{rng.randrange(8)}"
        count, last, blocked_until = model.get((address, user), (0, 0.0, 0.0))
        expected = max(0.0, blocked_until - clock.now)
        assert table.wait(address, user) >= expected
        if rng.random() < 0.1:
            table.clear(address, user)
            model.pop((address, user), None)
            continue
        count = 1 if clock.now - last > 100 else count + 1
        wait = min(2.0 ** (count - 3), 10.0) if count >= 3 else 0.0
        assert table.fail(address, user) >= wait
        model[address, user] = (count, clock.now, clock.now + wait)
        assert 0 < table.size <= 12


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("10.0.0.1:5000", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6:5000", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff:ffff:ffff:ffff:1", "2001:db8:1:2::/64"),
        ("fe80::1%eth0:5000", "fe80::/64"),
        ("::ffff:10.0.0.1:5000", "10.0.0.1"),
        ("::1:5000", "::/64"),
        ("unix", ""),
        ("", ""),
        ("some:thing:5000", "some:thing"),
    ],
)
def test_address_omits_port_and_interface(peer: str, address: str) -> None:
    assert address_of(peer) == address
