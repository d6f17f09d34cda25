"""Figures of a report, compared with handwritten rows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicemq.pipeline.report import build
from sluicemq.pipeline.report.figures import (
    MAX_BINS,
    MAX_EXAMPLES,
    MINUTE,
    NO_REASON,
    Bins,
    ReportFigures,
)
from sluicemq.pipeline.schema import PERCENTILES
from tests.pipeline.latencies import ERROR
from tests.pipeline.report.sample import (
    START,
    anomalies,
    anomaly,
    busy,
    dead_letter,
    examples,
    gold,
    row,
)

MINUTES = int(START.timestamp()) // MINUTE


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


def test_bin_has_start_and_end() -> None:
    assert Bins(100, 2, 5).seconds(1) == (102 * 60, 104 * 60)


def test_sums_over_destinations_protocols_and_minutes() -> None:
    report = build(
        gold(
            row(0, published=5, published_bytes=500, acknowledged=2, end_to_end=[1.0, 1.0]),
            row(0, protocol="jmq", published=7, published_bytes=70, expired=1, late_events=2),
            row(3, "topic", destination_kind="topic", published=30, redelivered=4),
            row(3, protocol="unknown", dead_lettered=2, acknowledged=1, end_to_end=[100.0]),
        )
    )
    assert (report.published, report.published_bytes, report.acknowledged) == (42, 570, 3)
    assert (report.redelivered, report.expired, report.dead_lettered) == (4, 1, 2)
    assert report.late_events == 2
    assert (report.since, report.until, report.seconds) == (MINUTES, MINUTES + 4, 240)
    assert (report.peak, report.peak_at) == (30, MINUTES + 3)
    assert report.latency["p50"] == pytest.approx(1.0, rel=ERROR)
    assert report.latency["p99"] == pytest.approx(100.0, rel=ERROR)
    line = report.timeline
    assert line is not None
    assert {name: values.tolist() for name, values in line.arrivals.items()} == {
        "phpmq": [5, 0, 0, 30],
        "jmq": [7, 0, 0, 0],
    }
    assert line.counts["acknowledged"].tolist() == [2, 0, 0, 1]
    assert line.counts["dead_lettered"].tolist() == [0, 0, 0, 2]
    assert line.latency.sum(axis=1).tolist() == [2, 0, 0, 1]
    assert line.seconds.tolist() == [60.0] * 4
    assert "backlog" not in line.counts
    assert report.backlog is None


def test_destination_keeps_its_backlog_between_depth_events() -> None:
    report = build(
        gold(
            row(1, "a", protocol="any", backlog=10, unacked=1, consumers=2),
            row(4, "a", protocol="any", backlog=4, unacked=0, consumers=2),
            row(3, "b", protocol="any", backlog=100, unacked=5, consumers=0),
            row(0, "c", published=1),
            row(5, "c", published=1),
        )
    )
    assert report.timeline is not None
    assert "backlog" in report.timeline.counts
    assert "unacked" in report.timeline.counts
    assert report.timeline.counts["backlog"].tolist() == [110, 110, 110, 110, 104, 104]
    assert report.timeline.counts["unacked"].tolist() == [6, 6, 6, 6, 5, 5]
    assert report.backlog == 104
    assert [(queue.name, queue.backlog) for queue in report.queues] == [
        ("b", 100),
        ("a", 4),
        ("c", None),
    ]


def test_backlog_before_first_depth_event_equals_it() -> None:
    gauges = [row(minute, backlog=minute, unacked=0, protocol="any") for minute in (10, 14, 199)]
    line = build(gold(row(0, "other", published=1), *gauges)).timeline
    assert line is not None
    assert "backlog" in line.counts
    assert line.bins.width == 5
    assert line.counts["backlog"].tolist() == [10, 10, *[14] * 37, 199]


def test_busiest_destinations_have_rows_and_others_share_one() -> None:
    rows = [
        row(0, f"q{number}", published=number, end_to_end=[10.0 * number])
        for number in (3, 9, 1, 7)
    ]
    rows.append(row(0, "drained", acknowledged=8))
    report = build(gold(*rows, row(9, "q9", published=1)), top=2)
    assert [queue.name for queue in report.queues] == ["q9", "drained"]
    assert report.queues[0].arrivals.tolist() == [9, *[0] * 8, 1]
    assert report.queues[1].latency == dict.fromkeys(PERCENTILES)
    assert report.others is not None
    assert (report.other_count, report.others.published) == (3, 11)
    assert report.others.arrivals.tolist() == [11, *[0] * 9]
    assert report.others.latency["p99"] == pytest.approx(70.0, rel=ERROR)


def test_equal_names_are_distinguished() -> None:
    report = build(
        gold(
            row(0, "x", published=3),
            row(0, "x", destination_kind="topic", published=2),
            row(0, "x", broker="b2", published=1),
        )
    )
    assert [(queue.broker, queue.kind, queue.published) for queue in report.queues] == [
        ("b1", "queue", 3),
        ("b1", "topic", 2),
        ("b2", "queue", 1),
    ]
    assert report.brokers == 2


def test_period_selects_its_minutes() -> None:
    table = gold(*(row(minute, published=1 << minute) for minute in range(6)))
    report = build(
        table,
        anomalies(anomaly(minute=START), anomaly(minute=START + timedelta(minutes=3))),
        since=START + timedelta(minutes=2),
        until=START + timedelta(minutes=5),
    )
    assert report.published == 4 + 8 + 16
    assert (report.since, report.until) == (MINUTES + 2, MINUTES + 5)
    assert report.anomaly_count == 1


def test_period_may_be_longer_than_traffic() -> None:
    report = build(gold(row(3, published=2)), until=datetime(9000, 1, 1, tzinfo=UTC))
    assert (report.peak, report.peak_at) == (2, MINUTES + 3)
    assert report.timeline is not None


def test_period_without_traffic() -> None:
    report = build(gold(row(0, published=1)), since=START + timedelta(days=1))
    assert report.timeline is None
    assert report.published == 0


def test_empty_table() -> None:
    report = build(gold(), anomalies(), examples())
    assert report.timeline is None
    assert report.since is None
    assert report.anomaly_count == 0
    assert report.reasons == ()


def test_parts_of_table_make_same_report() -> None:
    """As a lake's files are read; pieces are slices, whose maps do not begin at their start."""
    table = busy(300, 40)
    created = datetime(2026, 11, 21, tzinfo=UTC)

    parts = pa.concat_tables([table.slice(start, 997) for start in range(0, table.num_rows, 997)])
    from_table, from_parts = (
        build(table, created=created, top=7),
        build(parts, created=created, top=7),
    )
    assert parts["minute"].num_chunks > 1
    assert figures(from_table) == figures(from_parts)
    assert from_table.published == sum(table["published"].to_pylist())
    assert from_table.timeline is not None
    assert from_table.timeline.latency.sum() == sum(table["acknowledged"].to_pylist())
    assert sum(reason.count for reason in from_table.reasons) == from_table.dead_lettered > 0


def figures(report: ReportFigures) -> object:
    line = report.timeline
    assert line is not None
    assert "backlog" in line.counts
    queues = [
        (queue.name, queue.published, queue.backlog, queue.latency, queue.arrivals.tolist())
        for queue in report.queues
    ]
    return (
        report.published,
        report.peak,
        report.backlog,
        report.latency,
        report.reasons,
        queues,
        line.latency.tolist(),
        line.counts["backlog"].tolist(),
        {name: values.tolist() for name, values in line.arrivals.items()},
    )


def test_reasons_have_their_newest_examples() -> None:
    rows = [
        dead_letter(number, dead_lettered=START + timedelta(seconds=number)) for number in range(9)
    ]
    rows.append(dead_letter(50, reason=None))
    table = gold(row(0, dead_lettered=200, dead_letter_reasons={"poison": 150, "too old": 50}))
    reasons = build(table, None, examples(*rows)).reasons
    assert [(reason.text, reason.count) for reason in reasons] == [
        ("poison", 150),
        ("too old", 50),
        (NO_REASON, 1),
    ]
    assert [example["message_sequence"] for example in reasons[0].examples] == [8, 7, 6]
    assert len(reasons[0].examples) == MAX_EXAMPLES
    assert reasons[2].examples[0]["message_sequence"] == 50


def test_most_severe_anomalies_come_first() -> None:
    next_hour = START + timedelta(hours=1)
    report = build(
        gold(row(0, published=1)),
        anomalies(
            anomaly(id="1", severity="warning", minute=next_hour),
            anomaly(id="2", severity="critical", minute=START),
            anomaly(id="3", severity="critical", minute=next_hour),
        ),
    )
    assert [(item["severity"], item["minute"]) for item in report.anomalies] == [
        ("critical", next_hour),
        ("critical", START),
        ("warning", next_hour),
    ]
