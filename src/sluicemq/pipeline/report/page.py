"""Report as one self-contained HTML file.

Its content security policy allows the page's own style and script, by their digests, and no request
to any host. Text from outside (names, reasons, bodies) is made printable (words.printable) and
escaped by the template engine wherever the template inserts it.
"""

from __future__ import annotations

import base64
import hashlib
import os
import tempfile
from importlib import resources
from pathlib import Path
from typing import Final

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

import sluicemq
from sluicemq.pipeline.report import charts, summary, words
from sluicemq.pipeline.report.drawings import drawings, period
from sluicemq.pipeline.report.figures import ReportFigures, Timeline
from sluicemq.pipeline.report.heat import percentiles_of
from sluicemq.pipeline.report.palette import PROTOCOLS, style_sheet
from sluicemq.pipeline.report.scale import MINUTE
from sluicemq.pipeline.report.svg import ornament, svg

WIDE: Final = (960, 300)
HALF: Final = (460, 250)
NARROW: Final = (370, 270)
"""Size of charts for phones: the text of a wide chart would be too small there."""
NARROW_BINS: Final = 64
HALF_BINS: Final = 96
TABLE_ROWS: Final = 48
"""Maximum number of rows of the table alternative of a chart."""


def render(report: ReportFigures) -> str:
    """Return the page."""
    files = resources.files("sluicemq.pipeline.report")
    style = style_sheet() + (files / "page.css").read_text("utf-8")
    script = (files / "page.js").read_text("utf-8")
    environment = Environment(
        autoescape=True,
        finalize=_visible,
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
        printable=words.printable,
        brief=words.brief,
        moment=lambda time: words.moment(time if isinstance(time, int) else time.timestamp()),
    )
    template = environment.from_string((files / "page.html.jinja").read_text("utf-8"))
    return template.render(
        report=report,
        policy=_policy(style, script),
        style=Markup(style),
        script=Markup(script),
        version=sluicemq.__version__,
        summary=summary.sentences(report),
        state=[] if report.state is None else summary.state_of(report.state, report.late_events),
        period=period(report),
        protocols=PROTOCOLS,
        protocol_totals=_protocol_totals(report),
        charts=_charts(report),
        values=None if report.timeline is None else report.timeline.at_most(TABLE_ROWS),
        bin_name=_bin_name,
        percentiles=lambda counts: percentiles_of(counts, 0.5, 0.95, 0.99),
        spark=lambda queue: Markup(ornament(charts.spark(queue.arrivals))),
        minute=MINUTE,
    )


def write(report: ReportFigures, path: Path) -> None:
    """Write the page atomically: a reader of `path` gets the old or the new page."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(render(report))
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _visible(value: object) -> object:
    """Return a value as the template inserts it; the report's own markup is not changed."""
    return (
        value if isinstance(value, Markup) or not isinstance(value, str) else words.printable(value)
    )


def _charts(report: ReportFigures) -> dict[str, Markup]:
    """Return each chart as SVG in two sizes, of which the style sheet shows one."""
    made = {}
    for name, draw in drawings(report).items():
        assert report.timeline is not None
        half = name in ("backlog", "troubles")
        big = report.timeline.at_most(HALF_BINS) if half else report.timeline
        small = report.timeline.at_most(NARROW_BINS)
        made[name] = Markup(
            svg(draw(big, HALF if half else WIDE), name, "wide")
            + svg(draw(small, NARROW), f"{name}-narrow", "narrow")
        )
    return made


def _protocol_totals(report: ReportFigures) -> list[tuple[str, int]]:
    if report.timeline is None:
        return []
    return [(name, int(values.sum())) for name, values in report.timeline.arrivals.items()]


def _bin_name(timeline: Timeline, index: int) -> str:
    return words.span(*timeline.bins.seconds(index))


def _policy(style: str, script: str) -> str:
    return (
        "default-src 'none'; "
        f"style-src 'sha256-{_digest(style)}'; script-src 'sha256-{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
