"""Metrics in the text format, parsed by a client library."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicemq.admin.metrics import (
    Exposition,
    Family,
    Shape,
    text_of,
)
from sluicemq.model.histogram import Histogram
from tests.admin.metrics.reading import parse

SENT = Family("x_sent_bytes", Shape.COUNTER, "bytes", ("destination",), "What\nwas \\ sent.")
DEPTH = Family("x_depth", Shape.GAUGE, "", (), "Depth.")
BUILD = Family("x_build_info", Shape.GAUGE, "", ("version",), "Build.")
TIME = Family("x_time_seconds", Shape.HISTOGRAM, "seconds", ("route",), "Duration.")
TAKEN = Family("x_taken_seconds", Shape.SUMMARY, "seconds", (), "Duration.")


def exposed() -> Exposition:
    exposition = Exposition()
    exposition.add(SENT, 17, "orders")
    exposition.add(DEPTH, 0.25)
    exposition.add(BUILD, 1, "1.0")
    histogram = Histogram()
    for seconds in (1e-6, 0.001, 0.001, 1000.0):
        histogram.record(seconds)
    exposition.add_histogram(TIME, histogram.read(), "/a")
    exposition.add_summary(TAKEN, 2, 0.5)
    return exposition


def test_client_parses_the_exposition() -> None:
    scrape = parse(exposed().text())
    assert scrape.value("x_sent_bytes_total", destination="orders") == 17
    assert scrape.value("x_depth") == 0.25
    assert scrape.value("x_build_info", version="1.0") == 1
    assert scrape.value("x_taken_seconds_count") == 2
    assert scrape.value("x_taken_seconds_sum") == 0.5
    assert scrape.families["x_sent_bytes"].documentation == "What\nwas \\ sent."
    assert scrape.families["x_sent_bytes"].type == "counter"
    assert scrape.families["x_time_seconds"].type == "histogram"


def test_buckets_are_cumulative_and_the_last_counts_everything() -> None:
    scrape = parse(exposed().text())
    buckets = sorted(
        (float(dict(labels)["le"]), value)
        for (name, labels), value in scrape.samples.items()
        if name == "x_time_seconds_bucket"
    )
    assert buckets[0][1] == 1  # below the first bound
    assert buckets[-1] == (float("inf"), 4)
    assert buckets[-2][1] == 3  # 1000 s is beyond all bounds
    assert [value for _, value in buckets] == sorted(value for _, value in buckets)
    assert scrape.value("x_time_seconds_count", route="/a") == 4
    assert scrape.value("x_time_seconds_sum", route="/a") == pytest.approx(1000.002001)


@given(st.text())
def test_any_name_is_one_label(name: str) -> None:
    exposition = Exposition()
    exposition.add(SENT, 1, text_of(name))
    scrape = parse(exposition.text())
    assert list(scrape.samples) == [
        ("x_sent_bytes_total", frozenset({("destination", text_of(name))}))
    ]


@pytest.mark.parametrize(
    "name",
    ['a"} 1\nx_fake{destination="b', "a\nb", "a\\", 'a"', "{}", "a\rb\0", "é\u2028漢"],
)
def test_hostile_names_change_only_their_label(name: str) -> None:
    exposition = Exposition()
    exposition.add(SENT, 1, name)
    scrape = parse(exposition.text())
    assert scrape.value("x_sent_bytes_total", destination=name) == 1
    assert len(scrape.samples) == 1


def test_invalid_utf8_is_escaped() -> None:
    assert text_of("a\udcff") == "a\\udcff"
    exposition = Exposition()
    exposition.add(SENT, 1, text_of("a\udcff"))
    assert parse(exposition.text()).names("x_sent_bytes_total") == {"a\\udcff"}
