"""Latency heat map: time on x, latency on y, colour for the number of messages."""

from __future__ import annotations

import bisect
import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sluicemq.pipeline import histogram
from sluicemq.pipeline.report import words
from sluicemq.pipeline.report.figures import Counts, Timeline
from sluicemq.pipeline.report.palette import HEAT_STEPS
from sluicemq.pipeline.report.plot import Key, Plot
from sluicemq.pipeline.report.scene import Boxes, Point, Polylines, Scene, Text

_FINE: Final = (1, 1.5, 2, 3, 5, 7)
_COARSE: Final = (1, 2, 5)
FEWEST_ROWS: Final = 6
MOST_ROWS: Final = 30
"""Number of rows beyond which the coarse steps are used."""
UPPER: Final = tuple(histogram.bounds(bucket)[1] for bucket in range(histogram.LAST + 1))
"""Upper bound of each bucket in ms."""
LABEL_PIXELS: Final = 24
FEWEST_LABELS: Final = 3
"""With fewer powers of ten, other rows are labelled, too."""


class LatencyBands:
    """Rows of equal height, from the lowest to the highest latency that occurred.

    edges  ms, one more than there are rows; the first is 0 if the row has all lower latencies
    """

    def __init__(self, latency: Counts) -> None:
        """Choose the rows for `latency`, bins x buckets with at least one message."""
        used = np.flatnonzero(latency.sum(axis=0))
        timed = used[used > 0]
        # the last bucket has no upper bound
        fastest = UPPER[min(timed[0], histogram.LAST - 1)] if len(timed) else 1.0
        slowest = UPPER[min(used[-1], histogram.LAST - 1)]
        edges = _edges(fastest, slowest, _FINE)
        if len(edges) > MOST_ROWS:
            edges = _edges(fastest, slowest, _COARSE)
        if used[0] == 0:
            edges = [0.0, *edges]
        self.edges = edges
        # a bucket belongs to the row of its upper bound: whole milliseconds are just below it
        self._row_of = np.array(
            [min(max(bisect.bisect_right(edges, up) - 1, 0), len(edges) - 2) for up in UPPER]
        )

    def __len__(self) -> int:
        return len(self.edges) - 1

    def cells(self, latency: Counts) -> Counts:
        """Return bins x rows for bins x buckets."""
        cells = np.zeros((len(latency), len(self)), np.int64)
        np.add.at(cells.T, self._row_of, latency.T)
        return cells

    def place(self, milliseconds: float) -> float:
        """Return the position in rows from the bottom, logarithmic between the edges."""
        row = min(max(bisect.bisect_right(self.edges, milliseconds) - 1, 0), len(self) - 1)
        low, high = self.edges[row], self.edges[row + 1]
        if low <= 0:
            return row + min(milliseconds / high, 1.0)
        return row + min(math.log(max(milliseconds, low) / low) / math.log(high / low), 1.0)

    def name(self, row: int) -> str:
        """Return the range of a row, such as 10 ms to 15 ms."""
        low, high = self.edges[row], self.edges[row + 1]
        if low <= 0:
            return f"below {words.duration(high)}"
        return f"{words.duration(low)} to {words.duration(high)}"


def latency(timeline: Timeline, size: tuple[int, int]) -> Scene:
    """Draw published-to-acknowledged latencies with their median and 95th percentile.

    Needs at least one acknowledged message."""
    rows = LatencyBands(timeline.latency)
    cells = rows.cells(timeline.latency)
    most = int(cells.max())
    plot = Plot(
        size,
        "Latency over time",
        "Heat map: how many messages took how long from published to acknowledged, in each bin "
        "of time; lines for the median and the 95th percentile.",
        timeline.bins,
        "latency",
        [
            Key("p50", "median", line=True),
            Key("p95", "95th percentile", line=True),
            Key(
                [f"heat-{step}" for step in range(HEAT_STEPS)],
                "1 message" if most == 1 else f"1 to {words.short(most)} messages",
            ),
        ],
    )
    plot.top = float(len(rows))
    _labels(plot, rows)
    steps = _classes(cells, most)
    for step in range(HEAT_STEPS):
        plot.scene.shapes.append(Boxes(_boxes(plot, steps == step), f"heat-{step}"))
    middle, high = _percentiles(timeline.latency)
    for role, values in (("p50", middle), ("p95", high)):
        runs = _runs(plot, rows, values)
        plot.scene.shapes += [Polylines(runs, f"{role}-halo"), Polylines(runs, role)]
    plot.base_line()
    plot.spots(
        [
            _says(timeline, rows, cells, index, middle[index], high[index])
            for index in range(timeline.bins.count)
        ]
    )
    return plot.scene


def _edges(fastest: float, slowest: float, steps: tuple[float, ...]) -> list[float]:
    """Return round latencies around two bounds (ms), enough for FEWEST_ROWS."""
    grid = [step * 10.0**decade for decade in range(-2, 13) for step in steps]
    first = max(0, bisect.bisect_right(grid, fastest) - 1)
    last = max(bisect.bisect_right(grid, slowest), first + FEWEST_ROWS)
    return grid[first : last + 1]


def percentiles_of(counts: Counts, *shares: float) -> list[float | None]:
    """Return percentiles of one histogram, given as a count per bucket."""
    sparse = {int(bucket): int(counts[bucket]) for bucket in np.flatnonzero(counts)}
    return [histogram.percentile(sparse, share) for share in shares]


def _percentiles(latency: Counts) -> tuple[list[float | None], list[float | None]]:
    found = [percentiles_of(counts, 0.5, 0.95) for counts in latency]
    return [each[0] for each in found], [each[1] for each in found]


def _classes(cells: Counts, most: int) -> NDArray[np.int64]:
    """Return the colour step of each cell, by logarithm; -1 = empty."""
    share = np.log(np.maximum(cells, 1)) / math.log(max(most, 2))
    steps = np.minimum((share * HEAT_STEPS).astype(np.int64), HEAT_STEPS - 1)
    return np.where(cells > 0, steps, -1)


def _boxes(plot: Plot, chosen: NDArray[np.bool_]) -> list[tuple[float, float, float, float]]:
    """Return the chosen cells as boxes; cells adjacent in time form one box."""
    boxes = []
    for row, cells in enumerate(chosen.T):
        edges = np.flatnonzero(np.diff(np.concatenate(([0], cells.view(np.int8), [0]))))
        top = plot.y(row + 1)
        for start, end in edges.reshape(-1, 2).tolist():
            x = plot.x(start)
            boxes.append((x, top, plot.x(end) - x, plot.y(row) - top))
    return boxes


def _labels(plot: Plot, rows: LatencyBands) -> None:
    """Label the edges of rows: round latencies, as many as fit."""
    height = plot.height / len(rows)
    timed = [edge for edge in rows.edges[:-1] if edge > 0]
    labelled = [edge for edge in timed if f"{edge:e}".startswith("1.000")]
    if len(labelled) < FEWEST_LABELS:
        labelled = timed[:: max(1, math.ceil(LABEL_PIXELS / height))]
    shapes = plot.scene.shapes
    for edge in labelled:
        y = plot.y(rows.edges.index(edge))
        shapes.append(Polylines([[(plot.left, y), (plot.right, y)]], "grid"))
        shapes.append(Text(plot.left - 7, y + 4, words.duration(edge), "tick", "end"))


def _runs(plot: Plot, rows: LatencyBands, values: list[float | None]) -> list[list[Point]]:
    """Return lines, interrupted where there is no value."""
    runs: list[list[Point]] = []
    broken = True
    for index, value in enumerate(values):
        if value is None:
            broken = True
            continue
        if broken:
            runs.append([])
        broken = False
        y = plot.y(rows.place(value))
        runs[-1] += [(plot.x(index), y), (plot.x(index + 1), y)]
    return runs


def _says(
    timeline: Timeline,
    rows: LatencyBands,
    cells: Counts,
    index: int,
    middle: float | None,
    high: float | None,
) -> str:
    when = words.span(*timeline.bins.seconds(index))
    total = int(cells[index].sum())
    if not total:
        return f"{when}\nnothing acknowledged"
    largest = int(cells[index].argmax())
    return (
        f"{when}\n{words.count(total)} acknowledged\n"
        f"median {words.duration(middle)} · 95 % within {words.duration(high)}\n"
        f"most: {words.count(int(cells[index][largest]))} took {rows.name(largest)}"
    )
