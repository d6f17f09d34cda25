"""Charts of a report as PNG pictures."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Final

from sluicemq.pipeline.report import words
from sluicemq.pipeline.report.charts import charts, draw
from sluicemq.pipeline.report.figures import ReportFigures

SIZE: Final = (1000, 404)
PIXELS_PER_INCH: Final = 144
"""Twice that of the page: a picture has two pixels for one of `SIZE`."""
TITLE_CHARACTERS: Final = 40


def write_pngs(report: ReportFigures, directory: Path) -> list[Path]:
    """Write the charts as pictures to a directory, created if missing.

    Return their paths; none without traffic."""
    directory.mkdir(parents=True, exist_ok=True)
    made = []
    for name, chart in charts(report).items():
        figure = draw(report, name, SIZE)
        title = words.printable(report.title, TITLE_CHARACTERS)
        figure.suptitle(
            f"{title} · {chart.title} · {report.period}", parse_math=False, fontweight="bold"
        )
        path = directory / f"{name}.png"
        with warnings.catch_warnings():
            # characters that the font lacks appear as boxes; no other font is certain to exist
            warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
            figure.savefig(path, dpi=PIXELS_PER_INCH, metadata={"Software": None})
        made.append(path)
    return made
