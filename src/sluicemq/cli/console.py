"""What the commands have in common: two consoles, exit codes, and how a mistake is told.

Standard output carries what was asked for and nothing else, so that it can be piped; everything
said to the person at the terminal goes to standard error.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from enum import IntEnum
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.markup import escape

from sluicemq.model.errors import (
    ConfigurationError,
    ConnectionLost,
    JournalDamaged,
    JournalLocked,
    SluiceError,
)
from sluicemq.server.address import nearest


class Exit(IntEnum):
    """Exit codes of every command."""

    OK = 0
    REFUSED = 1
    """Nothing was received, or the operation failed or was refused."""
    USAGE = 2
    """The command line or the configuration makes no sense."""


class UsageError(ConfigurationError):
    """The command line makes no sense; the text says what would."""


JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]


def out(width: int | None = None) -> Console:
    """Standard output. Made anew, because tests and shells redirect it."""
    return Console(highlight=False, soft_wrap=True, width=width)


def err() -> Console:
    """Standard error."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """One JSON document on standard output: a line if it is piped, indented for a terminal."""
    data = msgspec.json.encode(value)
    if sys.stdout.isatty():
        data = msgspec.json.format(data)
    sys.stdout.write(data.decode() + "\n")


def complain(what: str, hint: str = "") -> None:
    """Tell a mistake: what and where, and on a second line what to do next."""
    console = err()
    for line in printable(what).split("\n"):
        console.print(f"[bold red]error:[/] {escape(line)}")
    if hint:
        console.print(f"[dim]{escape(hint)}[/]")


def printable(text: str) -> str:
    """`text` without what would move a terminal's cursor or cannot be written."""
    escaped = text.encode("utf-8", "backslashreplace").decode()
    return "".join(c if c == "\n" or c.isprintable() else f"\\x{ord(c):02x}" for c in escaped)


def no_such(option: str, what: str, word: str, known: Iterable[str]) -> UsageError:
    """The error for a word that is none of those that are known."""
    words = list(known)
    guess = nearest(word, words)
    hint = f"did you mean {guess}?" if guess else f"there are {', '.join(words)}"
    return UsageError(f"{option}: there is no {what} {word!r}; {hint}")


def hint_for(error: Exception) -> str:
    """What to do about an error that does not say so itself: it may have a note that does."""
    if notes := getattr(error, "__notes__", []):
        return "\n".join(notes)
    if isinstance(error, JournalLocked):
        return "Stop the other process first, or give another directory with --data-dir."
    if isinstance(error, JournalDamaged):
        return "sluicemq journal check finds all the damage; nothing has been changed."
    if isinstance(error, ConnectionLost):
        return "Is the broker running, and does it listen there? sluicemq serve starts one."
    if isinstance(error, ConfigurationError) and not isinstance(error, UsageError):
        return "sluicemq config docs explains every setting."
    return ""


def exit_code(error: Exception) -> Exit:
    """The exit code of a command that ends with `error`."""
    return Exit.USAGE if isinstance(error, ConfigurationError) else Exit.REFUSED


def report(error: Exception) -> Exit:
    """Tell an error that ended a command. SluiceError, OSError; never a traceback."""
    if isinstance(error, OSError) and not isinstance(error, SluiceError):
        reason = error.strerror or str(error)
        complain(f"{error.filename}: {reason}" if error.filename else reason)
    else:
        complain(str(error) or type(error).__name__, hint_for(error))
    return exit_code(error)
