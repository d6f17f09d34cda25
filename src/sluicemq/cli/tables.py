"""Tables for people: what is in the cells, and how amounts are written."""

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
"""Columns of a table that goes into a file or a pipe: there each row is one line."""
_BARS: Final = " ▁▂▃▄▅▆▇█"

Item = dict[str, Any]


class Column(NamedTuple):
    """One column of a table of items."""

    title: str
    of: Callable[[Item], str | Text]
    right: bool = False


def table(columns: Sequence[Column], items: Iterable[Item], *, cut: bool = False) -> Table:
    """A row for each item. `cut`: on one line each, whatever is lost of it."""
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
    """Names and values, below each other."""
    made = Table(box=None, pad_edge=False, show_header=False)
    made.add_column(style="bold", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in rows:
        made.add_row(name, cell(value) if isinstance(value, str) else value)
    return made


def cell(text: str | Text) -> Text:
    """Text as it is, but for what would move the cursor or begin another line."""
    if isinstance(text, Text):
        return text
    return Text(printable(text).replace("\n", "\\n"))


def show(what: RenderableType) -> None:
    """Print it: as wide as the terminal, or as it needs where there is none."""
    console = out(None if sys.stdout.isatty() else WIDEST)
    console.print(what)


def number(value: float) -> str:
    """A count."""
    return f"{value:,.0f}"


def rate(value: float) -> str:
    """A count in a second."""
    return f"{value:,.1f}"


def size(count: float) -> str:
    """Bytes, for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def age(milliseconds: float) -> str:
    """A duration in its largest unit, for people."""
    seconds = milliseconds / 1000
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"


def moment(milliseconds: float) -> str:
    """A time (ms since the epoch), of here; "-" for 0."""
    if not milliseconds:
        return "-"
    return datetime.fromtimestamp(milliseconds / 1000).strftime("%Y-%m-%d %H:%M:%S")


def sparkline(values: Sequence[float], width: int) -> str:
    """The last `width` values as bars; the highest one is full."""
    recent = values[-width:]
    highest = max(recent, default=0) or 1
    return "".join(_BARS[round(value / highest * (len(_BARS) - 1))] for value in recent)
