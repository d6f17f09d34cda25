"""Traffic report: gold tables as one printable HTML file.

    build(gold, anomalies, dead_letters)  ->  ReportFigures   from Arrow tables
    write(report, path)                   one file without external requests
    report_lake(spark, lake, out)         both, for a lake

`charts.write_pngs` writes the charts as pictures.
"""

from sluicemq.pipeline.report.figures import ReportFigures, build
from sluicemq.pipeline.report.lake import report_lake
from sluicemq.pipeline.report.page import render, write

__all__ = ["ReportFigures", "build", "render", "report_lake", "write"]
