"""Consoles, exit codes and error output of all commands.

Standard output carries only the requested data, so that it can be piped; messages for the person at
the terminal go to standard error.
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
    """The command line or the configuration is invalid."""


class UsageError(ConfigurationError):
    """The command line is invalid; the text states the correct usage."""


JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]


def out(width: int | None = None) -> Console:
    """Return a new console on standard output: one per call, because tests and shells redirect
    it."""
    return Console(highlight=False, soft_wrap=True, width=width)


def err() -> Console:
    """Return a console on standard error."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """Print one JSON document on standard output: on one line for a pipe, indented for a
    terminal."""
    data = msgspec.json.encode(value)
    if sys.stdout.isatty():
        data = msgspec.json.format(data)
    sys.stdout.write(data.decode() + "\n")


def complain(what: str, hint: str = "") -> None:
    """Print an error and, on a second line, what to do about it."""
    console = err()
    for line in printable(what).split("\n"):
        console.print(f"[bold red]error:[/] {escape(line)}")
    if hint:
        console.print(f"[dim]{escape(hint)}[/]")


def printable(text: str) -> str:
    """Return `text` with control characters and unencodable characters escaped."""
    escaped = text.encode("utf-8", "backslashreplace").decode()
    return "".join(c if c == "\n" or c.isprintable() else f"\\x{ord(c):02x}" for c in escaped)


def no_such(option: str, what: str, word: str, known: Iterable[str]) -> UsageError:
    """Return the error for an unknown word, with the nearest known one as a suggestion."""
    words = list(known)
    guess = nearest(word, words)
    hint = f"did you mean {guess}?" if guess else f"there are {', '.join(words)}"
    return UsageError(f"{option}: there is no {what} {word!r}; {hint}")


def hint_for(error: Exception) -> str:
    """Return what to do about an error: its notes, or a hint by its class."""
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
    """Return the exit code of a command that ends with `error`."""
    return Exit.USAGE if isinstance(error, ConfigurationError) else Exit.REFUSED


def report(error: Exception) -> Exit:
    """Print the error that ended a command (SluiceError, OSError) without a traceback."""
    if isinstance(error, OSError) and not isinstance(error, SluiceError):
        reason = error.strerror or str(error)
        complain(f"{error.filename}: {reason}" if error.filename else reason)
    else:
        complain(str(error) or type(error).__name__, hint_for(error))
    return exit_code(error)
