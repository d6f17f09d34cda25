"""Rendering of a scene as a PNG picture.

Matplotlib serves as a canvas: the same scene is rendered as SVG and as PNG. It includes a font, so
text is rendered on machines without fonts, and needs no system library, unlike common SVG
renderers.
"""

from __future__ import annotations

import warnings
from pathlib import Path as FilePath
from typing import Final

from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.path import Path
from matplotlib.transforms import Affine2D

from sluicemq.pipeline.report import words
from sluicemq.pipeline.report.drawings import drawings, period
from sluicemq.pipeline.report.figures import ReportFigures
from sluicemq.pipeline.report.palette import COLOURS, PAINTS
from sluicemq.pipeline.report.scene import Area, Boxes, Polylines, Scene, Shape, Text

SIZE: Final = (960, 320)
TITLE_CHARACTERS: Final = 40
SCALE: Final = 2.0
"""Pixels of the picture per pixel of the scene."""
MARGIN: Final = 20
HEAD: Final = 44
"""Height of the title above the scene."""
_POINTS: Final = 72.0 / 100.0
"""Points per pixel of a scene: the figure has 100 pixels per inch."""


def write_pngs(report: ReportFigures, directory: FilePath) -> list[FilePath]:
    """Write the charts as pictures to a directory, created if missing.

    Return their paths; none without traffic."""
    directory.mkdir(parents=True, exist_ok=True)
    made = []
    for name, draw in drawings(report).items():
        assert report.timeline is not None
        path = directory / f"{name}.png"
        title = words.printable(report.title, TITLE_CHARACTERS)
        write_png(draw(report.timeline, SIZE), path, f"{title} · {period(report)}")
        made.append(path)
    return made


def write_png(scene: Scene, path: FilePath, subtitle: str) -> None:
    """Write a scene on a light background, with its title and `subtitle` above."""
    width, height = scene.width + 2 * MARGIN, scene.height + HEAD + 2 * MARGIN
    figure = Figure(figsize=(width / 100, height / 100), dpi=100 * SCALE)
    painter = _Painter(figure, MARGIN, HEAD + MARGIN, height)
    painter.text(Text(0, 16 - HEAD, scene.title, "title"))
    painter.text(Text(scene.width, 16 - HEAD, subtitle, "note", "end"))
    for shape in scene.shapes:
        painter.paint(shape)
    with warnings.catch_warnings():
        # characters that the font lacks appear as boxes; no other font is certain to be installed
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
        figure.savefig(
            path,
            format="png",
            dpi=100 * SCALE,
            facecolor=COLOURS["card"].light,
            metadata={"Title": scene.title, "Software": None},
        )


class _Painter:
    """Draws shapes on a figure, with the origin at its top left."""

    def __init__(self, figure: Figure, left: float, top: float, height: float) -> None:
        self._figure = figure
        self._order = 0
        scale = SCALE
        self._transform = (
            Affine2D().translate(left, top).scale(scale, -scale).translate(0, height * scale)
        )

    def paint(self, shape: Shape) -> None:
        """Draw a shape over the previous ones."""
        self._order += 1
        if isinstance(shape, Text):
            self.text(shape)
        elif isinstance(shape, Boxes):
            for x, y, width, height in shape.boxes:
                self._filled(Rectangle((x, y), width, height), shape.role)
        elif isinstance(shape, Area):
            self._filled(PathPatch(Path(list(shape.points), closed=False)), shape.role)
        else:
            assert isinstance(shape, Polylines)
            self._lines(shape)

    def text(self, text: Text) -> None:
        """Draw one line of text, without interpreting formulas."""
        paint = PAINTS[text.role]
        assert paint.fill is not None
        font = FontProperties(
            family="DejaVu Sans",
            size=paint.size * _POINTS * 0.92,
            weight="bold" if paint.bold else "normal",
        )
        self._figure.text(
            text.x,
            text.y,
            text.text,
            transform=self._transform,
            color=COLOURS[paint.fill].light,
            ha={"start": "left", "middle": "center", "end": "right"}[text.anchor],
            va="baseline",
            fontproperties=font,
            parse_math=False,
            zorder=self._order,
        )

    def _filled(self, patch: PathPatch | Rectangle, role: str) -> None:
        fill = PAINTS[role].fill
        assert fill is not None
        patch.set(facecolor=COLOURS[fill].light, edgecolor="none", transform=self._transform)
        patch.set_zorder(self._order)
        # antialiased edges of adjacent shapes would show the background between them
        patch.set_antialiased(not isinstance(patch, Rectangle))
        self._figure.add_artist(patch)

    def _lines(self, shape: Polylines) -> None:
        paint = PAINTS[shape.role]
        assert paint.stroke is not None
        for run in shape.runs:
            line = Line2D(
                [x for x, _ in run],
                [y for _, y in run],
                color=COLOURS[paint.stroke].light,
                linewidth=paint.width * _POINTS,
                transform=self._transform,
                solid_joinstyle="miter",
                zorder=self._order,
            )
            if paint.dash:
                line.set_dashes([part / paint.width for part in paint.dash])
            self._figure.add_artist(line)
