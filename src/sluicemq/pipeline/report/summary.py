"""Summary of a report in sentences."""

from __future__ import annotations

from typing import Final

from sluicemq.pipeline.report import words
from sluicemq.pipeline.report.figures import LakeState, ReportFigures
from sluicemq.pipeline.report.scale import MINUTE

NAME_CHARACTERS: Final = 60
GROWTH: Final = 1.5
"""Factor from which the backlog counts as growing; below its inverse it shrinks."""


def sentences(report: ReportFigures) -> list[str]:
    """Return the main facts, the most urgent first.

    Names are not escaped; the template escapes them."""
    lines = []
    if report.anomaly_count:
        lines.append(_anomalies(report))
    if report.timeline is not None:
        lines.append(_traffic(report))
        lines += _backlog(report)
    if report.dead_lettered:
        lines.append(_dead_letters(report))
    elif report.timeline is not None and not report.redelivered and not report.expired:
        lines.append("No message was redelivered, expired or dead-lettered.")
    return lines


def _anomalies(report: ReportFigures) -> str:
    critical = sum(each.severity == "critical" for each in report.anomalies)
    first = report.anomalies[0]
    things = words.things(report.anomaly_count, "anomaly", "anomalies")
    urgent = f", {critical} critical" if critical else ""
    named = words.printable(first.destination, NAME_CHARACTERS)
    return f"{things}{urgent}; first of all {first.kind} at {named}: {first.evidence.rstrip('.')}."


def _traffic(report: ReportFigures) -> str:
    text = f"{words.things(report.published, 'message')} came in"
    if report.peak_at is not None and report.published > 1:
        text += (
            f"; the busiest minute was {words.brief(report.peak_at * MINUTE)} "
            f"({words.rate(report.peak / MINUTE)})"
        )
    if report.latency.p95 is not None:
        text += (
            f"; half of what was acknowledged took no longer than "
            f"{words.duration(report.latency.p50)} from published to acknowledged, "
            f"95 % no longer than {words.duration(report.latency.p95)}"
        )
    return text + "."


def _backlog(report: ReportFigures) -> list[str]:
    assert report.timeline is not None
    line = report.timeline.backlog
    if line is None or report.backlog is None:
        return []
    if not line.any():
        return ["No message was ready at any measurement."]
    start, end = int(line[0]), report.backlog
    text = f"{words.things(end, 'message')} {'waits' if end == 1 else 'wait'} at the end"
    largest = max(report.queues, key=lambda queue: queue.backlog or 0)
    if end and largest.backlog:
        share = f"{largest.backlog / end:.0%} of them " if end > 1 else ""
        text += f", {share}in {words.printable(largest.name, NAME_CHARACTERS)}"
    if start and end > start * GROWTH:
        text += f", more than at the start ({words.count(start)})"
    elif end * GROWTH < start:
        text += f", fewer than at the start ({words.count(start)})"
    return [f"{text}."]


def _dead_letters(report: ReportFigures) -> str:
    number = report.dead_lettered
    became = "became a dead letter" if number == 1 else "became dead letters"
    text = f"{words.things(number, 'message')} {became}"
    if report.published:
        part = number / report.published
        share = "less than 0.01%" if part < 0.0001 else f"{part:.2%}"
        text += f" ({share} of those that came in)"
    if report.reasons:
        first = report.reasons[0]
        share = f"{first.count / max(number, first.count):.0%} " if number > 1 else ""
        text += f", {share}for the reason “{words.printable(first.text, NAME_CHARACTERS)}”"
    return text + "."


def state_of(state: LakeState, late_events: int) -> list[str]:
    """Return sentences about the pipeline's progress."""
    lines = []
    for progress in state.progress:
        text = (
            f"Of the broker {words.printable(progress.broker, NAME_CHARACTERS)} the lake has all "
            f"up to record {words.count(progress.last)}, since "
            f"{words.moment(progress.committed.timestamp())} UTC"
        )
        lines.append(f"{text}.")
    if late_events:
        lines.append(f"{words.things(late_events, 'event')} came late, and all are counted.")
    return lines
