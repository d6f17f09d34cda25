"""Report as one self-contained HTML file.

Its content security policy allows the page's own style and script, by their digests, and no request
to any host. Text from outside (names, reasons, bodies) is made printable (words.printable) and
escaped by the template engine wherever the template inserts it.
"""

from __future__ import annotations

import base64
import hashlib
import os
from importlib import resources
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

import sluicemq
from sluicemq.pipeline.report import summary, words
from sluicemq.pipeline.report.charts import Drawings, charts, draw, extent, spark
from sluicemq.pipeline.report.figures import ReportFigures
from sluicemq.pipeline.report.palette import style_sheet
from sluicemq.pipeline.report.scale import MINUTE

WIDE: Final = (1020, 290)
NARROW: Final = (370, 290)
"""Size of charts for phones, in pixels: the text of a wide chart would be too small there."""
TABLE_ROWS: Final = 48
"""Maximum number of rows of the table alternative of a chart."""


def render(report: ReportFigures) -> str:
    """Return the page."""
    files = resources.files("sluicemq.pipeline.report")
    script = (files / "page.js").read_text("utf-8")
    environment = Environment(
        autoescape=True,
        # the report's own markup is not a plain string
        finalize=lambda value: words.printable(value) if type(value) is str else value,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        count=words.count,
        short=words.short,
        rate=words.rate,
        size=words.size,
        duration=words.duration,
        cell=lambda value: (words.duration if isinstance(value, float) else words.count)(value),
        printable=words.printable,
        brief=words.brief,
        moment=lambda time: words.moment(time if isinstance(time, int) else time.timestamp()),
    )
    template = environment.from_string((files / "page.html.jinja").read_text("utf-8"))
    drawings = Drawings()
    made = _charts(report, drawings)
    sparks = [
        Markup(drawings.svg(spark(queue.arrivals), f"spark-{index}"))
        for index, queue in enumerate([*report.queues, *filter(None, [report.others])])
    ]
    style = style_sheet() + drawings.rules() + (files / "page.css").read_text("utf-8")
    return template.render(
        report=report,
        policy=_policy(style, script),
        style=Markup(style),
        script=Markup(script),
        version=sluicemq.__version__,
        summary=summary.sentences(report),
        state=[] if report.state is None else summary.state_of(report.state, report.late_events),
        charts=made,
        span=words.span,
        sparks=sparks,
        minute=MINUTE,
    )


def write(report: ReportFigures, path: Path) -> None:
    """Write the page atomically: a reader of `path` gets the old or the new page."""
    page = render(report)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(page, "utf-8", newline="\n")
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _charts(report: ReportFigures, drawings: Drawings) -> dict[str, dict[str, Any]]:
    """Return for each chart its columns and its drawings in two sizes, of which one is shown.

    `extent` has shares of a drawing's width, `rows` how many rows of the table are between."""
    if report.timeline is None:
        return {}
    values = report.timeline.at_most(TABLE_ROWS)
    bins = report.timeline.bins
    made: dict[str, dict[str, Any]] = {}
    for name, chart in charts(report).items():
        made[name] = {"chart": chart, "bins": values.bins, "columns": chart.columns(values)}
        for variant, size in {"wide": WIDE, "narrow": NARROW}.items():
            figure = draw(report, name, size)
            made[name][variant] = {
                "svg": Markup(drawings.svg(figure, f"{name}-{variant}")),
                "extent": extent(figure, bins).round(4).tolist(),
                "rows": round(bins.count * bins.width / values.bins.width, 4),
            }
    return made


def _policy(style: str, script: str) -> str:
    digests = (hashlib.sha256(text.encode()).digest() for text in (style, script))
    return (
        "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'; "
        "base-uri 'none'; form-action 'none'"
    ).format(*(base64.b64encode(digest).decode() for digest in digests))
