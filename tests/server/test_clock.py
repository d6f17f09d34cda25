"""The engine's view of the system's clocks, and time budgets."""

from __future__ import annotations

import time

import pytest

from sluicemq.server.clock import SystemClock, time_budget

MS = 1_000_000


class FakeSystemClocks:
    """Replaces both clocks of the system; each reading advances them by `gap` ns."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steady = 5_000 * MS
        self.offset = 1_700_000_000_000 * MS + 999_500
        self.gap = 700
        monkeypatch.setattr(time, "monotonic_ns", self._read_steady)
        monkeypatch.setattr(time, "time_ns", lambda: self._read_steady() + self.offset)

    def _read_steady(self) -> int:
        self.steady += self.gap
        return self.steady


def test_offset_between_clocks_is_stable(monkeypatch: pytest.MonkeyPatch) -> None:
    system = FakeSystemClocks(monkeypatch)
    clock = SystemClock()
    epoch = clock.epoch
    for _ in range(5000):
        system.steady += 12_345
        clock.refresh()
        assert clock.epoch == epoch
        assert abs(clock.wall * MS - system.steady - system.offset) < 3 * MS


def test_pause_between_readings_does_not_change_wall_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    system = FakeSystemClocks(monkeypatch)
    clock = SystemClock()
    epoch = clock.epoch
    calls = 0

    def read_with_pause() -> int:
        nonlocal calls
        calls += 1
        if calls == 2:
            system.steady += 50 * MS
        return system._read_steady()

    monkeypatch.setattr(time, "time_ns", lambda: read_with_pause() + system.offset)
    calls = 1
    clock.refresh()
    assert calls > 2
    assert clock.epoch == epoch


@pytest.mark.parametrize("change", [3_600_000, -3_600_000, 5, -5])
def test_wall_clock_follows_adjustment(monkeypatch: pytest.MonkeyPatch, change: int) -> None:
    system = FakeSystemClocks(monkeypatch)
    clock = SystemClock()
    before = clock.epoch
    system.offset += change * MS
    clock.refresh()
    assert abs(clock.epoch - before - change) <= 1


def test_steady_clock_is_never_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    system = FakeSystemClocks(monkeypatch)
    system.steady = 0
    system.gap = 0
    assert SystemClock().steady > 0


def test_time_budget_expires() -> None:
    now = [10.0]
    is_over = time_budget(0.005, lambda: now[0])()
    assert not is_over()
    now[0] += 0.0049
    assert not is_over()
    now[0] += 0.0002
    assert is_over()
