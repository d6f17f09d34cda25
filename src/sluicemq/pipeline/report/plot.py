"""Frame of a chart over time: axes, grid, legend, and coordinates of values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sluicemq.pipeline.report import scale, words
from sluicemq.pipeline.report.scale import Bins
from sluicemq.pipeline.report.scene import TEXT_WIDTH, Boxes, Polylines, Scene, Spot, Text

LEFT: Final = 52
RIGHT: Final = 14
BOTTOM: Final = 26
LEGEND_LINE: Final = 20
LEGEND_GAP: Final = 17
SWATCH: Final = 11
CHARACTER_WIDTH: Final = 12 * TEXT_WIDTH
"""Average width of a character of normal size, in pixels."""
FEWEST_BINS: Final = 4
"""Minimum number of bins of an axis; with fewer, one bin would be as wide as the page."""
APART_PIXELS: Final = 9
TICK_PIXELS: Final = 64
"""Minimum distance of two ticks of the time axis."""


@dataclass(frozen=True, slots=True)
class Key:
    """Entry of the legend: a line, or adjacent filled squares, one for each role."""

    role: str | Sequence[str]
    label: str
    line: bool = False

    @property
    def roles(self) -> Sequence[str]:
        """Return the roles of its squares."""
        return (self.role,) if isinstance(self.role, str) else self.role

    @property
    def width(self) -> float:
        """Approximate width in pixels."""
        return SWATCH * len(self.roles) + 6 + len(self.label) * CHARACTER_WIDTH


class Plot:
    """Scene with a plotting area whose x is time. Values of y range from 0 to `top`."""

    def __init__(
        self,
        size: tuple[int, int],
        title: str,
        description: str,
        bins: Bins,
        unit: str,
        keys: Sequence[Key],
    ) -> None:
        """Draw legend and time axis. `unit` is the label of the y axis."""
        width, height = size
        self.scene = Scene(width, height, title, description)
        self.left, self.right = LEFT, width - RIGHT
        self.bottom = height - BOTTOM
        self.top_of_area = self._legend(keys, unit)
        self.bins = bins
        spare = max(0, FEWEST_BINS - bins.count) / 2
        self._first = -spare
        self._bin = (self.right - self.left) / (bins.count + 2 * spare)
        self.top = 1.0
        self._time_axis()

    @property
    def height(self) -> float:
        """Height of the plotting area in pixels."""
        return self.bottom - self.top_of_area

    def x(self, bin_index: float) -> float:
        """Return the x coordinate at which a bin begins."""
        return self.left + (bin_index - self._first) * self._bin

    def y(self, value: float) -> float:
        """Return the y coordinate of a value."""
        return self.bottom - self.height * value / self.top

    @property
    def apart(self) -> bool:
        """True if bins are wide enough for separate bars."""
        return self._bin > APART_PIXELS

    def bar(self, index: int) -> tuple[float, float]:
        """Return x and width of a bar with a gap to its neighbours."""
        gap = 2.0 if self._bin > 2 * APART_PIXELS else 1.0
        return self.x(index) + gap / 2, self._bin - gap

    def value_axis(self, top: float, *, whole: bool = False) -> None:
        """Scale y so that `top` fits, with grid and labels; `whole`: integers only."""
        marks = scale.value_ticks(top, max(2, int(self.height / 46)), whole=whole)
        self.top = marks[-1]
        shapes = self.scene.shapes
        shapes.append(Polylines([self._across(self.y(mark)) for mark in marks[1:]], "grid"))
        shapes += [
            Text(self.left - 7, self.y(mark) + 4, words.short(mark), "tick", "end")
            for mark in marks
        ]

    def base_line(self) -> None:
        """Draw the axis over the shapes on it."""
        self.scene.shapes.append(Polylines([self._across(self.bottom)], "axis"))

    def spots(self, says: Sequence[str]) -> None:
        """Add the tooltip of each bin."""
        self.scene.spots += [
            Spot((self.x(index), self.top_of_area, self._bin, self.height), text)
            for index, text in enumerate(says)
        ]

    def _across(self, y: float) -> list[tuple[float, float]]:
        return [(self.left, y), (self.right, y)]

    def _legend(self, keys: Sequence[Key], unit: str) -> float:
        """Draw the legend and return the top of the plotting area."""
        shapes = self.scene.shapes
        unit_width = len(unit) * CHARACTER_WIDTH + 16
        shapes.append(Text(0, 13, unit, "unit"))
        x, y = max(float(LEFT), unit_width), 13.0
        first_line = x
        for key in keys:
            if x > first_line and x + key.width > self.right:
                x, y = first_line, y + LEGEND_LINE
            swatches = SWATCH * len(key.roles)
            for index, role in enumerate(key.roles):
                if key.line:
                    shapes.append(Polylines([[(x - 2, y - 4), (x + SWATCH + 2, y - 4)]], role))
                else:
                    box = (x + index * SWATCH, y - SWATCH + 1, SWATCH, SWATCH)
                    shapes.append(Boxes([box], role))
            shapes.append(Text(x + swatches + 6, y, key.label, "legend"))
            x += key.width + 16
        return y + LEGEND_GAP

    def _time_axis(self) -> None:
        start, _ = self.bins.seconds(0)
        end = self.bins.end * scale.MINUTE
        shapes = self.scene.shapes
        pixels = self.x(self.bins.count) - self.x(0)
        marks = scale.time_ticks(start, end, max(1, int(pixels / TICK_PIXELS)))
        per_second = pixels / (end - start)
        for mark in marks:
            x = self.x(0) + (mark.at - start) * per_second
            role = "tick-day" if mark.strong else "tick"
            if mark.strong:
                shapes.append(Polylines([[(x, self.top_of_area), (x, self.bottom)]], "day"))
            shapes.append(Polylines([[(x, self.bottom), (x, self.bottom + 5)]], "axis"))
            # A label at the edge would be clipped.
            half = len(mark.label) * CHARACTER_WIDTH / 2
            at = min(max(x, half), self.scene.width - half)
            shapes.append(Text(at, self.bottom + 18, mark.label, role, "middle"))
