"""docs/limits.md: each setting in its tables exists, with the default that the table gives."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

DOCS: Final = Path(__file__).parents[2] / "docs"
_CODE: Final = re.compile(r"`([^`]+)`")
_OWN_DEFAULT: Final = {"max_frame_bytes"}
"""Listener options whose default differs from that of `[limits]`, which the row describes."""


def _defaults() -> dict[str, str]:
    """Return the default of each setting as docs/configuration.md shows it."""
    defaults: dict[str, str] = {}
    section = ""
    for line in (DOCS / "configuration.md").read_text("utf-8").splitlines():
        if line.startswith("## "):
            section = line[3:].strip("[]")
        elif row := re.match(r"\| `(\w+)` \| `?([^`|]*)`? \|", line):
            defaults[f"{section.removesuffix('.NAME')}.{row[1]}"] = row[2].strip()
    return defaults


def test_limits_have_defaults_of_configuration() -> None:
    defaults = _defaults()
    count = 0
    heading = ""
    for line in (DOCS / "limits.md").read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| limit | "):
            heading = cells[1]
        if not line.startswith("|") or len(cells) != 4 or not cells[1].startswith("`"):
            continue
        name = _CODE.findall(cells[1])[0]
        if name in _OWN_DEFAULT:
            continue
        if "." not in name:
            name = f"{'listeners' if 'listener' in heading + cells[1] else 'destinations'}.{name}"
        assert name in defaults, name
        assert _CODE.findall(cells[2]) == [defaults[name]], name
        count += 1
    assert count > 60
