"""Bins of time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicemq.pipeline.report.scale import Bins

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
