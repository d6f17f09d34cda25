"""Which charts a report has."""

from __future__ import annotations

from collections.abc import Callable

from sluicemq.pipeline.report import charts, heat, words
from sluicemq.pipeline.report.figures import Report, Timeline
from sluicemq.pipeline.report.scale import MINUTE
from sluicemq.pipeline.report.scene import Scene

Draw = Callable[[Timeline, tuple[int, int]], Scene]


def drawings(report: Report) -> dict[str, Draw]:
    """The charts that have something to show, by name."""
    timeline = report.timeline
    if timeline is None:
        return {}
    found: dict[str, Draw] = {
        "traffic": lambda line, size: charts.traffic(line, report.anomalies, size)
    }
    if timeline.latency.any():
        found["latency"] = heat.latency
    if timeline.backlog is not None:
        found["backlog"] = charts.backlog
    if report.redelivered or report.expired or report.dead_lettered:
        found["troubles"] = charts.troubles
    return found


def period(report: Report) -> str:
    """From when to when, in words; empty if it is not known."""
    if report.since is None or report.until is None:
        return ""
    return words.period(report.since * MINUTE, report.until * MINUTE) + " UTC"
