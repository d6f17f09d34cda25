"""The traffic report: gold tables become one HTML file that somebody wants to look at, and print.

    build(gold, anomalies, dead_letters)  ->  Report   figures, from Arrow tables
    write(report, path)                                one file, without any request to a host
    report_lake(lake, out)                             both, for the directory of a lake

`png.write_pngs` makes pictures of the charts; it is not imported here, because it needs matplotlib.
No Spark session is started.
"""

from sluicemq.pipeline.report.build import build
from sluicemq.pipeline.report.figures import Report
from sluicemq.pipeline.report.lake import report_lake
from sluicemq.pipeline.report.page import render, write

__all__ = ["Report", "build", "render", "report_lake", "write"]
