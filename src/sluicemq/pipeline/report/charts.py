"""Charts of a report, drawn by matplotlib: as SVG for the page, or as PNG pictures.

The same figure serves both. Its colours are the light ones of COLOURS; the style sheet of the page
replaces them with custom properties (`Drawings`), so that a chart follows the dark mode.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC
from pathlib import Path
from typing import Any, Final

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from sluicemq.pipeline import histogram
from sluicemq.pipeline.report import figures, formatting
from sluicemq.pipeline.report.figures import PROTOCOLS, Bins, ReportFigures, Timeline
from sluicemq.pipeline.schema import PERCENTILES

Size = tuple[int, int]
"""Width and height in pixels."""
Values = NDArray[Any]

COLOURS: Final = {
    "page": ("#f3f4f6", "#0d0f12"),
    "card": ("#ffffff", "#15181d"),
    "sunk": ("#f6f7f9", "#1b1f26"),
    "ink": ("#16191d", "#eceef1"),
    "muted": ("#59606b", "#a3abb8"),
    "rule": ("#e1e4e8", "#2a2f38"),
    "axis": ("#8a919c", "#6b7380"),
    "accent": ("#2b4fd0", "#8ea2f0"),
    "phpmq": ("#3b5fe0", "#5a74d8"),
    "vibemq": ("#7a2e8e", "#e6b0f5"),
    "jmq": ("#d67a0a", "#c47a1a"),
    "msglite": ("#17623a", "#4fdc94"),
    "other": ("#8f8f98", "#93939c"),
    "bad": ("#b3202e", "#ff7a80"),
    "bad-ground": ("#fbe9ea", "#3a1a1d"),
    "warning": ("#8a5a00", "#f0b849"),
    "warning-ground": ("#fdf2dc", "#35290f"),
    "heat-0": ("#dfe7fa", "#1c2740"),
    "heat-1": ("#bccdf4", "#233a6b"),
    "heat-2": ("#93aeec", "#2c519b"),
    "heat-3": ("#6a8ce2", "#3c6dc9"),
    "heat-4": ("#466bd2", "#5f90e8"),
    "heat-5": ("#2c4bb0", "#93b8f6"),
    "heat-6": ("#1b2f7c", "#d3e3ff"),
}
"""Colours as #rrggbb, for light and for dark backgrounds.

Those of the five protocols are distinguishable with the three kinds of colour blindness, and have a
contrast of at least three with the background; a test verifies both.
"""
LIGHT: Final = {name: light for name, (light, _) in COLOURS.items()}
HEAT: Final = tuple(name for name in COLOURS if name.startswith("heat-"))
"""Names of the colours of a heat map, from few to many."""

STYLE: Final[Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": LIGHT["axis"],
    "axes.facecolor": LIGHT["card"],
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.labelcolor": LIGHT["muted"],
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.facecolor": LIGHT["card"],
    "font.size": 12,
    "grid.color": LIGHT["rule"],
    "legend.borderaxespad": 0.2,
    "legend.borderpad": 0.2,
    "legend.columnspacing": 1.2,
    "legend.fontsize": 12,
    "legend.frameon": False,
    "legend.handlelength": 1.2,
    "legend.handletextpad": 0.5,
    "svg.fonttype": "none",
    "text.color": LIGHT["ink"],
    "xtick.color": LIGHT["axis"],
    "xtick.labelcolor": LIGHT["muted"],
    "ytick.color": LIGHT["axis"],
    "ytick.major.size": 0,
    "ytick.labelcolor": LIGHT["muted"],
}
MIN_OUTLINE: Final = 0.75
"""Width in pixels of a bar's outline, so that one message in a busy hour is visible."""
FEWEST_BINS: Final = 4
"""Minimum number of bins of an axis; with fewer, one bin would be as wide as the page."""
TICK_PIXELS: Final = 70
"""Minimum distance of two ticks of the time axis."""
LEGEND_PIXELS: Final = 130
"""Approximate width of an entry of the legend."""
BAND: Final = 8
"""Number of histogram buckets in a row of the latency chart."""
FEWEST_BANDS: Final = 8
SPARKLINE: Final = (132, 26)
PICTURE: Final = (1000, 404)
BARS: Final = {
    **{f"in by {label}": name for name, label in PROTOCOLS.items()},
    "ready": "heat-3",
    "dead letters": "bad",
    "expired": "other",
    "redelivered": "jmq",
}
LINES: Final = {"out": "ink", "unacknowledged": "ink", "p50": "ink", "p95": "jmq"}
"""Colours of the columns that are drawn as bars or lines."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart of the page.

    lead     description for the page and for screen readers
    columns  its values by heading: counts as integers, times in ms as floats
    total    the table ends with the sums of the columns
    """

    title: str
    lead: str
    columns: Callable[[Timeline], dict[str, Any]]
    total: bool = False


def _latencies(timeline: Timeline) -> dict[str, Values]:
    rows = [figures.percentiles(counts) for counts in timeline.latency]
    return {"acknowledged": timeline.latency.sum(axis=1)} | {
        name: np.array([row[name] for row in rows], float) for name in PERCENTILES
    }


CHARTS: Final = {
    "traffic": Chart(
        "Traffic",
        "Messages in by protocol as stacked bars, messages out as a line.",
        lambda line: {
            **{f"in by {PROTOCOLS[name]}": values for name, values in line.arrivals.items()},
            "out": line.counts["acknowledged"],
        },
        total=True,
    ),
    "latency": Chart(
        "Latency",
        "Time from published to acknowledged, its median (p50) and its 95th percentile (p95). "
        "The stronger the colour, the more messages.",
        _latencies,
    ),
    "backlog": Chart(
        "Backlog",
        "Ready and unacknowledged messages at the end of each period of time.",
        lambda line: {"ready": line.counts["backlog"], "unacknowledged": line.counts["unacked"]},
    ),
    "failures": Chart(
        "Redelivered, expired, dead",
        "Messages that were redelivered, expired or became dead letters.",
        lambda line: {
            "dead letters": line.counts["dead_lettered"],
            "expired": line.counts["expired"],
            "redelivered": line.counts["redelivered"],
        },
        total=True,
    ),
}


def charts(report: ReportFigures) -> dict[str, Chart]:
    """Return the charts that have data, by name."""
    if report.timeline is None:
        return {}
    has_data = {
        "latency": report.timeline.latency.any(),
        "backlog": "backlog" in report.timeline.counts,
        "failures": report.redelivered or report.expired or report.dead_lettered,
    }
    return {name: chart for name, chart in CHARTS.items() if has_data.get(name, True)}


def draw(report: ReportFigures, name: str, size: Size) -> Figure:
    """Return the figure of a chart that has data."""
    assert report.timeline is not None
    timeline = report.timeline
    columns = CHARTS[name].columns(timeline)
    with rc_context(STYLE):
        figure = Figure(figsize=(size[0] / 72, size[1] / 72), dpi=72, layout="constrained")
        axes = figure.add_subplot()
        if name == "latency":
            _latency(axes, timeline, columns)
        elif name == "traffic":
            rates = {label: counts / timeline.seconds for label, counts in columns.items()}
            unit = "messages/s"
            if max(values.max() for values in rates.values()) < 1:
                rates = {label: values * figures.MINUTE for label, values in rates.items()}
                unit = "messages/min"
            _counts(axes, timeline.bins, rates, unit)
            _mark_anomalies(axes, timeline.bins, report.anomalies)
        else:
            _counts(axes, timeline.bins, columns, "messages")
        _time_axis(axes, timeline.bins, size[0])
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=max(2, size[0] // LEGEND_PIXELS))
    return figure


def extent(figure: Figure, bins: Bins) -> Values:
    """Return where the bins begin and end in a drawn figure, as shares of its width."""
    ends = [[_edges(bins)[index], 0.0] for index in (0, -1)]
    return figure.axes[0].transData.transform(ends)[:, 0] / figure.bbox.width


def sparkline(arrivals: figures.Counts) -> Figure:
    """Return a small chart of one destination's traffic, without axes."""
    figure = Figure(figsize=(SPARKLINE[0] / 72, SPARKLINE[1] / 72), dpi=72)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.axis("off")
    axes.set(xlim=(0, len(arrivals)), ylim=(0, max(1, arrivals.max(initial=0)) * 1.05))
    _bars(axes, {"ready": arrivals}, np.arange(len(arrivals) + 1))
    return figure


def _counts(axes: Axes, bins: Bins, columns: dict[str, Values], unit: str) -> None:
    """Draw counts or rates as stacked bars and as lines."""
    bars = {label: values for label, values in columns.items() if label in BARS}
    top = _bars(axes, bars, _edges(bins))
    for label in columns.keys() & LINES.keys():
        _line(axes, bins, columns[label], label)
        top = max(top, columns[label].max())
    axes.set(ylim=(0, top * 1.05 or 1), ylabel=unit)
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=unit == "messages", steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(lambda value, _: formatting.short(value))


def _mark_anomalies(axes: Axes, bins: Bins, anomalies: Sequence[figures.Row]) -> None:
    """Draw a triangle at the top for anomalies; a critical one hides a warning."""
    for severity, colour in (("warning", "warning"), ("critical", "bad")):
        indices = {
            (figures.minute_of(anomaly["minute"]) - bins.start) // bins.width
            for anomaly in anomalies
            if anomaly["severity"] == severity
        }
        visible = sorted(index for index in indices if 0 <= index < bins.count)
        if visible:
            axes.plot(
                _edges(bins)[visible] + bins.width / figures.DAY_MINUTES / 2,
                [0.96] * len(visible),
                transform=axes.get_xaxis_transform(),
                color=LIGHT[colour],
                marker="v",
                markeredgecolor=LIGHT["card"],
                markersize=11,
                linestyle="",
                label=f"{severity} anomaly",
            )


def _latency(axes: Axes, timeline: Timeline, columns: dict[str, Values]) -> None:
    """Draw a heat map; needs at least one acknowledged message."""
    edges, cells = bands(timeline.latency)
    maximum = int(cells.max())
    mesh = axes.pcolormesh(
        _edges(timeline.bins),
        edges,
        np.ma.masked_equal(cells.T, 0),
        clip_on=False,
        # without outlines, seams would appear between the cells
        edgecolor="face",
        linewidth=0.5,
        cmap=ListedColormap([LIGHT[name] for name in HEAT]),
        norm=BoundaryNorm(np.geomspace(1, max(maximum, 2), len(HEAT) + 1), len(HEAT), clip=True),
    )
    for label in ("p50", "p95"):
        _line(axes, timeline.bins, columns[label], label)
    lowest = edges[0] or edges[1]
    axes.set_yscale("symlog", linthresh=lowest, linscale=0.15)
    axes.set(ylim=(edges[0], edges[-1]), ylabel="latency")
    ticks = np.outer(10.0 ** np.arange(-2, 13), (1, 2, 5) if edges[-1] < 1000 * lowest else (1,))
    # the label of 0 is just below
    ticks = ticks[(ticks >= (lowest if edges[0] else 2 * lowest)) & (ticks <= edges[-1])]
    axes.set_yticks(ticks if edges[0] else [0.0, *ticks])
    axes.yaxis.set_major_formatter(lambda value, _: formatting.duration(value))
    axes.minorticks_off()
    bar = axes.figure.colorbar(mesh, ax=axes, ticks=[1, maximum], pad=0.01, aspect=30)
    bar.ax.yaxis.set_major_formatter(lambda value, _: formatting.short(value))
    bar.set_label("messages")
    bar.outline.set_visible(False)


def bands(latency: figures.Counts) -> tuple[Values, figures.Counts]:
    """Return the latency bands that have messages, for bins x buckets with at least one.

    Return the edges in ms, of which the first is 0 if a message took no measurable time, and the
    counts per bin and band."""
    edges = histogram.FLOOR * histogram.RATIO ** np.arange(0.0, histogram.LAST + 1, BAND)
    # The first band has the bucket of times too short to measure, the others BAND buckets each.
    cells = np.add.reduceat(latency, [0, *range(1, histogram.LAST + 1, BAND)], axis=1)
    indices = np.flatnonzero(cells[:, 1:].any(axis=0)).tolist() or [
        int(np.searchsorted(edges, 1.0))
    ]
    first = min(indices[0], len(edges) - 1 - FEWEST_BANDS)
    last = max(indices[-1] + 1, first + FEWEST_BANDS)
    edges, timed = edges[first : last + 1], cells[:, first + 1 : last + 1]
    if not cells[:, 0].any():
        return edges, timed
    return np.concatenate(([0.0], edges)), np.column_stack((cells[:, 0], timed))


def _bars(axes: Axes, layers: dict[str, Values], edges: Values) -> float:
    """Draw stacked bars, the first layer at the bottom, and return the height of the highest."""
    base = np.zeros(len(edges) - 1)
    for label, values in layers.items():
        # NaN instead of 0: the outline of an empty bar would look like a message.
        axes.stairs(
            np.where(values > 0, base + values, np.nan),
            edges,
            baseline=base,
            fill=True,
            label=label,
            facecolor=LIGHT[BARS[label]],
            edgecolor=LIGHT[BARS[label]],
            linewidth=MIN_OUTLINE,
        )
        base = base + values
    return float(base.max(initial=0))


def _line(axes: Axes, bins: Bins, values: Values, label: str) -> None:
    """Draw a line that is level within each bin, interrupted where a value is NaN."""
    axes.stairs(
        values,
        _edges(bins),
        baseline=None,
        label=label,
        color=LIGHT[LINES[label]],
        linewidth=1.8,
        path_effects=[withStroke(linewidth=4, foreground=LIGHT["card"])],
    )


def _edges(bins: Bins) -> Values:
    """Return the edges of the bins in days since 1970, the time scale of matplotlib."""
    return (bins.start + bins.width * np.arange(bins.count + 1)) / figures.DAY_MINUTES


def _time_axis(axes: Axes, bins: Bins, pixels: int) -> None:
    edges = _edges(bins)
    spare = max(0, FEWEST_BINS - bins.count) * bins.width / figures.DAY_MINUTES / 2
    axes.set_xlim(edges[0] - spare, edges[-1] + spare)
    axes.xaxis_date(UTC)
    locator = AutoDateLocator(  # type: ignore[no-untyped-call]
        tz=UTC, minticks=2, maxticks=max(3, pixels // TICK_PIXELS)
    )
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(
        ConciseDateFormatter(  # type: ignore[no-untyped-call]
            locator,
            tz=UTC,
            formats=["%Y", "%b", "%-d %b", "%H:%M", "%H:%M", "%H:%M:%S"],
            zero_formats=["", "%Y", "%-d %b", "%-d %b", "%H:%M", "%H:%M"],
            show_offset=False,
        )
    )
    axes.set_xlabel("time (UTC)")


class Drawings:
    """Converter of figures to SVG elements of one page.

    The content security policy of the page forbids style attributes: `rules` has them as rules of
    the style sheet."""

    def __init__(self) -> None:
        self._classes: dict[str, str] = {}

    def svg(self, figure: Figure, name: str) -> str:
        """Return the element of a figure. `name` is unique in the page."""
        file = io.StringIO()
        metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        # the salt makes the ids of clip paths and markers unique
        with rc_context({**STYLE, "svg.hashsalt": name}):
            figure.savefig(file, format="svg", metadata=metadata, transparent=True)
        text = re.sub(r"(?s)^.*?(?=<svg)|<style.*?</style>|(?<=>)\s+", "", file.getvalue())
        text = re.sub(r'(?<=<g) id="[^"]*"', "", text)
        text = re.sub(r" ?\n([A-Zz]) ?", r"\1", text)
        # one decimal of a pixel is enough
        text = re.sub(r"(\.\d)\d+(?=[^<>]*>)", r"\1", text)
        return re.sub(r'(?<= )style="([^"]*)"', self._class, text)

    def _class(self, style: re.Match[str]) -> str:
        name = self._classes.setdefault(style[1], f"s{len(self._classes)}")
        return f'class="{name}"'

    def rules(self) -> str:
        """Return the style sheet of all elements so far."""
        text = "".join(f".{name}{{{style}}}\n" for style, name in self._classes.items())
        for name, colour in LIGHT.items():
            text = text.replace(colour, f"var(--{name})")
        return text


def write_pngs(report: ReportFigures, directory: Path) -> None:
    """Write the charts as PNG pictures to a directory, created if missing."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, chart in charts(report).items():
        figure = draw(report, name, PICTURE)
        title = f"{formatting.printable(report.title, 40)} · {chart.title} · {report.period}"
        figure.suptitle(title, parse_math=False, fontweight="bold")
        with warnings.catch_warnings():
            # characters that the font lacks appear as boxes; no other font is certain to exist
            warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
            # two pixels for one of `PICTURE`
            figure.savefig(directory / f"{name}.png", dpi=144, metadata={"Software": None})
