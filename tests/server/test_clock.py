"""The system's clocks, as the engine reads them, and deadlines that are measured by a clock."""

from __future__ import annotations

import time

import pytest

from sluicemq.server.clock import SystemClock, time_budget

MS = 1_000_000


class Source:
    """Both clocks of a system, set by hand; `gap` ns pass between two readings."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steady = 5_000 * MS
        self.ahead = 1_700_000_000_000 * MS + 999_500
        self.gap = 700
        monkeypatch.setattr(time, "monotonic_ns", self._read_steady)
        monkeypatch.setattr(time, "time_ns", lambda: self._read_steady() + self.ahead)

    def _read_steady(self) -> int:
        self.steady += self.gap
        return self.steady


def test_the_difference_of_both_clocks_does_not_jitter(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source(monkeypatch)
    clock = SystemClock()
    epoch = clock.epoch
    for _ in range(5000):
        source.steady += 12_345
        clock.refresh()
        assert clock.epoch == epoch
        assert abs(clock.wall * MS - source.steady - source.ahead) < 3 * MS


def test_a_pause_between_two_readings_does_not_move_the_wall_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = Source(monkeypatch)
    clock = SystemClock()
    epoch = clock.epoch
    calls = 0

    def paused() -> int:
        nonlocal calls
        calls += 1
        if calls == 2:
            source.steady += 50 * MS
        return source._read_steady()

    monkeypatch.setattr(time, "time_ns", lambda: paused() + source.ahead)
    calls = 1
    clock.refresh()
    assert calls > 2
    assert clock.epoch == epoch


@pytest.mark.parametrize("change", [3_600_000, -3_600_000, 5, -5])
def test_a_wall_clock_that_is_set_is_followed(monkeypatch: pytest.MonkeyPatch, change: int) -> None:
    source = Source(monkeypatch)
    clock = SystemClock()
    before = clock.epoch
    source.ahead += change * MS
    clock.refresh()
    assert abs(clock.epoch - before - change) <= 1


def test_the_steady_clock_never_shows_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source(monkeypatch)
    source.steady = 0
    source.gap = 0
    assert SystemClock().steady > 0


def test_a_time_budget_is_over_when_its_time_has_passed() -> None:
    now = [10.0]
    is_over = time_budget(0.005, lambda: now[0])()
    assert not is_over()
    now[0] += 0.0049
    assert not is_over()
    now[0] += 0.0002
    assert is_over()
