"""Durations in buckets: the bucket of each, quantiles, and writers on several threads."""

from __future__ import annotations

import threading
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicemq.model.histogram import BOUNDS, BUCKETS, Histogram

DURATIONS = st.lists(st.floats(0, 100), min_size=1, max_size=200)


def filled(*durations: float) -> Histogram:
    histogram = Histogram()
    for duration in durations:
        histogram.record(duration)
    return histogram


def test_bound_belongs_to_its_bucket() -> None:
    snapshot = filled(0.0, BOUNDS[0], BOUNDS[0] * 1.01, BOUNDS[-1], BOUNDS[-1] * 1.01, -1.0).read()
    assert snapshot.counts == (3, 1, *[0] * (BUCKETS - 3), 1, 1)
    assert snapshot.count == 6
    assert snapshot.longest == pytest.approx(BOUNDS[-1] * 1.01)
    assert snapshot.sum == pytest.approx(BOUNDS[0] * 2.01 + BOUNDS[-1] * 2.01)


def test_bounds_cover_fast_and_stalled_disks() -> None:
    assert BOUNDS[0] < 20e-6
    assert BOUNDS[-1] > 30
    assert all(1.41 < after / before < 1.42 for before, after in pairwise(BOUNDS))


def test_quantiles_of_empty_histogram_are_zero() -> None:
    snapshot = Histogram().read()
    assert (snapshot.count, snapshot.sum, snapshot.longest, snapshot.quantile(0.99)) == (
        0,
        0.0,
        0.0,
        0.0,
    )


@given(DURATIONS, st.floats(0, 1))
def test_a_quantile_is_in_the_bucket_of_the_true_one(durations: list[float], part: float) -> None:
    """The error is at most the ratio of two bounds, or the first bucket."""
    snapshot = filled(*durations).read()
    ordered = sorted(durations)
    index = min(len(ordered) - 1, max(0, -(-part * len(ordered) // 1) - 1))
    true = ordered[int(index)]
    quantile = snapshot.quantile(part)
    assert quantile <= snapshot.longest
    assert quantile <= max(true * 1.4143, BOUNDS[0])
    assert quantile >= min(true / 1.4143, BOUNDS[-1]) or true <= BOUNDS[0]


@given(DURATIONS, DURATIONS)
def test_difference_of_two_snapshots(first: list[float], then: list[float]) -> None:
    histogram = filled(*first)
    before = histogram.read()
    for duration in then:
        histogram.record(duration)
    between = histogram.read().since(before)
    expected = filled(*then).read()
    assert between.counts == expected.counts
    assert between.sum == pytest.approx(expected.sum, abs=1e-6)
    assert expected.longest <= between.longest
    if max(then) <= BOUNDS[-1]:
        assert between.longest <= max(expected.longest * 1.4143, BOUNDS[0])
    if max(then) > max(first):
        assert between.longest == expected.longest


def test_longest_of_minute_without_durations_is_zero() -> None:
    snapshot = filled(5.0).read()
    assert snapshot.since(snapshot).longest == 0.0
    assert snapshot.since(snapshot).count == 0


def test_concurrent_observations_are_all_counted() -> None:
    histogram = Histogram()
    counts = []

    def write() -> None:
        for number in range(5000):
            histogram.record(number * 1e-5)

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        counts.append(histogram.read().count)
    for thread in threads:
        thread.join()
    assert counts == sorted(counts)
    snapshot = histogram.read()
    assert snapshot.count == 20_000
    assert snapshot.longest == pytest.approx(4999e-5)
    assert snapshot.sum == pytest.approx(4 * sum(range(5000)) * 1e-5)
