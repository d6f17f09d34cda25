"""Bins of time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicemq.pipeline.report.figures import MAX_BINS, Bins

FIRST = 29_921_040  # 21 Nov 2026, 12:00


@pytest.mark.parametrize(
    ("minutes", "width", "count"),
    [(1, 1, 1), (96, 1, 96), (97, 2, 49), (1440, 15, 96), (30 * 1440, 480, 91)],
)
def test_bins_have_round_widths(minutes: int, width: int, count: int) -> None:
    bins = Bins.over(FIRST, FIRST + minutes - 1)
    assert (bins.width, bins.count) == (width, count)


@given(st.integers(0, 60_000_000), st.integers(1, 20_000_000))
def test_bins_hold_every_minute_and_are_few(first: int, minutes: int) -> None:
    last = first + minutes - 1
    bins = Bins.over(first, last)
    assert bins.count <= MAX_BINS
    assert bins.index(np.array([first, last])).tolist() == [0, bins.count - 1]
    assert bins.start <= first
    assert last < bins.start + bins.width * bins.count


def test_a_bin_has_a_start_and_an_end() -> None:
    assert Bins(100, 2, 5).seconds(1) == (102 * 60, 104 * 60)
