"""Report as one self-contained HTML file.

Its content security policy allows the page's own style and script, by their digests, and no request
to any host. Text from outside (names, reasons, bodies) is made printable (formatting.printable) and
escaped by the template engine wherever the template inserts it.
"""

from __future__ import annotations

import base64
import hashlib
from importlib import resources
from pathlib import Path
from typing import Final

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

import sluicemq
from sluicemq.journal.files import write_atomically
from sluicemq.pipeline.report import formatting
from sluicemq.pipeline.report.charts import COLOURS, Drawings, Size, charts, draw, extent, sparkline
from sluicemq.pipeline.report.figures import MINUTE, ReportFigures

SIZES: Final[dict[str, Size]] = {"wide": (1020, 290), "narrow": (370, 290)}
"""Sizes of charts in pixels, for screens and phones: the text of a wide one would be too small."""
FILES: Final = resources.files("sluicemq.pipeline.report")


def render(report: ReportFigures) -> str:
    environment = Environment(
        autoescape=True,
        # the report's own markup is not a plain string
        finalize=lambda value: formatting.printable(value) if type(value) is str else value,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        count=formatting.count,
        short=formatting.short,
        rate=formatting.rate,
        size=formatting.size,
        duration=formatting.duration,
        cell=lambda value: (formatting.duration if isinstance(value, float) else formatting.count)(
            value
        ),
        printable=formatting.printable,
        brief=formatting.brief,
        moment=lambda time: formatting.moment(time if isinstance(time, int) else time.timestamp()),
    )
    drawings = Drawings()
    shown = charts(report)
    images = {
        name: {size: _chart(report, name, size, drawings) for size in SIZES} for name in shown
    }
    queues = [*report.queues, *filter(None, [report.others])]
    sparklines = [
        Markup(drawings.svg(sparkline(queue.arrivals), f"spark-{index}"))
        for index, queue in enumerate(queues)
    ]
    style = _custom_properties() + drawings.rules() + (FILES / "page.css").read_text("utf-8")
    script = (FILES / "page.js").read_text("utf-8")
    return environment.from_string((FILES / "page.html.jinja").read_text("utf-8")).render(
        report=report,
        style=Markup(style),
        style_digest=_digest(style),
        script=Markup(script),
        script_digest=_digest(script),
        version=sluicemq.__version__,
        charts=shown,
        drawings=images,
        sparklines=sparklines,
        span=formatting.span,
        minute=MINUTE,
    )


def write(report: ReportFigures, path: Path) -> None:
    """Write the page atomically: a reader of `path` gets the old or the new page."""
    page = render(report)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, page.encode(), mode=0o644)


def _chart(
    report: ReportFigures, name: str, size: str, drawings: Drawings
) -> tuple[str, float, float]:
    """Return a drawing, and where its bins begin and end, as shares of its width."""
    assert report.timeline is not None
    figure = draw(report, name, SIZES[size])
    svg = drawings.svg(figure, f"{name}-{size}")
    start, end = extent(figure, report.timeline.bins)
    return Markup(svg), round(start, 4), round(end, 4)


def _custom_properties() -> str:
    """Return CSS with the colours.

    Screens follow the system's dark mode; print uses the light colours."""
    light, dark = (
        "".join(f"--{name}:{pair[theme]};" for name, pair in COLOURS.items()) for theme in (0, 1)
    )
    return (
        f":root{{color-scheme:light dark;{light}}}\n"
        f"@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}\n"
    )


def _digest(text: str) -> str:
    """Return the source of a content security policy that allows this text only."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
