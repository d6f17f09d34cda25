"""A drawing, before it is SVG or PNG: few kinds of shape, in pixels from the top left.

A shape has no colour of its own but a role, which the palette paints: so one drawing serves light,
dark and paper.
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
"""Of a letter, in parts of its size, on average: there is no font to measure."""


@dataclass(frozen=True, slots=True)
class Boxes:
    """Filled rectangles."""

    boxes: Sequence[Box]
    role: str


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines through points; each run is a line of its own."""

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
    """A place that says something when it is pointed at; invisible. A new line begins a fact."""

    box: Box
    says: str


Shape = Boxes | Lines | Area | Text


@dataclass(slots=True)
class Scene:
    """One drawing. `title` and `description` are for those who cannot see it."""

    width: int
    height: int
    title: str
    description: str
    shapes: list[Shape] = field(default_factory=list)
    spots: list[Spot] = field(default_factory=list)
