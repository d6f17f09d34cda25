"""Bins of time and ticks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicemq.pipeline.report.scale import DAY, HOUR, MINUTE, Bins, time_ticks, value_ticks

FIRST = 29_921_040  # 21 Nov 2026, 12:00


@pytest.mark.parametrize(
    ("minutes", "width", "count"),
    [(1, 1, 1), (192, 1, 192), (193, 2, 97), (1440, 10, 144), (30 * 1440, 240, 180)],
)
def test_bins_have_round_widths(minutes: int, width: int, count: int) -> None:
    bins = Bins.over(FIRST, FIRST + minutes - 1, 192)
    assert (bins.width, bins.count) == (width, count)


@given(st.integers(0, 60_000_000), st.integers(1, 20_000_000), st.sampled_from([2, 44, 192]))
def test_bins_hold_every_minute_and_are_few(first: int, minutes: int, at_most: int) -> None:
    last = first + minutes - 1
    bins = Bins.over(first, last, at_most)
    assert bins.count <= at_most
    assert bins.index(np.array([first, last])).tolist() == [0, bins.count - 1]
    assert bins.start <= first
    assert last < bins.end


def test_neighbours_become_one() -> None:
    bins = Bins(100, 2, 5)
    assert bins.merged(2) == Bins(100, 4, 3)
    assert bins.seconds(1) == (102 * 60, 104 * 60)


def test_time_ticks_are_round_and_name_the_day() -> None:
    start = FIRST * MINUTE
    ticks = time_ticks(start, start + DAY, 8)
    assert [tick.label for tick in ticks] == [
        "12:00",
        "15:00",
        "18:00",
        "21:00",
        "22 Nov",
        "03:00",
        "06:00",
        "09:00",
        "12:00",
    ]
    assert [tick.label for tick in ticks if tick.strong] == ["22 Nov"]


@given(st.integers(0, 4_000_000_000), st.integers(60, 400 * DAY), st.integers(2, 14))
def test_time_ticks_are_inside_and_not_crowded(start: int, length: int, at_most: int) -> None:
    ticks = time_ticks(start, start + length, at_most)
    assert len(ticks) <= at_most + 1
    assert all(start <= tick.at <= start + length for tick in ticks)


def test_days_are_named_by_their_date() -> None:
    ticks = time_ticks(0, 30 * DAY, 6)
    assert [tick.label for tick in ticks][:2] == ["1 Jan", "6 Jan"]
    assert time_ticks(0, 6 * HOUR, 6)[0].label == "1 Jan"


@pytest.mark.parametrize(
    ("top", "ticks"),
    [
        (0, [0, 1]),
        (1, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (247, [0, 50, 100, 150, 200, 250]),
        (1_000_000, [0, 200_000, 400_000, 600_000, 800_000, 1_000_000]),
    ],
)
def test_value_ticks(top: float, ticks: list[float]) -> None:
    assert value_ticks(top, 5) == pytest.approx(ticks)


@pytest.mark.parametrize(
    ("top", "ticks"),
    [(1, [0, 1]), (3, [0, 1, 2, 3]), (9, [0, 2, 4, 6, 8, 10]), (12_000, [0, 5000, 10_000, 15_000])],
)
def test_there_is_no_half_message(top: float, ticks: list[float]) -> None:
    assert value_ticks(top, 5, whole=True) == ticks


@given(st.floats(1e-6, 1e15), st.integers(2, 8))
def test_value_ticks_reach_the_top_without_much_above(top: float, at_most: int) -> None:
    ticks = value_ticks(top, at_most)
    assert top <= ticks[-1] * 1.0002
    assert len(ticks) <= at_most + 2
    assert ticks[-2] < top
