"""Rendering of a scene as SVG, for an HTML page or a file."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape, quoteattr

from sluicemq.pipeline.report import words
from sluicemq.pipeline.report.scene import Area, Boxes, Point, Polylines, Scene, Shape, Text


def svg(scene: Scene, name: str, variant: str = "") -> str:
    """Return the SVG element, with classes for colours (palette.style_sheet).

    `name` is unique in the page and the prefix of the ids of title and description. `variant` has
    further classes."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {scene.width} {scene.height}" '
        f'class={quoteattr(f"chart {variant}".strip())} role="img" tabindex="0" '
        f'aria-labelledby="{name}-title {name}-description">',
        f'<title id="{name}-title">{_text(scene.title)}</title>',
        f'<desc id="{name}-description">{_text(scene.description)}</desc>',
    ]
    parts += [_shape(shape) for shape in scene.shapes]
    if scene.spots:
        parts.append('<g class="spots">')
        for spot in scene.spots:
            x, y, width, height = spot.box
            parts.append(
                f'<rect x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}">'
                f"<title>{_text(spot.says)}</title></rect>"
            )
        parts.append("</g>")
    parts.append("</svg>")
    return "".join(parts)


def ornament(scene: Scene) -> str:
    """Return the element without text, for small charts beside their figures."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {scene.width} {scene.height}" '
        f'class="ornament" width="{scene.width}" height="{scene.height}" aria-hidden="true">'
        + "".join(_shape(shape) for shape in scene.shapes)
        + "</svg>"
    )


def _shape(shape: Shape) -> str:
    if isinstance(shape, Text):
        anchor = "" if shape.anchor == "start" else f' text-anchor="{shape.anchor}"'
        return (
            f'<text x="{_n(shape.x)}" y="{_n(shape.y)}" class="{shape.role}"{anchor}>'
            f"{_text(shape.text)}</text>"
        )
    edges = ""
    if isinstance(shape, Boxes):
        # Adjacent shapes with antialiased or differently rounded edges would show the background.
        edges = ' shape-rendering="crispEdges"'
        path = "".join(
            f"M{_n(x)} {_n(y)}H{_n(x + width)}V{_n(y + height)}H{_n(x)}z"
            for x, y, width, height in shape.boxes
        )
    elif isinstance(shape, Polylines):
        path = "".join(_run(run) for run in shape.runs)
    else:
        assert isinstance(shape, Area)
        path = f"{_run(shape.points)}z"
    return f'<path class="{shape.role}" d="{path}"{edges}/>' if path else ""


def _run(points: Sequence[Point]) -> str:
    return "M" + "L".join(f"{_n(x)} {_n(y)}" for x, y in points)


def _text(text: str) -> str:
    """Escape text with arbitrary characters."""
    return escape(words.printable(text))


def _n(value: float) -> str:
    """Format a coordinate with one decimal."""
    text = f"{value:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text
