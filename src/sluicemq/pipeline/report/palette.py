"""Colours of a report.

The colours of the five protocols are distinguishable with the three kinds of colour blindness, and
have a contrast of at least three with the background, light and dark; a test verifies both.
"""

from __future__ import annotations

from typing import Final

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
"""Colours as #rrggbb, for light and for dark backgrounds."""
LIGHT: Final = {name: light for name, (light, _) in COLOURS.items()}
HEAT: Final = tuple(name for name in COLOURS if name.startswith("heat-"))
"""Names of the colours of a heat map, from few to many."""

PROTOCOLS: Final = {
    "phpmq": "PHPMQ",
    "vibemq": "VibeMQ",
    "jmq": "JMS",
    "msglite": "msglite",
    "other": "other",
}
"""Display names of the protocols, each with a colour of its own."""


def style_sheet() -> str:
    """Return CSS with the colours as custom properties.

    Screens follow the system's dark mode; print uses the light colours."""
    light = "".join(f"--{name}:{colour};" for name, (colour, _) in COLOURS.items())
    dark = "".join(f"--{name}:{colour};" for name, (_, colour) in COLOURS.items())
    return (
        f":root{{color-scheme:light dark;{light}}}\n"
        f"@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}\n"
    )
