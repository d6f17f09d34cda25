"""Selection of a report's charts."""

from __future__ import annotations

from collections.abc import Callable

from sluicemq.pipeline.report import charts, heat, words
from sluicemq.pipeline.report.figures import ReportFigures, Timeline
from sluicemq.pipeline.report.scale import MINUTE
from sluicemq.pipeline.report.scene import Scene

Draw = Callable[[Timeline, tuple[int, int]], Scene]


def drawings(report: ReportFigures) -> dict[str, Draw]:
    """Return the charts that have data, by name."""
    timeline = report.timeline
    if timeline is None:
        return {}
    charts_by_name: dict[str, Draw] = {
        "traffic": lambda line, size: charts.traffic(line, report.anomalies, size)
    }
    if timeline.latency.any():
        charts_by_name["latency"] = heat.latency
    if timeline.backlog is not None:
        charts_by_name["backlog"] = charts.backlog
    if report.redelivered or report.expired or report.dead_lettered:
        charts_by_name["troubles"] = charts.troubles
    return charts_by_name


def period(report: ReportFigures) -> str:
    """Return the report's period as text; empty if it is not known."""
    if report.since is None or report.until is None:
        return ""
    return words.period(report.since * MINUTE, report.until * MINUTE) + " UTC"
