"""Drawing that is independent of its output format: shapes in pixels from the top left.

A shape has a role instead of a colour; the palette defines the paint of each role for light, dark
and print.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

Anchor = Literal["start", "middle", "end"]
Point = tuple[float, float]
Box = tuple[float, float, float, float]
"""x, y, width, height."""

TEXT_WIDTH: Final = 0.56
"""Average width of a character relative to the font size: there is no font to measure."""


@dataclass(frozen=True, slots=True)
class Boxes:
    """Filled rectangles."""

    boxes: Sequence[Box]
    role: str


@dataclass(frozen=True, slots=True)
class Polylines:
    """Lines through points; each run is a separate line."""

    runs: Sequence[Sequence[Point]]
    role: str


@dataclass(frozen=True, slots=True)
class Area:
    """A filled polygon."""

    points: Sequence[Point]
    role: str


@dataclass(frozen=True, slots=True)
class Text:
    """One line of text; (x, y) is on its base line."""

    x: float
    y: float
    text: str
    role: str
    anchor: Anchor = "start"


@dataclass(frozen=True, slots=True)
class Spot:
    """Invisible area with a tooltip; each line of the text is one fact."""

    box: Box
    says: str


Shape = Boxes | Polylines | Area | Text


@dataclass(slots=True)
class Scene:
    """One drawing. `title` and `description` are for screen readers."""

    width: int
    height: int
    title: str
    description: str
    shapes: list[Shape] = field(default_factory=list)
    spots: list[Spot] = field(default_factory=list)
