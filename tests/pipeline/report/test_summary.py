"""The sentences at the top of a report."""

from __future__ import annotations

from datetime import timedelta

from sluicemq.pipeline.report import ReportFigures, build
from tests.pipeline.report.sample import START, anomalies, anomaly, gold, row
from tests.pipeline.report.test_page import page, words_of


def sentences(report: ReportFigures) -> list[str]:
    """The items under the heading "Summary"."""
    (section,) = [
        section
        for section in page(report).iter("section")
        if section.attrib.get("aria-labelledby") == "summary-heading"
    ]
    return [words_of(item) for item in section.iter("li")]


def test_summary_of_one_message() -> None:
    report = build(
        gold(
            row(0, published=1, dead_lettered=1, dead_letter_reasons={"poison": 1}),
            row(0, protocol="any", backlog=1, unacked=0, consumers=0),
        )
    )
    assert sentences(report) == [
        "1 message was published.",
        "1 message waits at the end, in orders.",
        "1 message became a dead letter (100.00% of the published ones), for the reason “poison”.",
    ]


def test_summary_of_busy_day() -> None:
    report = build(
        gold(
            row(0, published=6000, acknowledged=2, end_to_end=[2.0, 100.0], backlog=10),
            row(0, "b", published=60_000, backlog=0),
            row(60, published=1, backlog=300),
            row(60, "b", backlog=100, dead_lettered=3, dead_letter_reasons={"x": 2, "y": 1}),
        ),
        anomalies(
            anomaly(),
            anomaly(id="2", severity="warning", minute=START + timedelta(minutes=1)),
        ),
    )
    assert sentences(report) == [
        "2 anomalies, 1 critical; the most important is stuck-queue at orders: nothing "
        "acknowledged for 60 minutes.",
        "66,001 messages were published; the busiest minute was 20 Nov, 08:00 (1.1k/s); half of "
        "the acknowledged messages took at most 1.99 ms from published to acknowledged, 95 % at "
        "most 98.7 ms.",
        "400 messages wait at the end, 75% of them in orders, more than at the start (10).",
        "3 messages became dead letters (less than 0.01% of the published ones), 67% for the "
        "reason “x”.",
    ]


def test_summary_of_quiet_day() -> None:
    report = build(gold(row(0, protocol="any", backlog=0, unacked=0, consumers=0)))
    assert sentences(report) == [
        "0 messages were published.",
        "No message was ready at any measurement.",
        "No message was redelivered, expired or dead-lettered.",
    ]
