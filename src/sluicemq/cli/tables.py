"""Tables for the terminal, and the format of amounts in their cells."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from sluicemq.cli.console import out, printable

WIDTH: Final = 80
"""Width of a table where neither a terminal nor COLUMNS gives one."""
_BARS: Final = " ▁▂▃▄▅▆▇█"
_FOLDED: Final = 12
"""Width below which columns of names are not folded as long as a column can be omitted."""

Item = dict[str, Any]


class Column(NamedTuple):
    """One column of a table of items.

    right     align right; such cells are never folded
    whole     never fold the cells, as of times and states
    optional  omit the column if the table is too wide; the last one first
    """

    title: str
    of: Callable[[Item], str | Text]
    right: bool = False
    whole: bool = False
    optional: bool = False


class ItemTable:
    """Table with a row per item, which omits optional columns where the width is too small."""

    def __init__(self, columns: Sequence[Column], items: Iterable[Item], *, cut: bool) -> None:
        self._columns = columns
        rows = [[cell(column.of(item)) for column in columns] for item in items]
        self._cells = [[row[index] for row in rows] for index in range(len(columns))]
        self._cut = cut

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render the columns for which there is space."""
        indexes = list(range(len(self._columns)))
        titles = [column.title for column in self._columns]
        optional = [index for index in indexes if self._columns[index].optional]
        if self._width(indexes, titles) > options.max_width:
            titles = [title.replace(" ", "\n") for title in titles]
        while optional and self._width(indexes, titles) > options.max_width:
            indexes.remove(optional.pop())
        widths = self._widths(indexes, titles, options.max_width)
        made = Table(box=None, pad_edge=False, collapse_padding=True, header_style="bold")
        for index in indexes:
            column = self._columns[index]
            single = column.right or column.whole or self._cut
            made.add_column(
                titles[index],
                justify="right" if column.right else "left",
                no_wrap=single,
                overflow="ellipsis" if single else "fold",
                width=widths.get(index),
            )
        for number_of_row in range(len(self._cells[0]) if self._cells else 0):
            made.add_row(*(self._cells[index][number_of_row] for index in indexes))
        yield made

    def _width(self, indexes: Sequence[int], titles: Sequence[str]) -> int:
        """Return the smallest width in which no name is folded to less than `_FOLDED`."""
        width = len(indexes) - 1
        for index in indexes:
            natural = self._natural(index, titles)
            width += min(natural, _FOLDED) if self._folds(index) else natural
        return width

    def _widths(
        self, indexes: Sequence[int], titles: Sequence[str], available: int
    ) -> dict[int, int]:
        """Return the widths of the columns that fold: narrow ones first get what they need."""
        natural = {index: self._natural(index, titles) for index in indexes}
        folding = sorted(filter(self._folds, indexes), key=natural.__getitem__)
        fixed = sum(width for index, width in natural.items() if not self._folds(index))
        left = available - (len(indexes) - 1) - fixed
        widths = {}
        for position, index in enumerate(folding):
            widths[index] = max(1, min(natural[index], left // (len(folding) - position)))
            left -= widths[index]
        return widths

    def _folds(self, index: int) -> bool:
        return not (self._columns[index].right or self._columns[index].whole)

    def _natural(self, index: int, titles: Sequence[str]) -> int:
        cells = max((text.cell_len for text in self._cells[index]), default=0)
        return max(cells, *map(len, titles[index].split("\n")))


def table(columns: Sequence[Column], items: Iterable[Item], *, cut: bool = False) -> ItemTable:
    """Return a table with a row per item. `cut` truncates each cell to one line."""
    return ItemTable(columns, items, cut=cut)


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
    """Print a table in the width of the terminal or of COLUMNS, otherwise of 80 columns."""
    given = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal()
    console = out(None if given else WIDTH)
    console.print(what)


def number(value: float) -> str:
    """Format a count."""
    return f"{value:,.0f}"


def rate(value: float) -> str:
    """Format a rate per second."""
    return f"{value:,.1f}/s" if value < 100 else f"{value:,.0f}/s"


def size(count: float) -> str:
    """Format a number of bytes."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def age(milliseconds: float) -> str:
    """Format a duration in its two largest units: 1h 5m; or 12.5 s, 250 ms."""
    if milliseconds < 999.5:
        return f"{milliseconds:.0f} ms"
    if milliseconds < 59_950:
        return f"{milliseconds / 1000:.1f} s"
    seconds = round(milliseconds / 1000)
    for unit, length, smaller, part in (
        ("d", 86400, "h", 3600),
        ("h", 3600, "m", 60),
        ("m", 60, "s", 1),
    ):
        if seconds >= length:
            count, rest = divmod(seconds, length)
            return f"{count}{unit} {rest // part}{smaller}" if rest // part else f"{count}{unit}"
    return f"{seconds}s"


def moment(milliseconds: float) -> str:
    """Format a time (ms since the epoch) in UTC; "-" for 0."""
    if not milliseconds:
        return "-"
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def sparkline(values: Sequence[float], width: int) -> str:
    """Format the last `width` values as a sparkline; the highest is a full bar."""
    recent = values[-width:]
    highest = max(recent, default=0) or 1
    return "".join(_BARS[round(value / highest * (len(_BARS) - 1))] for value in recent)
