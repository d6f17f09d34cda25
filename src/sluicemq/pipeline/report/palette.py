"""Colours of a report, and the paint of each role in a drawing.

The colours of the five protocols are distinguishable with the three kinds of colour blindness, and
have a contrast of at least three with the background, light and dark; a test verifies both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Colour:
    """Colour as #rrggbb, for light and dark backgrounds."""

    light: str
    dark: str


@dataclass(frozen=True, slots=True)
class Paint:
    """Paint of a role: names of COLOURS, and pixels."""

    fill: str | None = None
    stroke: str | None = None
    width: float = 1.0
    dash: tuple[float, float] | None = None
    size: float = 12.0
    bold: bool = False


HEAT_STEPS: Final = 7
"""Number of colour steps, from few to many."""

COLOURS: Final = {
    "page": Colour("#f3f4f6", "#0d0f12"),
    "card": Colour("#ffffff", "#15181d"),
    "sunk": Colour("#f6f7f9", "#1b1f26"),
    "ink": Colour("#16191d", "#eceef1"),
    "muted": Colour("#59606b", "#a3abb8"),
    "rule": Colour("#e1e4e8", "#2a2f38"),
    "axis": Colour("#8a919c", "#6b7380"),
    "accent": Colour("#2b4fd0", "#8ea2f0"),
    "phpmq": Colour("#3b5fe0", "#5a74d8"),
    "vibemq": Colour("#7a2e8e", "#e6b0f5"),
    "jmq": Colour("#d67a0a", "#c47a1a"),
    "msglite": Colour("#17623a", "#4fdc94"),
    "other": Colour("#8f8f98", "#93939c"),
    "bad": Colour("#b3202e", "#ff7a80"),
    "bad-ground": Colour("#fbe9ea", "#3a1a1d"),
    "warning": Colour("#8a5a00", "#f0b849"),
    "warning-ground": Colour("#fdf2dc", "#35290f"),
    "heat-0": Colour("#dfe7fa", "#1c2740"),
    "heat-1": Colour("#bccdf4", "#233a6b"),
    "heat-2": Colour("#93aeec", "#2c519b"),
    "heat-3": Colour("#6a8ce2", "#3c6dc9"),
    "heat-4": Colour("#466bd2", "#5f90e8"),
    "heat-5": Colour("#2c4bb0", "#93b8f6"),
    "heat-6": Colour("#1b2f7c", "#d3e3ff"),
}

PROTOCOLS: Final = {
    "phpmq": "PHPMQ",
    "vibemq": "VibeMQ",
    "jmq": "JMS",
    "msglite": "msglite",
    "other": "other",
}
"""Display names of the protocols that have a colour of their own."""

PAINTS: Final = {
    "grid": Paint(stroke="rule"),
    "axis": Paint(stroke="axis"),
    "day": Paint(stroke="axis", dash=(2, 3)),
    "tick": Paint(fill="muted"),
    "tick-day": Paint(fill="ink", bold=True),
    "legend": Paint(fill="ink"),
    "unit": Paint(fill="muted"),
    "note": Paint(fill="muted", size=13),
    "title": Paint(fill="ink", size=16, bold=True),
    **{f"in-{name}": Paint(fill=name) for name in PROTOCOLS},
    "out-halo": Paint(stroke="card", width=4),
    "out": Paint(stroke="ink", width=1.6),
    **{f"heat-{step}": Paint(fill=f"heat-{step}") for step in range(HEAT_STEPS)},
    "p50-halo": Paint(stroke="card", width=4),
    "p50": Paint(stroke="ink", width=1.8, dash=(5, 3)),
    "p95-halo": Paint(stroke="card", width=4.4),
    "p95": Paint(stroke="jmq", width=2.2),
    "ready": Paint(fill="heat-3"),
    "unacked": Paint(stroke="ink", width=1.6),
    "redelivered": Paint(fill="jmq"),
    "expired": Paint(fill="other"),
    "dead": Paint(fill="bad"),
    "critical": Paint(fill="bad"),
    "warning": Paint(fill="warning"),
    "spark": Paint(fill="heat-3"),
}


def style_sheet() -> str:
    """Return CSS with the colours as custom properties and a class per role.

    Screens follow the system's dark mode; print uses the light colours."""
    light = "".join(f"--{name}:{colour.light};" for name, colour in COLOURS.items())
    dark = "".join(f"--{name}:{colour.dark};" for name, colour in COLOURS.items())
    return (
        f":root{{color-scheme:light dark;{light}}}\n"
        f"@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}\n"
        + "\n".join(_rule(role, paint) for role, paint in PAINTS.items())
        + "\n"
    )


def _rule(role: str, paint: Paint) -> str:
    declarations = [f"fill:var(--{paint.fill})" if paint.fill else "fill:none"]
    if paint.stroke:
        declarations += [f"stroke:var(--{paint.stroke})", f"stroke-width:{paint.width:g}"]
    if paint.dash:
        declarations.append("stroke-dasharray:" + " ".join(f"{part:g}" for part in paint.dash))
    if paint.size != Paint().size:
        declarations.append(f"font-size:{paint.size:g}px")
    if paint.bold:
        declarations.append("font-weight:600")
    return f"svg .{role}{{{';'.join(declarations)}}}"
