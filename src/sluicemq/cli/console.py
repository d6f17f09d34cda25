"""Consoles, exit codes and error output of all commands.

Standard output carries only the requested data, so that it can be piped; messages for the person at
the terminal go to standard error.
"""

from __future__ import annotations

import base64
import math
import os
import signal
import ssl
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import IntEnum
from itertools import chain
from types import FrameType
from typing import Annotated, Any, Final, Generic, NamedTuple, TypeVar

import msgspec
import typer
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from sluicemq.model.errors import (
    ConfigurationError,
    ConnectionLost,
    JournalDamaged,
    SluiceError,
)
from sluicemq.model.setting import suggestion
from sluicemq.server.settings import Unit, parse_quantity


class Exit(IntEnum):
    """Exit codes of every command."""

    OK = 0
    REFUSED = 1
    """Nothing was received, or the operation failed or was refused."""
    USAGE = 2
    """The command line or the configuration is invalid."""


class UsageError(ConfigurationError):
    """The command line is invalid; the text states the correct usage."""


MAX_INTERVAL: Final = 86_400
"""Longest refresh interval in seconds; far longer ones are out of the range of the system."""

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]


def out(width: int | None = None) -> Console:
    """Return a new console on standard output: one per call, because tests and shells redirect
    it."""
    return Console(highlight=False, emoji=False, soft_wrap=True, width=width)


def err() -> Console:
    """Return a console on standard error."""
    return Console(stderr=True, highlight=False, emoji=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """Print one JSON document on standard output: on one line for a pipe, indented for a
    terminal. Bytes that are not UTF-8, as in names, are escaped."""
    try:
        data = msgspec.json.encode(value)
    except UnicodeEncodeError:
        data = msgspec.json.encode(_escape(msgspec.to_builtins(value)))
    if sys.stdout.isatty():
        data = msgspec.json.format(data)
    print(data.decode())


@contextmanager
def naming_file(name: object) -> Iterator[None]:
    """Add `name` to errors without the name of a file, such as those of writing."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(name)
        raise


def _escape(value: Any) -> Any:
    match value:
        case str():
            return escape_bytes(value)
        case dict():
            return {name: _escape(item) for name, item in value.items()}
        case list():
            return [_escape(item) for item in value]
    return value


def print_error(text: str, hint: str = "") -> None:
    """Print an error and, on a second line, what to do about it."""
    console = err()
    for line in printable(text).split("\n"):
        console.print(f"[bold red]error:[/] {escape(line)}")
    if hint:
        console.print(f"[dim]{escape(hint)}[/]")


def escape_bytes(text: str) -> str:
    """Return `text` with bytes that are not UTF-8, and surrogates, escaped."""
    return text.encode("utf-8", "backslashreplace").decode()


def printable(text: str) -> str:
    """Return `text` with control characters and unencodable characters escaped."""
    escaped = escape_bytes(text)
    return "".join(c if c == "\n" or c.isprintable() else f"\\x{ord(c):02x}" for c in escaped)


def body_fields(body: bytes) -> dict[str, str]:
    """Return a message body for JSON: as `body` if it is UTF-8 text, else as `body_base64`."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}


def unknown_choice(option: str, kind: str, word: str, known: Collection[str]) -> UsageError:
    """Return the error for an unknown word, with the nearest known one as a suggestion."""
    return UsageError(f"{option}: there is no {kind} {word!r}; {suggestion(word, known)}")


def choice_of(option: str, kind: str, known: Collection[str]) -> Callable[[str], str]:
    """Return the parser of an option whose value is one of the known words, in any letter case;
    for typer."""

    def parse(word: str) -> str:
        word = word.lower()
        if word not in known:
            raise unknown_choice(option, kind, word, known)
        return word

    return parse


def check_number(value: float | None) -> float | None:
    """Return the value of an option; for typer. Raises BadParameter for NaN, which is within any
    limits."""
    if value is not None and math.isnan(value):
        raise typer.BadParameter("nan is not a number.")
    return value


def quantity(option: str, text: str, unit: Unit) -> float:
    """Parse an amount such as 5GiB or 90d, and return it in `unit`. Raises UsageError."""
    try:
        return parse_quantity(text, unit)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None


_HINTS: Final[dict[type[Exception], str]] = {
    JournalDamaged: "sluicemq journal check finds all the damage; nothing has been changed.",
    PermissionError: "Run the command as the owner of that file or directory.",
    ssl.SSLCertVerificationError: (
        "Trust its authority with ?ca=FILE in the URL; the host must be one of its names."
    ),
    ConnectionLost: "Is the broker running, and does it listen there? sluicemq serve starts one.",
}
"""Hints by the class of an error, or of the cause of a lost connection; the first one that
applies."""


@contextmanager
def advising(advice_for: Callable[[SluiceError], str]) -> Iterator[None]:
    """Add to each error the advice that the function returns for it; "" = none."""
    try:
        yield
    except SluiceError as error:
        if advice := advice_for(error):
            error.add_note(advice)
        raise


def report(error: Exception) -> Exit:
    """Print the error that ended a command (SluiceError, OSError) without a traceback, with its
    notes or a hint. Return the exit code."""
    text = str(error) or type(error).__name__
    if isinstance(error, OSError):
        reason = error.strerror or text
        text = f"{error.filename}: {reason}" if error.filename else reason
    notes = "\n".join(getattr(error, "__notes__", ()))
    errors = (error, error.__cause__ if isinstance(error, ConnectionLost) else None)
    hints = (hint for kind, hint in _HINTS.items() if any(isinstance(e, kind) for e in errors))
    print_error(text, notes or next(hints, ""))
    return Exit.USAGE if isinstance(error, ConfigurationError) else Exit.REFUSED


@contextmanager
def stop_on_signals(*numbers: int) -> Iterator[threading.Event]:
    """Yield an event that these signals set; a second SIGINT interrupts at once."""
    stop = threading.Event()

    def receive(number: int, frame: FrameType | None) -> None:
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.set()

    with _signal_handler(receive, numbers):
        yield stop


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """End the command by SystemExit on SIGTERM and SIGHUP, so that it stops what it has started."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    numbers = (signal.SIGTERM, signal.SIGHUP)
    # nohup ignores SIGHUP
    with _signal_handler(end, [n for n in numbers if signal.getsignal(n) is not signal.SIG_IGN]):
        yield


@contextmanager
def _signal_handler(
    handler: Callable[[int, FrameType | None], None], numbers: Iterable[int]
) -> Iterator[None]:
    """Handle these signals within this context."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


# --- Tables ---------------------------------------------------------------------------------------

WIDTH: Final = 80
"""Width of a table where neither a terminal nor COLUMNS gives one."""
_BARS: Final = " ▁▂▃▄▅▆▇█"
_DURATIONS: Final = (("d", 86400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1))
"""Units from a minute, with their seconds, and the unit of the remainder."""
_FOLDED: Final = 12
"""Width below which columns of names are not folded as long as a column can be omitted."""

ItemT = TypeVar("ItemT")


class Column(NamedTuple, Generic[ItemT]):
    """One column of a table of items.

    align_right  align right; such cells are never folded
    no_fold      never fold the cells, as of times and states
    optional     omit the column if the table is too wide; the last one first
    """

    title: str
    of: Callable[[ItemT], str | Text]
    align_right: bool = False
    no_fold: bool = False
    optional: bool = False

    @property
    def can_fold(self) -> bool:
        """True if cells may be folded."""
        return not (self.align_right or self.no_fold)


class ItemTable:
    """Table with a row per item, which omits optional columns where the width is too small. `cut`
    truncates each cell to one line."""

    def __init__(
        self, columns: Sequence[Column[ItemT]], items: Iterable[ItemT], *, cut: bool = False
    ) -> None:
        self._columns = columns
        self._rows = [[cell(column.of(item)) for column in columns] for item in items]
        self._cut = cut
        for text in chain.from_iterable(self._rows if cut else ()):
            text.no_wrap = True

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render the columns for which there is space. Rich folds the widest of them further."""
        indexes = list(range(len(self._columns)))
        titles = [column.title for column in self._columns]
        if self._least_width(indexes, titles) > options.max_width:
            titles = [title.replace(" ", "\n") for title in titles]
        for index in reversed([*indexes]):
            too_wide = self._least_width(indexes, titles) > options.max_width
            if too_wide and self._columns[index].optional:
                indexes.remove(index)
        table = Table(box=None, pad_edge=False, collapse_padding=True, header_style="bold")
        for index in indexes:
            column = self._columns[index]
            table.add_column(
                titles[index],
                justify="right" if column.align_right else "left",
                no_wrap=not column.can_fold,
                overflow="fold" if column.can_fold and not self._cut else "ellipsis",
            )
        for row in self._rows:
            table.add_row(*(row[index] for index in indexes))
        yield table

    def _least_width(self, indexes: Sequence[int], titles: Sequence[str]) -> int:
        """Return the smallest width in which no name is folded to less than `_FOLDED`."""
        width = len(indexes) - 1
        for index in indexes:
            cells = [cell(line) for line in titles[index].split("\n")]
            natural = max(text.cell_len for text in (*cells, *(row[index] for row in self._rows)))
            width += min(natural, _FOLDED) if self._columns[index].can_fold else natural
        return width


def pairs(rows: Iterable[tuple[str, RenderableType]]) -> Table:
    """Return names and values as a table of two columns."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, cell(value) if isinstance(value, str) else value)
    return table


def cell(text: str | Text) -> Text:
    """Return text with control characters and line breaks escaped."""
    if isinstance(text, Text):
        return text
    return Text(printable(text).replace("\n", "\\n"))


def show(content: RenderableType) -> None:
    """Print a table in the width of the terminal or of COLUMNS, otherwise of 80 columns."""
    has_width = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal()
    console = out(None if has_width else WIDTH)
    console.print(content)


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
    unit, length, smaller_unit, part = next(row for row in _DURATIONS if seconds >= row[1])
    count, rest = divmod(seconds, length)
    return f"{count}{unit} {rest // part}{smaller_unit}" if rest // part else f"{count}{unit}"


def moment(milliseconds: float) -> str:
    """Format a time (ms since the epoch) in UTC; "-" for 0. A time outside the years 1 to 9999,
    which clients may set, is given in ms."""
    if not milliseconds:
        return "-"
    try:
        time = datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (ValueError, OverflowError):
        return f"{milliseconds:.0f} ms since 1970"
    return time.strftime("%Y-%m-%d %H:%M:%SZ")


def sparkline(values: Sequence[float], width: int) -> str:
    """Format the last `width` values as a sparkline; the highest is a full bar."""
    recent = values[-width:]
    highest = max(recent, default=0) or 1
    return "".join(_BARS[round(value / highest * (len(_BARS) - 1))] for value in recent)
