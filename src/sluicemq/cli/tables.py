"""Tables for the terminal, and the format of amounts in their cells."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from sluicemq.cli.console import out, printable

WIDEST: Final = 10_000
"""Width of a table that is written to a file or a pipe, where each row is one line."""
_BARS: Final = " ▁▂▃▄▅▆▇█"

Item = dict[str, Any]


class Column(NamedTuple):
    """One column of a table of items."""

    title: str
    of: Callable[[Item], str | Text]
    right: bool = False


def table(columns: Sequence[Column], items: Iterable[Item], *, cut: bool = False) -> Table:
    """Return a table with a row per item. `cut` truncates each cell to one line."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(
            column.title,
            justify="right" if column.right else "left",
            no_wrap=column.right or cut,
            overflow="ellipsis" if cut else "fold",
        )
    for item in items:
        made.add_row(*(cell(column.of(item)) for column in columns))
    return made


def pairs(rows: Iterable[tuple[str, RenderableType]]) -> Table:
    """Return names and values as a table of two columns."""
    made = Table(box=None, pad_edge=False, show_header=False)
    made.add_column(style="bold", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in rows:
        made.add_row(name, cell(value) if isinstance(value, str) else value)
    return made


def cell(text: str | Text) -> Text:
    """Return text with control characters and line breaks escaped."""
    if isinstance(text, Text):
        return text
    return Text(printable(text).replace("\n", "\\n"))


def show(what: RenderableType) -> None:
    """Print a table in the width of the terminal, or in its full width without a terminal."""
    console = out(None if sys.stdout.isatty() else WIDEST)
    console.print(what)


def number(value: float) -> str:
    """Format a count."""
    return f"{value:,.0f}"


def rate(value: float) -> str:
    """Format a rate per second."""
    return f"{value:,.1f}"


def size(count: float) -> str:
    """Format a number of bytes."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def age(milliseconds: float) -> str:
    """Format a duration in its largest unit."""
    seconds = milliseconds / 1000
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"


def moment(milliseconds: float) -> str:
    """Format a time (ms since the epoch) in the local time zone; "-" for 0."""
    if not milliseconds:
        return "-"
    return datetime.fromtimestamp(milliseconds / 1000).strftime("%Y-%m-%d %H:%M:%S")


def sparkline(values: Sequence[float], width: int) -> str:
    """Format the last `width` values as a sparkline; the highest is a full bar."""
    recent = values[-width:]
    highest = max(recent, default=0) or 1
    return "".join(_BARS[round(value / highest * (len(_BARS) - 1))] for value in recent)
